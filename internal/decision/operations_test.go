package decision

import (
	"errors"
	"reflect"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// unhandled reports whether an error says that an operation is not known.
func unhandled(err error) bool {
	var u *lifecycle.UnhandledOperation
	return errors.As(err, &u)
}

func TestEachOperationIsKnownWhereItIsCarriedOut(t *testing.T) {
	t.Parallel()
	for _, op := range lifecycle.ClusterOperations() {
		if _, err := Apply(running(), []lifecycle.ClusterOperation{op}, t0); unhandled(err) {
			t.Error(err)
		}
	}
	for _, op := range lifecycle.QuarantineOperations() {
		if _, err := ApplyQuarantine(api.Quarantine{}, []lifecycle.QuarantineOperation{op}, t0); unhandled(err) {
			t.Error(err)
		}
	}
	for _, op := range lifecycle.MachineOperations() {
		record := api.MachineRecord{Name: "n1", Phase: api.MachineBooting, Boot: &api.Boot{}}
		if _, err := ApplyMachine(&api.MachineIntent{Name: "n1"}, &record, []lifecycle.MachineOperation{op}, t0); unhandled(err) {
			t.Error(err)
		}
	}
}

// These are operations that no handler knows.
type (
	strangeToClusters    struct{ lifecycle.ClusterOperation }
	strangeToQuarantines struct{ lifecycle.QuarantineOperation }
	strangeToMachines    struct{ lifecycle.MachineOperation }
)

func TestAnOperationThatNobodyKnowsIsRefusedWithAllThatIsPlannedBesides(t *testing.T) {
	t.Parallel()
	say := lifecycle.Emit{Reason: lifecycle.EventReady, Message: "said beside it"}
	for name, apply := range map[string]func() (any, error){
		"of a cluster": func() (any, error) {
			return Apply(running(), []lifecycle.ClusterOperation{say, strangeToClusters{}}, t0)
		},
		"of a quarantine": func() (any, error) {
			return ApplyQuarantine(api.Quarantine{}, []lifecycle.QuarantineOperation{lifecycle.EndQuarantine{ID: "a"}, say, strangeToQuarantines{}}, t0)
		},
		"of a machine": func() (any, error) {
			ops := []lifecycle.MachineOperation{lifecycle.Verified{}, say, strangeToMachines{}}
			return ApplyMachine(&api.MachineIntent{}, &api.MachineRecord{}, ops, t0)
		},
	} {
		change, err := apply()
		if !unhandled(err) || !reflect.ValueOf(change).IsZero() {
			t.Errorf("an unknown operation %s: error %v, change %+v; want an error that names it and nothing to write", name, err, change)
		}
	}
}
