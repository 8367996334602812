package container

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// letGoTime is how long the kernel has for taking back what an ended member's own file systems held.
const letGoTime = 2 * time.Second

// awaitUnshared returns once nothing is left of the memory that an ended member shared. What other members of its cluster still have
// attached or open stays charged to it, beyond their own limits: until they let go, the member is not clean, and nobody else gets its room.
func (d *Driver) awaitUnshared(ctx context.Context, h *host, id string) error {
	r, err := d.recall(id)
	if err != nil || !r.Member.Assignment.SharesMemory || inMemory(r.Member.HomeDir) || !d.hasNeighbour(id) {
		return nil
	}
	deadline := time.Now().Add(letGoTime)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		held, err := h.cgroups.SharedBytes(id)
		if err != nil || held <= sharedTolerance() {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s of memory that it shared is still in use by other members of its cluster on this node; it is free, and this member "+
				"clean, when their processes detach it, or end", api.Bytes(held))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}

// sharedTolerance is what the kernel's count may be wrong by: each CPU keeps up to 64 pages of changes to itself (MEMCG_CHARGE_BATCH in
// Linux's memcontrol.h), and a count that is read is brought up to date only beyond that.
func sharedTolerance() int64 { return 2 * 64 * int64(os.Getpagesize()) * int64(runtime.NumCPU()) }

// inMemory tells whether a directory is in memory: then a home's files are charged to the member that wrote them, and outlive it by right.
func inMemory(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && (s.Type == unix.TMPFS_MAGIC || s.Type == unix.RAMFS_MAGIC)
}

// hasNeighbour tells whether another member of the same cluster is on this node.
func (d *Driver) hasNeighbour(id string) bool {
	entries, err := os.ReadDir(d.members)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if e.Name() != id && sandboxOf(e.Name()) == sandboxOf(id) {
			return true
		}
	}
	return false
}
