package decision

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// account is what an independent observer knows of one assignment: when it was taken, released and clean.
type account struct {
	a                      api.Assignment
	taken, released, clean time.Time
	quarantined            bool
}

// world commits what Apply returns as a store would, and keeps books of its own.
type world struct {
	*rapid.T
	c           Cluster
	now         time.Time
	chunks      int
	books       map[string]*account
	spans       []api.UsageSpan
	quarantines []api.Quarantine
	lost        map[string]api.LostMember
	addresses   int
	usageSeq    int64
	gone        bool
}

func newWorld(t *rapid.T) *world {
	return &world{
		T: t, now: t0, books: map[string]*account{}, lost: map[string]api.LostMember{},
		c: Cluster{Intent: &api.ClusterIntent{Name: "c", UID: "u1", Project: api.DefaultProject, User: "ann"}},
	}
}

// chunkSize is how many assignments this store puts into a chunk.
const chunkSize = 3

func (w *world) commit(ops ...lifecycle.ClusterOperation) {
	w.Helper()
	before := w.c
	change, err := Apply(w.c, ops, w.now)
	if err != nil {
		w.Fatalf("%+v on %+v: %v", ops, before, err)
	}
	if u := change.Usage; u != nil {
		w.usageSeq++
		if u.Seq != w.usageSeq || u.UID != "u1" || u.User != "ann" {
			w.Fatalf("usage record %+v; want number %d of u1, ann's", u, w.usageSeq)
		}
		w.spans = append(w.spans, u.Spans...)
	}
	w.quarantines = append(w.quarantines, change.Quarantines...)
	if change.Forget {
		w.gone, w.c = true, Cluster{}
		return
	}
	content := map[string][]api.Assignment{}
	for _, chunk := range before.Chunks {
		content[chunk.Ref.ID] = chunk.Assignments
	}
	record := change.Record
	record.Chunks = slices.Clone(record.Chunks)
	for _, b := range change.Add {
		for part := range slices.Chunk(b.Assignments, chunkSize) {
			w.chunks++
			ref := api.ChunkRef{ID: fmt.Sprint(w.chunks), Count: len(part), Releasing: b.Releasing, ReleasedAt: b.ReleasedAt}
			record.Chunks, content[ref.ID] = append(record.Chunks, ref), part
		}
	}
	w.c = Cluster{Intent: before.Intent, Record: &record}
	for _, ref := range record.Chunks {
		w.c.Chunks = append(w.c.Chunks, Chunk{Ref: ref, Assignments: content[ref.ID]})
	}
}

// check compares what is committed with the books.
func (w *world) check() {
	w.Helper()
	if w.gone || w.c.Record == nil {
		return
	}
	found := map[string]bool{}
	clean := w.c.clean()
	for _, a := range w.c.Assignments() {
		if found[a.ID] {
			w.Fatalf("%s is in two chunks", a.ID)
		}
		found[a.ID] = true
		b := w.books[a.ID]
		if b == nil || a.Releasing == b.released.IsZero() || a.Clean == b.clean.IsZero() && !b.quarantined {
			w.Fatalf("%s is releasing %t, clean %t in the record; by the books it is %+v", a.ID, a.Releasing, a.Clean, b)
		}
		if a.Releasing && !a.ReleasedAt.Equal(b.released) {
			w.Fatalf("%s was released at %s, by the books at %s", a.ID, a.ReleasedAt, b.released)
		}
		if !a.TakenAt.Equal(b.taken) {
			w.Fatalf("%s was taken at %s, by the books at %s", a.ID, a.TakenAt, b.taken)
		}
		delete(clean, a.ID)
	}
	if len(clean) > 0 {
		w.Fatalf("in the clean list and in no chunk: %v", clean)
	}
	for id, b := range w.books {
		if b.clean.IsZero() && !b.quarantined && !found[id] {
			w.Fatalf("%s is in no chunk; by the books it is %+v", id, b)
		}
	}
	got := map[string]api.LostMember{}
	for _, m := range w.c.Record.Lost {
		got[m.Member] = m
	}
	if diff := cmp.Diff(w.lost, got); diff != "" || len(got) != len(w.c.Record.Lost) {
		w.Fatalf("lost members (-books +record):\n%s", diff)
	}
}

// some are the accounts, in an order that chance can be repeated on, that a random choice takes of those that fit.
func (w *world) some(what string, fits func(*account) bool) []*account {
	var list []*account
	for _, id := range slices.Sorted(maps.Keys(w.books)) {
		if b := w.books[id]; fits(b) && rapid.Bool().Draw(w.T, what+" "+id) {
			list = append(list, b)
		}
	}
	return list
}

func held(b *account) bool   { return b.released.IsZero() && b.clean.IsZero() }
func leaves(b *account) bool { return !b.released.IsZero() && b.clean.IsZero() && !b.quarantined }

// hold takes new members, replaces lost ones and takes spares, some of which give their room.
func (w *world) hold() {
	generation := int64(1)
	op := lifecycle.Hold{}
	if w.c.Record == nil || len(w.c.Record.Networks) == 0 {
		op.Networks = []api.Network{{UID: "u1", ClusterUID: "u1", Index: 3}}
	}
	if w.c.Record != nil {
		generation = w.c.Record.Generation + 1
	}
	names, ranks := map[string]bool{}, map[int]bool{}
	for _, b := range w.books {
		if held(b) {
			names[b.a.Member], ranks[b.a.Rank] = true, true
		}
	}
	for name, m := range w.lost {
		names[name], ranks[m.Rank] = true, true
	}
	add := func(a api.Assignment) {
		w.addresses++
		a.ID, a.ClusterUID, a.Generation = fmt.Sprintf("u1.%s.%d", a.Member, generation), "u1", generation
		a.Node = fmt.Sprint("n", rapid.IntRange(0, 2).Draw(w.T, "node"))
		a.CleanBy = api.ByAgents(a.Node)
		a.Slots = make([]int, rapid.IntRange(1, 4).Draw(w.T, "cores"))
		a.Memory = []api.MemoryClaim{{Bytes: rapid.Int64Range(1, 99).Draw(w.T, "memory")}}
		a.Ports = []api.PortClaim{{Address: netip.AddrFrom4([4]byte{10, byte(w.addresses >> 16), byte(w.addresses >> 8), byte(w.addresses)})}}
		op.Assignments = append(op.Assignments, a)
	}
	for _, name := range slices.Sorted(maps.Keys(w.lost)) {
		if m := w.lost[name]; rapid.Bool().Draw(w.T, "replace "+name) {
			add(api.Assignment{Member: name, Rank: m.Rank, Replaces: m.Assignment, Attempt: m.Attempt})
		}
	}
	for i := range 8 {
		if name := fmt.Sprint("c-", i); !names[name] && !ranks[i] && rapid.Bool().Draw(w.T, "add "+name) {
			add(api.Assignment{Member: name, Rank: i})
		}
	}
	for i := range 2 {
		if name := fmt.Sprint("c-spare-", i); !names[name] && rapid.Bool().Draw(w.T, "add "+name) {
			add(api.Assignment{Member: name, Rank: lifecycle.NoRank, Spare: true})
		}
	}
	if len(op.Assignments) == 0 {
		return
	}
	ops := []lifecycle.ClusterOperation{}
	for _, b := range w.some("take over", func(b *account) bool { return held(b) && b.a.Spare }) {
		op.Spares = append(op.Spares, b.a.ID)
		b.released, b.clean = w.now, w.now
	}
	if w.c.Record == nil {
		ops = append(ops, lifecycle.SetPhase{To: api.ClusterStarting})
	}
	for _, a := range op.Assignments {
		a.TakenAt = w.now
		w.books[a.ID] = &account{a: a, taken: w.now}
		if a.Replaces != "" {
			delete(w.lost, a.Member)
		}
	}
	w.commit(append(ops, op)...)
}

// release lets go of some, of a part of them as lost.
func (w *world) release(which []*account) []lifecycle.ClusterOperation {
	var ops []lifecycle.ClusterOperation
	for _, b := range which {
		lost := rapid.Bool().Draw(w.T, "lost "+b.a.ID)
		ops = append(ops, lifecycle.Release{IDs: []string{b.a.ID}, Lost: lost, Reason: "r"})
		b.released = w.now
		if b.a.Spare {
			b.clean = w.now
			continue
		}
		if lost {
			attempt := b.a.Attempt + 1
			if w.now.Sub(b.taken) >= 10*time.Minute {
				attempt = 1
			}
			w.lost[b.a.Member] = api.LostMember{
				Member: b.a.Member, Rank: b.a.Rank, Assignment: b.a.ID, Node: b.a.Node, Attempt: attempt, Reason: "r", Since: w.now,
			}
		}
	}
	return ops
}

func (w *world) clean(which []*account) {
	var ops []lifecycle.ClusterOperation
	for _, b := range which {
		if rapid.IntRange(0, 3).Draw(w.T, "how "+b.a.ID) == 0 {
			b.quarantined = true
			ops = append(ops, lifecycle.Quarantine{ID: b.a.ID, Reason: "q"})
			continue
		}
		b.clean = w.now
		ops = append(ops, lifecycle.ConfirmClean{IDs: []string{b.a.ID}})
	}
	if len(ops) > 0 {
		w.commit(ops...)
	}
}

func (w *world) endQuarantines(all bool) {
	w.quarantines = slices.DeleteFunc(w.quarantines, func(q api.Quarantine) bool {
		if !all && rapid.Bool().Draw(w.T, "stays "+q.Assignment.ID) {
			return false
		}
		w.spans = append(w.spans, EndQuarantine(q, w.now).Spans...)
		w.books[q.Assignment.ID].clean = w.now
		return true
	})
}

// sums adds up core-, byte- and member-nanoseconds by kind and node.
type sums map[string][3]int64

func (s sums) add(kind api.SpanKind, node string, from, to time.Time, members, cores int, bytes int64) {
	d := int64(to.Sub(from))
	if d == 0 {
		return
	}
	key := string(kind) + " on " + node
	v := s[key]
	s[key] = [3]int64{v[0] + d*int64(members), v[1] + d*int64(cores), v[2] + d*bytes}
}

func (w *world) checkUsage() {
	w.Helper()
	want, got := sums{}, sums{}
	for _, b := range w.books {
		want.add(api.SpanAllocated, b.a.Node, b.taken, b.released, 1, len(b.a.Slots), b.a.MemoryBytes())
		want.add(api.SpanCleaning, b.a.Node, b.released, b.clean, 1, len(b.a.Slots), b.a.MemoryBytes())
	}
	for _, s := range w.spans {
		got.add(s.Kind, s.Node, s.From, s.To, s.Members, s.Cores, s.MemoryBytes)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.Fatalf("member-, core- and byte-nanoseconds (-books +usage records):\n%s", diff)
	}
}

func TestWhateverHappensNothingIsLostAndAllUseIsWrittenDown(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.hold()
		for range rapid.IntRange(0, 25).Draw(t, "steps") {
			if w.c.Record == nil {
				w.hold()
				continue
			}
			w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int64{0, 1, 1e9, 77e9, 700e9}).Draw(t, "time passes")))
			switch rapid.IntRange(0, 4).Draw(t, "what") {
			case 0:
				w.hold()
			case 1:
				if ops := w.release(w.some("release", held)); len(ops) > 0 {
					w.commit(ops...)
				}
			case 2:
				w.clean(w.some("clean", leaves))
			case 3:
				w.endQuarantines(false)
			case 4:
				if len(w.lost) > 0 {
					name := slices.Min(slices.Collect(maps.Keys(w.lost)))
					delete(w.lost, name)
					w.commit(lifecycle.Drop{Members: []string{name}})
				}
			}
			w.check()
		}
		if w.c.Record == nil {
			return
		}
		w.end()
	})
}

// end deletes the cluster, and looks for leftovers.
func (w *world) end() {
	all := func(fits func(*account) bool) []*account {
		var list []*account
		for _, id := range slices.Sorted(maps.Keys(w.books)) {
			if fits(w.books[id]) {
				list = append(list, w.books[id])
			}
		}
		return list
	}
	w.now = w.now.Add(time.Minute)
	w.commit(append(w.release(all(held)), lifecycle.SetPhase{To: api.ClusterDeleting})...)
	w.check()
	w.now = w.now.Add(time.Minute)
	w.clean(all(leaves))
	w.check()
	if len(w.c.Record.Chunks) > 0 || len(w.c.Record.Clean) > 0 {
		w.Fatalf("all is clean, and the record still names chunks %v, clean %v", w.c.Record.Chunks, w.c.Record.Clean)
	}
	w.commit(lifecycle.Forget{})
	w.now = w.now.Add(time.Minute)
	w.endQuarantines(true)
	w.checkUsage()
	if !w.gone {
		w.Fatal("the cluster is not forgotten")
	}
}
