package sensors

import (
	"context"
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// LogReader reads the event log of one machine's BMC. A power.Switch whose BMC has a log implements it.
type LogReader interface {
	// Log returns the entries that were added after a mark, the oldest first, and the mark after them. For the zero mark it returns no entries,
	// only where the log ends now. It changes nothing at the BMC. Errors are as of Reader.Sensors.
	Log(ctx context.Context, after api.BMCLogMark) (Log, error)
}

// Log is what a BMC has logged since a mark.
type Log struct {
	Entries []Entry
	// Skipped are entries that were not read, older than Entries: there were more than MaxEntries.
	Skipped int
	Mark    api.BMCLogMark
}

// Entry is one entry of a BMC's log.
type Entry struct {
	// At is the time by the BMC's clock; zero: it does not say.
	At time.Time
	// Severity is ok for what is a mere note.
	Severity api.SensorState
	Text     string
}

// MaxEntries is how many entries are read at once, at most. ShownEntries is how many of them are told one by one, the newest.
const (
	MaxEntries   = 512
	ShownEntries = 20
)

// Lines are the entries for people. The same text several times in a row is one line, and the oldest of too many lines are only counted.
func (l Log) Lines() []string {
	type line struct {
		entry Entry
		times int
	}
	var lines []line
	for _, e := range l.Entries {
		if n := len(lines); n > 0 && lines[n-1].entry.Text == e.Text && lines[n-1].entry.Severity == e.Severity {
			lines[n-1].entry, lines[n-1].times = e, lines[n-1].times+1
			continue
		}
		lines = append(lines, line{e, 1})
	}
	var out []string
	left := l.Skipped
	if surplus := len(lines) - ShownEntries; surplus > 0 {
		for _, one := range lines[:surplus] {
			left += one.times
		}
		lines = lines[surplus:]
	}
	if left > 0 {
		out = append(out, fmt.Sprintf("%d more entries came before these; read them from the BMC", left))
	}
	for _, one := range lines {
		text := one.entry.Text
		if one.entry.Severity != api.SensorOK {
			text = string(one.entry.Severity) + ": " + text
		}
		if one.times > 1 {
			text += fmt.Sprintf(" (%d times)", one.times)
		}
		if !one.entry.At.IsZero() {
			text += ", at " + one.entry.At.UTC().Format(time.DateTime) + " by the BMC's clock"
		}
		out = append(out, text)
	}
	return out
}
