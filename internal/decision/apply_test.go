package decision

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) *time.Time {
	t := t0.Add(d)
	return &t
}

// assignment is one of cluster u1 on node nRANK with 2 cores and 1,000 bytes, taken at t0.
func assignment(member string, rank int, generation int64) api.Assignment {
	return api.Assignment{
		ID: placement.AssignmentID("u1", member, generation), ClusterUID: "u1", Cluster: "lab.c", Generation: generation, Group: "c", Member: member,
		Rank: rank, Node: fmt.Sprint("n", rank), CleanBy: api.ByAgents(fmt.Sprint("n", rank)), Slots: []int{0, 1}, Memory: []api.MemoryClaim{{Bytes: 1000}}, TakenAt: t0,
		Ports: []api.PortClaim{{Address: netip.AddrFrom4([4]byte{10, 0, byte(generation), byte(10 + rank)})}},
	}
}

func spare(generation int64) api.Assignment {
	a := assignment("c-spare-0", lifecycle.NoRank, generation)
	a.Spare, a.Node = true, "n9"
	return a
}

// running is a ready cluster: c-0 and c-1 in chunk k1, c-2 in k2 with a spare, c-9, which was released at t0, in k3.
func running() Cluster {
	old := assignment("c-9", 9, 1)
	c := Cluster{
		Intent: &api.ClusterIntent{Name: "lab.c", UID: "u1", Project: "lab", User: "ann"},
		Record: &api.ClusterRecord{
			Name: "lab.c", UID: "u1", Generation: 3, Phase: api.ClusterReady, Networks: []api.NetworkRef{{UID: "u1"}}, PlacedAt: at(0), ReadyAt: at(0),
			ChangedAt: t0, UsageSeq: 7,
		},
		Chunks: []Chunk{
			{Ref: api.ChunkRef{ID: "k1", Count: 2}, Assignments: []api.Assignment{assignment("c-0", 0, 1), assignment("c-1", 1, 1)}},
			{Ref: api.ChunkRef{ID: "k2", Count: 2}, Assignments: []api.Assignment{assignment("c-2", 2, 1), spare(2)}},
			{Ref: api.ChunkRef{ID: "k3", Count: 1, Releasing: true, ReleasedAt: at(0)}, Assignments: []api.Assignment{old}},
		},
	}
	for _, chunk := range c.Chunks {
		c.Record.Chunks = append(c.Record.Chunks, chunk.Ref)
	}
	return c
}

func apply(t *testing.T, c Cluster, after time.Duration, ops ...lifecycle.ClusterOperation) Change {
	t.Helper()
	change, err := Apply(c, ops, t0.Add(after))
	if err != nil {
		t.Fatal(err)
	}
	return change
}

// batches writes new chunks down.
func batches(change Change) []string {
	var lines []string
	for _, b := range change.Add {
		line := "held"
		if b.Releasing {
			line = "releasing since " + b.ReleasedAt.Sub(t0).String()
		}
		for _, a := range b.Assignments {
			line += " " + a.ID
		}
		lines = append(lines, line)
	}
	return lines
}

func refs(change Change) []string {
	var lines []string
	for _, r := range change.Record.Chunks {
		line := r.ID
		if r.Releasing {
			line += " releasing since " + r.ReleasedAt.Sub(t0).String()
		}
		lines = append(lines, line)
	}
	return lines
}

func usage(change Change) []string {
	var lines []string
	if change.Usage == nil {
		return nil
	}
	for _, s := range change.Usage.Spans {
		line := fmt.Sprintf("%s %s %s-%s %d members %d cores %d bytes", s.Kind, s.Node, s.From.Sub(t0), s.To.Sub(t0), s.Members, s.Cores, s.MemoryBytes)
		if len(s.Devices) > 0 {
			line += fmt.Sprint(" ", s.Devices)
		}
		lines = append(lines, line)
	}
	return lines
}

func equal[T any](t *testing.T, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestTheFirstPlaceMakesTheClusterTrue(t *testing.T) {
	c := Cluster{Intent: &api.ClusterIntent{Name: "lab.c", UID: "u1", Project: "lab", User: "ann"}}
	late := assignment("c-0", 0, 1)
	late.TakenAt = time.Time{}
	change := apply(t, c, time.Second,
		lifecycle.Hold{Assignments: []api.Assignment{late}, Networks: []api.Network{{UID: "u1", ClusterUID: "u1", Index: 5}, {UID: "u1.storage", ClusterUID: "u1", Index: 6}}, UserIDs: api.IDRange{First: 7, Count: 8}},
		lifecycle.SetPhase{To: api.ClusterStarting, Message: "waiting"},
		lifecycle.Emit{Reason: "Placed", Message: "placed", Member: "m", Node: "n"},
	)
	equal(t, "record", api.ClusterRecord{
		Name: "lab.c", UID: "u1", Generation: 1, Phase: api.ClusterStarting, Message: "waiting", Networks: []api.NetworkRef{{UID: "u1"}, {UID: "u1.storage"}}, UserIDs: api.IDRange{First: 7, Count: 8},
		PlacedAt: at(time.Second), ChangedAt: t0.Add(time.Second),
	}, change.Record)
	equal(t, "chunks", []string{"held u1.c-0.1"}, batches(change))
	equal(t, "when it was taken", t0.Add(time.Second), change.Add[0].Assignments[0].TakenAt)
	equal(t, "events", []api.Event{
		{Time: t0.Add(time.Second), Cluster: "lab.c", Reason: "Placed", Message: "placed", Member: "m", Node: "n"},
	}, change.Events)
	if !change.Dirty || change.Usage != nil {
		t.Errorf("dirty %t, usage %v; want a commit that ends no use", change.Dirty, change.Usage)
	}
}

func TestAPlanThatChangesNothingWritesNothing(t *testing.T) {
	need := lifecycle.Need{Kind: lifecycle.NeedHeal}
	change := apply(t, running(), time.Hour, need, lifecycle.WakeAt{Time: t0.Add(2 * time.Hour)}, lifecycle.WakeAt{Time: t0.Add(time.Hour)},
		lifecycle.WakeAt{Time: t0.Add(3 * time.Hour)})
	equal(t, "change", Change{Record: *running().Record, Needs: []Need{need}, WakeAt: t0.Add(time.Hour)}, change)
}

func TestAPhaseIsDatedByItsFirstMoment(t *testing.T) {
	c := running()
	said := apply(t, c, time.Minute, lifecycle.SetPhase{To: api.ClusterReady, Message: "x"}).Record
	if said.ChangedAt != t0 || said.Message != "x" || !said.ReadyAt.Equal(t0) {
		t.Errorf("another message: phase is since %s, ready since %s, message %q; want no change but of the message", said.ChangedAt, said.ReadyAt, said.Message)
	}
	moved := apply(t, c, time.Minute, lifecycle.SetPhase{To: api.ClusterDegraded}).Record
	if moved.ChangedAt != t0.Add(time.Minute) {
		t.Errorf("another phase: it is since %s, want since the commit", moved.ChangedAt)
	}
	c.Record.Phase, c.Record.ReadyAt = api.ClusterStarting, nil
	first := apply(t, c, time.Minute, lifecycle.SetPhase{To: api.ClusterReady}).Record
	if first.ReadyAt == nil || *first.ReadyAt != t0.Add(time.Minute) {
		t.Errorf("ready for the first time: at %v, want at the commit", first.ReadyAt)
	}
	larger := apply(t, c, time.Minute, lifecycle.SetPhase{To: api.ClusterScaling}).Record
	if larger.ReadyAt == nil || *larger.ReadyAt != t0.Add(time.Minute) {
		t.Errorf("its first members were ready, more are to come: ready at %v, want at the commit", larger.ReadyAt)
	}
	if first.Generation != 3 {
		t.Errorf("generation %d after a change of phase; want 3 as before", first.Generation)
	}
}

func TestAChunkOfWhichAllIsReleasedJustTurns(t *testing.T) {
	change := apply(t, running(), time.Minute, lifecycle.Release{IDs: []string{"u1.c-0.1", "u1.c-1.1"}})
	equal(t, "chunks that stay", []string{"k1 releasing since 1m0s", "k2", "k3 releasing since 0s"}, refs(change))
	equal(t, "new chunks", nil, batches(change))
	equal(t, "usage", []string{"allocated n0 0s-1m0s 1 members 2 cores 1000 bytes", "allocated n1 0s-1m0s 1 members 2 cores 1000 bytes"}, usage(change))
	if change.Record.Generation != 4 || change.Record.UsageSeq != 8 || change.Usage.Seq != 8 {
		t.Errorf("generation %d, usage record %d (%d); want 4 and 8", change.Record.Generation, change.Usage.Seq, change.Record.UsageSeq)
	}
	if u := change.Usage; u.Project != "lab" || u.User != "ann" || u.Cluster != "lab.c" || u.UID != "u1" {
		t.Errorf("the use is %+v's; want lab's and ann's", u)
	}
}

func TestALostMemberLeavesItsChunkAndItsNameWaits(t *testing.T) {
	before := running()
	change := apply(t, before, time.Minute, lifecycle.Release{IDs: []string{"u1.c-1.1"}, Lost: true, Reason: "node n1 is down"})
	equal(t, "chunks that stay", []string{"k2", "k3 releasing since 0s"}, refs(change))
	equal(t, "new chunks", []string{"held u1.c-0.1", "releasing since 1m0s u1.c-1.1"}, batches(change))
	equal(t, "lost", []api.LostMember{{
		Group: "c", Member: "c-1", Rank: 1, Assignment: "u1.c-1.1", Node: "n1", Attempt: 1, Reason: "node n1 is down", Since: t0.Add(time.Minute),
	}}, change.Record.Lost)
	equal(t, "the input, which is only read", running(), before)
}

func TestLossesInARowAreCountedUntilAMemberHasHeldItsPlaceForAWhile(t *testing.T) {
	for _, tt := range []struct {
		held time.Duration
		want int
	}{{10*time.Minute - 1, 4}, {10 * time.Minute, 1}} {
		c := running()
		c.Chunks[0].Assignments[1].Attempt = 3
		change := apply(t, c, tt.held, lifecycle.Release{IDs: []string{"u1.c-1.1"}, Lost: true})
		if got := change.Record.Lost[0].Attempt; got != tt.want {
			t.Errorf("attempt 3, lost after %s: the next is %d, want %d", tt.held, got, tt.want)
		}
	}
}

func TestASpareGoesWithoutCleaning(t *testing.T) {
	change := apply(t, running(), time.Minute, lifecycle.Release{IDs: []string{"u1.c-spare-0.2"}, Lost: true})
	equal(t, "chunks that stay", []string{"k1", "k3 releasing since 0s"}, refs(change))
	equal(t, "new chunks", []string{"held u1.c-2.1"}, batches(change))
	equal(t, "lost", nil, change.Record.Lost)
	equal(t, "usage", []string{"allocated n9 0s-1m0s 1 members 2 cores 1000 bytes"}, usage(change))
}

func TestAReplacementTakesNameRankAndTheRoomOfASpare(t *testing.T) {
	c := running()
	c.Record.Lost = []api.LostMember{{Member: "c-5", Rank: 5, Assignment: "u1.c-5.2"}, {Member: "c-6", Rank: 6, Assignment: "u1.c-6.2"}}
	n := assignment("c-6", 6, 4)
	spareToo := spare(2)
	n.Replaces, n.Node, n.Ports = "u1.c-6.2", "n9", spareToo.Ports // nobody ever answered at a spare's address
	change := apply(t, c, time.Minute, lifecycle.Hold{Assignments: []api.Assignment{n}, Spares: []string{"u1.c-spare-0.2"}})
	equal(t, "new chunks", []string{"held u1.c-2.1 u1.c-6.4"}, batches(change))
	equal(t, "lost", c.Record.Lost[:1], change.Record.Lost)
	equal(t, "usage", []string{"allocated n9 0s-1m0s 1 members 2 cores 1000 bytes"}, usage(change))
	if change.Record.Generation != 4 || !change.Record.PlacedAt.Equal(t0) {
		t.Errorf("generation %d, placed at %s; want 4, and placed when it first was", change.Record.Generation, change.Record.PlacedAt)
	}
}

// halfClean is running with c-8, which is not clean, in the chunk of c-9, which is.
func halfClean() Cluster {
	c := running()
	c.Chunks[2].Assignments = append(c.Chunks[2].Assignments, assignment("c-8", 8, 1))
	c.Chunks[2].Ref.Count, c.Record.Chunks[2].Count, c.Record.Clean = 2, 2, []string{"u1.c-9.1"}
	return c
}

func TestAnAddressIsFreeOnceItIsClean(t *testing.T) {
	n := assignment("c-7", 7, 4)
	n.Ports = assignment("c-9", 9, 1).Ports
	change := apply(t, halfClean(), time.Minute, lifecycle.Hold{Assignments: []api.Assignment{n}})
	equal(t, "new chunks", []string{"held u1.c-7.4"}, batches(change))
}

func TestThoseWithoutAnAddressDoNotShareOne(t *testing.T) {
	a, b := assignment("c-7", 7, 4), assignment("c-8", 8, 4)
	a.Ports, b.Ports = nil, nil
	change := apply(t, running(), time.Minute, lifecycle.Hold{Assignments: []api.Assignment{a, b}})
	equal(t, "new chunks", []string{"held u1.c-7.4 u1.c-8.4"}, batches(change))
}

func TestWhatIsCleanGoesWithItsChunk(t *testing.T) {
	c := running()
	c.Chunks[0].Ref.Releasing, c.Chunks[0].Ref.ReleasedAt = true, at(time.Minute)
	c.Record.Chunks[0] = c.Chunks[0].Ref
	first := apply(t, c, 2*time.Minute, lifecycle.ConfirmClean{IDs: []string{"u1.c-0.1"}})
	equal(t, "clean", []string{"u1.c-0.1"}, first.Record.Clean)
	equal(t, "chunks that stay", []string{"k1 releasing since 1m0s", "k2", "k3 releasing since 0s"}, refs(first))
	equal(t, "usage", []string{"cleaning n0 1m0s-2m0s 1 members 2 cores 1000 bytes"}, usage(first))
	if first.Record.Generation != 3 {
		t.Errorf("generation %d after cleaning; want 3 as before", first.Record.Generation)
	}
	c.Record.Clean = first.Record.Clean
	last := apply(t, c, 3*time.Minute, lifecycle.Quarantine{ID: "u1.c-1.1", Reason: "busy"})
	equal(t, "clean", nil, last.Record.Clean)
	equal(t, "chunks that stay", []string{"k2", "k3 releasing since 0s"}, refs(last))
	equal(t, "usage", []string{"cleaning n1 1m0s-3m0s 1 members 2 cores 1000 bytes"}, usage(last))
	q := last.Quarantines[0]
	if q.Assignment.ID != "u1.c-1.1" || q.Reason != "busy" || q.Since != t0.Add(3*time.Minute) {
		t.Errorf("quarantined %+v; want c-1, busy, since the commit", q)
	}
	end := EndQuarantine(q, t0.Add(time.Hour))
	equal(t, "usage of the quarantine", []string{"cleaning n1 3m0s-1h0m0s 1 members 2 cores 1000 bytes"}, usage(Change{Usage: &end}))
	if end.Project != "lab" || end.UID != "u1" {
		t.Errorf("the quarantine's use is %+v's; want lab's", end)
	}
}

func TestLikeUseIsOneSpan(t *testing.T) {
	c := running()
	c.Chunks[0].Assignments[1].Node = "n0"
	change := apply(t, c, time.Minute, lifecycle.Release{IDs: []string{"u1.c-0.1", "u1.c-1.1"}})
	equal(t, "usage", []string{"allocated n0 0s-1m0s 2 members 4 cores 2000 bytes"}, usage(change))
}

func TestAClockThatWentBackEndsNothingBeforeItBegan(t *testing.T) {
	c := running()
	c.Chunks[0].Assignments[0].TakenAt = t0.Add(time.Hour)
	change := apply(t, c, time.Minute, lifecycle.Release{IDs: []string{"u1.c-0.1", "u1.c-1.1"}})
	equal(t, "usage", []string{"allocated n1 0s-1h0m0s 1 members 2 cores 1000 bytes"}, usage(change))
	equal(t, "chunks", []string{"k1 releasing since 1h0m0s", "k2", "k3 releasing since 0s"}, refs(change))

	c = running()
	c.Chunks[2].Ref.ReleasedAt = at(time.Hour)
	c.Record.Chunks[2].ReleasedAt = at(time.Hour)
	equal(t, "usage", nil, usage(apply(t, c, time.Minute, lifecycle.ConfirmClean{IDs: []string{"u1.c-9.1"}})))
	quarantine := apply(t, c, time.Minute, lifecycle.Quarantine{ID: "u1.c-9.1"}).Quarantines[0]
	equal(t, "quarantined since", t0.Add(time.Hour), quarantine.Since)
}

func TestTheTimeLimitIsNoted(t *testing.T) {
	r := apply(t, running(), time.Minute, lifecycle.Warn{For: t0.Add(time.Hour)}, lifecycle.Expire{}).Record
	equal(t, "warned for", at(time.Hour), r.WarnedFor)
	equal(t, "expired", at(time.Minute), r.ExpiredAt)
}

func TestALostNameIsDropped(t *testing.T) {
	c := running()
	c.Record.Lost = []api.LostMember{{Member: "c-5"}, {Member: "c-6"}}
	equal(t, "lost", []api.LostMember{{Member: "c-6"}}, apply(t, c, 0, lifecycle.Drop{Members: []string{"c-5"}}).Record.Lost)
	equal(t, "lost before", []api.LostMember{{Member: "c-5"}, {Member: "c-6"}}, c.Record.Lost)
}

func TestAClusterIsForgottenOnceAllOfItIsClean(t *testing.T) {
	c := running()
	c.Record.Phase, c.Record.Chunks, c.Chunks = api.ClusterDeleting, c.Record.Chunks[2:], c.Chunks[2:]
	change := apply(t, c, time.Minute, lifecycle.ConfirmClean{IDs: []string{"u1.c-9.1"}}, lifecycle.Forget{})
	if !change.Forget || !change.Dirty {
		t.Errorf("forget %t, dirty %t; want it gone", change.Forget, change.Dirty)
	}
	equal(t, "usage", []string{"cleaning n9 0s-1m0s 1 members 2 cores 1000 bytes"}, usage(change))
	left := running()
	left.Record.Phase, left.Record.Chunks, left.Chunks = api.ClusterDeleting, left.Record.Chunks[1:2], left.Chunks[1:2]
	left.Chunks[0].Assignments, left.Chunks[0].Ref.Count, left.Record.Chunks[0].Count = []api.Assignment{spare(2)}, 1, 1
	if change := apply(t, left, 0, lifecycle.Release{IDs: []string{"u1.c-spare-0.2"}}, lifecycle.Forget{}); !change.Forget {
		t.Error("a cluster that holds nothing but a spare is not forgotten with it")
	}
	if change := apply(t, Cluster{Intent: running().Intent}, 0, lifecycle.Forget{}); !change.Forget {
		t.Error("a cluster without a record is not forgotten")
	}
}

func TestWhatDoesNotFitWhatIsCommittedIsRefused(t *testing.T) {
	hold := func(change func(*api.Assignment)) lifecycle.ClusterOperation {
		a := assignment("c-7", 7, 4)
		change(&a)
		return lifecycle.Hold{Assignments: []api.Assignment{a}}
	}
	release := func(ids ...string) lifecycle.ClusterOperation { return lifecycle.Release{IDs: ids} }
	say := []lifecycle.ClusterOperation{lifecycle.SetPhase{To: api.ClusterReady, Message: "x"}}
	tests := []struct {
		name  string
		given func(*Cluster)
		ops   []lifecycle.ClusterOperation
		want  string
	}{
		{"a release of what is not there", nil, []lifecycle.ClusterOperation{release("u1.c-8.1")}, "assignment u1.c-8.1 does not belong to the cluster"},
		{"a release of what is being cleaned", nil, []lifecycle.ClusterOperation{release("u1.c-9.1")}, "was already released"},
		{"two releases of one", nil, []lifecycle.ClusterOperation{release("u1.c-0.1", "u1.c-0.1")}, "was already released"},
		{
			"a loss of a name that is lost", func(c *Cluster) { c.Record.Lost = []api.LostMember{{Member: "c-0"}} },
			[]lifecycle.ClusterOperation{lifecycle.Release{IDs: []string{"u1.c-0.1"}, Lost: true}},
			"already waits for a replacement",
		},
		{"a drop of who is not lost", nil, []lifecycle.ClusterOperation{lifecycle.Drop{Members: []string{"c-0"}}}, "c-0 is not lost"},
		{"a confirmation of what is not there", nil, []lifecycle.ClusterOperation{lifecycle.ConfirmClean{IDs: []string{"x"}}}, "does not belong to the cluster"},
		{"a confirmation of what is held", nil, []lifecycle.ClusterOperation{lifecycle.ConfirmClean{IDs: []string{"u1.c-0.1"}}}, "is not being released"},
		{
			"a confirmation of what was released a moment ago", nil,
			[]lifecycle.ClusterOperation{release("u1.c-0.1"), lifecycle.ConfirmClean{IDs: []string{"u1.c-0.1"}}},
			"is not being released",
		},
		{
			"two confirmations of one", nil, []lifecycle.ClusterOperation{lifecycle.ConfirmClean{IDs: []string{"u1.c-9.1", "u1.c-9.1"}}}, "is already clean",
		},
		{
			"a confirmation of what is clean", func(c *Cluster) {
				c.Chunks[2].Assignments = append(c.Chunks[2].Assignments, assignment("c-8", 8, 1))
				c.Chunks[2].Ref.Count, c.Record.Chunks[2].Count, c.Record.Clean = 2, 2, []string{"u1.c-9.1"}
			},
			[]lifecycle.ClusterOperation{lifecycle.ConfirmClean{IDs: []string{"u1.c-9.1"}}},
			"is already clean",
		},
		{
			"a proof of what is held", nil,
			[]lifecycle.ClusterOperation{lifecycle.NoteProofs{Proofs: []api.Proof{{Assignment: "u1.c-0.1", Prover: api.ByAgents("n0")[0]}}}},
			"is not being released",
		},
		{
			"a proof of another node", nil,
			[]lifecycle.ClusterOperation{lifecycle.NoteProofs{Proofs: []api.Proof{{Assignment: "u1.c-9.1", Prover: api.ByAgents("n1")[0]}}}},
			"need not prove",
		},
		{
			"a proof that is noted", func(c *Cluster) {
				c.Record.Proved = []api.Proof{{Assignment: "u1.c-9.1", Prover: api.ByAgents("n9")[0]}}
			},
			[]lifecycle.ClusterOperation{lifecycle.NoteProofs{Proofs: []api.Proof{{Assignment: "u1.c-9.1", Prover: api.ByAgents("n9")[0]}}}},
			"already proved",
		},
		{
			"a hold that nobody must prove clean", nil,
			[]lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.CleanBy = nil })},
			"names no prover that must prove it clean",
		},
		{
			"a part of a member that was there before", nil,
			[]lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Of, a.Rank, a.Member = "u1.c-0.1", lifecycle.NoRank, "c-0" })},
			"no member that is placed with it",
		},
		{
			"a part with a rank", nil,
			[]lifecycle.ClusterOperation{lifecycle.Hold{Assignments: []api.Assignment{assignment("c-7", 7, 4), partOf("c-7", 7, 4, func(a *api.Assignment) { a.Rank = 8 })}}},
			"a rank or a past of its own",
		},
		{
			"a part that is a spare", nil,
			[]lifecycle.ClusterOperation{lifecycle.Hold{Assignments: []api.Assignment{assignment("c-7", 7, 4), partOf("c-7", 7, 4, func(a *api.Assignment) { a.Spare = true })}}},
			"a rank or a past of its own",
		},
		{"a quarantine of what is held", nil, []lifecycle.ClusterOperation{lifecycle.Quarantine{ID: "u1.c-0.1"}}, "is not being released"},
		{"a hold of nothing", nil, []lifecycle.ClusterOperation{lifecycle.Hold{}}, "it holds nothing"},
		{"a hold of an ID that is held", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.ID = "u1.c-0.1" })}, "is taken"},
		{"a hold without an ID", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.ID = "" })}, "is taken"},
		{
			"a hold of an ID that was confirmed clean", func(c *Cluster) { *c = halfClean() },
			[]lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.ID = "u1.c-9.1" })},
			"is taken",
		},
		{"a hold of an ID that is being cleaned", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.ID = "u1.c-9.1" })}, "is taken"},
		{
			"two holds of one ID", nil,
			[]lifecycle.ClusterOperation{hold(func(*api.Assignment) {}), hold(func(a *api.Assignment) { a.Ports = nil })},
			"is taken",
		},
		{"a hold of a generation that was", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Generation = 3 })}, "the next generation is 4"},
		{"a hold of a generation to come", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Generation = 5 })}, "the next generation is 4"},
		{"a hold for another cluster", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.ClusterUID = "u2" })}, `not "u1"`},
		{"a hold of a name that is held", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Member = "c-0" })}, "is for member c-0"},
		{"a hold of a rank that is held", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Rank = 1 })}, "has rank 1, which"},
		{"a hold without a rank", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Rank = -1 })}, "has no rank"},
		{
			"a hold of a rank kept for a lost member", func(c *Cluster) { c.Record.Lost = []api.LostMember{{Member: "c-5", Rank: 7}} },
			[]lifecycle.ClusterOperation{hold(func(*api.Assignment) {})},
			"reserved for lost member c-5",
		},
		{
			"a hold of a lost name that replaces nothing", func(c *Cluster) { c.Record.Lost = []api.LostMember{{Member: "c-7", Rank: 7, Assignment: "x"}} },
			[]lifecycle.ClusterOperation{hold(func(*api.Assignment) {})},
			"replaces no assignment",
		},
		{
			"a replacement of one who was not lost", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Replaces = "x" })}, "no such member is lost",
		},
		{
			"a replacement of another loss of the name", func(c *Cluster) { c.Record.Lost = []api.LostMember{{Member: "c-7", Rank: 7, Assignment: "x"}} },
			[]lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Replaces = "y" })},
			"no such member is lost",
		},
		{
			"a replacement at another rank", func(c *Cluster) { c.Record.Lost = []api.LostMember{{Member: "c-7", Rank: 3, Assignment: "x"}} },
			[]lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Replaces = "x" })},
			"no such member is lost",
		},
		{
			"an address that is not clean yet", nil,
			[]lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Ports = assignment("c-9", 9, 1).Ports })},
			"which is not clean",
		},
		{
			"an address that was released a moment ago", nil,
			[]lifecycle.ClusterOperation{release("u1.c-0.1"), hold(func(a *api.Assignment) { a.Ports = assignment("c-0", 0, 1).Ports })},
			"which is not clean",
		},
		{
			"an address of another cluster on a network of the project", func(c *Cluster) {
				other := assignment("c-7", 7, 4)
				other.ID, other.ClusterUID = "u2.d-0.1", "u2"
				c.Beside = []api.Assignment{other}
			},
			[]lifecycle.ClusterOperation{hold(func(*api.Assignment) {})},
			"of u2.d-0.1, which is of another cluster and not clean",
		},
		{
			"networks that a placed cluster joins", nil,
			[]lifecycle.ClusterOperation{lifecycle.Hold{Assignments: []api.Assignment{assignment("c-7", 7, 4)}, Joined: []api.NetworkRef{{UID: "lab", Name: "project/lab"}}}},
			"the assignments join networks, but the cluster joined 0 when it was placed",
		},
		{
			"one address for two", nil,
			[]lifecycle.ClusterOperation{hold(func(*api.Assignment) {}), hold(func(a *api.Assignment) { a.ID, a.Member, a.Rank = "z", "c-8", 8 })},
			"takes the address",
		},
		{"a spare with a rank", nil, []lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Spare = true })}, "a spare has no rank"},
		{
			"a spare in the place of somebody", nil,
			[]lifecycle.ClusterOperation{hold(func(a *api.Assignment) { a.Spare, a.Rank, a.Replaces = true, -1, "x" })},
			"replaces no member",
		},
		{"room of a member that is taken for a spare's", nil, []lifecycle.ClusterOperation{
			lifecycle.Hold{Assignments: []api.Assignment{assignment("c-7", 7, 4)}, Spares: []string{"u1.c-0.1"}},
		}, "is a member, not a spare"},
		{"room of a spare that is gone", nil, []lifecycle.ClusterOperation{
			release("u1.c-spare-0.2"), lifecycle.Hold{Assignments: []api.Assignment{assignment("c-7", 7, 4)}, Spares: []string{"u1.c-spare-0.2"}},
		}, "was already released"},
		{"another network", nil, []lifecycle.ClusterOperation{
			lifecycle.Hold{Assignments: []api.Assignment{assignment("c-7", 7, 4)}, Networks: []api.Network{{UID: "u1.9", ClusterUID: "u1", Index: 9}}},
		}, "the cluster has 1 already"},
		{"the network of another cluster", func(c *Cluster) { c.Record.Networks = nil }, []lifecycle.ClusterOperation{
			lifecycle.Hold{Assignments: []api.Assignment{assignment("c-7", 7, 4)}, Networks: []api.Network{{UID: "u2", ClusterUID: "u2", Index: 9}}},
		}, "no new one of the cluster"},
		{
			"no network at all", func(c *Cluster) { c.Record.Networks = nil },
			[]lifecycle.ClusterOperation{hold(func(*api.Assignment) {})},
			"the cluster has none",
		},
		{
			"new members for a cluster that is deleted", func(c *Cluster) { c.Record.Phase = api.ClusterDeleting },
			[]lifecycle.ClusterOperation{hold(func(*api.Assignment) {})},
			"it is deleting and must not get assignments",
		},
		{"a phase that can't follow", nil, []lifecycle.ClusterOperation{lifecycle.SetPhase{To: api.ClusterStarting}}, "no such transition"},
		{"a second end of the time limit", nil, []lifecycle.ClusterOperation{lifecycle.Expire{}, lifecycle.Expire{}}, "passed at"},
		{"to forget what is not clean", func(c *Cluster) { c.Record.Phase = api.ClusterDeleting }, []lifecycle.ClusterOperation{lifecycle.Forget{}}, "is not confirmed clean"},
		{
			"to forget what is wanted", func(c *Cluster) { c.Chunks, c.Record.Chunks = nil, nil },
			[]lifecycle.ClusterOperation{lifecycle.Forget{}},
			"no such transition",
		},
		{
			"to forget what has just been given a place", func(c *Cluster) { c.Chunks, c.Record.Chunks, c.Record.Phase = nil, nil, api.ClusterDeleting },
			[]lifecycle.ClusterOperation{hold(func(*api.Assignment) {}), lifecycle.Forget{}},
			"the same commit gives it 1 assignments",
		},
		{
			"anything of a cluster that was forgotten", func(c *Cluster) { c.Chunks, c.Record.Chunks, c.Record.Phase = nil, nil, api.ClusterDeleting },
			[]lifecycle.ClusterOperation{lifecycle.Forget{}, lifecycle.SetPhase{To: api.ClusterDeleting}},
			"already removed the cluster",
		},
		{"chunks that are missing", func(c *Cluster) { c.Chunks = c.Chunks[:2] }, say, "names 3 chunks, but 2 are given"},
		{"another chunk", func(c *Cluster) { c.Chunks[0].Ref.ID = "k9" }, say, "chunk k9 with 2 assignments where its record names k1"},
		{"half a chunk", func(c *Cluster) { c.Chunks[0].Assignments = c.Chunks[0].Assignments[:1] }, say, "where its record names"},
		{"a chunk that turned", func(c *Cluster) { c.Chunks[0].Ref.Releasing = true }, say, "where its record names"},
		{"an assignment that is there twice", func(c *Cluster) { c.Chunks[1].Assignments[0].ID = "u1.c-0.1" }, say, "u1.c-0.1 appears twice"},
		{"a held assignment that is called clean", func(c *Cluster) { c.Record.Clean = []string{"u1.c-0.1"} }, say, "in no releasing chunk"},
		{"a clean one that is nowhere", func(c *Cluster) { c.Record.Clean = []string{"x"} }, say, "in no releasing chunk"},
		{"a record of another cluster", func(c *Cluster) { c.Intent.UID = "u2" }, say, "its intent has UID u2"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := running()
			if tt.given != nil {
				tt.given(&c)
			}
			change, err := Apply(c, tt.ops, t0)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("want a refusal that says %q, got %v", tt.want, err)
			}
			if err != nil && !strings.HasPrefix(err.Error(), `cluster "lab.c": `) {
				t.Errorf("the refusal does not name the cluster: %v", err)
			}
			equal(t, "change", Change{}, change)
		})
	}
}

func TestPlacesAreGivenToTheWantedMembersOfTheirGroup(t *testing.T) {
	need := lifecycle.Need{Kind: lifecycle.NeedScale, Members: []lifecycle.WantedMember{
		{Group: "b", Member: "b-3", Rank: 9, Attempt: 2, Replaces: "x"},
		{Group: "a", Member: "a-1", Rank: 4},
		{Group: "b", Member: "b-7", Rank: 2},
		{Group: "a", Member: "a-spare-0", Rank: -1, Spare: true},
	}}
	network := api.Network{UID: "u1", Index: 3, Prefix: netip.MustParsePrefix("10.64.48.0/20"), Gateway: netip.MustParseAddr("10.64.48.1")}
	d := placement.Decision{ClusterUID: "u1", Cluster: "c", Generation: 4, Networks: []api.Network{network}}
	placed := []placement.Placed{{Group: "a", Node: "n1"}, {Group: "a", Node: "n2"}, {Group: "b", Node: "n3"}, {Group: "b", Node: "n4"}}
	got, err := Assign(need, placed, d)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, a := range got {
		lines = append(lines, fmt.Sprintf("%s@%d on %s, attempt %d for %q, spare %t", a.ID, a.Rank, a.Node, a.Attempt, a.Replaces, a.Spare))
	}
	equal(t, "assignments", []string{
		`u1.a-1.4@4 on n1, attempt 0 for "", spare false`, `u1.a-spare-0.4@-1 on n2, attempt 0 for "", spare true`,
		`u1.b-3.4@9 on n3, attempt 2 for "x", spare false`, `u1.b-7.4@2 on n4, attempt 0 for "", spare false`,
	}, lines)
	full := d
	for i := range placement.MaxMembers {
		full.Held = append(full.Held, api.Assignment{Ports: []api.PortClaim{{Network: "u1", Address: nth(network.Gateway, i+1)}}})
	}
	if _, err := Assign(need, placed, full); err == nil {
		t.Error("addresses are given out of a network that has none")
	}
	if _, err := Assign(need, placed[:3], d); err == nil {
		t.Error("3 places for 4 members are taken")
	}
	wrong := slices.Clone(placed)
	wrong[0].Group = "b"
	if _, err := Assign(need, wrong, d); err == nil {
		t.Error("a place of a group that wants none is taken")
	}
}

func TestAssignmentsAreSeenAsTheirChunksAre(t *testing.T) {
	c := running()
	c.Chunks[2].Assignments = append(c.Chunks[2].Assignments, assignment("c-8", 8, 1))
	c.Chunks[2].Ref.Count, c.Record.Chunks[2].Count, c.Record.Clean = 2, 2, []string{"u1.c-9.1"}
	var lines []string
	for _, a := range c.Assignments() {
		lines = append(lines, fmt.Sprintf("%s releasing %t since %t clean %t", a.ID, a.Releasing, a.ReleasedAt.Equal(t0), a.Clean))
	}
	equal(t, "assignments", []string{
		"u1.c-0.1 releasing false since false clean false", "u1.c-1.1 releasing false since false clean false",
		"u1.c-2.1 releasing false since false clean false", "u1.c-spare-0.2 releasing false since false clean false",
		"u1.c-9.1 releasing true since true clean true", "u1.c-8.1 releasing true since true clean false",
	}, lines)
	if n := len(c.Unclean()); n != 5 {
		t.Errorf("%d assignments hold room; want all 6 but the clean one", n)
	}
	c.Chunks[2].Ref.ReleasedAt = nil
	if got := c.Assignments()[5].ReleasedAt; got != c.Record.ChangedAt {
		t.Errorf("a chunk that does not tell when it was released: %s; want when the phase changed, %s", got, c.Record.ChangedAt)
	}
}

// nth is the n-th address after another.
func nth(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

func TestAClusterWhoseIntentIsGoneIsStillCleanedUp(t *testing.T) {
	c := running()
	c.Intent = nil
	change := apply(t, c, time.Minute, lifecycle.Release{IDs: []string{"u1.c-0.1", "u1.c-1.1"}}, lifecycle.Emit{Reason: "x"})
	if u := change.Usage; u.UID != "u1" || u.Cluster != "lab.c" || u.Project != "lab" || change.Events[0].Cluster != "lab.c" {
		t.Errorf("use of %+v, event of %q; want both lab.c's, by its record", u, change.Events[0].Cluster)
	}
	if q := EndQuarantine(api.Quarantine{Assignment: api.Assignment{Cluster: "c"}}, t0); q.Project != api.DefaultProject {
		t.Errorf("a cluster without a project in its name is of project %q, want the default one", q.Project)
	}
}

func TestAChunkThatDoesNotTellWhenItWasReleasedWasSoWhenThePhaseChanged(t *testing.T) {
	c := running()
	c.Chunks[2].Ref.ReleasedAt, c.Record.Chunks[2].ReleasedAt = nil, nil
	change := apply(t, c, time.Minute, lifecycle.ConfirmClean{IDs: []string{"u1.c-9.1"}})
	equal(t, "usage", []string{"cleaning n9 0s-1m0s 1 members 2 cores 1000 bytes"}, usage(change))
}
