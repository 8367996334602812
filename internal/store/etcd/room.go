package etcd

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// roomEvery is how often the database is looked at: it grows by 16 MiB at most at a time.
const roomEvery = time.Second

// databaseFile is where etcd keeps its database below its directory.
func databaseFile(dir string) string { return filepath.Join(dir, "member", "snap", "db") }

// keepRoom keeps room on the disk for the whole of the database until the store ends. The file is extended without any, and a page that finds no
// room when it is first written ends the server. What can't be had now is tried again: deletes mostly write over pages that are free.
func (s *Store) keepRoom(dir string) {
	defer s.calls.Done()
	tick := time.NewTicker(roomEvery)
	defer tick.Stop()
	for {
		_ = fillHoles(databaseFile(dir)) // a full disk is reported by those who fill it
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// fillHoles gives a file room for all of its size. Its content stays.
func fillHoles(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if st.Blocks*512 >= st.Size {
		return nil
	}
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, st.Size)
}

// defragThreshold is how much a start must be able to free to make the database anew, in MiB; 0 is never: that needs room for a copy, and a
// start that does not find it fails.
func defragThreshold(dir string) uint {
	var database unix.Stat_t
	var disk unix.Statfs_t
	if errors.Join(unix.Stat(databaseFile(dir), &database), unix.Statfs(dir, &disk)) != nil {
		return 0 // a first start
	}
	if int64(disk.Bavail)*disk.Bsize < database.Size+spareForCopy {
		return 0
	}
	return 256
}

// spareForCopy is what a copy of the database leaves free.
const spareForCopy = 256 << 20
