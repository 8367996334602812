package redfish

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
)

var _ sensors.LogReader = (*Switch)(nil)

// Bounds of what is read of a log: services that are looked at, pages, and entries that have to be read one by one.
const (
	maxServices = 32
	maxPages    = 200
	maxSingle   = 64
)

// logEntry is what is read of a LogEntry.
type logEntry struct {
	Path     string `json:"@odata.id"`
	ID       string `json:"Id"`
	Created  string `json:"Created"`
	Severity string `json:"Severity"`
	Message  string `json:"Message"`
	Name     string `json:"Name"`
}

func (e *logEntry) at() time.Time {
	at, err := time.Parse(time.RFC3339, e.Created)
	if err != nil {
		return time.Time{}
	}
	return at.UTC()
}

// Log implements sensors.LogReader. Services keep entries in either order, and IDs may be used again after the log was cleared. So entries are
// new by their time, and those of one time by their IDs.
func (s *Switch) Log(ctx context.Context, after api.BMCLogMark) (sensors.Log, error) {
	var out sensors.Log
	err := s.session(ctx, func(c *client) error {
		system, err := s.find(ctx, c)
		if err != nil {
			return err
		}
		path, err := c.findLog(ctx, system)
		if err != nil {
			return err
		}
		all, err := c.entries(ctx, path)
		if err != nil {
			return err
		}
		out = since(path, all, after)
		return nil
	})
	return out, err
}

// since picks the entries that are new after a mark of this log. In one without times, IDs that grow tell.
func since(path string, all []logEntry, after api.BMCLogMark) sensors.Log {
	out := sensors.Log{Mark: api.BMCLogMark{Log: path}}
	if after.Log == path {
		out.Mark.IDs, out.Mark.At = after.IDs, after.At
	}
	slices.SortStableFunc(all, func(a, b logEntry) int {
		if c := a.at().Compare(b.at()); c != 0 {
			return c
		}
		return compareIDs(a.ID, b.ID)
	})
	for _, e := range all {
		at := e.at()
		if after.Log == path && (at.Before(after.At) || at.Equal(after.At) && slices.Contains(after.IDs, e.ID)) {
			continue
		}
		if at.After(out.Mark.At) {
			out.Mark.At, out.Mark.IDs = at, nil
		}
		if at.Equal(out.Mark.At) {
			out.Mark.IDs = append(slices.Clip(out.Mark.IDs), e.ID)
		}
		severity := map[string]api.SensorState{"Warning": api.SensorWarning, "Critical": api.SensorCritical}[e.Severity]
		out.Entries = append(out.Entries, sensors.Entry{At: at, Severity: cmp.Or(severity, api.SensorOK), Text: cmp.Or(strings.TrimSpace(e.Message), e.Name, "entry "+e.ID)})
	}
	out.Mark.IDs = out.Mark.IDs[max(0, len(out.Mark.IDs)-sensors.MaxEntries):]
	if after.Log != path {
		out.Entries = nil
	}
	if surplus := len(out.Entries) - sensors.MaxEntries; surplus > 0 {
		out.Skipped, out.Entries = surplus, out.Entries[surplus:]
	}
	return out
}

// compareIDs orders IDs as numbers where they are some.
func compareIDs(a, b string) int {
	x, errX := strconv.ParseInt(a, 10, 64)
	y, errY := strconv.ParseInt(b, 10, 64)
	if errX == nil && errY == nil {
		return cmp.Compare(x, y)
	}
	return strings.Compare(a, b)
}

// findLog returns the path of the entries of the log to follow: a system event log where there is one, of the system or of a manager of it.
func (c *client) findLog(ctx context.Context, system *computerSystem) (string, error) {
	places := []string{system.LogServices.Path}
	for _, m := range system.Links.ManagedBy[:min(len(system.Links.ManagedBy), maxChassis)] {
		var manager struct {
			LogServices link `json:"LogServices"`
		}
		if _, err := c.optional(ctx, m.Path, &manager); err != nil {
			return "", err
		}
		places = append(places, manager.LogServices.Path)
	}
	best, rank := "", 0
	for _, place := range places {
		services, err := c.list(ctx, place)
		if err != nil {
			return "", err
		}
		for _, path := range services[:min(len(services), maxServices)] {
			var service struct {
				ID      string `json:"Id"`
				Kind    string `json:"LogEntryType"`
				Enabled *bool  `json:"ServiceEnabled"`
				Entries link   `json:"Entries"`
			}
			if there, err := c.optional(ctx, path, &service); err != nil {
				return "", err
			} else if !there || service.Entries.Path == "" || service.Enabled != nil && !*service.Enabled {
				continue
			}
			if r := rankLog(service.ID, service.Kind); r > rank {
				best, rank = service.Entries.Path, r
			}
		}
	}
	if best == "" {
		return "", fmt.Errorf("system %q has no event log: %w", system.ID, power.ErrCannot)
	}
	return best, nil
}

// rankLog ranks a log: 0 for one that is not about the hardware. Names are those that makers use: Sel of Dell and OpenBMC, IML of HPE.
func rankLog(id, kind string) int {
	id = strings.ToLower(id)
	switch {
	case kind == "SEL", id == "sel", id == "iml":
		return 3
	case id == "eventlog", id == "log", id == "log1":
		return 2
	case kind == "Event", kind == "Multiple":
		return 1
	}
	return 0
}

// entries reads all entries of a log, page by page. Most services give them whole; of others, the newest are read one by one.
func (c *client) entries(ctx context.Context, path string) ([]logEntry, error) {
	var all []logEntry
	for range maxPages {
		var page struct {
			Members []json.RawMessage `json:"Members"`
			Next    string            `json:"Members@odata.nextLink"`
		}
		if err := c.get(ctx, path, &page); err != nil {
			return nil, err
		}
		for _, text := range page.Members {
			var e logEntry
			if err := json.Unmarshal(text, &e); err == nil {
				all = append(all, e)
			}
		}
		if path = page.Next; path == "" {
			break
		}
	}
	single := 0
	for i := len(all) - 1; i >= 0; i-- {
		if e := &all[i]; e.ID == "" && e.Path != "" && single < maxSingle {
			single++
			if _, err := c.optional(ctx, e.Path, e); err != nil {
				return nil, err
			}
		}
	}
	return slices.DeleteFunc(all, func(e logEntry) bool { return e.ID == "" }), nil
}
