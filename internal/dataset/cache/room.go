package cache

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/dataset"
)

const (
	// mostDefault and shareDefault bound the caches of a node that says nothing of their room: a tenth of its disk, at most 64 GiB.
	mostDefault  = 64 << 30
	shareDefault = 10
	// leastBytes is the least that a cache is given.
	leastBytes = 64 << 20
)

// roomOf is the room for caches on the disk of a directory.
func roomOf(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("the disk of the caches can't be read: %w", err)
	}
	return max(leastBytes, min(mostDefault, int64(st.Blocks)*st.Bsize/shareDefault)), nil
}

// Room are the bounds of all caches.
func (s *Store) Room() dataset.CacheRoom {
	return dataset.CacheRoom{Bytes: s.cfg.MaxBytes, BlockBytes: s.cfg.BlockBytes, Prefetch: s.cfg.Prefetch}
}

// idle is a cache that has no server and something on the disk.
type idle struct {
	uid       string
	heldBytes int64
}

// divide gives a new cache its room: what it needs to hold its dataset whole, or else what is left. Idle caches go for that, in their order, as far as needed.
// enough is false if less is left than the least of a cache.
func divide(allBytes, takenBytes, needBytes int64, order []idle) (sizeBytes int64, goes []string, enough bool) {
	free := allBytes - takenBytes
	for _, i := range order {
		free -= i.heldBytes
	}
	for _, i := range order {
		if free >= needBytes {
			break
		}
		free += i.heldBytes
		goes = append(goes, i.uid)
	}
	size := min(needBytes, free)
	return size, goes, size >= min(leastBytes, allBytes)
}

// need is how large a cache must be to hold a dataset whole without beginning to remove: files and the blocks at their ends, below its high watermark. A
// dataset of unknown size needs all that there is.
func need(order *dataset.CacheOrder, blockBytes int64, highPercent int, allBytes int64) int64 {
	var sum int64
	for _, f := range order.Files {
		if f.SizeBytes == 0 {
			return allBytes
		}
		sum += f.SizeBytes + 2*blockBytes
	}
	return min(allBytes, max(leastBytes, sum/int64(highPercent)*100+leastBytes/8))
}

// makeRoom returns the size of a cache that is to be started, after others have made room.
func (s *Store) makeRoom(ctx context.Context, c *cached, order *dataset.CacheOrder) (int64, error) {
	s.mu.Lock()
	var taken int64
	var resting []*cached
	for _, other := range s.all {
		switch {
		case other == c:
		case other.running != nil || other.want != nil:
			taken += other.size
		case other.held > 0:
			resting = append(resting, other)
		}
	}
	slices.SortFunc(resting, func(a, b *cached) int { return cmp.Or(a.lastUse.Compare(b.lastUse), cmp.Compare(a.uid, b.uid)) })
	inTurn := make([]idle, 0, len(resting))
	for _, r := range resting {
		inTurn = append(inTurn, idle{r.uid, r.held})
	}
	s.mu.Unlock()
	size, goes, enough := divide(s.cfg.MaxBytes, taken, need(order, s.cfg.BlockBytes, cmp.Or(s.cfg.HighPercent, 90), s.cfg.MaxBytes), inTurn)
	if !enough {
		return 0, fmt.Errorf("caches of other datasets take %d MiB of this node's %d MiB; wait until members no longer read these, read a copy, or give the node more room (--xcache)",
			taken>>20, s.cfg.MaxBytes>>20)
	}
	for _, r := range resting {
		if slices.Contains(goes, r.uid) {
			if err := s.remove(ctx, r); err != nil {
				return 0, fmt.Errorf("making room for the cache: %w", err)
			}
		}
	}
	return size, nil
}

// onDisk is what a directory takes of the disk, in bytes. What goes meanwhile is not counted.
func onDisk(dir string) int64 {
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += st.Blocks * 512
			}
		}
		return nil
	})
	return sum
}
