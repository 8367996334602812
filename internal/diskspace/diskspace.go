// Package diskspace keeps room for the store on the file system of a server's state directory.
//
// The last room of that file system belongs to the store: without it no cluster can be deleted and no server can start. A reserve, which
// is a preallocated file, holds such room while there is plenty. It is given back in pieces once other files have filled the disk. Whatever
// makes the state grow is refused earlier: the output of jobs first, then every request that stores anything. Deletes and reads never are.
//
// The package must never delete anything but its own reserve. Start with Space; levels.go decides how much is kept for what.
package diskspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// reserveName is the file of the reserve in the state directory.
const reserveName = "reserve"

// Pauses between two looks at the disk, and between two counts of what fills it, which may read many directories.
const (
	lookEvery  = time.Second
	countEvery = time.Minute
)

// Space is the room on the file system of a state directory; safe for concurrent use.
type Space struct {
	dir string
	log *slog.Logger

	mu sync.Mutex
	// held is how much room the reserve holds.
	held int64
	// fullest names what takes the most room in the state directory, as of counted.
	fullest string
	counted time.Time
	// refused are the uses that were refused at the last look.
	refused map[Use]bool
}

// Open looks at the file system of a state directory, whose lock the caller holds. On a full disk it gives back as much of the reserve as
// the store needs to start.
func Open(dir string, log *slog.Logger) (*Space, error) {
	s := &Space{dir: dir, log: log}
	var err error
	if s.held, err = allocated(s.reserve()); err != nil {
		return nil, fmt.Errorf("look at the reserve: %w", err)
	}
	if err := s.balance(roomToStart, false); err != nil {
		return nil, err
	}
	return s, nil
}

// Run keeps the reserve until ctx ends. It must not run before the store is open: a reserve made anew would take the store's room.
func (s *Space) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := s.look(ctx, time.Now()); err != nil {
			s.log.WarnContext(ctx, "the room on the disk of the state can't be kept", "error", err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look balances the reserve, counts what fills a full disk, and logs when something begins or ceases to be refused.
func (s *Space) look(ctx context.Context, now time.Time) error {
	disk, err := statfs(s.dir)
	if err != nil {
		return err
	}
	if err := s.balance(levelsOf(disk.total).low, true); err != nil {
		return err
	}
	output, requests := s.Check(Output) != nil, s.Check(Requests) != nil
	s.mu.Lock()
	was, stale := s.refused, now.Sub(s.counted) > countEvery
	s.refused = map[Use]bool{Output: output, Requests: requests}
	s.mu.Unlock()
	if output && (stale || !was[Output]) {
		fullest := describe(s.dir)
		s.mu.Lock()
		s.fullest, s.counted = fullest, now
		s.mu.Unlock()
	}
	switch {
	case requests && !was[Requests]:
		s.log.ErrorContext(ctx, "requests that store anything are refused, and output of jobs waits; deletes and reads continue", "reason", s.Check(Requests))
	case output && !was[Output]:
		s.log.WarnContext(ctx, "output of jobs waits for room", "reason", s.Check(Output))
	case !output && was[Output]:
		s.log.InfoContext(ctx, "the disk of the state has room again", "free_bytes", disk.free)
	}
	return nil
}

// Check returns nil while there is room for a use, or a *FullError.
func (s *Space) Check(use Use) error {
	disk, err := statfs(s.dir)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := levelsOf(disk.total).kept(use, s.held)
	if disk.free >= kept && !disk.noInodes {
		return nil
	}
	return &FullError{Dir: s.dir, FreeBytes: disk.free, KeptBytes: kept, Inodes: disk.noInodes, Fullest: s.fullest}
}

// Explain adds to the error of a write what makes room, if it failed for want of that.
func (s *Space) Explain(err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return fmt.Errorf("%w; %s", err, describe(s.dir))
}

// FullError is the error of a disk without room for more than what ends things.
type FullError struct {
	Dir string
	// FreeBytes are left, and KeptBytes are kept for deletes and for the store's own files.
	FreeBytes, KeptBytes int64
	// Inodes: the file system has no room for more files, however small.
	Inodes bool
	// Fullest names what takes the most room in Dir; empty when it was not counted.
	Fullest string
}

func (e *FullError) Error() string {
	text := fmt.Sprintf("the disk of the server's state is full: %s are free for %s, and the last %s are kept for the state itself and for deletes", size(e.FreeBytes), e.Dir, size(e.KeptBytes))
	if e.Inodes {
		text = fmt.Sprintf("the disk of the server's state is full: the file system of %s has no inodes left for new files", e.Dir)
	}
	if e.Fullest != "" {
		text += "; " + e.Fullest
	}
	return text
}

func (s *Space) reserve() string { return filepath.Join(s.dir, reserveName) }

// balance gives room of the reserve back when less than need is free, and, where grow allows it, takes room that is plentiful.
func (s *Space) balance(need int64, grow bool) error {
	disk, err := statfs(s.dir)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	target := levelsOf(disk.total).reserve(disk, s.held, need)
	switch {
	case target < s.held:
		s.log.Warn("the disk is full: the store gets room of the reserve", "free_bytes", disk.free, "given_bytes", s.held-target, "left_bytes", target)
		err = os.Truncate(s.reserve(), target)
	case target > s.held && grow:
		err = allocate(s.reserve(), s.held, target)
	default:
		return nil
	}
	held, lookErr := allocated(s.reserve())
	s.held = held
	return errors.Join(err, lookErr)
}

// allocate extends a file with room of its own from one size to another. A file system that can't do that has no reserve.
func allocate(path string, from, to int64) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	err = unix.Fallocate(int(f.Fd()), 0, from, to-from)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
		return nil
	case err != nil:
		return errors.Join(fmt.Errorf("reserve room in %s: %w", path, err), f.Truncate(from))
	}
	return nil
}

// allocated is how much room a file takes; 0 when there is none.
func allocated(path string) (int64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return min(st.Blocks*512, st.Size), nil
}

// disk is a file system at one moment.
type disk struct {
	total, free int64
	// noInodes: no more files fit.
	noInodes bool
}

func statfs(dir string) (disk, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return disk{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	// File systems that make inodes as they need them report 0 of 0.
	return disk{total: int64(st.Blocks) * st.Bsize, free: int64(st.Bavail) * st.Bsize, noInodes: st.Files > 0 && st.Ffree < keptInodes}, nil
}
