package sensors_test

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

func TestWhatAMachineDrawsIsItsWholePowerOrThatOfAllItsSupplies(t *testing.T) {
	t.Parallel()
	of := func(kind api.SensorKind, watts float64) api.Sensor {
		return api.Sensor{Name: "S", Kind: kind, Unit: api.UnitWatts, Value: &watts}
	}
	silent := api.Sensor{Name: "PSU 2", Kind: api.SensorPowerSupply, State: api.SensorUnavailable}
	for _, c := range []struct {
		name  string
		all   []api.Sensor
		watts float64
		known bool
	}{
		{"nothing", nil, 0, false},
		{"one sensor of power", []api.Sensor{of(api.SensorPower, 200), of(api.SensorPowerSupply, 120), of(api.SensorPowerSupply, 100)}, 200, true},
		{"the whole and a part", []api.Sensor{of(api.SensorPower, 90), of(api.SensorPower, 200)}, 200, true},
		{"a machine that is off", []api.Sensor{of(api.SensorPower, 0)}, 0, true},
		{"two supplies", []api.Sensor{of(api.SensorPowerSupply, 120), of(api.SensorPowerSupply, 100)}, 220, true},
		{"two supplies, one of them silent", []api.Sensor{of(api.SensorPowerSupply, 120), silent}, 0, false},
		{"a sensor without a reading", []api.Sensor{{Name: "Power", Kind: api.SensorPower, State: api.SensorUnavailable}}, 0, false},
	} {
		watts, reason := sensors.Power(c.all)
		if watts != c.watts || (reason == "") != c.known {
			t.Errorf("%s: got %g W and the reason %q; want %g W, known: %v", c.name, watts, reason, c.watts, c.known)
		}
	}
}
