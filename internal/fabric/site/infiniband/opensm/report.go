package opensm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/smp"
)

// Report is what an operator should know of a fabric, beyond its networks.
type Report struct {
	// Alarms say what is wrong, in order of their messages.
	Alarms []site.Alarm
	// Managers are the subnet managers that the last audit found.
	Managers []Seen
	// Drifts counts how often the file of partitions was found changed by others since the executor was made; LastDrift is when it last was.
	Drifts    int
	LastDrift time.Time
	// Audited is when all tables were last read; AuditTime how long that took.
	Audited   time.Time
	AuditTime time.Duration
	// PortsRead counts readings of ports' tables since the executor was made: an adapter's port and the switch port before it are one. The subnet
	// manager's own port, read for its marker, is not counted.
	PortsRead int
}

// driftStands is how long a change of the file by others stays an alarm: it is undone as soon as it is found.
const driftStands = time.Minute

// Seen is a subnet manager as it describes itself.
type Seen struct {
	Manager
	State smp.ManagerState
}

// Report returns the newest report.
func (s *Site) Report() Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.report
	r.Alarms, r.Managers = slices.Clone(r.Alarms), slices.Clone(r.Managers)
	if r.Drifts > 0 && time.Since(r.LastDrift) < driftStands {
		r.Alarms = append(r.Alarms, site.Alarm{
			Kind: site.PartitionsEdited, Message: fmt.Sprintf("%s was changed by others, and was restored; your own partitions belong in the file that operator names", s.cfg.Partitions),
		})
	}
	return r
}

// audited renews the report after everything was read, and logs alarms that are new.
func (s *Site) audited(begun time.Time) {
	r := &s.report
	r.Audited, r.AuditTime, r.Managers = time.Now(), time.Since(begun), nil
	for _, guid := range slices.Sorted(maps.Keys(s.fabric.managers)) {
		info := s.fabric.managers[guid]
		r.Managers = append(r.Managers, Seen{Manager{guid, info.Priority}, info.State})
	}
	was := r.Alarms
	r.Alarms = alarms(s.cfg.Managers, r.Managers)
	for _, alarm := range r.Alarms {
		if !slices.Contains(was, alarm) {
			s.cfg.Log.Error("the fabric's subnet management is not as configured", "alarm", alarm.Message)
		}
	}
	for _, alarm := range was {
		if !slices.Contains(r.Alarms, alarm) {
			s.cfg.Log.Info("an alarm of the fabric has ended", "alarm", alarm.Message)
		}
	}
}

// alarms compares the subnet managers that a fabric should have with those that were found. If none are configured, any will do.
func alarms(configured []Manager, found []Seen) []site.Alarm {
	var all []site.Alarm
	add := func(kind site.AlarmKind, subject, format string, args ...any) {
		all = append(all, site.Alarm{Kind: kind, Subject: subject, Message: fmt.Sprintf(format, args...)})
	}
	masters := []string{}
	for _, m := range found {
		if m.State == smp.Master {
			masters = append(masters, m.GUID)
		}
		i := slices.IndexFunc(configured, func(c Manager) bool { return c.GUID == m.GUID })
		switch {
		case len(configured) == 0:
		case i < 0:
			add(site.UnexpectedManager, m.GUID, "port %s has a subnet manager that is not configured, of priority %d and %v: find who started it, and end it", m.GUID, m.Priority, m.State)
		case configured[i].Priority != m.Priority:
			add(site.ManagerPriority, m.GUID, "the subnet manager of port %s has priority %d, and is configured with %d", m.GUID, m.Priority, configured[i].Priority)
		}
	}
	for _, c := range configured {
		if !slices.ContainsFunc(found, func(m Seen) bool { return m.GUID == c.GUID }) {
			add(site.ManagerMissing, c.GUID, "the subnet manager of port %s is not running", c.GUID)
		}
	}
	switch {
	case len(masters) == 0:
		add(site.NoMaster, "", "the fabric has no master subnet manager: changes wait in the file of partitions")
	case len(masters) > 1:
		add(site.SeveralMasters, "", "the fabric has several master subnet managers, on ports %s", strings.Join(masters, " and "))
	}
	slices.SortFunc(all, func(a, b site.Alarm) int { return strings.Compare(a.Message, b.Message) })
	return all
}
