package container

import (
	"context"
	"sync/atomic"

	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// child is the first process of a member that this driver started. Somebody must reap it, and who does learns its exit code.
// It is no knowledge about the member: a driver opened later does without.
type child struct {
	process *pidfd.Process
	// reaped is closed when the process has ended, is off the process table and its exit code is kept.
	reaped chan struct{}
	// disregarded: nobody will ask for the exit code.
	disregarded atomic.Bool
}

// adopt begins to wait for the first process of a member that was just created, or for a sandbox, whose end says nothing (disregarded).
func (d *Driver) adopt(h *host, id string, pid int, disregarded bool) error {
	p, err := pidfd.Open(pid)
	if err != nil {
		return err
	}
	c := &child{process: p, reaped: make(chan struct{})}
	c.disregarded.Store(disregarded)
	d.mu.Lock()
	d.children[id] = c
	d.mu.Unlock()
	go func() {
		defer p.Close()
		if p.Wait(d.lifetime) == nil {
			if !c.disregarded.Load() {
				d.endRest(d.lifetime, h, id)
			}
			if code := p.ExitCode(); code != nil && !c.disregarded.Load() {
				d.rememberExit(id, *code)
			}
		}
		close(c.reaped)
	}()
	return nil
}

// endRest ends what is left of a member whose first process has ended. Where that was the first of a PID namespace, the kernel has done so.
func (d *Driver) endRest(ctx context.Context, h *host, id string) {
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := h.cgroups.Kill(ctx, id); err != nil {
		d.log.Warn("processes of a member whose first process has ended run on", "member", id, "err", err)
	}
}

// adopted tells whether it was this driver that started the member.
func (d *Driver) adopted(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.children[id] != nil
}

// awaitReaped returns when the member's first process is reaped, if it was this driver that started it.
func (d *Driver) awaitReaped(ctx context.Context, id string) error {
	d.mu.Lock()
	c := d.children[id]
	d.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c.reaped:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// disregard tells that a member's exit code is of no use, since the member is about to be removed.
func (d *Driver) disregard(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.children[id]; c != nil {
		c.disregarded.Store(true)
	}
}

// disown forgets a member's first process, which has been reaped.
func (d *Driver) disown(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.children, id)
}
