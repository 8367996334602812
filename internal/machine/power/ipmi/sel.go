package ipmi

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi/rmcpplus"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

// Commands of the system event log (SEL, section 31).
const (
	getLogInfo  = 0x40 // section 31.2
	getLogEntry = 0x43 // section 31.5
	firstEntry  = 0x0000
	lastEntry   = 0xFFFF
	entryBytes  = 16 // table 32-1
	// logName is what marks call the log.
	logName = "sel"
)

var _ sensors.LogReader = (*Switch)(nil)

// entry is one record of the SEL, with the ID of the next.
type entry struct {
	data []byte
	next uint16
}

func (e *entry) id() string { return fmt.Sprintf("%04X", binary.LittleEndian.Uint16(e.data)) }

// at is the entry's time. Those of OEM records without one, and those before the BMC's clock was set (section 37.1), are zero.
func (e *entry) at() time.Time {
	const relative = 0x20000000
	seconds := binary.LittleEndian.Uint32(e.data[3:])
	if e.data[2] >= 0xE0 || seconds < relative || seconds == 0xFFFFFFFF {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0).UTC()
}

// Log implements sensors.LogReader. The entry that was read last is looked up by its ID. If it is there with the same time, what follows it is new.
// A log that was erased since is new as a whole.
func (s *Switch) Log(ctx context.Context, after api.BMCLogMark) (sensors.Log, error) {
	var out sensors.Log
	err := s.session(ctx, func(c *rmcpplus.Session) error {
		info, err := c.Command(ctx, storage, getLogInfo)
		var failed *rmcpplus.Completion
		switch {
		case errors.As(err, &failed) && failed.Code == invalidCommand:
			return fmt.Errorf("the BMC has no event log: %w", power.ErrCannot)
		case err != nil:
			return fmt.Errorf("look for the event log: %w", err)
		case len(info) < 13:
			return fmt.Errorf("look for the event log: the BMC's answer has %d bytes instead of at least 13", len(info))
		}
		count := binary.LittleEndian.Uint16(info[1:])
		mark := api.BMCLogMark{Log: logName, Erased: int64(binary.LittleEndian.Uint32(info[9:]))}
		out.Mark = mark
		if count == 0 {
			return nil
		}
		last, err := readEntry(ctx, c, lastEntry)
		if err != nil || last == nil {
			return err
		}
		out.Mark.IDs, out.Mark.At = []string{last.id()}, last.at()
		if after.Log != logName || slices.Equal(after.IDs, out.Mark.IDs) && after.At.Equal(out.Mark.At) && after.Erased == mark.Erased {
			return nil
		}
		entries, err := readSince(ctx, c, after, mark.Erased)
		if err != nil || len(entries) == 0 {
			return err
		}
		newest := entries[len(entries)-1] // entries may have come since the last one was read
		out.Mark.IDs, out.Mark.At = []string{newest.id()}, newest.at()
		if surplus := len(entries) - sensors.MaxEntries; surplus > 0 {
			out.Skipped, entries = surplus, entries[surplus:]
		}
		// Names of sensors are of use, and not having them is no reason to say nothing.
		repo, _ := s.repository(ctx, c)
		for _, e := range entries {
			out.Entries = append(out.Entries, describe(e, repo))
		}
		return nil
	})
	return out, err
}

// maxLog bounds how far a log is followed: IDs have 16 bits.
const maxLog = 1 << 16

// readSince reads the entries that came after a mark.
func readSince(ctx context.Context, c *rmcpplus.Session, after api.BMCLogMark, erased int64) ([]*entry, error) {
	next, old := uint16(firstEntry), false
	if len(after.IDs) == 1 && after.Erased == erased {
		var id uint16
		if _, err := fmt.Sscanf(after.IDs[0], "%X", &id); err == nil {
			known, err := readEntry(ctx, c, id)
			if err != nil {
				return nil, err
			}
			if known != nil && known.id() == after.IDs[0] && known.at().Equal(after.At) {
				next = known.next
			} else {
				old = true // the entry itself was removed: only times tell which others are new
			}
		}
	}
	var all []*entry
	for range maxLog {
		if next == lastEntry {
			break
		}
		e, err := readEntry(ctx, c, next)
		if err != nil {
			return nil, err
		}
		if e == nil {
			break
		}
		if !old || e.at().After(after.At) {
			all = append(all, e)
		}
		if e.next == next {
			break
		}
		next = e.next
	}
	return all, nil
}

// readEntry reads one record of the SEL, nil where there is none of that ID.
func readEntry(ctx context.Context, c *rmcpplus.Session, id uint16) (*entry, error) {
	request := binary.LittleEndian.AppendUint16([]byte{0, 0}, id) // no reservation is needed for whole records
	answer, err := c.Command(ctx, storage, getLogEntry, append(request, 0, 0xFF)...)
	var failed *rmcpplus.Completion
	switch {
	case errors.As(err, &failed) && failed.Code == notPresent:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read entry %04Xh of the event log: %w", id, err)
	case len(answer) < 2+entryBytes:
		return nil, fmt.Errorf("read entry %04Xh of the event log: the BMC's answer has %d bytes instead of %d", id, len(answer), 2+entryBytes)
	}
	return &entry{data: slices.Clone(answer[2 : 2+entryBytes]), next: binary.LittleEndian.Uint16(answer)}, nil
}
