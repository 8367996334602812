package powertest

import (
	"fmt"
	"strings"
)

// SensorRecord describes a sensor of a simulated BMC, for its sensor data record (IPMI 2.0, section 43).
type SensorRecord struct {
	ID, Number byte
	Name       string
	// Type is the sensor's (table 42-3), Reading its event and reading type (table 42-1), Unit its base unit (section 43.17).
	Type, Reading, Unit byte
	// Format is that of its readings: 0 unsigned, 2 two's complement. M, B, and the exponents of B and of the result convert them (section 36.3).
	Format           byte
	M, B, BExp, RExp int
	// Linearization is 0 for a linear sensor (table 43-1).
	Linearization byte
	// Thresholds are raw: lower warning, critical, fatal, upper warning, critical, fatal; nil: the sensor has none.
	Thresholds []byte
	// Owner is its controller; 0: the BMC.
	Owner byte
}

// Full returns the full sensor record (table 43-1).
func (s SensorRecord) Full() []byte {
	r := make([]byte, 48, 64)
	copy(r, []byte{s.ID, 0, 0x51, 0x01, 0, s.owner(), 0, s.Number, 0x03, 1, 0x7F, 0x68, s.Type, s.Reading})
	if s.Thresholds != nil {
		r[11] |= 2 << 2 // readable and settable
		r[18], r[19] = 0x3F, 0x3F
		copy(r[36:42], []byte{s.Thresholds[5], s.Thresholds[4], s.Thresholds[3], s.Thresholds[2], s.Thresholds[1], s.Thresholds[0]})
	}
	r[20], r[21], r[23] = s.Format<<6, s.Unit, s.Linearization
	r[24], r[25] = byte(s.M), byte(s.M>>2)&0xC0
	r[26], r[27] = byte(s.B), byte(s.B>>2)&0xC0
	r[29] = byte(s.RExp)<<4 | byte(s.BExp)&0x0F
	return s.named(r)
}

// Compact returns the compact sensor record (table 43-2).
func (s SensorRecord) Compact() []byte {
	r := make([]byte, 32, 48)
	copy(r, []byte{s.ID, 0, 0x51, 0x02, 0, s.owner(), 0, s.Number, 0x0A, 1, 0x67, 0x40, s.Type, s.Reading})
	r[20] = 0xC0 // no analog reading
	r[23] = 1
	return s.named(r)
}

func (s SensorRecord) owner() byte {
	if s.Owner != 0 {
		return s.Owner
	}
	return 0x20
}

// named appends the name, whose type and length is the record's last byte, and fills in the record's length.
func (s SensorRecord) named(r []byte) []byte {
	r[len(r)-1] = 0xC0 | byte(len(s.Name))
	r = append(r, s.Name...)
	r[4] = byte(len(r) - 5)
	return r
}

// AddRecord is the simulator's command that adds a record to the BMC's repository.
func AddRecord(record []byte) string {
	var b strings.Builder
	b.WriteString("main_sdr_add 0x20")
	for _, c := range record {
		fmt.Fprintf(&b, " 0x%02x", c)
	}
	return b.String()
}

// Commands are the simulator's commands that make the sensor, with its record and a raw value. A discrete one begins without a state.
func (s SensorRecord) Commands(raw byte) []string {
	at := fmt.Sprintf("0x20 0 %d", s.Number)
	out := []string{fmt.Sprintf("sensor_add %s 0x%02x 0x%02x", at, s.Type, s.Reading)}
	if s.Reading != 1 {
		return append(out, "sensor_set_event_support "+at+" enable scanning per-state 000000000000000 000000000000000 000000000000000 000000000000000", AddRecord(s.Compact()))
	}
	if s.Thresholds != nil {
		command := "sensor_set_threshold " + at + " settable 111111"
		for i := len(s.Thresholds) - 1; i >= 0; i-- {
			command += fmt.Sprintf(" 0x%02x", s.Thresholds[i])
		}
		out = append(out, command)
	}
	return append(out,
		"sensor_set_event_support "+at+" enable scanning per-state 000000000000000 000000000000000 000000000000000 000000000000000",
		fmt.Sprintf("sensor_set_value %s 0x%02x 0", at, raw), AddRecord(s.Full()))
}
