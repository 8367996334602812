package nfs

import (
	"bytes"
	"encoding/binary"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// search is what is known of looking through a tree for files by their numbers.
type search struct {
	running sync.Mutex // held while somebody looks

	// What follows is guarded by files.mu.

	// absent are files that were looked for and not found. Files that come to be are taken off; the map is emptied when it is full.
	absent map[handle]bool
	// next is when it may be looked again in vain.
	next time.Time
}

// mostAbsent bounds what is remembered as missing.
const mostAbsent = 4096

// mostDirs bounds how many directories are known and not yet looked at.
const mostDirs = 1 << 20

// restFactor is how much longer than a search in vain took of a processor nobody searches the tree after it: a guest that asks for what is not there
// costs a tenth of a processor. For how long the tree did not answer does not count.
const restFactor = 9

func (s *search) init() { s.absent = map[handle]bool{} }

// found takes a file off those that are absent. files.mu is held.
func (s *search) found(h handle) { delete(s.absent, h) }

// look goes through the tree until it has come upon a file, and remembers what it sees on the way. It returns statusStale when there is no such
// file, and statusLater when it is too soon after a search in vain.
func (f *files) look(h handle) error {
	search := &f.trees[h.tree].search
	search.running.Lock()
	defer search.running.Unlock()
	if o, err := f.openSeen(h, deepest); err == nil { // somebody else has come upon it meanwhile
		f.unpin(o)
		return nil
	}
	f.mu.Lock()
	absent, tooSoon := search.absent[h], time.Now().Before(search.next)
	f.mu.Unlock()
	switch {
	case absent:
		return statusStale
	case tooSoon:
		return statusLater
	}
	begun := threadTime()
	// Twice: a directory that somebody moves meanwhile may be missed once.
	for range 2 {
		found, err := f.walk(h)
		if err != nil {
			return err
		}
		if found {
			return nil
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(search.absent) >= mostAbsent {
		clear(search.absent)
	}
	search.absent[h] = true
	search.next = time.Now().Add(restFactor * (threadTime() - begun))
	return statusStale
}

// threadTime is how long the calling thread has had a processor.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // which a thread always has
	return time.Duration(t.Nano())
}

// walk looks through all directories of a file's tree, those near the root first. The root is remembered for good, so a directory that is forgotten while its turn has
// not come is opened by its ancestors or passed over.
func (f *files) walk(h handle) (bool, error) {
	t, found, budget := f.trees[h.tree], false, f.cfg.MostFiles/2
	for queue := []handle{t.root}; len(queue) > 0 && !found; queue = queue[1:] {
		dir, err := f.openSeen(queue[0], deepest)
		if err != nil {
			continue // gone meanwhile
		}
		err = f.eachEntry(dir.fd, 0, func(e entry) bool {
			if e.name == "." || e.name == ".." {
				return true
			}
			var stat unix.Statx_t
			if unix.Statx(dir.fd, e.name, unix.AT_SYMLINK_NOFOLLOW, statMask, &stat) != nil || deviceOf(&stat) != t.device {
				return true
			}
			seen, isDir := t.handleOf(&stat), stat.Mode&unix.S_IFMT == unix.S_IFDIR
			found = found || seen.is(h)
			if budget--; isDir || found || budget > 0 {
				f.remember(seen, queue[0].ino, e.name)
			}
			if isDir && len(queue) < mostDirs {
				queue = append(queue, seen)
			}
			return !found
		})
		f.unpin(dir)
		if err != nil && !errIsAccess(err) {
			return false, err
		}
	}
	return found, nil
}

// entry is one of a directory.
type entry struct {
	ino  uint64
	next uint64 // where the one after it is
	name string
}

// eachEntry calls do for the entries of a directory from a position on, until it returns false.
func (f *files) eachEntry(dir int, from uint64, do func(entry) bool) error {
	fd, err := unix.Open(f.path(dir), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if from != 0 {
		if _, err := unix.Seek(fd, int64(from), unix.SEEK_SET); err != nil {
			return err
		}
	}
	buffer := make([]byte, 32<<10)
	for {
		n, err := unix.Getdents(fd, buffer)
		if err != nil || n == 0 {
			return err
		}
		for rest := buffer[:n]; len(rest) > 0; {
			e, size := parseEntry(rest)
			rest = rest[size:]
			if !do(e) {
				return nil
			}
		}
	}
}

// nameAt is where a struct linux_dirent64 has its name (getdents(2)).
const nameAt = int(unsafe.Offsetof(unix.Dirent{}.Name))

func parseEntry(b []byte) (e entry, size int) {
	size = int(binary.NativeEndian.Uint16(b[16:]))
	name, _, _ := bytes.Cut(b[nameAt:size], []byte{0})
	return entry{ino: binary.NativeEndian.Uint64(b), next: binary.NativeEndian.Uint64(b[8:]), name: string(name)}, size
}
