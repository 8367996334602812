package energy

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// interval is what is known of a node between two samples.
type interval struct {
	ns      int64
	use     Use
	reading api.EnergyReading // of the source that the energy is taken from
	energy  int64             // microjoules; none where the reading is unavailable
}

// sources is the order in which a node's energy is taken from its sources: the operator's own choice, the whole machine, its processors.
var sources = []api.EnergySource{api.EnergyCommand, api.EnergyPDU, api.EnergyBMC, api.EnergyRAPL}

// mostWatts bounds the power of a node. A counter that says more says nothing.
const mostWatts = 1_000_000

// between compares two samples of one run. bmc is the reading of the machine's BMC, which the agent does not see; nil: the node has none. The
// reason is why nothing is known of the time between.
func between(before, after *api.EnergySample, bmc *api.EnergyReading) (interval, string) {
	var i interval
	switch {
	case before == nil:
		return i, "it was read only once so far"
	case before.Run != after.Run || after.ElapsedNanoseconds-before.ElapsedNanoseconds > int64(longestGap):
		return i, "its agent has started again, or was away for long; what was used meanwhile is not known"
	}
	i.ns = after.ElapsedNanoseconds - before.ElapsedNanoseconds
	if i.ns <= 0 {
		return i, "no time has passed since it was read before"
	}
	i.use = used(before, after, i.ns)
	var reasons []string
	for _, source := range sources {
		reading, microjoules, ok := difference(source, before, after, i.ns, bmc)
		if ok {
			i.reading, i.energy = reading, microjoules
			return i, ""
		}
		if reading.Reason != "" {
			reasons = append(reasons, fmt.Sprintf("%s: %s", source, reading.Reason))
		}
	}
	if len(reasons) == 0 {
		reasons = append(reasons, "the node has no source of energy readings")
	}
	return i, strings.Join(reasons, "; ")
}

// difference is what a source says of the time between two samples. A reason without ok is why it says nothing; none: the node has no such source.
func difference(source api.EnergySource, before, after *api.EnergySample, ns int64, bmc *api.EnergyReading) (api.EnergyReading, int64, bool) {
	if source == api.EnergyBMC {
		if bmc == nil {
			return api.EnergyReading{}, 0, false
		}
		if bmc.Watts == nil || bmc.Tag == api.EnergyUnavailable || *bmc.Watts < 0 || *bmc.Watts > mostWatts {
			return *bmc, 0, false
		}
		return *bmc, int64(*bmc.Watts * float64(ns) / 1e3), true // watts times nanoseconds are 1e-3 microjoules
	}
	a, b := counterOf(before, source), counterOf(after, source)
	if b == nil {
		return api.EnergyReading{}, 0, false
	}
	out := b.EnergyReading
	switch {
	case b.Tag == api.EnergyUnavailable:
		return out, 0, false
	case a == nil || a.Tag == api.EnergyUnavailable:
		out.Reason = "it was read only once so far"
		return out, 0, false
	case a.Breaks != b.Breaks || b.Microjoules < a.Microjoules:
		out.Reason = "its counter began again; what was used meanwhile is not known"
		return out, 0, false
	}
	used := b.Microjoules - a.Microjoules
	if float64(used)*1e3 > mostWatts*float64(ns) {
		out.Reason = "its counter says more than a machine can use"
		return out, 0, false
	}
	out.Watts = mean(used, float64(ns)/1e9)
	return out, used, true
}

func counterOf(s *api.EnergySample, source api.EnergySource) *api.EnergyCounter {
	for i := range s.Counters {
		if s.Counters[i].Source == source {
			return &s.Counters[i]
		}
	}
	return nil
}

// used is what the CPUs did between two samples. A member that was not there before, or whose time fell, began in between: all its time counts, if there
// was room for that; else it was only not read before. One that is gone has nothing: what it last used is among what is unattributed.
func used(before, after *api.EnergySample, ns int64) Use {
	const micro = 1000
	u := Use{Capacity: ns / micro * int64(after.CPUs), Busy: max(after.BusyNanoseconds-before.BusyNanoseconds, 0) / micro, Members: make(map[string]int64, len(after.Members))}
	for id, now := range after.Members {
		was := before.Members[id]
		if was > now {
			was = 0
		}
		worked := (now - was) / micro
		if was == 0 && worked > u.Capacity {
			worked = 0
		}
		u.Members[id] = min(worked, u.Capacity)
	}
	return u
}

// Sensible reports whether a sample is one that an agent can have read: numbers are in range, and lists are not longer than a node's.
func Sensible(s *api.EnergySample) bool {
	const (
		mostNS      = int64(100 * 365 * 24 * 3600 * 1e9) // a hundred years
		mostCPUs    = 1 << 12
		mostMembers = 1 << 12
		mostText    = 1 << 10
	)
	if s.ElapsedNanoseconds < 0 || s.ElapsedNanoseconds > mostNS || s.BusyNanoseconds < 0 || s.CPUs < 1 || s.CPUs > mostCPUs || len(s.Members) > mostMembers ||
		len(s.Counters) > len(sources) || len(s.Run) > mostText || len(s.Processor) > mostText {
		return false
	}
	for _, ns := range s.Members {
		if ns < 0 {
			return false
		}
	}
	for i := range s.Counters {
		c := &s.Counters[i]
		if c.Microjoules < 0 || len(c.Domains) > mostCPUs || len(c.Scope) > mostText || len(c.Source) > mostText || len(c.Tag) > mostText {
			return false
		}
		c.Reason = api.ShortMessage(c.Reason)
	}
	return true
}
