package decision

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// snapshotS is the request for snapshot s.
var snapshotS = api.SnapshotIntent{Name: "s", AskedAt: time.Unix(0, 0).UTC()}

// states are the assignments that keep states, by the name of their member.
func states(c Cluster) map[string]api.Assignment {
	all := map[string]api.Assignment{}
	for _, a := range c.Assignments() {
		if a.IsSnapshot() && !a.Releasing {
			all[a.Member] = *a.Assignment
		}
	}
	return all
}

// snapshotted is a running cluster with snapshot s, made at 2 h, that was asked to go back to it.
func snapshotted(t *testing.T) Cluster {
	t.Helper()
	c := running()
	c.Intent.Snapshots = []api.SnapshotIntent{snapshotS}
	c.Record.Phase = api.ClusterSnapshotting
	c = then(c, apply(t, c, time.Hour, lifecycle.HoldSnapshot{Snapshot: snapshotS}))
	sizes := map[string]int64{}
	for _, a := range states(c) {
		sizes[a.ID] = 700
	}
	c = then(c, apply(t, c, 2*time.Hour, lifecycle.NoteSnapshot{Snapshot: snapshotS, Bytes: sizes}))
	c.Record.Phase = api.ClusterReady
	c.Intent.SnapshotRestore = &api.SnapshotIntent{Name: "s", AskedAt: snapshotS.AskedAt.Add(time.Minute)}
	return c
}

func TestAStateOfASnapshotIsNoMemberAndTakesDiskOnly(t *testing.T) {
	t.Parallel()
	c := running()
	c.Record.Phase = api.ClusterSnapshotting
	change := apply(t, c, time.Hour, lifecycle.HoldSnapshot{Snapshot: snapshotS})
	held := states(then(c, change))
	if len(held) == 0 || len(spansOf(change)) > 0 {
		t.Fatalf("%d states are held, and the use %q has ended", len(held), spansOf(change))
	}
	for _, m := range c.Assignments() {
		if !m.IsMember() || m.Releasing {
			continue
		}
		s, ok := held[m.Member]
		want := resource.Vector{resource.Disk: resource.StateBound(m.MemoryBytes())}
		if got := resource.OfAssignment(&s).Vector; !ok || got != want || s.IsMember() || s.Rank != lifecycle.NoRank || len(s.Ports) > 0 || s.Node != m.Node {
			t.Errorf("the state of %s is %+v and holds %v; want %v on %s and no port", m.Member, s, got, want, m.Node)
		}
		if s.Snapshot.Of != m.ID || !slices.EqualFunc(s.Snapshot.Ports, m.Ports, samePort) || len(s.CleanBy) != 1 {
			t.Errorf("the state of %s is of %s with ports %v, cleaned by %v", m.ID, s.Snapshot.Of, s.Snapshot.Ports, s.CleanBy)
		}
	}
}

func TestACompleteSnapshotTakesWhatItsStatesTake(t *testing.T) {
	t.Parallel()
	c := snapshotted(t)
	n := int64(len(states(c)))
	if r := c.Record.Snapshots; len(r) != 1 || r[0].MadeAt == nil || r[0].Bytes != n*700 {
		t.Errorf("the record says %+v", r)
	}
	for _, s := range states(c) {
		if !s.Saved || s.DiskBytes != 700 {
			t.Errorf("%s is saved: %t, with %d bytes", s.ID, s.Saved, s.DiskBytes)
		}
	}
}

func TestASnapshotOfWhichAStateIsUnknownIsNotNoted(t *testing.T) {
	t.Parallel()
	c := running()
	c.Record.Phase = api.ClusterSnapshotting
	c = then(c, apply(t, c, time.Hour, lifecycle.HoldSnapshot{Snapshot: snapshotS}))
	_, err := Apply(c, []lifecycle.ClusterOperation{lifecycle.NoteSnapshot{Snapshot: snapshotS, Bytes: map[string]int64{"u1.c-0.snapshot.2": 1}}}, *at(2 * time.Hour))
	if err == nil || !strings.Contains(err.Error(), "the sizes of 1 are known") {
		t.Errorf("got %v, want that a size is missing", err)
	}
}

func TestMembersGoBackToASnapshotInOneCommit(t *testing.T) {
	t.Parallel()
	c := snapshotted(t)
	before := map[string]api.Assignment{}
	for _, a := range c.Assignments() {
		if a.IsMember() && !a.Releasing {
			before[a.Member] = *a.Assignment
		}
	}
	change := apply(t, c, 3*time.Hour, lifecycle.RestoreSnapshot{Snapshot: snapshotS}, lifecycle.SetPhase{To: api.ClusterRestoring})
	after := then(c, change)
	kept := states(after)
	members := 0
	for _, a := range after.Assignments() {
		was := before[a.Member]
		switch {
		case a.IsSnapshot() || a.Spare || was.ID == "": // neither a state nor a spare is touched, nor a member that is gone
		case a.Releasing:
			if a.ID != was.ID {
				t.Errorf("%s is released", a.ID)
			}
		default:
			members++
			if a.From != was.ID || a.Resumes != kept[a.Member].ID || !a.Saved || a.Rank != was.Rank || len(a.Slots) > 0 || a.MemoryBytes() > 0 || !slices.EqualFunc(a.Ports, was.Ports, samePort) {
				t.Errorf("%s is %+v; want a saved member that begins with %s", a.Member, a.Assignment, kept[a.Member].ID)
			}
		}
	}
	if members != len(before) || len(kept) != len(before) {
		t.Errorf("%d members and %d states are held, want %d of both", members, len(kept), len(before))
	}
	if r := after.Record.SnapshotRestore; r == nil || r.Failed != "" || !r.AskedAt.Equal(c.Intent.SnapshotRestore.AskedAt) {
		t.Errorf("the record says %+v", r)
	}
	if lost := after.Record.Lost; len(lost) > 0 {
		t.Errorf("members %v wait for a replacement", lost)
	}
}

func TestMembersThatAreNotThoseOfTheSnapshotStayWhatTheyAre(t *testing.T) {
	t.Parallel()
	c := snapshotted(t)
	c = then(c, apply(t, c, 150*time.Minute, lifecycle.Release{IDs: []string{"u1.c-1.1"}}))
	_, err := Apply(c, []lifecycle.ClusterOperation{lifecycle.RestoreSnapshot{Snapshot: snapshotS}, lifecycle.SetPhase{To: api.ClusterRestoring}}, *at(3 * time.Hour))
	if err == nil || !strings.Contains(err.Error(), "members, and the cluster") {
		t.Errorf("got %v, want that the members differ", err)
	}
}

func TestASnapshotThatFailedIsNotedAndReplacesAnEarlierNoteOfItsName(t *testing.T) {
	t.Parallel()
	c := snapshotted(t)
	again := api.SnapshotIntent{Name: "s", AskedAt: snapshotS.AskedAt.Add(time.Hour)}
	after := then(c, apply(t, c, 3*time.Hour, lifecycle.NoteSnapshot{Snapshot: again, Failed: "the disk is full"}))
	want := []api.SnapshotRecord{{Name: "s", AskedAt: again.AskedAt, Failed: "the disk is full"}}
	if diff := cmp.Diff(want, after.Record.Snapshots); diff != "" {
		t.Errorf("the notes (-want +got):\n%s", diff)
	}
	after = then(after, apply(t, after, 4*time.Hour, lifecycle.ForgetSnapshots{Names: []string{"s"}}))
	if len(after.Record.Snapshots) > 0 {
		t.Errorf("notes %+v are left", after.Record.Snapshots)
	}
}
