package inventory

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/offer"
)

// leastFree is what stays free of a node's disk in any case, for images and logs.
const leastFree = 1 << 30

// MemberDisks matches the private disks of a node's members, below the directory of its agent.
const MemberDisks = "vms/*/disk.qcow2"

// DiskBytes returns the room for private disks of members on the file system of a directory: what is free there, with what members already have, less a
// reserve. members matches their disks. A file system in memory has none: it is the memory that members are given.
func DiskBytes(dir, members string) (int64, error) {
	var file unix.Statfs_t
	if err := unix.Statfs(dir, &file); err != nil {
		return 0, err
	}
	if file.Type == unix.TMPFS_MAGIC || file.Type == unix.RAMFS_MAGIC {
		return 0, nil
	}
	room := int64(file.Bavail) * file.Bsize
	disks, err := filepath.Glob(filepath.Join(dir, members))
	if err != nil {
		return 0, err
	}
	for _, disk := range disks {
		var info unix.Stat_t
		switch err := unix.Lstat(disk, &info); {
		case err == nil:
			room += info.Blocks * 512
		case !errors.Is(err, fs.ErrNotExist): // it went meanwhile
			return 0, err
		}
	}
	return max(0, min(offer.LessReserve(room), room-leastFree)), nil
}
