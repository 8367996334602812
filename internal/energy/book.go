package energy

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Owner is whose an assignment is, and which of its cluster's jobs run now, in the order of their IDs.
type Owner struct {
	ClusterUID, Cluster, Project, User string
	Jobs                               []string
}

// World is what a book needs to know of a node to divide its energy.
type World struct {
	// Owners are those of the node's assignments. What is nobody's is unattributed.
	Owners map[string]Owner
	// BMC is the last reading of the machine's BMC; nil: it has none that is read.
	BMC *api.EnergyReading
	// ReadAt is when the sample came, by the clock that members' use is shown by; zero: when it is taken.
	ReadAt time.Time
}

// points is how many points of a node are kept: ten minutes of samples at five seconds.
const points = 120

// memberPoints is how many points of a member are kept: as many as of its use.
const memberPoints = 60

// Book is the account of a site's energy, kept by the leader. It may be used from many goroutines.
type Book struct {
	mu      sync.Mutex
	nodes   map[string]*account
	learned calibration
}

// account is a node's.
type account struct {
	last   *api.EnergySample
	record *api.EnergyRecord // of the present hour
	// closed are records of hours that are over, which are not stored yet. dirty: the present one has changed since it was stored.
	closed []api.EnergyRecord
	dirty  bool
	now    api.EnergyReading
	all    []api.EnergyReading
	points []api.EnergyPoint
	// members are the last minutes of members, by assignment ID.
	members map[string][]MemberPower
}

// MemberPower is a member's part of its node's power over the interval that ended at a time.
type MemberPower struct {
	At    time.Time
	Watts float64
	Tag   api.EnergyTag
}

// NewBook returns a book without nodes.
func NewBook() *Book { return &Book{nodes: map[string]*account{}, learned: calibration{}} }

// Open begins the book anew, from the newest stored record of each node: counters go on where these end.
func (b *Book) Open(newest []api.EnergyRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes, b.learned = map[string]*account{}, calibration{}
	for i := range newest {
		r := newest[i]
		b.nodes[r.Node] = &account{record: &r, last: r.Mark}
	}
}

// Take takes a node's sample. One that was taken before changes nothing.
func (b *Book) Take(node string, s *api.EnergySample, w World, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.nodes[node]
	if a == nil {
		a = &account{}
		b.nodes[node] = a
	}
	if a.last != nil && a.last.Run == s.Run && a.last.ElapsedNanoseconds >= s.ElapsedNanoseconds {
		return
	}
	i, reason := between(a.last, s, w.BMC)
	if reason == "" {
		b.learned.learn(s, i)
	} else if reading, microjoules, ok := b.learned.model(s, i); ok {
		i.reading, i.energy, reason = reading, microjoules, ""
	}
	if reason != "" {
		i.reading = api.EnergyReading{Tag: api.EnergyUnavailable, Reason: reason}
	}
	a.turn(node, now)
	if i.ns <= 0 && a.last != nil { // between two runs only the site's clock tells how long it was
		i.ns = int64(min(max(now.Sub(a.record.To), 0), longestGap))
	}
	parts := add(a.record, i, w)
	a.record.To, a.record.Mark = now.UTC(), s
	a.dirty = true
	a.now, a.all = i.reading, readings(s, w.BMC)
	if !w.ReadAt.IsZero() {
		now = w.ReadAt
	}
	a.point(a.last, s, i, now)
	a.powers(parts, i, now)
	a.last = s
}

// longestGap bounds the time between two samples that is divided, and what counts as unknown: a node may come back after months.
const longestGap = 24 * time.Hour

// turn begins the record of the hour. A clock that went back goes on with the record that there is, which must not be begun twice.
func (a *account) turn(node string, now time.Time) {
	hour, from := now.UTC().Truncate(time.Hour), now.UTC()
	if r := a.record; r != nil {
		if !hour.After(r.Hour) {
			return
		}
		if now.Sub(r.To) < longestGap {
			from = r.To
		}
		if a.dirty {
			closed := clone(r)
			closed.Mark = nil
			a.closed = append(a.closed, closed)
		}
	}
	a.record = &api.EnergyRecord{Node: node, Hour: hour, From: from, To: from}
}

// mostShares bounds a record: users can run any number of jobs in an hour. Further ones count for their cluster only.
const mostShares = 1000

// add counts an interval in a record, and returns the parts of its energy.
func add(r *api.EnergyRecord, i interval, w World) Parts {
	if i.reading.Tag == api.EnergyUnavailable {
		r.UnknownNanoseconds += i.ns
		return Parts{}
	}
	amount := func(microjoules int64) api.EnergyAmount {
		if i.reading.Tag == api.EnergyMeasured {
			return api.EnergyAmount{MeasuredMicrojoules: microjoules}
		}
		return api.EnergyAmount{ModelledMicrojoules: microjoules}
	}
	r.KnownNanoseconds += i.ns
	r.Counter = r.Counter.Plus(amount(i.energy))
	parts := Split(i.energy, i.use)
	r.Idle = r.Idle.Plus(amount(parts.Idle))
	r.Unattributed = r.Unattributed.Plus(amount(parts.Unattributed))
	for _, id := range slices.Sorted(maps.Keys(parts.Members)) {
		owner, known := w.Owners[id]
		if !known {
			r.Unattributed = r.Unattributed.Plus(amount(parts.Members[id]))
			continue
		}
		jobs := owner.Jobs
		if len(jobs) == 0 {
			jobs = []string{""}
		}
		energy, time := evenly(parts.Members[id], len(jobs)), evenly(i.ns, len(jobs))
		for n, job := range jobs {
			s := shareOf(r, &owner, job)
			s.EnergyAmount = s.Plus(amount(energy[n]))
			s.MemberNanoseconds += time[n]
		}
	}
	return parts
}

// powers keeps the last power of the members that are there.
func (a *account) powers(parts Parts, i interval, now time.Time) {
	if i.ns <= 0 {
		return
	}
	kept := make(map[string][]MemberPower, len(parts.Members))
	for id, energy := range parts.Members {
		all := append(a.members[id], MemberPower{now.UTC(), float64(energy) * 1e3 / float64(i.ns), i.reading.Tag})
		if surplus := len(all) - memberPoints; surplus > 0 {
			all = slices.Clone(all[surplus:])
		}
		kept[id] = all
	}
	a.members = kept
}

// Member returns the last minutes of a member's power, the oldest first; none: nothing is known now.
func (b *Book) Member(node, assignmentID string) []MemberPower {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.nodes[node]; a != nil {
		return slices.Clone(a.members[assignmentID])
	}
	return nil
}

// shareOf is the share of a job, or of its cluster where the record has no room for more.
func shareOf(r *api.EnergyRecord, o *Owner, job string) *api.EnergyShare {
	for i := range r.Shares {
		if s := &r.Shares[i]; s.ClusterUID == o.ClusterUID && s.Job == job {
			return s
		}
	}
	if job != "" && len(r.Shares) >= mostShares {
		return shareOf(r, o, "")
	}
	r.Shares = append(r.Shares, api.EnergyShare{ClusterUID: o.ClusterUID, Cluster: o.Cluster, Project: o.Project, User: o.User, Job: job})
	return &r.Shares[len(r.Shares)-1]
}

// readings are those of all sources of a node.
func readings(s *api.EnergySample, bmc *api.EnergyReading) []api.EnergyReading {
	all := make([]api.EnergyReading, 0, len(s.Counters)+1)
	for i := range s.Counters {
		all = append(all, s.Counters[i].EnergyReading)
	}
	if bmc != nil {
		all = append(all, *bmc)
	}
	slices.SortStableFunc(all, func(a, b api.EnergyReading) int { return strings.Compare(string(a.Source), string(b.Source)) })
	return all
}

// point keeps power, work and traffic of an interval together.
func (a *account) point(before, after *api.EnergySample, i interval, now time.Time) {
	if i.ns <= 0 || i.use.Capacity <= 0 || before == nil {
		return
	}
	seconds := float64(i.ns) / 1e9
	cores := float64(i.use.Busy) * 1e3 / float64(i.ns)
	p := api.EnergyPoint{At: now.UTC(), CPUCores: &cores}
	if i.reading.Tag != api.EnergyUnavailable {
		p.Watts = mean(i.energy, seconds)
	}
	rate := func(was, is *int64) *float64 {
		if was == nil || is == nil || *is < *was {
			return nil // a port has gone with its counters
		}
		r := float64(*is-*was) / seconds
		return &r
	}
	p.SentRate, p.ReceivedRate = rate(before.SentBytes, after.SentBytes), rate(before.ReceivedBytes, after.ReceivedBytes)
	a.points = append(a.points, p)
	if surplus := len(a.points) - points; surplus > 0 {
		a.points = slices.Clone(a.points[surplus:])
	}
}

func clone(r *api.EnergyRecord) api.EnergyRecord {
	c := *r
	c.Shares = slices.Clone(r.Shares)
	return c
}

// Pending returns the records that changed since they were stored, in the order of nodes and hours.
func (b *Book) Pending() []api.EnergyRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []api.EnergyRecord
	for _, name := range slices.Sorted(maps.Keys(b.nodes)) {
		a := b.nodes[name]
		all = append(all, a.closed...)
		if a.dirty {
			all = append(all, clone(a.record))
		}
	}
	return all
}

// Stored notes that a record that Pending returned is stored. What was added meanwhile is still to be.
func (b *Book) Stored(r *api.EnergyRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.nodes[r.Node]
	if a == nil {
		return
	}
	a.closed = slices.DeleteFunc(a.closed, func(c api.EnergyRecord) bool { return c.Hour.Equal(r.Hour) })
	if a.record != nil && a.record.Hour.Equal(r.Hour) && a.record.To.Equal(r.To) {
		a.dirty = false
	}
}

// Forget drops nodes that are not among these.
func (b *Book) Forget(known map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.nodes, func(name string, a *account) bool { return !known[name] && !a.dirty && len(a.closed) == 0 })
}

// Records returns the records that the book has: of the present hour, and those of hours before that are not stored yet.
func (b *Book) Records() []api.EnergyRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []api.EnergyRecord
	for _, a := range b.nodes {
		all = append(all, a.closed...)
		if a.record != nil {
			all = append(all, clone(a.record))
		}
	}
	return all
}

// Power returns the power of a node when idle, what full utilization adds, and its CPUs, by the line that is drawn for nodes like it; false: too little was
// measured for one.
func (b *Book) Power(node string) (idle, slope float64, cpus int, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.nodes[node]
	if a == nil || a.last == nil {
		return 0, 0, 0, false
	}
	idle, slope, ok = b.learned.line(a.last)
	return idle, slope, a.last.CPUs, ok
}

// Node returns what a node consumes now, with the last minutes; false: nothing was heard of it.
func (b *Book) Node(name string) (api.NodeEnergy, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.nodes[name]
	if a == nil || a.now.Tag == "" {
		return api.NodeEnergy{}, false
	}
	return api.NodeEnergy{Node: name, EnergyReading: a.now, Readings: slices.Clone(a.all), Points: slices.Clone(a.points)}, true
}
