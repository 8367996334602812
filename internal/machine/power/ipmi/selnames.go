package ipmi

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// systemEvent is the type of records that describe an event of a sensor (table 32-1).
const systemEvent = 0x02

// sensorTypes are names of sensor types (table 42-3).
var sensorTypes = map[byte]string{
	0x01: "temperature", 0x02: "voltage", 0x03: "current", 0x04: "fan", 0x05: "chassis", 0x06: "security", 0x07: "processor", 0x08: "power supply",
	0x09: "power", 0x0C: "memory", 0x0D: "drive", 0x0F: "firmware", 0x10: "event log", 0x12: "system", 0x13: "critical interrupt", 0x1B: "cable", 0x20: "operating system",
	0x21: "slot", 0x23: "watchdog", 0x28: "management",
}

// meaning is what an event of a sensor means.
type meaning struct {
	text     string
	severity api.SensorState
}

// crossings are those of thresholds (table 42-2, event type 01h), by offset; odd offsets are the going high of lower thresholds, and so on.
var crossings = []meaning{
	{"below its lower warning threshold", api.SensorWarning},
	{"below its lower critical threshold", api.SensorCritical},
	{"below its lower fatal threshold", api.SensorCritical},
	{"above its upper warning threshold", api.SensorWarning},
	{"above its upper critical threshold", api.SensorCritical},
	{"above its upper fatal threshold", api.SensorCritical},
}

// specific are events by sensor type and offset (table 42-3). Others are described by their numbers.
var specific = map[[2]byte]meaning{
	{0x05, 0}: {"the chassis was opened", api.SensorWarning}, {0x05, 4}: {"the cable of the network was unplugged", api.SensorWarning},
	{0x07, 0}: {"internal error", api.SensorCritical}, {0x07, 1}: {"thermal trip", api.SensorCritical}, {0x07, 2}: {"self test failed", api.SensorCritical},
	{0x07, 5}: {"configuration error", api.SensorCritical}, {0x07, 8}: {"disabled", api.SensorWarning}, {0x07, 10}: {"throttled", api.SensorWarning},
	{0x07, 11}: {"uncorrectable machine check", api.SensorCritical}, {0x07, 12}: {"correctable machine check", api.SensorWarning},
	{0x08, 0}: {"present", api.SensorOK}, {0x08, 1}: {"failed", api.SensorCritical}, {0x08, 2}: {"will fail soon", api.SensorWarning}, {0x08, 3}: {"input lost", api.SensorCritical},
	{0x08, 4}: {"input lost or out of range", api.SensorCritical}, {0x08, 5}: {"input out of range", api.SensorWarning}, {0x08, 6}: {"does not match the others", api.SensorWarning},
	{0x09, 0}: {"powered off", api.SensorOK}, {0x09, 1}: {"power cycled", api.SensorOK}, {0x09, 4}: {"mains lost", api.SensorCritical}, {0x09, 5}: {"did not obey its power control", api.SensorCritical},
	{0x09, 6}: {"power unit failed", api.SensorCritical}, {0x09, 7}: {"power unit will fail soon", api.SensorWarning},
	{0x0C, 0}: {"correctable ECC error", api.SensorWarning}, {0x0C, 1}: {"uncorrectable ECC error", api.SensorCritical}, {0x0C, 2}: {"parity error", api.SensorCritical},
	{0x0C, 3}: {"scrubbing failed", api.SensorCritical}, {0x0C, 4}: {"module disabled", api.SensorWarning}, {0x0C, 5}: {"no more correctable ECC errors are logged", api.SensorWarning},
	{0x0C, 7}: {"configuration error", api.SensorWarning}, {0x0C, 9}: {"throttled", api.SensorWarning}, {0x0C, 10}: {"critical overtemperature", api.SensorCritical},
	{0x0D, 0}: {"present", api.SensorOK}, {0x0D, 1}: {"failed", api.SensorCritical}, {0x0D, 2}: {"will fail soon", api.SensorWarning}, {0x0D, 5}: {"array is critical", api.SensorCritical}, {0x0D, 6}: {"array failed", api.SensorCritical},
	{0x0F, 0}: {"firmware error", api.SensorCritical}, {0x0F, 1}: {"firmware hangs", api.SensorCritical}, {0x0F, 2}: {"firmware progress", api.SensorOK},
	{0x10, 0}: {"correctable memory errors are no longer logged", api.SensorWarning}, {0x10, 2}: {"cleared", api.SensorOK}, {0x10, 4}: {"full", api.SensorWarning}, {0x10, 5}: {"almost full", api.SensorOK},
	{0x13, 0}: {"NMI by the front panel", api.SensorWarning}, {0x13, 1}: {"bus timeout", api.SensorCritical}, {0x13, 3}: {"NMI by software", api.SensorWarning}, {0x13, 4}: {"PCI parity error", api.SensorCritical},
	{0x13, 5}: {"PCI system error", api.SensorCritical}, {0x13, 7}: {"correctable bus error", api.SensorWarning}, {0x13, 8}: {"uncorrectable bus error", api.SensorCritical}, {0x13, 10}: {"fatal bus error", api.SensorCritical},
	{0x20, 0}: {"stopped while it was loaded", api.SensorWarning}, {0x20, 1}: {"stopped", api.SensorCritical},
	{0x23, 0}: {"ran out", api.SensorWarning}, {0x23, 1}: {"reset the machine", api.SensorCritical}, {0x23, 2}: {"powered the machine off", api.SensorCritical}, {0x23, 3}: {"power cycled the machine", api.SensorCritical},
}

// describe words a record of the SEL (section 32.1). repo has the names of sensors, and may be nil.
func describe(e *entry, repo *repository) sensors.Entry {
	out := sensors.Entry{At: e.at(), Severity: api.SensorOK}
	d := e.data
	if d[2] != systemEvent {
		out.Text = fmt.Sprintf("record of type %02Xh of the machine's maker: % X", d[2], d[3:])
		return out
	}
	what, number, offset := d[10], d[11], d[13]&0x0F
	kind, gone := d[12]&0x7F, d[12]&0x80 != 0
	subject := sensorTypes[what]
	if subject == "" {
		subject = fmt.Sprintf("sensor of type %02Xh", what)
	}
	name := fmt.Sprintf("number %02Xh", number)
	var record *sensorRecord
	if repo != nil {
		if known := repo.names[number]; known != "" && d[7] == bmcAddress {
			name = known
		}
		for _, r := range repo.records {
			if r.number == number && r.owner == d[7] {
				record = r
			}
		}
	}
	m := meaningOf(kind, what, offset)
	out.Severity, out.Text = m.severity, fmt.Sprintf("%s %s: %s", subject, name, m.text)
	if kind == readingThreshold && record != nil {
		out.Text += triggered(record, d)
	}
	if gone {
		out.Severity, out.Text = api.SensorOK, out.Text+", no longer so"
	}
	return out
}

// meaningOf is what an offset of an event type means.
func meaningOf(kind, what, offset byte) meaning {
	switch {
	case kind == readingThreshold && int(offset) < 2*len(crossings):
		return crossings[offset/2]
	case kind == readingSpecific:
		if m, ok := specific[[2]byte{what, offset}]; ok {
			return m
		}
	case kind == readingRedundancy && offset > 0:
		return meaning{"redundancy degraded or lost", api.SensorWarning}
	case kind == readingRedundancy:
		return meaning{"fully redundant", api.SensorOK}
	case kind == readingSeverity:
		return []meaning{
			{"ok", api.SensorOK},
			{"worse than ok", api.SensorWarning},
			{"critical", api.SensorCritical},
			{"fatal", api.SensorCritical},
			{"better, but not ok", api.SensorWarning},
			{"better, but critical", api.SensorCritical},
			{"fatal", api.SensorCritical},
			{"note", api.SensorOK},
			{"information", api.SensorOK},
		}[min(offset, 8)]
	}
	return meaning{fmt.Sprintf("event %d of type %02Xh", offset, kind), api.SensorOK}
}

// triggered is the reading that crossed a threshold, and the threshold, where the record has them (table 29-6).
func triggered(r *sensorRecord, d []byte) string {
	var parts []string
	if value, ok := r.value(d[14]); ok && d[13]>>6 == 1 {
		parts = append(parts, sensors.Number(value, r.unit))
	}
	if value, ok := r.value(d[15]); ok && d[13]>>4&3 == 1 {
		parts = append(parts, "of "+sensors.Number(value, r.unit))
	}
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, " ")
}
