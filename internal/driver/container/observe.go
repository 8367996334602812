package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// sight is what a look at the host shows of a member.
type sight struct {
	state driver.State
	// init is the first process while the member runs or is frozen, or 0.
	init int
	// member is what it was started with; nil for debris.
	member *driver.Member
	// oomKills counts processes of a member that has ended which the kernel ended for want of memory.
	oomKills int
}

// evidence are the facts a member's state follows from.
type evidence struct {
	dir       bool // its directory is there
	group     bool // a control group is
	started   bool // its record is there: the first process was let go
	initAlive bool // the process it names is in the member's control group
	frozen    bool // its control group is frozen, or was told to be
}

// stateOf is the table from facts to state.
func stateOf(e evidence) driver.State {
	switch {
	case e.started && e.initAlive && e.frozen:
		return driver.StatePaused
	case e.started && e.initAlive:
		return driver.StateRunning
	case e.started:
		return driver.StateExited
	case e.dir || e.group:
		return driver.StatePrepared
	default:
		return driver.StateAbsent
	}
}

// look looks at the host for one member.
func (d *Driver) look(h *host, id string) sight {
	r, err := d.recall(id)
	e := evidence{
		dir: exists(d.dir(id)), group: slices.ContainsFunc(h.cgroups.Dirs(id), exists),
		started: err == nil, initAlive: err == nil && h.cgroups.Contains(id, r.PID),
	}
	e.frozen = e.initAlive && h.cgroups.Frozen(id)
	s := sight{state: stateOf(e)}
	if s.alive() {
		s.init = r.PID
	}
	if s.alive() || s.state == driver.StateExited {
		s.member = &r.Member
	}
	if s.state == driver.StateExited {
		s.oomKills, _ = h.cgroups.OutOfMemory(id) // a member's end is worth reporting without its reason, too
	}
	return s
}

// alive tells whether the first process is there, frozen or not.
func (s sight) alive() bool { return s.state == driver.StateRunning || s.state == driver.StatePaused }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// found lists the IDs of all members of which there is anything on the host.
func (d *Driver) found(h *host) ([]string, error) {
	ids, err := h.cgroups.Members()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(d.members)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing members: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Observe lists every member, and all debris, found in the member directories and the control groups.
func (d *Driver) Observe(ctx context.Context) ([]driver.Observation, error) {
	h, err := d.host()
	if err != nil {
		return nil, err
	}
	ids, err := d.found(h)
	if err != nil {
		return nil, err
	}
	if err := d.endSandboxes(ctx, h); err != nil {
		return nil, fmt.Errorf("ending sandboxes without members: %w", err)
	}
	if err := d.leaveGone(ctx, h); err != nil {
		return nil, err
	}
	observations := make([]driver.Observation, 0, len(ids))
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		seen := d.look(h, id)
		if seen.state == driver.StateAbsent {
			continue // went away meanwhile
		}
		observations = append(observations, d.observation(id, seen))
	}
	return observations, nil
}

func (d *Driver) observation(id string, seen sight) driver.Observation {
	o := driver.Observation{ID: id, State: seen.state, PID: seen.init}
	output := d.path(id, fileOutput)
	switch seen.state {
	case driver.StateRunning, driver.StatePaused:
		if err := boundOutput(output); err != nil {
			d.log.Warn("a member's output can't be truncated", "member", id, "err", err)
		}
	case driver.StateExited:
		o.ExitCode = d.recallExit(id)
		o.Message = "its first process has ended"
		if o.ExitCode != nil {
			o.Message = fmt.Sprintf("its first process has ended with exit code %d", *o.ExitCode)
		}
		o.Message += seen.memoryText()
		if said := lastOutput(output); said != "" {
			o.Message += "; its last output: " + said
		}
	case driver.StatePrepared:
		o.Message = "prepared but never started, or left behind by a crash or failure"
	}
	if seen.member != nil {
		o.Member = seen.member
		o.Member.Files = nil
	}
	return o
}

// Wait waits for the end of the first process. It opens the process, then makes sure that it is the member's: from then on no
// other process can be taken for it.
func (d *Driver) Wait(ctx context.Context, id string) (driver.Observation, error) {
	h, err := d.host()
	if err != nil {
		return driver.Observation{}, err
	}
	if !validName(id) {
		return driver.Observation{}, fmt.Errorf("waiting for member %q: %w", id, driver.ErrNotFound)
	}
	seen := d.look(h, id)
	if seen.alive() {
		if err := d.waitInit(ctx, h, id, seen.init); err != nil {
			return driver.Observation{}, fmt.Errorf("waiting for member %q: %w", id, err)
		}
		if has := d.detourOf(id); has != nil && has.init == seen.init {
			if err := d.endDetour(id); err != nil {
				d.log.WarnContext(ctx, "the detour of a member that has ended can't be ended", "member", id, "error", err)
			}
		}
		seen = d.look(h, id)
	}
	switch seen.state {
	case driver.StateAbsent:
		return driver.Observation{}, fmt.Errorf("waiting for member %q: %w", id, driver.ErrNotFound)
	case driver.StateExited: // its exit code is kept a moment after it has left its control group, and the process table
		if err := d.awaitReaped(ctx, id); err != nil {
			return driver.Observation{}, fmt.Errorf("waiting for member %q: %w", id, err)
		}
	}
	return d.observation(id, seen), nil
}

func (d *Driver) waitInit(ctx context.Context, h *host, id string, pid int) error {
	p, err := pidfd.Open(pid)
	if errors.Is(err, pidfd.ErrNone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer p.Close()
	if !h.cgroups.Contains(id, pid) {
		return nil
	}
	if err := p.Wait(ctx); err != nil {
		return err
	}
	if d.adopted(id) {
		return nil // who adopted it reaps it
	}
	d.endRest(ctx, h, id)
	if code := p.ExitCode(); code != nil {
		d.rememberExit(id, *code)
	}
	return nil
}
