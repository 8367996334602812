package sim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/usage"
)

// The prefixes of internal/state/keys.go.
const (
	prefixIntent        = "intent/"
	prefixRecord        = "record/"
	prefixChunk         = "chunk/"
	prefixQuarantine    = "quarantine/"
	prefixNode          = "node/"
	prefixNetwork       = "network/"
	prefixNodeSpan      = "nodespan/"
	prefixFormerSpan    = "formernodespan/"
	prefixUsage         = "usage/"
	prefixProject       = "project/"
	prefixMachineRecord = "machinerecord/"
	prefixJob           = "job/"
	prefixBuild         = "build/"
	prefixEvent         = "event/"
	prefixControl       = "nodecontrol/"
	prefixImage         = "image/"
)

// entry is a cluster in the store.
type entry struct {
	intent *api.ClusterIntent
	record *api.ClusterRecord
}

// mirror is what is stored, read independently of internal/state, from what each commit wrote. The lock of the witness guards it.
type mirror struct {
	w        *world
	revision int64
	term     int64 // of the present commit
	clusters map[string]entry
	// chunks by cluster UID and chunk ID; a chunk counts only when a record names it.
	chunks      map[string][]api.Assignment
	written     map[string]int64 // the term in which a chunk was written
	quarantines map[string]*api.Quarantine
	networks    map[string]*api.Network // by UID
	projects    map[string]*api.Project
	usage       map[string]*api.UsageRecord // by key
	nodeSpans   map[string]*api.NodeSpan    // by key
	machines    map[string]machineSeen
	jobs        map[string]*api.Job
	builds      map[string]*api.Build
	trusted     map[string]bool // the builders that are trusted now
	images      map[string]bool // those that are registered, by the digits of their digests
	// released is the revision from which on an assignment was no longer held, for good; left the one since which a cluster's network has
	// no business with a node.
	released map[string]int64
	left     map[onNode]int64
	live     map[string]bool            // IDs of assignments that hold something
	held     map[string]*api.Assignment // those of clusters, by ID
	from     map[string]string          // whom they succeed
	saved    map[string]bool            // those that are cut down, or were when they were let go of
	// forgiven were held on a node that was taken out of the inventory: an operator said that the machine is gone.
	forgiven map[string]bool
	ledger   map[string]*account
	used     map[string]api.Quota // by project, when it was last checked
	// addresses are the floating ones.
	addresses addresses
	// volumes are the records of volumes, gone the UIDs of those that were forgotten.
	volumes map[string]*api.VolumeRecord
	gone    map[string]bool
	// blocks are the UIDs of block volumes that are or were there.
	blocks map[string]bool
	// homes are the volumes that are homes of clusters, by name; homesBegun those that the present commit made.
	homes      map[string]*api.VolumeIntent
	homesBegun []*api.VolumeIntent
	// storage is what volumes held, by UID; at is the time of the present commit, which touched storageTouched.
	storage        map[string]*stored
	storageTouched []string
	at             time.Time
}

// onNode is what a cluster has on a node.
type onNode struct{ uid, node string }

// machineSeen is the record of a machine, and when its phase changed last.
type machineSeen struct {
	record  api.MachineRecord
	changed time.Time
}

func newMirror(w *world) *mirror {
	return &mirror{
		w: w, clusters: map[string]entry{}, chunks: map[string][]api.Assignment{}, written: map[string]int64{}, quarantines: map[string]*api.Quarantine{}, networks: map[string]*api.Network{},
		projects: map[string]*api.Project{}, usage: map[string]*api.UsageRecord{}, nodeSpans: map[string]*api.NodeSpan{},
		machines: map[string]machineSeen{}, jobs: map[string]*api.Job{}, builds: map[string]*api.Build{}, trusted: map[string]bool{}, images: map[string]bool{}, released: map[string]int64{}, saved: map[string]bool{}, left: map[onNode]int64{}, live: map[string]bool{}, forgiven: map[string]bool{},
		ledger: map[string]*account{}, used: map[string]api.Quota{}, addresses: newAddresses(), volumes: map[string]*api.VolumeRecord{}, gone: map[string]bool{}, blocks: map[string]bool{}, homes: map[string]*api.VolumeIntent{}, storage: map[string]*stored{},
	}
}

// read gives a look at the mirror from outside a commit.
func (w *world) read(look func(*mirror)) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	look(w.store.mirror)
}

// apply takes in a commit that has become true, and checks what it says.
func (m *mirror) apply(c commit, revision int64) {
	m.revision, m.term, m.at = revision, c.term, c.at
	touched := m.touchedBy(c.ops)
	for _, name := range touched {
		m.before(m.clusters[name].intent, c.at)
	}
	freed := m.unquarantined(c.ops)
	for _, in := range freed {
		m.before(in, c.at)
	}
	for _, op := range c.ops {
		m.forgive(op)
		m.put(op)
	}
	m.checkHomesBegun()
	m.checkStorage()
	for _, name := range touched {
		if in := m.clusters[name].intent; in != nil {
			m.after(in, c.at)
		}
	}
	for _, in := range freed {
		m.after(in, c.at)
	}
	if len(touched)+len(freed) > 0 {
		m.checkAllocations()
		m.checkDisksClaimed()
		m.checkMembers()
		m.checkDevices()
		m.checkQuotas()
	}
}

// touchedBy are the clusters whose record a commit writes.
func (m *mirror) touchedBy(ops []store.Op) []string {
	var names []string
	for _, op := range ops {
		if name, ok := strings.CutPrefix(op.Key, prefixRecord); ok && m.clusters[name].intent != nil {
			names = append(names, name)
		}
	}
	return names
}

// unquarantined are the clusters of quarantines that a commit ends; they may be gone.
func (m *mirror) unquarantined(ops []store.Op) []*api.ClusterIntent {
	var all []*api.ClusterIntent
	for _, op := range ops {
		id, ok := strings.CutPrefix(op.Key, prefixQuarantine)
		if q := m.quarantines[id]; ok && op.Delete && q != nil {
			all = append(all, &api.ClusterIntent{UID: q.Assignment.ClusterUID, Name: q.Assignment.Cluster})
		}
	}
	return all
}

// forgive notes what is held on a node that is taken out of the inventory: it needs no proof any more, and the node's agent cleans it should the
// machine come back.
func (m *mirror) forgive(op store.Op) {
	node, ok := strings.CutPrefix(op.Key, prefixNode)
	if !ok || !op.Delete {
		return
	}
	for _, e := range m.clusters {
		for _, a := range m.assignments(e.record) {
			m.forgiven[a.ID] = m.forgiven[a.ID] || a.Node == node
		}
	}
	for id, q := range m.quarantines {
		m.forgiven[id] = m.forgiven[id] || q.Assignment.Node == node
	}
}

// put takes in one write.
func (m *mirror) put(op store.Op) {
	kind, rest := op.Key, ""
	if i := strings.IndexByte(op.Key, '/'); i >= 0 {
		kind, rest = op.Key[:i+1], op.Key[i+1:]
	}
	w := m.w
	switch kind {
	case prefixIntent:
		m.putIntent(rest, op)
	case prefixRecord:
		m.putRecord(rest, op)
	case prefixChunk:
		switch {
		case op.DeletePrefix:
			maps.DeleteFunc(m.chunks, func(key string, _ []api.Assignment) bool { return strings.HasPrefix(key, rest) })
		case op.Delete:
			delete(m.chunks, rest)
		default:
			m.chunks[rest], m.written[rest] = *decodeOp[[]api.Assignment](w, op), m.term
		}
	case prefixQuarantine:
		putIn(w, m.quarantines, rest, op)
	case prefixNetwork:
		putIn(w, m.networks, rest, op)
		m.checkNetworks()
	case prefixAddress:
		m.putAddress(op)
	case prefixProject:
		putIn(w, m.projects, rest, op)
	case prefixNodeSpan, prefixFormerSpan:
		putIn(w, m.nodeSpans, rest, op)
	case prefixUsage:
		if !op.Delete && m.usage[rest] != nil {
			w.fail("usage", "usage record %s is written twice", rest)
		}
		putIn(w, m.usage, rest, op)
		if r := m.usage[rest]; r != nil {
			m.usageWritten(r)
		}
	case prefixJob:
		m.putJob(rest, op)
	case prefixBuild:
		m.putBuild(rest, op)
	case prefixControl:
		m.putControl(rest, op)
	case prefixVolumeRecord:
		m.putVolume(rest, op)
		m.putStorage(rest, op)
	case prefixVolumeIntent:
		m.putVolumeIntent(rest, op)
	case prefixImage:
		m.putImage(rest, op)
	case prefixMachineRecord:
		m.putMachine(rest, op)
	case prefixEvent:
		if !op.Delete && !op.DeletePrefix {
			w.sawEvent(decodeOp[api.Event](w, op))
		}
	}
}

func putIn[T any](w *world, into map[string]*T, key string, op store.Op) {
	if op.Delete {
		delete(into, key)
		return
	}
	into[key] = decodeOp[T](w, op)
}

// sawEvent counts an event.
func (w *world) sawEvent(e *api.Event) {
	w.count(func(s *Stats) { s.Events[e.Reason]++ })
	w.trace("event %s of %s: %s", e.Reason, e.Cluster, e.Message)
}

func (m *mirror) putIntent(name string, op store.Op) {
	e := m.clusters[name]
	if e.intent == nil {
		transition(m.w, tablesOf.clusters, name, "", api.ClusterPending)
	}
	e.intent = nil
	if !op.Delete {
		e.intent = decodeOp[api.ClusterIntent](m.w, op)
	}
	m.setEntry(name, e)
}

func (m *mirror) setEntry(name string, e entry) {
	if e == (entry{}) {
		delete(m.clusters, name)
		return
	}
	m.clusters[name] = e
}

func (m *mirror) putRecord(name string, op store.Op) {
	e := m.clusters[name]
	from := api.ClusterPending
	if e.record != nil {
		from = e.record.Phase
	}
	if op.Delete {
		e.record = nil
		transition(m.w, tablesOf.clusters, name, from, "")
		m.setEntry(name, e)
		return
	}
	before := e.record
	e.record = decodeOp[api.ClusterRecord](m.w, op)
	m.noteRoom(before, e.record)
	m.noteMoves(before, e.record)
	if e.intent == nil || e.intent.UID != e.record.UID {
		m.w.fail("conflict", "what was decided about cluster %s (%s) came true when it was gone", name, e.record.UID)
	} else if e.record.PlacedAt != nil && (before == nil || before.PlacedAt == nil) && m.w.quiet() {
		m.checkOvertaken(e.intent)
	}
	if e.record.Phase != from {
		transition(m.w, tablesOf.clusters, name, from, e.record.Phase)
		m.w.store.landed = append(m.w.store.landed, landed{record: *e.record, from: from, intent: e.intent, all: m.assignments(e.record)})
	}
	m.setEntry(name, e)
	m.noteLeft(before, e.record)
	for _, h := range m.assignments(e.record) {
		if h.releasedAt != nil && m.released[h.ID] == 0 {
			m.released[h.ID] = m.revision
			m.left[onNode{e.record.UID, h.Node}] = m.revision
		}
	}
}

// noteLeft notes which nodes a cluster that is being deleted leaves: its members are cut off one by one, as each is clean.
func (m *mirror) noteLeft(before, after *api.ClusterRecord) {
	if after.Phase != api.ClusterDeleting {
		return
	}
	left := map[string]string{}
	for _, h := range m.assignments(before) {
		if !h.clean {
			left[h.ID] = h.Node
		}
	}
	for _, h := range m.assignments(after) {
		if !h.clean {
			delete(left, h.ID)
		}
	}
	for _, node := range left {
		m.left[onNode{after.UID, node}] = m.revision
	}
}

// noteRoom counts what room was given for.
func (m *mirror) noteRoom(before, after *api.ClusterRecord) {
	had := map[string]held{}
	for _, h := range m.assignments(before) {
		had[h.ID] = h
	}
	for _, h := range m.assignments(after) {
		if _, old := had[h.ID]; old || h.releasedAt != nil {
			continue
		}
		if h.IsSuccessor() {
			m.w.happened(map[bool]string{true: "room to move", false: "room to go on"}[h.Live])
			continue
		}
		if h.IsPart() {
			m.w.happened("room for a part")
			continue
		}
		if h.IsSnapshot() {
			m.w.happened("room for a state")
			continue
		}
		what := "room to grow"
		switch {
		case h.Spare:
			what = "room for a spare"
		case h.Replaces != "":
			what = "room for a replacement"
		case before == nil || before.PlacedAt == nil:
			what = "room for a cluster"
		}
		m.w.happened(what)
		for _, old := range had {
			if old.Spare && old.Node == h.Node && h.Replaces != "" && slices.Equal(old.Slots, h.Slots) {
				m.w.happened("spare taken over")
			}
		}
	}
}

// names are the clusters in order.
func (m *mirror) names() []string { return slices.Sorted(maps.Keys(m.clusters)) }

// held is an assignment that a record names.
type held struct {
	*api.Assignment
	releasedAt *time.Time // nil: not releasing
	clean      bool
}

// assignments are all that a record's chunks hold.
func (m *mirror) assignments(r *api.ClusterRecord) []held {
	if r == nil {
		return nil
	}
	var all []held
	for _, ref := range r.Chunks {
		chunk := m.chunks[r.UID+"/"+ref.ID]
		for i := range chunk {
			h := held{Assignment: &chunk[i]}
			if ref.Releasing {
				h.clean = slices.Contains(r.Clean, chunk[i].ID)
				h.releasedAt = ref.ReleasedAt
				if h.releasedAt == nil {
					h.releasedAt = &time.Time{}
				}
			}
			all = append(all, h)
		}
	}
	return all
}

// garbage are the chunks that no record names.
func (m *mirror) garbage() []string {
	named := map[string]bool{}
	for _, e := range m.clusters {
		if e.record != nil {
			for _, ref := range e.record.Chunks {
				named[e.record.UID+"/"+ref.ID] = true
			}
		}
	}
	var unnamed []string
	for _, key := range slices.Sorted(maps.Keys(m.chunks)) {
		if !named[key] {
			unnamed = append(unnamed, key)
		}
	}
	return unnamed
}

// usedBy is what counts against a project's quota: what its clusters hold, and what they are to get in the place of what they lost.
func (m *mirror) usedBy(project string) api.Quota {
	q := api.Quota{Devices: map[string]int64{}}
	for _, name := range m.names() {
		e := m.clusters[name]
		if e.intent == nil || e.intent.Project != project || e.record == nil {
			continue
		}
		members, runs := q.Members, map[string]bool{}
		for _, a := range m.assignments(e.record) {
			runs[a.ID] = a.releasedAt == nil && a.IsMember() && !a.Saved
		}
		for _, a := range m.assignments(e.record) {
			if a.releasedAt == nil && a.IsSuccessor() && runs[a.From] { // what it holds counts once, where it runs
				continue
			}
			if a.releasedAt == nil {
				for _, c := range a.Devices {
					addTakes(q.Devices, c.Class, c.Way, 1)
				}
			}
			if a.releasedAt == nil && a.IsSuccessor() { // its member counts
				q.Members--
			}
			if a.releasedAt == nil && !a.IsSnapshot() && (!a.IsPart() || a.IsSuccessor()) {
				q.Members, q.Cores, q.Memory = q.Members+1, q.Cores+len(a.Slots), q.Memory+api.Bytes(a.MemoryBytes())
			}
		}
		for _, lost := range e.record.Lost {
			for _, g := range e.intent.Spec.Groups {
				if g.Name == lost.Group {
					q.Members++
					if lost.Shape != nil {
						g.Shape = *lost.Shape
					}
					if m.saved[lost.Assignment] { // what it is to run on is taken from the quota again
						continue
					}
					q.Cores, q.Memory = q.Cores+g.Cores, q.Memory+g.Memory
					for _, r := range slices.Concat(g.Devices, functionsOf(&g)) {
						addTakes(q.Devices, r.Class, r.Way, int64(r.Count))
					}
				}
			}
		}
		if q.Members > members {
			q.Clusters++
		}
	}
	return q
}

// usageInput is what totals of use depend on.
func (m *mirror) usageInput(now time.Time) usage.Input {
	in := usage.Input{Now: now, Volumes: m.heldStorage()}
	records := m.usageRecords()
	in.Records = func(yield func(*api.UsageRecord, error) bool) {
		for _, r := range records {
			if !yield(r, nil) {
				return
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(m.nodeSpans)) {
		in.Nodes = append(in.Nodes, m.nodeSpans[key])
	}
	for _, name := range m.names() {
		e := m.clusters[name]
		for _, a := range m.assignments(e.record) {
			if !a.clean {
				in.Open = append(in.Open, usage.Open{
					Cluster: name, UID: e.intent.UID, Project: e.intent.Project, User: e.intent.User, Assignment: a.Assignment, ReleasedAt: a.releasedAt,
				})
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.quarantines)) {
		q := m.quarantines[id]
		in.Open = append(in.Open, usage.Open{
			Cluster: q.Assignment.Cluster, UID: q.Assignment.ClusterUID, Assignment: &q.Assignment, ReleasedAt: &q.Since,
		})
	}
	return in
}

// usageRecords are the records in the order of their keys.
func (m *mirror) usageRecords() []*api.UsageRecord {
	var records []*api.UsageRecord
	for _, key := range slices.Sorted(maps.Keys(m.usage)) {
		records = append(records, m.usage[key])
	}
	return records
}

// putJobOrBuild takes in a job or build, and checks its change of phase.
func putJobOrBuild[T any, P ~string](m *mirror, into map[string]*T, key string, op store.Op, phase func(*T) P, table lifecycle.Machine[P]) {
	was := P("")
	if before := into[key]; before != nil {
		was = phase(before)
	}
	putIn(m.w, into, key, op)
	now := P("")
	if after := into[key]; after != nil {
		now = phase(after)
	}
	if was != now {
		transition(m.w, table, key, was, now)
	}
}

func (m *mirror) putJob(id string, op store.Op) {
	putJobOrBuild(m, m.jobs, id, op, func(j *api.Job) api.JobPhase { return j.Phase }, tablesOf.jobs)
	if j := m.jobs[id]; j != nil && j.ExitCode != nil && *j.ExitCode == falseExit {
		m.w.fail("lies", "job %s has ended as a node said that does not run it", id)
	}
}

func (m *mirror) putBuild(id string, op store.Op) {
	putJobOrBuild(m, m.builds, id, op, func(b *api.Build) api.BuildPhase { return b.Phase }, tablesOf.builds)
	if b := m.builds[id]; b != nil {
		m.checkBuilder(b)
	}
}

func (m *mirror) putMachine(name string, op store.Op) {
	before, known := m.machines[name]
	if op.Delete {
		delete(m.machines, name)
		transition(m.w, tablesOf.machines, name, before.record.Phase, "")
		m.w.checkGone(before.record)
		return
	}
	record := *decodeOp[api.MachineRecord](m.w, op)
	seen := machineSeen{record: record, changed: before.changed}
	if before.record.Phase != record.Phase || before.record.UID != record.UID {
		seen.changed = time.Now()
		if !known || before.record.UID != record.UID {
			before.record.Phase = ""
		}
		m.w.machineTransition(name, before.record.Phase, record.Phase)
	}
	m.machines[name] = seen
	m.w.checkRecord(before.record, record, known)
}

// machineTransition is a change of phase that one commit made, perhaps by way of another: one that has gone off is booted again at once.
func (w *world) machineTransition(name string, from, to api.MachinePhase) {
	if tablesOf.machines.Check(from, to) != nil && tablesOf.machines.Check(from, api.MachineOff) == nil && tablesOf.machines.Check(api.MachineOff, to) == nil {
		transition(w, tablesOf.machines, name, from, api.MachineOff)
		from = api.MachineOff
	}
	transition(w, tablesOf.machines, name, from, to)
}

// checkMembers checks that names and ranks are unique among the held and the lost members of each cluster.
func (m *mirror) checkMembers() {
	w := m.w
	for _, name := range m.names() {
		r := m.clusters[name].record
		names, ranks := map[string]string{}, map[int]string{}
		see := func(member string, rank int, what string) {
			if other, taken := names[member]; taken {
				w.fail("identity", "cluster %s has two members %s: %s and %s", name, member, other, what)
			}
			if other, taken := ranks[rank]; taken && rank != lifecycle.NoRank {
				w.fail("identity", "cluster %s has two members of rank %d: %s and %s", name, rank, other, what)
			}
			names[member], ranks[rank] = what, what
		}
		for _, a := range m.assignments(r) {
			if a.releasedAt == nil && !a.IsPart() && !a.IsSnapshot() {
				see(a.Member, a.Rank, a.ID)
			}
			if a.Spare && a.releasedAt != nil {
				w.fail("spare", "spare %s is released, and nothing can be cleaned of it", a.ID)
			}
		}
		if r != nil {
			for _, l := range r.Lost {
				see(l.Member, l.Rank, "lost "+l.Assignment)
			}
		}
	}
}
