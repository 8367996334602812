package drivertest

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// able asserts that a driver has an ability.
func able[T any](t *testing.T, d driver.Driver) T {
	t.Helper()
	able, ok := d.(T)
	if !ok {
		t.Fatalf("%T lacks an optional interface of the contract", d)
	}
	return able
}

// paused starts a member and pauses it.
func paused(t *testing.T, ctx context.Context, f Fixture, change ...func(*driver.Member)) driver.Member {
	t.Helper()
	m := f.Member(t)
	for _, c := range change {
		c(&m)
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	must(t, "Pause", able[driver.Pauser](t, f.Driver).Pause(ctx, m.Assignment.ID))
	return m
}

func wantState(t *testing.T, ctx context.Context, d driver.Driver, id, after string, want driver.State) {
	t.Helper()
	o := find(t, ctx, d, id)
	if o.State != want {
		t.Errorf("after %s it is %s (%s), want %s", after, o.State, o.Message, want)
	}
	if alive := want == driver.StateRunning || want == driver.StatePaused; alive != (o.PID != 0) {
		t.Errorf("after %s it is %s with PID %d", after, o.State, o.PID)
	}
}

// enough is how much progress shows that time has passed.
const enough = 5

// pauseStops tells the time by a second member, which goes on: by its progress the first one would have made some, too.
func pauseStops(t *testing.T, ctx context.Context, f Fixture) {
	clock := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, clock))
	m := paused(t, ctx, f)
	id := m.Assignment.ID
	wantState(t, ctx, f.Driver, id, "Pause", driver.StatePaused)
	before := f.Progress(t, id)
	for began := f.Progress(t, clock.Assignment.ID); f.Progress(t, clock.Assignment.ID) < began+enough; {
		must(t, "waiting for the other member", ctx.Err())
	}
	if after := f.Progress(t, id); after != before {
		t.Errorf("paused, its progress went from %d to %d", before, after)
	}
	wantState(t, ctx, f.Driver, id, "a while in pause", driver.StatePaused)
	must(t, "Resume", able[driver.Pauser](t, f.Driver).Resume(ctx, id))
	wantState(t, ctx, f.Driver, id, "Resume", driver.StateRunning)
	for f.Progress(t, id) < before+enough {
		must(t, "waiting for the member to go on", ctx.Err())
	}
}

func pauseTwice(t *testing.T, ctx context.Context, f Fixture) {
	pauser := able[driver.Pauser](t, f.Driver)
	m := paused(t, ctx, f)
	id := m.Assignment.ID
	must(t, "second Pause", pauser.Pause(ctx, id))
	must(t, "Start of a paused member", f.Driver.Start(ctx, m))
	wantState(t, ctx, f.Driver, id, "a second Pause", driver.StatePaused)
	for range 2 {
		must(t, "Resume", pauser.Resume(ctx, id))
		wantState(t, ctx, f.Driver, id, "Resume", driver.StateRunning)
	}
	must(t, "Stop", f.Driver.Stop(ctx, id, deadline))
	if pauser.Pause(ctx, id) == nil {
		t.Error("an exited member was paused")
	}
	unknown := f.Member(t).Assignment.ID
	for what, call := range map[string]func(context.Context, string) error{"Pause": pauser.Pause, "Resume": pauser.Resume} {
		if err := call(ctx, unknown); !errors.Is(err, driver.ErrNotFound) {
			t.Errorf("%s of an unknown member: %v, want ErrNotFound", what, err)
		}
	}
}

func pauseReopen(t *testing.T, ctx context.Context, f Fixture) {
	m := paused(t, ctx, f)
	id := m.Assignment.ID
	before := find(t, ctx, f.Driver, id)
	second := f.Reopen(t)
	wantState(t, ctx, second, id, "a restart", driver.StatePaused)
	waiting, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := second.Wait(waiting, id); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait for a paused member: %v, want that it goes on waiting", err)
	}
	must(t, "Resume by a new driver", able[driver.Pauser](t, second).Resume(ctx, id))
	if after := find(t, ctx, second, id); after.State != driver.StateRunning || after.PID != before.PID {
		t.Errorf("resumed by a new driver it is %s with PID %d, want running with PID %d", after.State, after.PID, before.PID)
	}
}

func pauseStop(t *testing.T, ctx context.Context, f Fixture) {
	polite := paused(t, ctx, f)
	must(t, "Stop", f.Driver.Stop(ctx, polite.Assignment.ID, deadline))
	wantState(t, ctx, f.Driver, polite.Assignment.ID, "a polite Stop", driver.StateExited)
	if o := find(t, ctx, f.Driver, polite.Assignment.ID); o.ExitCode != nil && *o.ExitCode != 0 {
		t.Errorf("it ended with exit code %d, want 0: it was not asked politely", *o.ExitCode)
	}
	stubborn := paused(t, ctx, f, f.Stubborn)
	must(t, "Stop", f.Driver.Stop(ctx, stubborn.Assignment.ID, 50*time.Millisecond))
	wantState(t, ctx, f.Driver, stubborn.Assignment.ID, "a Stop by force", driver.StateExited)
	now := paused(t, ctx, f)
	must(t, "Stop", f.Driver.Stop(ctx, now.Assignment.ID, 0))
	wantState(t, ctx, f.Driver, now.Assignment.ID, "a Stop without grace", driver.StateExited)
}

func pauseClean(t *testing.T, ctx context.Context, f Fixture) {
	m := paused(t, ctx, f)
	must(t, "Clean", f.Driver.Clean(ctx, m.Assignment.ID))
	absent(t, ctx, f, m.Assignment.ID)
}

func pauseUpdate(t *testing.T, ctx context.Context, f Fixture) {
	m := paused(t, ctx, f)
	m.Files = append(slices.Clone(m.Files), driver.File{Path: "/etc/nearmetal/hostfile", Content: []byte("c-0 slots=1\n"), Mode: 0o644})
	must(t, "Update", f.Driver.Update(ctx, m))
	wantState(t, ctx, f.Driver, m.Assignment.ID, "Update", driver.StatePaused)
}

func dial(t *testing.T, ctx context.Context, f Fixture) {
	dialer := able[driver.Dialer](t, f.Driver)
	m := f.Member(t)
	id := m.Assignment.ID
	if _, err := dialer.Dial(ctx, id, 22); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Dial to an unknown member: %v, want ErrNotFound", err)
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	conn, err := dialer.Dial(ctx, id, f.Listen(t, id))
	must(t, "Dial", err)
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "ping" {
		t.Errorf("got %q back (%v), want ping", got, err)
	}
	if _, err := dialer.Dial(ctx, id, 1); err == nil {
		t.Error("a port without a listener was reached")
	}
	if f.CantPause {
		return
	}
	must(t, "Pause", able[driver.Pauser](t, f.Driver).Pause(ctx, id))
	if _, err := dialer.Dial(ctx, id, 22); err == nil {
		t.Error("a paused member was reached")
	}
}

func mend(t *testing.T, ctx context.Context, f Fixture) {
	mender := able[driver.Mender](t, f.Driver)
	m := f.Member(t)
	id := m.Assignment.ID
	if err := mender.Mend(ctx, id); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("repair of an unknown member: %v, want ErrNotFound", err)
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	must(t, "Detach", f.Ports.Detach(ctx, id))
	must(t, "Mend", mender.Mend(ctx, id))
	if !slices.Contains(f.Ports.Attached(), id) {
		t.Error("after the repair its port is not attached")
	}
	broken := errors.New("the switch is on fire")
	f.Ports.Fail(broken)
	if err := mender.Mend(ctx, id); !errors.Is(err, broken) {
		t.Errorf("repair without a port: %v, want the reason %q", err, broken)
	}
	f.Ports.Fail(nil)
	must(t, "Stop", f.Driver.Stop(ctx, id, 0))
	if mender.Mend(ctx, id) == nil {
		t.Error("the port of an exited member was repaired")
	}
}
