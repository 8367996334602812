package situation

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestAMachineIsCleanOfAMemberThatItWasNotBootedForOrThatItWasCleanedAfter(t *testing.T) {
	of := func(tenant *api.MachineTenant) *state.Machine {
		return &state.Machine{Record: &api.MachineRecord{Phase: api.MachineOff, Tenant: tenant}}
	}
	for name, test := range map[string]struct {
		machine *state.Machine
		want    bool
	}{
		"removed":                           {nil, true},
		"never decided about":               {&state.Machine{}, true},
		"cleaned, or never booted":          {of(nil), true},
		"booted for another member":         {of(&api.MachineTenant{Assignment: "b"}), true},
		"off after the member, and no more": {of(&api.MachineTenant{Assignment: "a"}), false},
	} {
		if got := cleanMachine(test.machine, "a"); got != test.want {
			t.Errorf("%s: clean: %v, want %v", name, got, test.want)
		}
	}
}
