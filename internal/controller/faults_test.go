package controller

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestHardwareErrorsOfANodeAreEventsOnceEvenUnderAnotherLeader(t *testing.T) {
	l := newLed(t, memory.New())
	l.view(l.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
	see := func(uncorrected int64) (texts []string) {
		t.Helper()
		l.agents.faults = map[string]api.HardwareFaults{"n1": {Boot: "b", Memory: []api.MemoryFaults{{Controller: "mc0", Uncorrected: uncorrected}}}}
		l.mustPass()
		l.mustPass()
		events, err := l.repo.Events(t.Context(), state.NodeLog("n1"), 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			texts = append(texts, e.Reason+": "+e.Message)
		}
		return texts
	}
	one := "HardwareFault: memory controller mc0 counted 1 uncorrectable errors since its boot, 1 of them new; replace the module"
	two := "HardwareFault: memory controller mc0 counted 3 uncorrectable errors since its boot, 2 of them new; replace the module"
	if got := see(0); len(got) > 0 {
		t.Errorf("a healthy node has the events %q", got)
	}
	if got := see(1); !slices.Equal(got, []string{one}) {
		t.Errorf("got %q, want %q", got, one)
	}
	l.campaign()
	if got := see(1); !slices.Equal(got, []string{one}) {
		t.Errorf("under another leader: got %q", got)
	}
	if got := see(3); !slices.Equal(got, []string{one, two}) {
		t.Errorf("got %q, want the second event", got)
	}
}
