// Package drivertest is the conformance suite of the driver contract: what every driver must do, fake or real.
//
// It knows a driver only by its contract and by the Fixture its tests make; it must never look into one. Start with Run.
package drivertest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Fixture is a driver on a host of its own, and what the suite needs beside the contract.
type Fixture struct {
	Driver driver.Driver
	// Ports is the Attacher the driver was made with.
	Ports *Ports
	// Reopen returns a new driver over the same host, as after a restart of the agent.
	Reopen func(t *testing.T) driver.Driver
	// Member returns a member that was never seen, whose first process runs until it is stopped.
	Member func(t *testing.T) driver.Member
	// Stubborn makes a member that isn't started yet ignore polite requests to stop.
	Stubborn func(m *driver.Member)
	// End makes a running member's first process end by itself with this exit code.
	End func(t *testing.T, o driver.Observation, code int)
	// Progress is how much a started member's first process has done; it grows for as long as the process is given time, and is
	// kept outside of it.
	Progress func(t *testing.T, id string) int64
	// Listen makes a running member send back what it is sent on a TCP port, which is returned.
	Listen func(t *testing.T, id string) int
	// Shell runs a command line as root in a running member, and returns what it printed; nil: members of this driver take no volumes.
	Shell func(t *testing.T, id, line string) (output string, err error)
	// Trip returns what measures how long a packet takes that a running member sends, together with the way of the answer, which has no condition.
	Trip func(t *testing.T, id string) func() time.Duration
	// Left tells what is left of this driver's members on the host.
	Left func(t *testing.T) []string
	// Deadline bounds each case, where members take long to start; 0: a minute. Only a hang reaches it.
	Deadline time.Duration
	// Other makes a fixture of a second host, for drivers that can save or move members.
	Other func(t *testing.T) Fixture
	// Cuts is after how many pieces, at most, the case of broken connections breaks them; 0: four.
	Cuts int
	// CantPause: members of the driver can't be frozen in place.
	CantPause bool
	// ServersOnly: of all parts, the driver carries servers of remote GPUs alone, and refuses others.
	ServersOnly bool
	// Many is how many members the case that starts them at once starts; 0: six.
	Many int
}

// deadline bounds each case unless its fixture says otherwise, and is the grace of polite stops.
const deadline = 60 * time.Second

// Run runs the suite. open makes a fixture for one case and cleans up after it; it may skip.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	cases := []struct {
		name string
		run  func(t *testing.T, ctx context.Context, f Fixture)
	}{
		{"a started member runs with its port attached", startedRuns},
		{"starting a running member changes nothing", startTwice},
		{"a stopped member is seen as exited and stopping again is harmless", stopTwice},
		{"a member that ignores a polite stop is ended by force", stopByForce},
		{"cleaning leaves nothing and cleaning again is harmless", cleanTwice},
		{"cleaning a running member ends it", cleanRunning},
		{"an unknown member is not found, and stopping or cleaning it is no error", unknownMember},
		{"waiting returns when the first process ends", waitForEnd},
		{"waiting ends with its context", waitCancelled},
		{"a new driver finds the running members and waits for them", reopen},
		{"a member whose port can't be attached doesn't run, and starts once it can", attachFails},
		{"an exited member can be started again", startAfterExit},
		{"a running member's files can be updated, an unknown one's can't", update},
		{"observations carry what a member was started with, but no file contents", observeConfig},
		{"members share the directories that are mounted in them, and write only where they may", mounts},
		{"many members start and are cleaned at once", many},
		{"a paused member makes no progress until it is resumed", ifPauses(pauseStops)},
		{"pausing and resuming may be repeated, and what does not run can't be paused", ifPauses(pauseTwice)},
		{"a paused member is found by a new driver, and resumed by it", ifPauses(pauseReopen)},
		{"a paused member can be stopped politely and by force", ifPauses(pauseStop)},
		{"cleaning a paused member ends it", ifPauses(pauseClean)},
		{"a paused member's files can be updated", ifPauses(pauseUpdate)},
		{"a member's port is reached from its host", dial},
		{"repairing attaches the port of a running member, and of no other", mend},
		{"a saved member goes on where it was, as its successor", saveRestore},
		{"what does not run can't be saved, and what is not saved can't be restored", saveRefuses},
		{"a paused member can be saved, and is restored by a new driver once its port can be attached", savePaused},
		{"a saved member resumes on another host", export},
		{"a member runs on beside its snapshot, and can go back to it", snapshots},
		{"a running member moves to another host", moveRunning},
		{"a member whose move breaks off runs once", moveCut},
		{"a member boots again where it is, once for each request", reboot},
		{"a running member is given directories and lets go of them, and its record names those that it has", remounts},
		{"a member takes a new size at once or when it boots again, and its record names the size that it has", resize},
		{"what a member sends has the condition that is set, until the member ends", conditions},
		{"a part runs until it is cleaned, or is refused", partRuns},
		{"a part is found by a new driver, and cleaned by it", partReopen},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := open(t)
			ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(f.Deadline, deadline))
			defer cancel()
			c.run(t, ctx, f)
			if t.Failed() {
				return
			}
			for _, o := range observe(t, ctx, f.Driver) {
				must(t, "Clean", f.Driver.Clean(ctx, o.ID))
			}
			if left := f.Left(t); len(left) > 0 {
				t.Errorf("left after every member was cleaned: %q", left)
			}
			if ports := f.Ports.Attached(); len(ports) > 0 {
				t.Errorf("ports left after every member was cleaned: %q", ports)
			}
		})
	}
}

// ifPauses runs a case for drivers that can freeze members.
func ifPauses(run func(*testing.T, context.Context, Fixture)) func(*testing.T, context.Context, Fixture) {
	return func(t *testing.T, ctx context.Context, f Fixture) {
		if f.CantPause {
			if _, can := f.Driver.(driver.Pauser); can {
				t.Errorf("%T can pause members", f.Driver)
			}
			return
		}
		run(t, ctx, f)
	}
}

func startedRuns(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	if o := find(t, ctx, f.Driver, m.Assignment.ID); o.State != driver.StateRunning {
		t.Errorf("after Start it is %s (%s), want running", o.State, o.Message)
	}
	if !slices.Contains(f.Ports.Attached(), m.Assignment.ID) {
		t.Error("after Start its port is not attached")
	}
}

func startTwice(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	before := find(t, ctx, f.Driver, m.Assignment.ID)
	must(t, "second Start", f.Driver.Start(ctx, m))
	if after := find(t, ctx, f.Driver, m.Assignment.ID); after.State != driver.StateRunning || after.PID != before.PID {
		t.Errorf("after a second Start it is %s with PID %d, want running with PID %d", after.State, after.PID, before.PID)
	}
}

func stopTwice(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	for range 2 {
		must(t, "Stop", f.Driver.Stop(ctx, m.Assignment.ID, deadline))
		if o := find(t, ctx, f.Driver, m.Assignment.ID); o.State != driver.StateExited || o.PID != 0 {
			t.Errorf("after Stop it is %s with PID %d, want exited without one", o.State, o.PID)
		}
	}
}

func stopByForce(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	f.Stubborn(&m)
	must(t, "Start", f.Driver.Start(ctx, m))
	must(t, "Stop", f.Driver.Stop(ctx, m.Assignment.ID, 50*time.Millisecond))
	if o := find(t, ctx, f.Driver, m.Assignment.ID); o.State != driver.StateExited {
		t.Errorf("after Stop it is %s, want exited", o.State)
	}
}

func cleanTwice(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	must(t, "Stop", f.Driver.Stop(ctx, m.Assignment.ID, 0))
	for range 2 {
		must(t, "Clean", f.Driver.Clean(ctx, m.Assignment.ID))
		absent(t, ctx, f, m.Assignment.ID)
	}
}

func cleanRunning(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	must(t, "Clean", f.Driver.Clean(ctx, m.Assignment.ID))
	absent(t, ctx, f, m.Assignment.ID)
}

func unknownMember(t *testing.T, ctx context.Context, f Fixture) {
	id := f.Member(t).Assignment.ID
	must(t, "Stop", f.Driver.Stop(ctx, id, time.Second))
	must(t, "Clean", f.Driver.Clean(ctx, id))
	if _, err := f.Driver.Wait(ctx, id); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Wait for an unknown member: %v, want ErrNotFound", err)
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b"} {
		must(t, "Stop of a name that can't be", f.Driver.Stop(ctx, name, 0))
		must(t, "Clean of a name that can't be", f.Driver.Clean(ctx, name))
	}
}

func waitForEnd(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	f.End(t, find(t, ctx, f.Driver, m.Assignment.ID), 7)
	o, err := f.Driver.Wait(ctx, m.Assignment.ID)
	must(t, "Wait", err)
	if o.ID != m.Assignment.ID || o.State != driver.StateExited {
		t.Errorf("Wait returned %s of %q, want exited", o.State, o.ID)
	}
	if o.ExitCode != nil && *o.ExitCode != 7 {
		t.Errorf("Wait returned exit code %d, want 7 or none", *o.ExitCode)
	}
}

func waitCancelled(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	waiting, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := f.Driver.Wait(waiting, m.Assignment.ID); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended context: %v, want context.Canceled", err)
	}
	if o := find(t, ctx, f.Driver, m.Assignment.ID); o.State != driver.StateRunning {
		t.Errorf("after a cancelled Wait it is %s, want running", o.State)
	}
}

func reopen(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	before := find(t, ctx, f.Driver, m.Assignment.ID)
	second := f.Reopen(t)
	after := find(t, ctx, second, m.Assignment.ID)
	if after.State != driver.StateRunning || after.PID != before.PID {
		t.Errorf("a new driver sees %s with PID %d, want running with PID %d", after.State, after.PID, before.PID)
	}
	must(t, "Start by a new driver", second.Start(ctx, m))
	f.End(t, after, 3)
	if o, err := second.Wait(ctx, m.Assignment.ID); err != nil || o.State != driver.StateExited {
		t.Errorf("Wait by a new driver: %s, %v; want exited", o.State, err)
	}
	must(t, "Clean by a new driver", second.Clean(ctx, m.Assignment.ID))
}

func attachFails(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	broken := errors.New("the switch is on fire")
	f.Ports.Fail(broken)
	if err := f.Driver.Start(ctx, m); !errors.Is(err, broken) {
		t.Errorf("Start without a port: %v, want the reason %q", err, broken)
	}
	if o := find(t, ctx, f.Driver, m.Assignment.ID); o.State == driver.StateRunning || o.PID != 0 {
		t.Errorf("after a failed Start it is %s with PID %d, want nothing to run", o.State, o.PID)
	}
	f.Ports.Fail(nil)
	must(t, "Start with a port", f.Driver.Start(ctx, m))
	if o := find(t, ctx, f.Driver, m.Assignment.ID); o.State != driver.StateRunning {
		t.Errorf("after Start it is %s (%s), want running", o.State, o.Message)
	}
}

func startAfterExit(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	must(t, "Start", f.Driver.Start(ctx, m))
	must(t, "Stop", f.Driver.Stop(ctx, m.Assignment.ID, 0))
	must(t, "second Start", f.Driver.Start(ctx, m))
	if o := find(t, ctx, f.Driver, m.Assignment.ID); o.State != driver.StateRunning || o.ExitCode != nil {
		t.Errorf("after a second Start it is %s (%s), want running", o.State, o.Message)
	}
}

func update(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	if err := f.Driver.Update(ctx, m); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Update of an unknown member: %v, want ErrNotFound", err)
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	m.Files = append(slices.Clone(m.Files), driver.File{Path: "/etc/nearmetal/hostfile", Content: []byte("c-0 slots=1\n"), Mode: 0o644})
	must(t, "Update", f.Driver.Update(ctx, m))
	must(t, "second Update", f.Driver.Update(ctx, m))
}

func observeConfig(t *testing.T, ctx context.Context, f Fixture) {
	m := f.Member(t)
	m.Files = []driver.File{{Path: "/etc/ssh/ssh_host_ed25519_key", Content: []byte("secret"), Mode: 0o600}}
	must(t, "Start", f.Driver.Start(ctx, m))
	o := find(t, ctx, f.Reopen(t), m.Assignment.ID)
	if o.Member == nil || o.Member.Assignment.ID != m.Assignment.ID || !slices.Equal(o.Member.Networks, m.Networks) {
		t.Fatalf("observed member: %+v, want assignment %q", o.Member, m.Assignment.ID)
	}
	if len(o.Member.Files) > 0 {
		t.Errorf("observed member carries %d files, want none", len(o.Member.Files))
	}
}

func many(t *testing.T, ctx context.Context, f Fixture) {
	count := cmp.Or(f.Many, 6)
	members := make([]driver.Member, count)
	for i := range members {
		members[i] = f.Member(t)
	}
	each := func(what string, do func(m driver.Member) error) {
		var group sync.WaitGroup
		errs := make([]error, count)
		for i, m := range members {
			group.Go(func() { errs[i] = do(m) })
		}
		group.Wait()
		must(t, what, errors.Join(errs...))
	}
	each("Start", func(m driver.Member) error { return f.Driver.Start(ctx, m) })
	running := 0
	for _, o := range observe(t, ctx, f.Driver) {
		if o.State == driver.StateRunning {
			running++
		}
	}
	if running != count {
		t.Errorf("%d of %d members run", running, count)
	}
	each("Clean", func(m driver.Member) error { return f.Driver.Clean(ctx, m.Assignment.ID) })
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func observe(t *testing.T, ctx context.Context, d driver.Driver) []driver.Observation {
	t.Helper()
	observations, err := d.Observe(ctx)
	must(t, "Observe", err)
	return observations
}

// find returns what a driver observes of a member; an absent one is an observation, too.
func find(t *testing.T, ctx context.Context, d driver.Driver, id string) driver.Observation {
	t.Helper()
	for _, o := range observe(t, ctx, d) {
		if o.ID == id {
			return o
		}
	}
	return driver.Observation{ID: id, State: driver.StateAbsent}
}

func absent(t *testing.T, ctx context.Context, f Fixture, id string) {
	t.Helper()
	if o := find(t, ctx, f.Driver, id); o.State != driver.StateAbsent {
		t.Errorf("after Clean it is still %s (%s)", o.State, o.Message)
	}
	if slices.Contains(f.Ports.Attached(), id) {
		t.Error("after Clean its port is still attached")
	}
}

// Ports makes no ports and keeps account of those it was asked for. The zero value is ready.
type Ports struct {
	mu       sync.Mutex
	attached map[string]fabric.Port
	fail     error
}

// Attach takes note of the port, or fails as told.
func (p *Ports) Attach(_ context.Context, port fabric.Port, _ fabric.Place) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	if p.attached == nil {
		p.attached = map[string]fabric.Port{}
	}
	p.attached[port.ID] = port
	return nil
}

// Detach forgets all ports of an assignment.
func (p *Ports) Detach(_ context.Context, id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.attached, func(port string, _ fabric.Port) bool { return fabric.AssignmentOf(port) == id })
	return nil
}

// Fail makes every further Attach fail with err; nil ends that.
func (p *Ports) Fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail = err
}

// Attached lists the IDs of the attached ports.
func (p *Ports) Attached() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.attached))
}
