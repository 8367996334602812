package vm

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
)

// diskSize is the size of a member's private disk: what it was assigned. A disk of another system can't be made smaller.
func diskSize(a *api.Assignment, image api.Bytes) (int64, error) {
	switch {
	case a.DiskBytes == 0: // assigned by a version that counted no disks
		return int64(image), nil
	case a.DiskBytes < int64(image):
		return 0, fmt.Errorf("its disk has %s, and the disk of environment %q has %s; create a cluster with a larger one: --disk %s",
			api.Bytes(a.DiskBytes), a.Environment, image, image)
	default:
		return a.DiskBytes, nil
	}
}

// overlayBound is how large the file of a private disk can become: the disk, 8 bytes of tables and 2 of reference counts for each cluster, and what it
// begins with. No cluster is ever freed, as discarded blocks stay, so the file has no gaps.
func overlayBound(size int64) int64 {
	const slack = 64 * overlayCluster
	clusters := (size + overlayCluster - 1) / overlayCluster
	return clusters*(overlayCluster+8+2) + slack
}

// boundDisk keeps a machine's QEMU from making any file larger than the member's private disk can become.
func (d *Driver) boundDisk(a *api.Assignment) error {
	if a.DiskBytes == 0 {
		return nil
	}
	pid, err := d.pid(a.ID)
	if err != nil {
		return err
	}
	return boundFiles(pid, a.UserIDs.First, uint64(overlayBound(a.DiskBytes)))
}

// boundFiles limits the size of files that a process of a user writes (RLIMIT_FSIZE). An agent without CAP_SYS_RESOURCE, which could never raise the
// limit again, as that user sets the limit that the process itself could raise.
func boundFiles(pid int, user uint32, bytes uint64) error {
	err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: bytes}, nil)
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and the thread ends with this: it is another user's
		done <- boundAs(pid, int(user), bytes)
	}()
	return <-done
}

// boundAs sets the soft limit on this thread as a user who may: the process's own (prlimit(2), "Permission to use").
func boundAs(pid, user int, bytes uint64) error {
	const same = ^uintptr(0)
	for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
		if _, _, e := unix.RawSyscall(call, uintptr(user), same, same); e != 0 {
			return e
		}
	}
	var now unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, nil, &now); err != nil {
		return err
	}
	return unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: bytes, Max: now.Max}, nil)
}
