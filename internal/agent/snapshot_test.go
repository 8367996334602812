package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/state"
)

// change changes what is wanted of a cluster.
func (s *site) change(name string, change func(*api.ClusterIntent)) {
	s.t.Helper()
	_, _, err := s.repo.UpdateIntent(s.t.Context(), name, "u"+name, func(in *api.ClusterIntent) error {
		change(in)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// snapshot asks for a snapshot of a cluster.
func (s *site) snapshot(name, snapshot string) {
	s.t.Helper()
	s.change(name, func(in *api.ClusterIntent) {
		in.Snapshots = append(in.Snapshots, api.SnapshotIntent{Name: snapshot, AskedAt: time.Now()})
	})
}

// goBack asks for a cluster to be restored to a snapshot, and returns when.
func (s *site) goBack(name, snapshot string) time.Time {
	s.t.Helper()
	now := time.Now()
	s.change(name, func(in *api.ClusterIntent) {
		in.SnapshotRestore, in.Saved, in.SaveAskedAt = &api.SnapshotIntent{Name: snapshot, AskedAt: now}, false, &now
	})
	return now
}

// awaitSnapshot waits until the request for a cluster's snapshot has ended and the cluster is ready.
func (s *site) awaitSnapshot(name, snapshot string) (*state.Cluster, api.SnapshotRecord) {
	s.t.Helper()
	var ended api.SnapshotRecord
	c := s.await(name, "ready after snapshot "+snapshot, func(c *state.Cluster) bool {
		i := slices.IndexFunc(c.Record.Snapshots, func(r api.SnapshotRecord) bool { return r.Name == snapshot })
		if i < 0 || c.Record.Phase != api.ClusterReady {
			return false
		}
		ended = c.Record.Snapshots[i]
		return true
	})
	return c, ended
}

// statesOf are the IDs of the assignments that keep a cluster's states, in order.
func statesOf(c *state.Cluster) []string {
	var ids []string
	for a := range c.All() {
		if a.IsSnapshot() {
			ids = append(ids, a.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func TestAClusterRunsOnBesideItsSnapshotAndGoesBackToItAgainAndAgain(t *testing.T) {
	s := newSite(t)
	n := s.machines("n1", 2)
	s.createOn(api.StackVM, "c1", 2, 1)
	first := s.awaitPhase("c1", api.ClusterReady)
	s.snapshot("c1", "s1")
	made, ended := s.awaitSnapshot("c1", "s1")
	if ended.Failed != "" || ended.Bytes == 0 || len(statesOf(made)) != 2 {
		t.Fatalf("the snapshot is %+v with states %v; want 2 states and their size", ended, statesOf(made))
	}
	if ids := memberIDs(made); ids["c1-0"] != memberIDs(first)["c1-0"] || ids["c1-1"] != memberIDs(first)["c1-1"] {
		t.Errorf("the members are %v after the snapshot, and were %v", ids, memberIDs(first))
	}
	n.restart(2)
	last := memberIDs(made)
	for range 2 {
		before := n.host.Progress(last["c1-0"])
		for n.host.Progress(last["c1-0"]) < before+100 {
			continue
		}
		reached := n.host.Progress(last["c1-0"])
		asked := s.goBack("c1", "s1")
		again := s.await("c1", "ready again", func(c *state.Cluster) bool {
			r := c.Record.SnapshotRestore
			return r != nil && r.AskedAt.Equal(asked) && c.Record.Phase == api.ClusterReady
		})
		if r := again.Record.SnapshotRestore; r.Failed != "" {
			t.Fatalf("the restore failed: %s", r.Failed)
		}
		now := memberIDs(again)
		if got := n.host.Progress(now["c1-0"]); got >= reached {
			t.Errorf("the member has done %d after the restore, and had done %d before: it did not go back", got, reached)
		}
		if now["c1-0"] == last["c1-0"] || now["c1-1"] == last["c1-1"] {
			t.Errorf("members %v are the same assignments as before the restore", now)
		}
		last = now
	}
	if got := calls(n, "Start uc1"); got != 2 {
		t.Errorf("members were started %d times, want 2", got)
	}
	s.change("c1", func(in *api.ClusterIntent) { in.Snapshots = nil })
	s.await("c1", "without its snapshot", func(c *state.Cluster) bool {
		return len(statesOf(c)) == 0 && len(c.Record.Snapshots) == 0 && c.Record.Phase == api.ClusterReady
	})
	s.delete("c1")
	s.awaitGone("c1")
	s.nothingLeft(n)
}

func TestASnapshotOfWhichOneStateCantBeWrittenLeavesNothingAndAllGoOn(t *testing.T) {
	s := newSite(t)
	n := s.machines("n1", 2)
	s.createOn(api.StackVM, "c1", 2, 1)
	first := s.awaitPhase("c1", api.ClusterReady)
	n.host.Script("uc1.c1-1.1", fake.Behaviour{FailSnapshots: 1})
	s.snapshot("c1", "s1")
	_, ended := s.awaitSnapshot("c1", "s1")
	if !strings.Contains(ended.Failed, "c1-1 on n1") || ended.MadeAt != nil {
		t.Errorf("the snapshot is %+v; want that c1-1 could not be written", ended)
	}
	c := s.await("c1", "without states", func(c *state.Cluster) bool { return len(statesOf(c)) == 0 })
	if ids := memberIDs(c); ids["c1-0"] != memberIDs(first)["c1-0"] || ids["c1-1"] != memberIDs(first)["c1-1"] {
		t.Errorf("the members are %v after the failure, and were %v", ids, memberIDs(first))
	}
	s.delete("c1")
	s.awaitGone("c1")
	s.nothingLeft(n)
}

func TestASnapshotThatDoesNotPassItsVerificationChangesNothing(t *testing.T) {
	s := newSite(t)
	n := s.machines("n1", 2)
	s.createOn(api.StackVM, "c1", 2, 1)
	s.awaitPhase("c1", api.ClusterReady)
	s.snapshot("c1", "s1")
	made, _ := s.awaitSnapshot("c1", "s1")
	n.host.Script(statesOf(made)[1], fake.Behaviour{FailVerifications: 1})
	s.goBack("c1", "s1")
	c := s.await("c1", "told that the restore failed", func(c *state.Cluster) bool { return c.Record.SnapshotRestore != nil })
	if r := c.Record.SnapshotRestore; !strings.Contains(r.Failed, "c1-1 on n1") || c.Record.Phase != api.ClusterReady {
		t.Errorf("the restore is %+v in phase %s; want that c1-1 did not pass, and the cluster ready", r, c.Record.Phase)
	}
	if memberIDs(c)["c1-0"] != memberIDs(made)["c1-0"] {
		t.Error("a member was exchanged")
	}
	s.goBack("c1", "s1") // again, and now it passes
	s.await("c1", "restored", func(c *state.Cluster) bool {
		return c.Record.SnapshotRestore.Failed == "" && c.Record.Phase == api.ClusterReady
	})
	s.delete("c1")
	s.awaitGone("c1")
	s.nothingLeft(n)
}

// abrupt is a driver whose agent ends amid a call: before the call has had an effect, or after.
type abrupt struct {
	driver.Driver
	driver.Pauser
	driver.Saver
	driver.Snapshotter
	amid  string
	after bool
	begun chan<- struct{}
}

func (d abrupt) call(ctx context.Context, name string, call func() error) error {
	if name != d.amid {
		return call()
	}
	if d.after {
		if err := call(); err != nil {
			return err
		}
	}
	d.begun <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func (d abrupt) Snapshot(ctx context.Context, id, of string) error {
	return d.call(ctx, "snapshot", func() error { return d.Snapshotter.Snapshot(ctx, id, of) })
}

func (d abrupt) Verify(ctx context.Context, id string) error {
	return d.call(ctx, "verify", func() error { return d.Snapshotter.Verify(ctx, id) })
}

func (d abrupt) LayDown(ctx context.Context, id, from string) error {
	return d.call(ctx, "lay down", func() error { return d.Snapshotter.LayDown(ctx, id, from) })
}

func TestAnAgentThatEndsAmidASnapshotOrItsRestoreCompletesIt(t *testing.T) {
	for _, amid := range []string{"snapshot", "verify", "lay down"} {
		for when, after := range map[string]bool{"before the effect": false, "after the effect": true} {
			t.Run(amid+", "+when, func(t *testing.T) { endAmid(t, amid, after) })
		}
	}
}

func endAmid(t *testing.T, amid string, after bool) {
	s, n, first := newMachineSite(t)
	if amid != "snapshot" {
		s.snapshot("c1", "s1")
		s.awaitSnapshot("c1", "s1")
	}
	begun := make(chan struct{}, 2) // one for each member
	n.stop()
	n.wrap = func(d driver.Driver) driver.Driver {
		return abrupt{d, d.(driver.Pauser), d.(driver.Saver), d.(driver.Snapshotter), amid, after, begun}
	}
	n.startAnew(2)
	var asked time.Time
	if amid == "snapshot" {
		s.snapshot("c1", "s1")
	} else {
		asked = s.goBack("c1", "s1")
	}
	select {
	case <-begun:
	case <-time.After(time.Minute):
		t.Fatalf("the agent does not begin to %s", amid)
	}
	n.stop()
	n.wrap = nil
	n.startAnew(2)
	c, ended := s.awaitSnapshot("c1", "s1")
	if ended.Failed != "" || len(statesOf(c)) != 2 {
		t.Errorf("the snapshot is %+v with states %v; want 2 states", ended, statesOf(c))
	}
	if amid == "snapshot" {
		if memberIDs(c)["c1-0"] != memberIDs(first)["c1-0"] {
			t.Error("a member was exchanged")
		}
	} else {
		c = s.await("c1", "ready again", func(c *state.Cluster) bool {
			r := c.Record.SnapshotRestore
			return r != nil && r.AskedAt.Equal(asked) && c.Record.Phase == api.ClusterReady
		})
		if r := c.Record.SnapshotRestore; r.Failed != "" || memberIDs(c)["c1-0"] == memberIDs(first)["c1-0"] {
			t.Errorf("the restore is %+v with members %v; want other members than %v", r, memberIDs(c), memberIDs(first))
		}
	}
	startedTwice(t, n)
	s.ends("c1", n)
}
