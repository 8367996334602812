package drivertest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// succeed makes the member that goes on where m was, on the host of f.
func succeed(t *testing.T, f Fixture, m driver.Member) driver.Member {
	t.Helper()
	next := f.Member(t)
	id := next.Assignment.ID
	next.Assignment, next.Networks, next.Files, next.Mounts = m.Assignment, m.Networks, m.Files, m.Mounts
	// As its leader has it until it runs: a part of the member that it succeeds.
	next.Assignment.ID, next.Assignment.From, next.Assignment.Of = id, m.Assignment.ID, m.Assignment.ID
	return next
}

// saver returns the driver's ability to save members, and a running member with some progress. Drivers may lack it.
func saver(t *testing.T, ctx context.Context, f Fixture) (s driver.Saver, m driver.Member, ok bool) {
	t.Helper()
	if s, ok = f.Driver.(driver.Saver); ok {
		m = working(t, ctx, f)
	}
	return s, m, ok
}

func working(t *testing.T, ctx context.Context, f Fixture) driver.Member {
	t.Helper()
	m := f.Member(t)
	if f.Shell != nil {
		m.Mounts = []driver.Mount{{Source: volumeOf(t, m), Path: "/volumes/kept"}}
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	progresses(t, ctx, f, m.Assignment.ID, enough)
	return m
}

// keepsVolume asserts that a member has its volume still.
func keepsVolume(t *testing.T, f Fixture, m driver.Member) {
	t.Helper()
	if f.Shell == nil {
		return
	}
	must(t, "writing to a volume", os.WriteFile(filepath.Join(m.Mounts[0].Source, "file"), []byte("kept\n"), 0o644))
	got, err := f.Shell(t, m.Assignment.ID, "cat /volumes/kept/file && echo back >/volumes/kept/answer")
	if answer, _ := os.ReadFile(filepath.Join(m.Mounts[0].Source, "answer")); got != "kept\n" || err != nil || string(answer) != "back\n" {
		t.Errorf("of its volume the member reads %q (%v), and it wrote %q", got, err, answer)
	}
}

// volumeOf makes a directory that a member may have.
func volumeOf(t *testing.T, m driver.Member) string {
	t.Helper()
	dir, owner := t.TempDir(), int(m.Assignment.UserIDs.First)
	must(t, "giving a directory to the cluster", errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, owner, owner)))
	return dir
}

// progresses waits until a member has done so much.
func progresses(t *testing.T, ctx context.Context, f Fixture, id string, least int64) {
	t.Helper()
	for f.Progress(t, id) < least {
		must(t, "waiting for the member's progress", ctx.Err())
	}
}

// goesOn asserts that a member had done so much and does more.
func goesOn(t *testing.T, ctx context.Context, f Fixture, id string, before int64) {
	t.Helper()
	now := f.Progress(t, id)
	if now < before {
		t.Errorf("it had done %d before, and %d now: it began from the start", before, now)
	}
	progresses(t, ctx, f, id, now+enough)
}

// wantDebris asserts that a member that goes on elsewhere does not run.
func wantDebris(t *testing.T, ctx context.Context, d driver.Driver, id string) {
	t.Helper()
	if o := find(t, ctx, d, id); o.PID != 0 || o.State != driver.StatePrepared && o.State != driver.StateExited {
		t.Errorf("what goes on elsewhere is %s with PID %d, want nothing but debris", o.State, o.PID)
	}
}

func saveRestore(t *testing.T, ctx context.Context, f Fixture) {
	s, m, ok := saver(t, ctx, f)
	if !ok {
		return
	}
	id, before := m.Assignment.ID, f.Progress(t, m.Assignment.ID)
	for range 2 {
		must(t, "Save", s.Save(ctx, id))
		wantState(t, ctx, f.Driver, id, "Save", driver.StateSaved)
	}
	if o, err := f.Driver.Wait(ctx, id); err != nil || o.State != driver.StateSaved {
		t.Errorf("Wait for a saved member: %s, %v; want saved", o.State, err)
	}
	must(t, "Stop", f.Driver.Stop(ctx, id, 0))
	if f.Driver.Start(ctx, m) == nil {
		t.Error("a saved member was started: its memory is lost")
	}
	wantState(t, ctx, f.Driver, id, "Stop and Start", driver.StateSaved)
	next := succeed(t, f, m)
	for range 2 {
		must(t, "Restore", s.Restore(ctx, next, id))
		wantState(t, ctx, f.Driver, next.Assignment.ID, "Restore", driver.StateRunning)
		wantDebris(t, ctx, f.Driver, id)
	}
	if !slices.Contains(f.Ports.Attached(), next.Assignment.ID) {
		t.Error("after Restore its port is not attached")
	}
	must(t, "Update", f.Driver.Update(ctx, next))
	goesOn(t, ctx, f, next.Assignment.ID, before)
	keepsVolume(t, f, next)
	if s.Restore(ctx, succeed(t, f, m), id) == nil {
		t.Error("what was restored was restored again")
	}
	must(t, "Clean", f.Driver.Clean(ctx, id))
	wantState(t, ctx, f.Driver, next.Assignment.ID, "Clean of what it was restored from", driver.StateRunning)
}

func saveRefuses(t *testing.T, ctx context.Context, f Fixture) {
	s, m, ok := saver(t, ctx, f)
	if !ok {
		return
	}
	id := m.Assignment.ID
	unknown := succeed(t, f, m)
	if err := s.Save(ctx, unknown.Assignment.ID); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Save of an unknown member: %v, want ErrNotFound", err)
	}
	if err := s.Export(ctx, unknown.Assignment.ID, &bytes.Buffer{}); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Export of an unknown member: %v, want ErrNotFound", err)
	}
	if s.Restore(ctx, unknown, id) == nil {
		t.Error("a running member was restored")
	}
	if s.Export(ctx, id, &bytes.Buffer{}) == nil {
		t.Error("a running member was exported")
	}
	wantState(t, ctx, f.Driver, id, "what was refused", driver.StateRunning)
	must(t, "Stop", f.Driver.Stop(ctx, id, 0))
	if s.Save(ctx, id) == nil {
		t.Error("an exited member was saved")
	}
}

func savePaused(t *testing.T, ctx context.Context, f Fixture) {
	s, m, ok := saver(t, ctx, f)
	if !ok {
		return
	}
	id := m.Assignment.ID
	must(t, "Pause", able[driver.Pauser](t, f.Driver).Pause(ctx, id))
	must(t, "Save", s.Save(ctx, id))
	next := succeed(t, f, m)
	broken := errors.New("the switch is on fire")
	f.Ports.Fail(broken)
	if err := s.Restore(ctx, next, id); !errors.Is(err, broken) {
		t.Errorf("Restore without a port: %v, want the reason %q", err, broken)
	}
	f.Ports.Fail(nil)
	wantState(t, ctx, f.Driver, id, "a failed Restore", driver.StateSaved)
	second := f.Reopen(t)
	wantState(t, ctx, second, id, "a restart", driver.StateSaved)
	must(t, "Restore by a new driver", able[driver.Saver](t, second).Restore(ctx, next, id))
	wantState(t, ctx, second, next.Assignment.ID, "Restore by a new driver", driver.StateRunning)
}

func export(t *testing.T, ctx context.Context, f Fixture) {
	s, m, ok := saver(t, ctx, f)
	if !ok {
		return
	}
	id, before := m.Assignment.ID, f.Progress(t, m.Assignment.ID)
	began := time.Now()
	must(t, "Save", s.Save(ctx, id))
	var state bytes.Buffer
	must(t, "Export", s.Export(ctx, id, &state))
	wantState(t, ctx, f.Driver, id, "Export", driver.StateSaved)
	there := f.Other(t)
	other := able[driver.Saver](t, there.Driver)
	next := succeed(t, there, m)
	if _, err := other.Import(ctx, next, id, bytes.NewReader(state.Bytes()[:state.Len()/2])); err == nil {
		t.Error("half a member was imported")
	}
	if o := find(t, ctx, there.Driver, id); o.State == driver.StateSaved {
		t.Error("half a member counts as saved")
	}
	for range 2 {
		stood, err := other.Import(ctx, next, id, bytes.NewReader(state.Bytes()))
		must(t, "Import", err)
		if most := time.Since(began); stood <= 0 || stood > most {
			t.Errorf("it is said to have stood still for %s, and its save began %s ago", stood, most)
		}
		wantState(t, ctx, there.Driver, id, "Import", driver.StateSaved)
	}
	must(t, "Clean", f.Driver.Clean(ctx, id))
	must(t, "Restore", other.Restore(ctx, next, id))
	wantState(t, ctx, there.Driver, next.Assignment.ID, "Restore", driver.StateRunning)
	must(t, "Update", there.Driver.Update(ctx, next))
	goesOn(t, ctx, there, next.Assignment.ID, before)
	cleanAll(t, ctx, f, there)
}

// cleanAll cleans the members on both hosts, which may see what is left of each other's.
func cleanAll(t *testing.T, ctx context.Context, fixtures ...Fixture) {
	t.Helper()
	for _, f := range fixtures {
		for _, o := range observe(t, ctx, f.Driver) {
			must(t, "Clean", f.Driver.Clean(ctx, o.ID))
		}
	}
	for _, f := range fixtures {
		if left := f.Left(t); len(left) > 0 {
			t.Errorf("left after every member was cleaned: %q", left)
		}
	}
}

// move sends m to the other host and returns both ends' errors. mangle may wrap the sender's end.
func move(t *testing.T, ctx context.Context, f, there Fixture, m, next driver.Member, mangle func(net.Conn) net.Conn) (report driver.MoveReport, sent, received error) {
	t.Helper()
	from, to := joined(t)
	done := make(chan error, 1)
	go func() {
		defer to.Close()
		done <- able[driver.Mover](t, there.Driver).Receive(ctx, next, m.Assignment.ID, to)
	}()
	report, sent = able[driver.Mover](t, f.Driver).Send(ctx, m.Assignment.ID, mangle(from), driver.MoveLimits{})
	_ = from.Close()
	return report, sent, <-done
}

func plain(c net.Conn) net.Conn { return c }

// joined returns the ends of a connection.
func joined(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	must(t, "Listen", err)
	defer listener.Close()
	near, err := net.Dial("unix", listener.Addr().String())
	must(t, "Dial", err)
	far, err := listener.Accept()
	must(t, "Accept", err)
	return near, far
}

// mover returns the other host and a running member with some progress. Drivers may lack the ability to move members.
func mover(t *testing.T, ctx context.Context, f Fixture) (there Fixture, m driver.Member, ok bool) {
	t.Helper()
	if _, ok = f.Driver.(driver.Mover); ok {
		there, m = f.Other(t), working(t, ctx, f)
	}
	return there, m, ok
}

func moveRunning(t *testing.T, ctx context.Context, f Fixture) {
	there, m, ok := mover(t, ctx, f)
	if !ok {
		return
	}
	id, before := m.Assignment.ID, f.Progress(t, m.Assignment.ID)
	next := succeed(t, there, m)
	report, sent, received := move(t, ctx, f, there, m, next, plain)
	must(t, "Send", sent)
	must(t, "Receive", received)
	wantState(t, ctx, there.Driver, next.Assignment.ID, "Receive", driver.StateRunning)
	must(t, "Update", there.Driver.Update(ctx, next))
	wantDebris(t, ctx, f.Driver, id)
	if t.Logf("the move's report: %+v", report); report.Bytes == 0 || report.Total == 0 {
		t.Error("it reports no bytes or no time")
	}
	goesOn(t, ctx, there, next.Assignment.ID, before)
	keepsVolume(t, there, next)
	must(t, "Clean", f.Driver.Clean(ctx, id))
	cleanAll(t, ctx, f, there)
}

// cut is a connection that breaks once so many pieces were written to it.
type cut struct {
	net.Conn
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	if c.left--; c.left < 0 {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(p)
}

// deaf is a connection that breaks once so many pieces were read from it.
type deaf struct {
	net.Conn
	left int
}

func (c *deaf) Read(p []byte) (int, error) {
	if c.left--; c.left < 0 {
		_ = c.Conn.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Read(p)
}

// moveCut breaks the connection at each of its first pieces, either way: at the end the member runs once, here or there.
func moveCut(t *testing.T, ctx context.Context, f Fixture) {
	there, m, ok := mover(t, ctx, f)
	if !ok {
		return
	}
	first, second := f, there
	for pieces := range cmp.Or(f.Cuts, 4) {
		for _, mangle := range []func(net.Conn) net.Conn{
			func(c net.Conn) net.Conn { return &cut{c, pieces} },
			func(c net.Conn) net.Conn { return &deaf{c, pieces} },
		} {
			next := succeed(t, there, m)
			_, sent, received := move(t, ctx, f, there, m, next, mangle)
			f, there, m = settle(t, ctx, f, there, m, next, sent, received)
		}
	}
	cleanAll(t, ctx, first, second)
}

// settle asserts that a member runs on one of two hosts after a move, and returns them, the one with the member first.
func settle(t *testing.T, ctx context.Context, f, there Fixture, m, next driver.Member, sent, received error) (Fixture, Fixture, driver.Member) {
	t.Helper()
	here, far := find(t, ctx, f.Driver, m.Assignment.ID), find(t, ctx, there.Driver, next.Assignment.ID)
	switch {
	case received == nil:
		if far.State != driver.StateRunning || here.State == driver.StateRunning || sent != nil && !errors.Is(sent, driver.ErrUndecided) {
			t.Fatalf("received (Send: %v), it is %s there and %s here", sent, far.State, here.State)
		}
		must(t, "Clean", f.Driver.Clean(ctx, m.Assignment.ID))
		must(t, "Update", there.Driver.Update(ctx, next))
		return there, f, next
	case sent == nil:
		t.Fatalf("it was sent but not received: %v", received)
	case errors.Is(sent, driver.ErrUndecided):
		if here.State != driver.StateHandedOver {
			t.Fatalf("undecided (%v), it is %s", sent, here.State)
		}
		must(t, "Clean", there.Driver.Clean(ctx, next.Assignment.ID))
		for range 2 {
			must(t, "TakeBack", able[driver.Mover](t, f.Driver).TakeBack(ctx, m.Assignment.ID))
		}
	}
	if far.State == driver.StateRunning {
		t.Fatalf("not received (%v), it runs there", received)
	}
	must(t, "Clean", there.Driver.Clean(ctx, next.Assignment.ID))
	wantState(t, ctx, f.Driver, m.Assignment.ID, "a failed move", driver.StateRunning)
	goesOn(t, ctx, f, m.Assignment.ID, f.Progress(t, m.Assignment.ID))
	return f, there, m
}
