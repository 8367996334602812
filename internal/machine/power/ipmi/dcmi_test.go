package ipmi_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

// powers are the sensors of power that a simulator's BMC has.
func powers(t *testing.T, sim *powertest.Sim) (found []api.Sensor, err error) {
	t.Helper()
	s, err := ipmi.New(target(sim.Address))
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Sensors(t.Context())
	for _, one := range all {
		if one.Kind == api.SensorPower {
			found = append(found, one)
		}
	}
	return found, err
}

func TestThePowerThatNoSensorHasIsReadByDCMIAsIPMIToolReadsIt(t *testing.T) {
	t.Parallel()
	sim := powertest.StartSimWithPower(t, 1344, true)
	got, err := powers(t, sim)
	if err != nil || len(got) != 1 || got[0].Value == nil || *got[0].Value != 1344 || got[0].State != api.SensorOK || got[0].Unit != api.UnitWatts {
		t.Fatalf("got %+v, %v; want 1344 W", got, err)
	}
	text := powertest.IPMITool(t, sim.Address, "dcmi", "power", "reading")
	for line := range strings.Lines(text) {
		if strings.Contains(line, "Instantaneous power reading") {
			if !strings.Contains(line, "1344 Watts") {
				t.Errorf("ipmitool reads %q", line)
			}
			return
		}
	}
	t.Errorf("ipmitool shows no reading:\n%s", text)
}

func TestAPowerThatIsNotBeingReadIsUnavailableAndNotZero(t *testing.T) {
	t.Parallel()
	got, err := powers(t, powertest.StartSimWithPower(t, 0, false))
	if err != nil || len(got) != 1 || got[0].Value != nil || got[0].State != api.SensorUnavailable || got[0].Message == "" {
		t.Errorf("got %+v, %v; want it unavailable, with the reason", got, err)
	}
}

func TestASensorOfPowerGoesBeforeDCMI(t *testing.T) {
	t.Parallel()
	got, err := powers(t, powertest.StartSimWithPower(t, 1344, true, simulated()...))
	if err != nil || len(got) != 1 || got[0].Name != "Power" || *got[0].Value != 240 {
		t.Errorf("got %+v, %v; want the sensor's 240 W alone", got, err)
	}
}

func TestABMCWithoutDCMIHasNoPower(t *testing.T) {
	t.Parallel()
	got, err := powers(t, powertest.StartSim(t))
	if len(got) != 0 || err != nil && !errors.Is(err, power.ErrCannot) {
		t.Errorf("got %+v, %v; want none", got, err)
	}
}
