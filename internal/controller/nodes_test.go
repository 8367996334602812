package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// phased are agents of which a test says in what phase their nodes are.
type phased struct {
	*scripted
	phase api.NodePhase
}

func (p *phased) Node(string) (api.NodePhase, time.Time, string) { return p.phase, time.Time{}, "" }

func TestTheAccountOfCapacityTellsWhatANodeOfferedAndWhenItWasDown(t *testing.T) {
	l := newLed(t, memory.New())
	agents := &phased{l.agents, api.NodeReady}
	l.lead.cfg.Agents = agents
	l.node("n1", 2)
	for i, step := range []struct {
		name  string
		do    func()
		spans int
		want  string
	}{
		{"it joins", func() {}, 1, "2 cores"},
		{"it is down", func() { agents.phase = api.NodeDown }, 2, "2 cores, down"},
		{"there is no report since the server started", func() { agents.phase = api.NodeUnknown }, 2, "2 cores, down"},
		{"it is back", func() { agents.phase = api.NodeReady }, 3, "2 cores"},
		{"it is silent for a moment", func() { agents.phase = api.NodeUnknown }, 3, "2 cores"},
		{"it is heard again", func() { agents.phase = api.NodeReady }, 3, "2 cores"},
		{"it offers more", func() { l.node("n1", 3) }, 4, "3 cores"},
		{"it is removed from the inventory", func() { l.view(l.repo.ForgetNode(t.Context(), l.cache.View(), "n1")) }, 4, "3 cores, closed"},
	} {
		l.now = l.now.Add(time.Minute)
		step.do()
		view := l.mustPass()
		newest := view.NodeSpan("n1")
		if newest == nil {
			t.Fatalf("step %d, %s: no span", i, step.name)
		}
		got := fmt.Sprintf("%d cores", newest.Cores)
		if newest.Down {
			got += ", down"
		}
		if newest.To != nil {
			got += ", closed"
		}
		if got != step.want || len(view.NodeSpans) != step.spans {
			t.Fatalf("step %d, %s: got %d spans, the newest %s; want %d, %s", i, step.name, len(view.NodeSpans), got, step.spans, step.want)
		}
	}
}
