package manual_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/manual"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

func open(t power.Target) (power.Switch, error) { return manual.New(t) }

func TestManualMeetsTheContract(t *testing.T) {
	t.Parallel()
	powertest.Run(t, func(*testing.T) powertest.Machine {
		return powertest.Machine{Open: open, Target: power.Target{Name: "m1", Control: api.PowerControl{Kind: api.PowerManual}}, Deaf: true}
	})
}

func TestAPersonIsToldWhatToDoWithWhichMachine(t *testing.T) {
	t.Parallel()
	s, err := manual.New(power.Target{Name: "m1"})
	if err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		"let it boot from the network": s.On(t.Context(), power.BootDevice{Network: true}), `press the power button of "m1"`: s.On(t.Context(), power.BootDevice{}),
		"until it is off": s.Off(t.Context()), "briefly": s.Shutdown(t.Context()),
	} {
		var byHand *power.ByHandError
		if !errors.As(err, &byHand) || !strings.Contains(byHand.Do, want) || !strings.Contains(byHand.Do, "m1") {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
	if _, err := manual.New(power.Target{Name: "m1", Control: api.PowerControl{Address: "10.0.0.7"}}); err == nil {
		t.Error("an address was taken")
	}
}
