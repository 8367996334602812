package monitor

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

func TestANetworkIsCheckedByTheNodesAgent(t *testing.T) {
	m := newTest(t)
	if _, err := m.CheckNetwork(t.Context(), "n1", 3, 7); err == nil || !strings.Contains(err.Error(), "not connected") {
		t.Errorf("no agent: %v", err)
	}
	agent := greeted(t, m, serve(t, m, nil), "a1")
	type result struct {
		report agentstream.NetworkReport
		err    error
	}
	results := make(chan result, 1)
	go func() {
		report, err := m.CheckNetwork(t.Context(), "n1", 3, 7)
		results <- result{report, err}
	}()
	var asked *agentstream.CheckNetwork
	for asked == nil {
		down, err := agent.Receive()
		if err != nil {
			t.Fatal(err)
		}
		asked = down.CheckNetwork
	}
	if asked.Network != 3 || asked.Mark != 7 {
		t.Errorf("the agent was asked %+v, want network 3 and mark 7", asked)
	}
	report := agentstream.NetworkReport{
		Pending: "\x1b[2Jlater", Ports: 1, Drift: make([]fabric.Drift, agentstream.MaxReported+1), Wrong: map[string]string{"a": "\x1bgone"},
		Meetings: []fabric.Meeting{{Peer: netip.MustParseAddr("198.18.0.2"), Full: true, Problem: "\x1bfull"}},
	}
	report.Drift[0] = fabric.Drift{Network: 3, Object: "bridge\x1b", Want: "\x1b1", Got: "2"}
	if err := agent.Send(agentstream.Up{NetworkChecked: &agentstream.NetworkChecked{Answer: agentstream.Answer{ID: asked.ID}, NetworkReport: report}}); err != nil {
		t.Fatal(err)
	}
	got := <-results
	if got.err != nil || len(got.report.Drift) != agentstream.MaxReported || got.report.Ports != 1 || !got.report.Meetings[0].Full {
		t.Fatalf("got %+v, %v; want the report, bounded", got.report, got.err)
	}
	for _, text := range []string{got.report.Pending, got.report.Drift[0].Object, got.report.Drift[0].Want, got.report.Wrong["a"], got.report.Meetings[0].Problem} {
		if strings.Contains(text, "\x1b") {
			t.Errorf("text %q would steer a terminal", text)
		}
	}
}

func TestTheDesiredNetworkOfANodeIsWhatItsAgentWasSent(t *testing.T) {
	m := newTest(t)
	if _, known, err := m.DesiredNetwork("n1", 1); known || err != nil {
		t.Errorf("a node without orders has a network: %v", err)
	}
	n := fabric.Network{Network: api.Network{Index: 1}, Ports: []fabric.Port{{ID: "a"}}}
	group := fabric.Group{ID: "web", Ports: []string{"a"}}
	groups, err := agentstream.NewGroups(1, []fabric.Group{group})
	if err != nil {
		t.Fatal(err)
	}
	m.SetDesired("n1", agentstream.Desired{Networks: []fabric.Network{n}, Groups: []*agentstream.Share{groups}})
	got, known, err := m.DesiredNetwork("n1", 1)
	if err != nil || !known || !got.Guarded("a") {
		t.Errorf("got %+v, %t, %v; want the network with its groups", got, known, err)
	}
	if _, known, _ := m.DesiredNetwork("n1", 2); known {
		t.Error("the node has a network that it was not sent")
	}
}
