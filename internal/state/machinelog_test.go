package state_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// bmcEvents are so many events of a machine's BMC.
func bmcEvents(n int) (events []api.Event) {
	for i := range n {
		events = append(events, api.Event{Time: now, Node: "n1", Reason: api.ReasonBMCLog, Message: fmt.Sprint("entry ", i)})
	}
	return events
}

func TestAnEntryOfABMCsLogIsToldByOneOfTwoReadings(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := enrolled(t, s)
		base := w.machine("n1")
		mark := api.BMCLogMark{Log: "sel", IDs: []string{"0001"}, At: now}
		w.reach(w.leader.CommitMachineLog(t.Context(), base, mark, bmcEvents(state.MaxLogEvents)))
		if _, err := w.leader.CommitMachineLog(t.Context(), base, mark, bmcEvents(state.MaxLogEvents)); !errors.Is(err, store.ErrConflict) {
			t.Errorf("the same entries again: got %v, want ErrConflict", err)
		}
		events, err := w.repo.Events(t.Context(), state.NodeLog("n1"), 0, 1000)
		if err != nil || len(events) != state.MaxLogEvents {
			t.Errorf("got %d events, %v; want %d", len(events), err, state.MaxLogEvents)
		}
		if got := w.machine("n1").LogMark; got.Log != mark.Log || len(got.IDs) != 1 {
			t.Errorf("the mark is %+v, want %+v", got, mark)
		}
		if _, err := w.leader.CommitMachineLog(t.Context(), w.machine("n1"), mark, bmcEvents(state.MaxLogEvents+1)); err == nil {
			t.Error("more events than a commit takes were taken")
		}
	})
}

func TestTheMarkOfALogGoesWithItsMachine(t *testing.T) {
	w := enrolled(t, openMemory(t))
	w.reach(w.leader.CommitMachineLog(t.Context(), w.machine("n1"), api.BMCLogMark{Log: "sel"}, nil))
	w.reach(w.leader.ForgetMachine(t.Context(), w.machine("n1")))
	w.reach(w.repo.CreateMachine(t.Context(), machine("n1", mac1)))
	if got := w.machine("n1").LogMark; got.Log != "" {
		t.Errorf("another machine of the name begins with the mark %+v", got)
	}
}
