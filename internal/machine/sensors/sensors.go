// Package sensors reads the sensors of machines' BMCs: temperatures, fans, power supplies and power draw.
//
// A Reader is one machine's: the switches of power that speak IPMI and Redfish are readers. The Poller asks them in turn, slowly, and
// gives way to orders of power. What is not known is unavailable and never zero. The package must not decide what follows from a reading,
// and must not log a password. Start with Reader, then Poller.
package sensors

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Reader reads the sensors of one machine. A power.Switch whose BMC has sensors implements it.
type Reader interface {
	// Sensors reads all sensors that say something about the machine's health or its draw. It returns before its context's deadline, leaves no
	// session open at the BMC, and changes nothing there. Its errors are those of package power: ErrCannot for a BMC without sensors,
	// ErrCredentials, ErrUnreachable and ErrBusy. One sensor that can't be read is no error but unavailable.
	Sensors(ctx context.Context) ([]api.Sensor, error)
}

// Judge returns the state of a value by thresholds: at one or beyond it. Without thresholds a value is ok.
func Judge(value float64, t *api.SensorThresholds) api.SensorState {
	if t == nil {
		return api.SensorOK
	}
	above := func(limit *float64) bool { return limit != nil && value >= *limit }
	below := func(limit *float64) bool { return limit != nil && value <= *limit }
	switch {
	case above(t.UpperFatal), above(t.UpperCritical), below(t.LowerFatal), below(t.LowerCritical):
		return api.SensorCritical
	case above(t.UpperWarning), below(t.LowerWarning):
		return api.SensorWarning
	default:
		return api.SensorOK
	}
}

// states are all states, the best first.
var states = []api.SensorState{api.SensorOK, api.SensorUnavailable, api.SensorWarning, api.SensorCritical}

// Worse returns the worse of two states. A state that is not known counts as unavailable.
func Worse(a, b api.SensorState) api.SensorState {
	if rank(a) >= rank(b) {
		return states[rank(a)]
	}
	return states[rank(b)]
}

func rank(s api.SensorState) int {
	if i := slices.Index(states, s); i >= 0 {
		return i
	}
	return 1
}

// Summary returns the state of a machine by its sensors, and names those that are not ok. Single sensors that are unavailable don't count
// while others are known: a machine that is off has many.
func Summary(all []api.Sensor) (api.SensorState, string) {
	state, known := api.SensorOK, false
	var bad []string
	for _, s := range all {
		if s.State == api.SensorUnavailable {
			continue
		}
		known = true
		state = Worse(state, s.State)
		if s.State != api.SensorOK {
			bad = append(bad, Describe(s))
		}
	}
	if !known {
		return api.SensorUnavailable, "the BMC reports no sensor that can be read"
	}
	const few = 4
	if len(bad) > few {
		bad = append(bad[:few], fmt.Sprintf("%d more", len(bad)-few))
	}
	return state, strings.Join(bad, "; ")
}

// Describe is a sensor in words: name, value, state and reason.
func Describe(s api.Sensor) string {
	text := s.Name
	if s.Value != nil {
		text += " " + Value(s)
	}
	text += " (" + string(s.State) + ")"
	if s.Message != "" {
		text += ": " + s.Message
	}
	return text
}

// Value is a sensor's value with its unit, empty for none.
func Value(s api.Sensor) string {
	if s.Value == nil {
		return ""
	}
	return Number(*s.Value, s.Unit)
}

// Number is a value in a unit.
func Number(value float64, unit api.SensorUnit) string {
	signs := map[api.SensorUnit]string{
		api.UnitCelsius: "%.0f °C", api.UnitRPM: "%.0f RPM", api.UnitPercent: "%.0f %%", api.UnitWatts: "%.0f W", api.UnitVolts: "%.2f V", api.UnitAmperes: "%.2f A",
	}
	format := signs[unit]
	if format == "" {
		format = "%g"
	}
	return fmt.Sprintf(format, value)
}
