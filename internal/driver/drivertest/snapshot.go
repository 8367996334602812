package drivertest

import (
	"context"
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// snapshots checks that a member runs on after its state was kept, and that any number of members go on from that state.
func snapshots(t *testing.T, ctx context.Context, f Fixture) {
	s, ok := f.Driver.(driver.Snapshotter)
	if !ok {
		return
	}
	pauser, saver := able[driver.Pauser](t, f.Driver), able[driver.Saver](t, f.Driver)
	m := working(t, ctx, f)
	id, kept, laid := m.Assignment.ID, f.Member(t).Assignment.ID, f.Member(t).Assignment.ID
	if s.Snapshot(ctx, kept, id) == nil {
		t.Error("the state of a running member was written")
	}
	must(t, "Pause", pauser.Pause(ctx, id))
	then := f.Progress(t, id)
	for range 2 {
		must(t, "Snapshot", s.Snapshot(ctx, kept, id))
		wantState(t, ctx, f.Driver, kept, "Snapshot", driver.StateSaved)
		wantState(t, ctx, f.Driver, id, "Snapshot", driver.StatePaused)
	}
	if o := find(t, ctx, f.Driver, kept); o.StateBytes <= 0 {
		t.Errorf("the state has %d bytes", o.StateBytes)
	}
	again := f.Member(t).Assignment.ID
	must(t, "Snapshot of a member that is still paused", s.Snapshot(ctx, again, id))
	wantState(t, ctx, f.Driver, id, "another Snapshot", driver.StatePaused)
	must(t, "Clean of a snapshot", f.Driver.Clean(ctx, again))
	must(t, "Resume", pauser.Resume(ctx, id))
	goesOn(t, ctx, f, id, then)
	progresses(t, ctx, f, id, then+40*enough)
	must(t, "Verify", s.Verify(ctx, kept))
	later := f.Progress(t, id)
	for range 2 {
		must(t, "LayDown", s.LayDown(ctx, laid, kept))
		wantState(t, ctx, f.Driver, laid, "LayDown", driver.StateSaved)
	}
	must(t, "Clean of the member", f.Driver.Clean(ctx, id))
	from := m
	from.Assignment.ID = laid
	next := succeed(t, f, from)
	must(t, "Restore", saver.Restore(ctx, next, laid))
	if now := f.Progress(t, next.Assignment.ID); now >= later {
		t.Errorf("the restored member has done %d, and the member had done %d when it was cleaned: it did not go back", now, later)
	}
	goesOn(t, ctx, f, next.Assignment.ID, then)
	must(t, "Clean of what it was restored from", f.Driver.Clean(ctx, laid))
	must(t, "Verify after a restore", s.Verify(ctx, kept))
	must(t, "LayDown after a restore", s.LayDown(ctx, laid, kept))
	must(t, "Clean of the snapshot", f.Driver.Clean(ctx, kept))
	wantState(t, ctx, f.Driver, laid, "Clean of its snapshot", driver.StateSaved)
	if err := s.Verify(ctx, kept); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Verify of a snapshot that is gone: %v, want ErrNotFound", err)
	}
	if err := s.Snapshot(ctx, kept, id); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Snapshot of a member that is gone: %v, want ErrNotFound", err)
	}
}
