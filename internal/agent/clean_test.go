package agent

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
)

func TestAnAgentWithoutTheDriverProvesNothingClean(t *testing.T) {
	a := newTestAgent(t)
	a.networks.ok = true
	m := &memberState{id: "u1.a.1", want: &agentstream.Member{Release: true, Member: driver.Member{
		Assignment: api.Assignment{ID: "u1.a.1", Stack: api.StackVM},
	}}}
	a.members[m.id] = m
	a.clean(t.Context(), m)
	(<-a.events)()
	if m.cleaned || m.gone() || m.attempts.Count != 1 || !strings.Contains(m.attempts.LastError, "no driver for stack vm") {
		t.Errorf("cleaned %t, attempts %+v; want that it could not be looked at", m.cleaned, m.attempts)
	}
	a.report()
	if got := a.outbox.newest.Clean; len(got) > 0 {
		t.Errorf("it reports %v clean", got)
	}
}
