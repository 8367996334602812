package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// printSensors writes what a machine's BMC reports.
func (a *app) printSensors(w io.Writer, all *api.MachineSensors) {
	if all == nil {
		return
	}
	text := string(all.State)
	if !all.ReadAt.IsZero() {
		text += ", read " + a.age(all.ReadAt) + " ago"
	}
	if all.Message != "" {
		text += ": " + all.Message
	}
	fmt.Fprintln(w)
	fields(w, "Sensors", text)
	if len(all.Sensors) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := newTable(w, "SENSOR", "KIND", "VALUE", "STATE", "THRESHOLDS", "MESSAGE")
	for _, s := range all.Sensors {
		t.row(s.Name, string(s.Kind), sensors.Value(s), string(s.State), thresholdsText(s), s.Message)
	}
	t.flush()
}

// thresholdsText lists the thresholds of a sensor, the lowest first.
func thresholdsText(s api.Sensor) string {
	t := s.Thresholds
	if t == nil {
		return ""
	}
	var parts []string
	for _, one := range []struct {
		name  string
		value *float64
	}{
		{"fatal below", t.LowerFatal},
		{"critical below", t.LowerCritical},
		{"warning below", t.LowerWarning},
		{"warning from", t.UpperWarning},
		{"critical from", t.UpperCritical},
		{"fatal from", t.UpperFatal},
	} {
		if one.value != nil {
			parts = append(parts, one.name+" "+sensors.Number(*one.value, s.Unit))
		}
	}
	return strings.Join(parts, ", ")
}
