package sim

import (
	"math"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// account adds up what a cluster holds, commit by commit, from what is in the store and nothing else: the truth that usage records are
// compared with. All sums are cores times nanoseconds, by kind of span.
type account struct {
	at              time.Time
	rate            map[api.SpanKind]int64
	total, recorded map[api.SpanKind]int64
	members         int64 // members times nanoseconds, allocated
	membersRate     int64
	// Counters of devices times nanoseconds, by kind of span.
	deviceRate, deviceTotal, deviceRecorded map[deviceSpan]int64
}

// deviceSpan is a counter of devices, and what it was used for.
type deviceSpan struct {
	kind    api.SpanKind
	counter string
}

var spanKinds = []api.SpanKind{api.SpanAllocated, api.SpanCleaning}

func (m *mirror) account(uid string) *account {
	a := m.ledger[uid]
	if a == nil {
		a = &account{rate: map[api.SpanKind]int64{}, total: map[api.SpanKind]int64{}, recorded: map[api.SpanKind]int64{}}
		a.deviceRate, a.deviceTotal, a.deviceRecorded = map[deviceSpan]int64{}, map[deviceSpan]int64{}, map[deviceSpan]int64{}
		m.ledger[uid] = a
	}
	return a
}

// before adds up to the time of a commit what was held until then.
func (m *mirror) before(in *api.ClusterIntent, at time.Time) {
	a := m.account(in.UID)
	if !a.at.IsZero() {
		passed := at.Sub(a.at)
		for _, kind := range spanKinds {
			a.total[kind] += a.rate[kind] * int64(passed)
		}
		a.members += a.membersRate * int64(passed)
		for span, rate := range a.deviceRate {
			a.deviceTotal[span] += rate * int64(passed)
		}
	}
	a.at = at
}

// after takes down what is held from a commit on, and compares: the records of what has ended and what has not come to the whole.
func (m *mirror) after(in *api.ClusterIntent, at time.Time) {
	a := m.account(in.UID)
	clear(a.rate)
	clear(a.deviceRate)
	a.membersRate = 0
	open, openDevices := map[api.SpanKind]int64{}, map[deviceSpan]int64{}
	note := func(kind api.SpanKind, h *api.Assignment, since time.Time) {
		a.rate[kind] += int64(len(h.Slots))
		open[kind] += int64(len(h.Slots)) * int64(at.Sub(since))
		takes := map[string]int64{}
		for _, c := range h.Devices {
			addTakes(takes, c.Class, c.Way, 1)
		}
		for counter, n := range takes {
			a.deviceRate[deviceSpan{kind, counter}] += n
			a.deviceTotal[deviceSpan{kind, counter}] += 0 // so that it is compared from now on
			openDevices[deviceSpan{kind, counter}] += n * int64(at.Sub(since))
		}
	}
	for _, h := range m.assignments(m.clusters[in.Name].record) {
		switch {
		case h.ClusterUID != in.UID || h.clean:
		case h.releasedAt == nil:
			note(api.SpanAllocated, h.Assignment, h.HeldSince())
			if !h.IsPart() && !h.IsSnapshot() {
				a.membersRate++
			}
		default:
			note(api.SpanCleaning, h.Assignment, *h.releasedAt)
		}
	}
	for _, q := range m.quarantines {
		if q.Assignment.ClusterUID == in.UID {
			note(api.SpanCleaning, &q.Assignment, q.Since)
		}
	}
	for _, kind := range spanKinds {
		if got := a.recorded[kind] + open[kind]; got != a.total[kind] {
			m.w.fail("usage", "cluster %s has %s %s of core time, its records and what it holds come to %s (records %s)", in.Name,
				kind, time.Duration(a.total[kind]), time.Duration(got), time.Duration(a.recorded[kind]))
		}
	}
	for span, total := range a.deviceTotal {
		if got := a.deviceRecorded[span] + openDevices[span]; got != total {
			m.w.fail("usage", "cluster %s has %s of %s %s, its records and what it holds come to %s", in.Name, time.Duration(total), span.kind,
				span.counter, time.Duration(got))
		}
	}
}

// usageWritten adds a record to what is compared.
func (m *mirror) usageWritten(r *api.UsageRecord) {
	if r.Volume != "" {
		m.storageWritten(r)
		return
	}
	a := m.account(r.UID)
	for _, s := range r.Spans {
		a.recorded[s.Kind] += int64(s.Cores) * int64(s.To.Sub(s.From))
		for counter, n := range s.Devices {
			a.deviceRecorded[deviceSpan{s.Kind, counter}] += n * int64(s.To.Sub(s.From))
		}
	}
}

// checkReport checks that the totals of the whole life of the site are those of all accounts, and that capacity is conserved.
func (w *world) checkReport() {
	leader := w.store.leader()
	if leader == nil {
		return
	}
	now := leader.now()
	w.checkDecay(leader.cache.View(), now)
	truth, members := map[api.SpanKind]float64{}, 0.0
	owed, devices, deviceOwed := map[string]float64{}, map[deviceSpan]float64{}, map[string]map[string]float64{}
	var in usage.Input
	capacity, storage, storageSeen := 0.0, 0.0, 0.0
	w.read(func(m *mirror) {
		storage = m.storageUntil(now)
		for uid, a := range m.ledger {
			for _, kind := range spanKinds {
				truth[kind] += (float64(a.total[kind]) + float64(a.rate[kind])*float64(now.Sub(a.at))) / float64(time.Second)
			}
			members += (float64(a.members) + float64(a.membersRate)*float64(now.Sub(a.at))) / float64(time.Second)
			deviceOwed[uid] = map[string]float64{}
			for span, total := range a.deviceTotal {
				seconds := (float64(total) + float64(a.deviceRate[span])*float64(now.Sub(a.at))) / float64(time.Second)
				devices[span] += seconds
				if span.kind == api.SpanAllocated {
					deviceOwed[uid][span.counter] = seconds
				}
			}
			owed[uid] = (float64(a.total[api.SpanAllocated]) + float64(a.rate[api.SpanAllocated])*float64(now.Sub(a.at))) / float64(time.Second)
		}
		first := map[string]*api.NodeSpan{}
		for _, span := range m.nodeSpans {
			if n := w.node(span.Node); n.box == nil && !n.forgotten { // it was never out of the inventory, so its spans are without gaps
				if f := first[span.Node]; f == nil || span.From.Before(f.From) {
					first[span.Node] = span
				}
				continue
			}
			to := now
			if span.To != nil {
				to = *span.To
			}
			capacity += float64(span.Cores) * to.Sub(span.From).Seconds()
		}
		for _, span := range first {
			capacity += float64(span.Cores) * now.Sub(span.From).Seconds()
		}
		in = m.usageInput(now)
	})
	report, err := usage.Report(in, w.epoch.Add(-longest), now, usage.Whole, usage.ByCluster)
	if err != nil {
		w.fail("usage", "no report: %v", err)
		return
	}
	same := func(what string, got, want float64) {
		if math.Abs(got-want) > 1e-6*math.Max(1, math.Abs(want)) {
			w.fail("usage", "the report says %s is %.9f core-seconds, or seconds of members or of a counter, it is %.9f", what, got, want)
		}
	}
	site := report.Site[0]
	same("allocated", site.Allocated.CoreSeconds, truth[api.SpanAllocated])
	same("members' time", site.Allocated.MemberSeconds, members)
	same("cleaning", site.Cleaning.CoreSeconds, truth[api.SpanCleaning])
	// What is cleaned on a machine that was removed is of no node any more, and counts all the same.
	removed := len(w.boxes) > 0 || slices.ContainsFunc(w.nodes, func(n *node) bool { return n.forgotten })
	if got := site.Capacity.CoreSeconds; !removed || got < capacity {
		same("capacity", got, capacity)
	}
	if site.Idle.CoreSeconds < -1e-6 || site.Down.CoreSeconds < -1e-6 {
		w.fail("usage", "the report has less than nothing idle (%.9f) or down (%.9f)", site.Idle.CoreSeconds, site.Down.CoreSeconds)
	}
	for span, want := range devices {
		got := map[api.SpanKind]api.Amount{api.SpanAllocated: site.Allocated, api.SpanCleaning: site.Cleaning}[span.kind]
		same(string(span.kind)+" of "+span.counter, got.DeviceSeconds[span.counter], want)
	}
	for _, row := range report.Rows {
		same("the use of "+row.Cluster, row.CoreSeconds, owed[row.UID])
		storageSeen += row.StorageByteSeconds
		for counter, want := range deviceOwed[row.UID] {
			same("the use of "+counter+" by "+row.Cluster, row.DeviceSeconds[counter], want)
		}
		delete(deviceOwed, row.UID)
		delete(owed, row.UID)
	}
	same("storage", storageSeen, storage)
	for uid, left := range owed {
		same("the use of "+uid+", which is not in it,", 0, left)
	}
	for uid, counters := range deviceOwed {
		for counter, left := range counters {
			same("the use of "+counter+" by "+uid+", which is not in it,", 0, left)
		}
	}
}

// checkDecay checks that the sums that a server keeps of ended use, for the fair share, are those of all records.
func (w *world) checkDecay(view *state.View, now time.Time) {
	want := map[string]float64{}
	current := false
	w.read(func(m *mirror) {
		current = view.Revision >= m.revision
		for _, r := range m.usageRecords() {
			project, _ := usage.Owner(r)
			for _, s := range r.Spans {
				if s.Kind == api.SpanAllocated {
					rate := math.Ln2 / usage.HalfLife.Seconds()
					want[project] += float64(s.Cores) / rate * math.Exp(-rate*now.Sub(s.To).Seconds()) * -math.Expm1(-rate*s.To.Sub(s.From).Seconds())
				}
			}
		}
	})
	if !current {
		return // its server has not heard of the newest commit yet
	}
	got := usage.Decay(now, view.Past, func(func(usage.Open) bool) {})
	for project, seconds := range want {
		if math.Abs(got[project].Total-seconds) > 1e-9*seconds {
			w.fail("usage", "what project %s used comes to %.12g decayed core-seconds, the leader has %.12g", project, seconds, got[project].Total)
		}
	}
}
