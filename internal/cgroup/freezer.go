package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// freezer is the switch by which one member's control group is frozen.
type freezer struct {
	// path takes the words on and off.
	path, on, off string
	// state is where the kernel tells that it is so, by a line isOn or isOff.
	state, isOn, isOff string
}

// freezer finds the switch: freezer.state with cgroup v1 (freezer-subsystem.rst), cgroup.freeze with v2 (cgroup-v2.rst).
func (c *Groups) freezer(id string) (freezer, error) {
	for i, h := range c.trees {
		dir := c.Dirs(id)[i]
		switch {
		case h.v2:
			return freezer{
				path: filepath.Join(dir, "cgroup.freeze"), on: "1", off: "0",
				state: filepath.Join(dir, "cgroup.events"), isOn: "frozen 1", isOff: "frozen 0",
			}, nil
		case slices.Contains(h.controllers, "freezer"):
			path := filepath.Join(dir, "freezer.state")
			return freezer{path: path, on: "FROZEN", off: "THAWED", state: path, isOn: "FROZEN", isOff: "THAWED"}, nil
		}
	}
	return freezer{}, errors.New("this host has no freezer for control groups, so members can't be paused here; " +
		"run: mkdir /sys/fs/cgroup/freezer && mount -t cgroup -o freezer none /sys/fs/cgroup/freezer, and restart the agent")
}

// Frozen tells whether a member's group is frozen, or on the way to it: whoever asked for that may have died meanwhile, and what is
// half frozen has to be thawed as well.
func (c *Groups) Frozen(id string) bool {
	f, err := c.freezer(id)
	if err != nil {
		return false
	}
	text, err := os.ReadFile(f.path)
	return err == nil && strings.TrimSpace(string(text)) != f.off
}

// Freeze freezes all processes of a member and returns when they are.
func (c *Groups) Freeze(ctx context.Context, id string) error {
	f, err := c.freezer(id)
	if err != nil {
		return err
	}
	return f.set(ctx, true)
}

// Thaw lets all processes of a member go on; a group that is not there, or can't be frozen, has no frozen ones.
func (c *Groups) Thaw(ctx context.Context, id string) error {
	if !c.Frozen(id) {
		return nil
	}
	f, err := c.freezer(id)
	if err != nil {
		return err
	}
	err = f.set(ctx, false)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil // removed meanwhile
	}
	return err
}

// longestFreezeWait is the longest pause between two looks at a group that is not frozen yet.
const longestFreezeWait = 50 * time.Millisecond

// set turns the switch and waits until the kernel says that it is so: a process that is deep in the kernel (a page being read
// from a slow disk) stops only when it comes out of there. A v1 freezer tries again at each write.
func (f freezer) set(ctx context.Context, frozen bool) error {
	value, reached := f.off, f.isOff
	if frozen {
		value, reached = f.on, f.isOn
	}
	for wait := time.Millisecond; ; wait = min(2*wait, longestFreezeWait) {
		if err := os.WriteFile(f.path, []byte(value), 0); err != nil {
			return fmt.Errorf("writing %s to %s: %w", value, f.path, err)
		}
		text, err := os.ReadFile(f.state)
		if err != nil {
			return fmt.Errorf("reading back: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.TrimSpace(line) == reached {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("some of its processes don't stop (%s is %q): %w", filepath.Base(f.state), strings.TrimSpace(string(text)), ctx.Err())
		case <-time.After(wait):
		}
	}
}
