package controller

import (
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
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
	former := func() (n int) {
		for _, err := range l.cache.UsageInput(t.Context(), l.now).Former(time.Time{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	for i, step := range []struct {
		name   string
		do     func()
		former int
		want   string
	}{
		{"it joins", func() {}, 0, "2 cores"},
		{"it is down", func() { agents.phase = api.NodeDown }, 1, "2 cores, down"},
		{"there is no report since the server started", func() { agents.phase = api.NodeUnknown }, 1, "2 cores, down"},
		{"it is back", func() { agents.phase = api.NodeReady }, 2, "2 cores"},
		{"it is silent for a moment", func() { agents.phase = api.NodeUnknown }, 2, "2 cores"},
		{"it reports again", func() { agents.phase = api.NodeReady }, 2, "2 cores"},
		{"it offers more", func() { l.node("n1", 3) }, 3, "3 cores"},
		{"it is removed from the inventory", func() { l.view(l.repo.ForgetNode(t.Context(), l.cache.View(), "n1")) }, 4, "none"},
		{"it joins again", func() { l.node("n1", 3) }, 4, "3 cores"},
	} {
		l.now = l.now.Add(time.Minute)
		step.do()
		got := "none"
		if present := l.mustPass().NodeSpan("n1"); present != nil {
			got = fmt.Sprintf("%d cores", present.Cores)
			if present.Down {
				got += ", down"
			}
		}
		if got != step.want || former() != step.former {
			t.Fatalf("step %d, %s: got %s and %d former spans, want %s and %d", i, step.name, got, former(), step.want, step.former)
		}
	}
}

func TestAMachineThatRestsIsNotDown(t *testing.T) {
	l := newLed(t, memory.New())
	l.provisions()
	l.view(l.repo.CreateMachine(t.Context(), api.MachineIntent{Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:01"}}}))
	m := l.mustPass().Machine("n1")
	l.node("n1", 4)
	phase := func(phase api.MachinePhase, power api.PowerState) {
		t.Helper()
		record := *m.Record
		record.Phase, record.Power = phase, power
		l.view(l.lead.writer.CommitMachine(t.Context(), l.cache.View().Machine("n1"), state.MachineWrite{Record: record}))
	}
	down := func(when string, want bool) {
		t.Helper()
		l.now = l.now.Add(time.Minute)
		if s := l.mustPass().NodeSpan("n1"); s == nil || s.Down != want {
			t.Errorf("%s: its span is %+v; down is to be %t", when, s, want)
		}
	}
	phase(api.MachineReady, api.PowerOn)
	down("its agent is there", false)
	l.agents.down["n1"] = true
	phase(api.MachineOff, api.PowerOff)
	down("it is off", false)
	phase(api.MachineFailed, api.PowerOn)
	down("it did not boot", true)
	phase(api.MachineOff, api.PowerOff)
	down("it is off again", false)
	l.drain("n1")
	down("it is drained", true)
}
