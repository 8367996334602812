package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/filetree"
	"github.com/nearmetal/nearmetal/internal/pidfd"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// Stop asks the first process to end, and ends every process of the member by force once grace has passed.
func (d *Driver) Stop(ctx context.Context, id string, grace time.Duration) error {
	if !validName(id) {
		return nil
	}
	h, err := d.host()
	if err != nil {
		return err
	}
	if err := h.cgroups.Thaw(ctx, id); err != nil { // a frozen process hears of nothing
		return fmt.Errorf("stopping member %q: %w", id, err)
	}
	seen := d.look(h, id)
	if seen.state == driver.StateRunning && grace > 0 {
		if err := d.askToEnd(ctx, h, id, seen.init, grace); err != nil {
			return fmt.Errorf("stopping member %q: %w", id, err)
		}
	}
	if err := d.endAll(ctx, h, id, seen); err != nil {
		return fmt.Errorf("stopping member %q: %w", id, err)
	}
	return nil
}

// askToEnd sends SIGTERM to the first process and waits for its end, at most for grace.
func (d *Driver) askToEnd(ctx context.Context, h *host, id string, pid int, grace time.Duration) error {
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
	if err := p.Signal(unix.SIGTERM); err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := p.Wait(patience); err != nil {
		return ctx.Err() // grace has passed: go on by force, unless the caller gave up
	}
	return nil
}

// endAll ends every process by force.
func (d *Driver) endAll(ctx context.Context, h *host, id string, seen sight) error {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	// With cgroup v1 a frozen process does not even end by force until it is thawed.
	if err := h.cgroups.Thaw(ctx, id); err != nil {
		return err
	}
	orphans, err := d.orphans(h, id)
	if err != nil {
		return err
	}
	defer orphans.reap()
	// The kernel ends a PID namespace with its first process; the control group holds whatever else there is.
	if seen.init != 0 {
		err := pidfd.Kill(ctx, seen.init, func() bool { return h.cgroups.Contains(id, seen.init) })
		if err != nil {
			return err
		}
	}
	if err := h.cgroups.Kill(ctx, id); err != nil {
		return err
	}
	return errors.Join(d.awaitReaped(ctx, id), d.endDetour(id))
}

// orphans are processes of a member that may be children of this process and are awaited by nobody: those of a driver that was here before,
// or of a runtime that died at work.
type orphans []*pidfd.Process

// orphans opens the processes of a member that this driver has not started.
func (d *Driver) orphans(h *host, id string) (orphans, error) {
	if d.adopted(id) {
		return nil, nil
	}
	pids, err := h.cgroups.Processes(id)
	var list orphans
	for _, pid := range pids {
		if p, err := pidfd.Open(pid); err == nil {
			list = append(list, p)
		}
	}
	return list, err
}

// reap takes those that have ended off the process table: the PID namespace of a sandbox lasts as long as anything of it is there.
func (list orphans) reap() {
	for _, p := range list {
		_, _ = p.Reap()
		p.Close()
	}
}

// Clean removes the member's processes, port, control groups, runtime record and directory, and verifies it by looking. The
// directory goes last: until then a crash leaves the member visible to Observe.
func (d *Driver) Clean(ctx context.Context, id string) error {
	if !validName(id) {
		return nil
	}
	h, err := d.host()
	if err != nil {
		return err
	}
	if err := d.clean(ctx, h, id); err != nil {
		return fmt.Errorf("cleaning member %q: %w", id, err)
	}
	return nil
}

func (d *Driver) clean(ctx context.Context, h *host, id string) error {
	removing, removed := tracing.Stage(ctx, "remove")
	err := d.removeRuntime(removing, h, id)
	removed(err)
	if err != nil {
		return err
	}
	failpoint.Hit("container.after-remove-runtime")
	detaching, detached := tracing.Stage(ctx, "detach")
	err = d.cfg.Attacher.Detach(detaching, id)
	detached(err)
	if err != nil {
		return fmt.Errorf("detaching it from its network: %w", err)
	}
	failpoint.Hit("container.after-detach")
	if err := d.leaveImage(ctx, h, id); err != nil {
		return err
	}
	if err := filetree.Remove(ctx, d.dir(id)); err != nil {
		return err
	}
	failpoint.Hit("container.after-remove-dir")
	if err := d.endSandboxes(ctx, h); err != nil {
		return fmt.Errorf("ending its cluster's sandbox: %w", err)
	}
	failpoint.Hit("container.after-end-sandbox")
	if err := d.verifyGone(h, id); err != nil {
		return err
	}
	return d.endClean(h)
}

// removeRuntime ends the member and removes its control groups, its staged files and the runtime's record. That is what the
// runtime's own "delete" does, without one more process a member, and also after a runtime that was killed at work.
func (d *Driver) removeRuntime(ctx context.Context, h *host, id string) error {
	d.disregard(id)
	if err := d.endAll(ctx, h, id, d.look(h, id)); err != nil {
		return err
	}
	if !exists(d.path(id, fileMember)) {
		if err := d.endStrays(ctx, id); err != nil {
			return err
		}
	}
	d.disown(id)
	failpoint.Hit("container.after-kill")
	if err := d.awaitUnshared(ctx, h, id); err != nil {
		return err
	}
	if err := h.cgroups.Remove(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("container.after-remove-cgroups")
	for _, path := range append(h.stagedPaths(id), d.path(id, fileMember), d.path(id, fileExit)) {
		if err := filetree.Remove(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// stagedPaths are where a member's staged files and the runtime's record are.
func (h *host) stagedPaths(id string) []string {
	s := h.spawner
	return []string{s.outside(filepath.Join(s.runtimeDir(), id)), s.outside(s.memberDir(id))}
}

// verifyGone looks for what must no longer be there.
func (d *Driver) verifyGone(h *host, id string) error {
	var left []string
	for _, path := range slices.Concat(h.cgroups.Dirs(id), h.stagedPaths(id), []string{d.dir(id)}) {
		if exists(path) {
			left = append(left, path)
		}
	}
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return fmt.Errorf("looking for remaining mounts: %w", err)
	}
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4]+"/", d.dir(id)+"/") {
			left = append(left, "mount "+fields[4])
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("still there after cleaning: %s", strings.Join(left, ", "))
	}
	return nil
}
