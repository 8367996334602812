package ipmi

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
)

func TestAReadingThatIsNotAvailableIsNotZero(t *testing.T) {
	t.Parallel()
	r, err := parseRecord(powertest.SensorRecord{ID: 1, Number: 1, Name: "CPU", Type: 1, Reading: 1, Unit: 1, M: 1}.Full())
	if err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string][]byte{
		"flagged as unavailable": {0, scanningEnabled | unavailable, 0}, "not scanned": {0, 0x80, 0}, "too short": {0},
	} {
		s := api.Sensor{State: api.SensorUnavailable}
		if r.take(&s, answer); s.State != api.SensorUnavailable || s.Value != nil || s.Message == "" {
			t.Errorf("%s: got %+v; want it unavailable, with the reason", name, s)
		}
	}
}

func TestRecordsThatAreCutOffAreRefused(t *testing.T) {
	t.Parallel()
	for _, whole := range [][]byte{
		powertest.SensorRecord{ID: 1, Number: 1, Name: "CPU", Type: 1, Reading: 1, Unit: 1, M: 1}.Full(),
		powertest.SensorRecord{ID: 1, Number: 1, Name: "PSU", Type: 8, Reading: 0x6F}.Compact(),
	} {
		named := 0
		for n := range len(whole) + 1 {
			if r, err := parseRecord(whole[:n]); err == nil && r.name != "" {
				named++
			}
		}
		if r, err := parseRecord(whole); err != nil || len(r.name) != 3 {
			t.Errorf("the whole record: got %+v, %v", r, err)
		}
		if want := len("CPU") + 1; named != want { // cut off within the name, the rest is enough
			t.Errorf("%d beginnings of the record were read, want %d", named, want)
		}
	}
}

func TestValuesAreConvertedByUnitAndFormat(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		record powertest.SensorRecord
		raw    byte
		want   float64
	}{
		"Fahrenheit":           {powertest.SensorRecord{Type: 1, Unit: 2, M: 1}, 212, 100},
		"kelvin":               {powertest.SensorRecord{Type: 1, Unit: 3, M: 2}, 200, 126.85},
		"two's complement":     {powertest.SensorRecord{Type: 1, Unit: 1, M: 1, Format: 2}, 0x80, -128},
		"one's complement":     {powertest.SensorRecord{Type: 1, Unit: 1, M: 1, Format: 1}, 0xFE, -1},
		"a negative factor":    {powertest.SensorRecord{Type: 1, Unit: 1, M: -2, B: 5}, 10, -15},
		"exponents":            {powertest.SensorRecord{Type: 2, Unit: 4, M: 63, B: -3, BExp: 2, RExp: -3}, 200, 12.3},
		"a square":             {powertest.SensorRecord{Type: 3, Unit: 5, M: 1, Linearization: 8}, 9, 81},
		"a factor of ten bits": {powertest.SensorRecord{Type: 4, Unit: 18, M: 300}, 10, 3000},
	} {
		c.record.Reading, c.record.Name = 1, name
		r, err := parseRecord(c.record.Full())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, ok := r.value(c.raw); !ok || got != c.want {
			t.Errorf("%s: got %v (%v), want %v", name, got, ok, c.want)
		}
	}
}
