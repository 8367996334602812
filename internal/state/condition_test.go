package state_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestEachChangeOfAConditionHasANumber(t *testing.T) {
	w := enrolled(t, openMemory(t))
	slow := api.NetworkCondition{Delay: api.Duration(time.Millisecond)}
	for i, step := range []struct {
		condition *api.NetworkCondition
		number    int64
	}{{nil, 0}, {&slow, 1}, {&slow, 1}, {&api.NetworkCondition{Delay: slow.Delay}, 1}, {&api.NetworkCondition{Loss: 1}, 2}, {nil, 3}, {nil, 3}, {&slow, 4}} {
		in, revision, err := w.repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error {
			in.Condition, in.ConditionNumber = step.condition, 99 // which nobody else changes
			return nil
		})
		w.reach(revision, err)
		if in.ConditionNumber != step.number {
			t.Errorf("step %d: its condition %+v has number %d, want %d", i, step.condition, in.ConditionNumber, step.number)
		}
	}
}
