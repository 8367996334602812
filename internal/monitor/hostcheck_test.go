package monitor

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
)

// checked is what CheckHost returned.
type checked struct {
	check api.HostCheck
	err   error
}

// askedCheck asks for a check and returns the question that the agent got.
func askedCheck(t *testing.T, m *Monitor, agent *agentstream.ClientConn) (agentstream.CheckHost, <-chan checked) {
	t.Helper()
	result := make(chan checked, 1)
	go func() {
		check, err := m.CheckHost(t.Context(), "n1")
		result <- checked{check, err}
	}()
	for {
		down, err := agent.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if down.CheckHost != nil {
			return *down.CheckHost, result
		}
	}
}

func TestAHostIsCheckedByItsAgentAndOneAtATime(t *testing.T) {
	m := newTest(t)
	if _, err := m.CheckHost(t.Context(), "n1"); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("no agent: %v", err)
	}
	agent := greeted(t, m, serve(t, m, nil), "a1")
	question, result := askedCheck(t, m, agent)
	if _, err := m.CheckHost(t.Context(), "n1"); err == nil || !strings.Contains(err.Error(), "already checking") {
		t.Errorf("a second check at once: %v", err)
	}
	many := make([]api.HostFinding, agentstream.MaxFindings+1)
	many[0] = api.HostFinding{Area: "vm", Name: "KVM", Status: "missing", Detail: "\x1b[2Jno KVM"}
	for _, answer := range []agentstream.HostChecked{
		{Answer: agentstream.Answer{ID: question.ID + 1, Failure: "of another question"}},
		{Answer: agentstream.Answer{ID: question.ID}, Findings: many},
		{Answer: agentstream.Answer{ID: question.ID}},
	} {
		if err := agent.Send(agentstream.Up{HostChecked: &answer}); err != nil {
			t.Fatal(err)
		}
	}
	got := <-result
	if got.err != nil || len(got.check.Findings) != agentstream.MaxFindings {
		t.Fatalf("got %d findings, %v", len(got.check.Findings), got.err)
	}
	if f := got.check.Findings[0]; f.Detail != "?[2Jno KVM" || f.Name != "KVM" {
		t.Errorf("a finding is not as it was, and fit for terminals: %+v", f)
	}
	question, result = askedCheck(t, m, agent)
	if err := agent.Send(agentstream.Up{HostChecked: &agentstream.HostChecked{Answer: agentstream.Answer{ID: question.ID, Failure: "no programs"}}}); err != nil {
		t.Fatal(err)
	}
	if got := <-result; got.err == nil || !strings.Contains(got.err.Error(), "no programs") {
		t.Errorf("got %+v, want the agent's failure", got)
	}
}
