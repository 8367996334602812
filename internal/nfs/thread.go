package nfs

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// credentials are of AUTH_SYS (RFC 5531, appendix A).
type credentials struct {
	uid, gid uint32
	groups   []uint32
}

// maxGroups is how many a call names at most.
const maxGroups = 16

// thread is the thread of a worker: whose IDs it has now. The zero value is one of the server's own.
type thread struct {
	now credentials
	// lost: the IDs are unknown since something failed in between.
	lost bool
}

// errNoSuchID: the caller has an ID that the cluster does not have.
var errNoSuchID = errors.New("an ID of the caller is not one of the cluster's")

// become gives the thread the caller's file system IDs and groups. Those system calls change one thread alone; package unix would change all. As root,
// which the server itself is, a thread has the capabilities over files; as others it has none (capabilities(7), "Effect of user ID changes").
func (t *thread) become(c credentials) error {
	if !t.lost && t.now.uid == c.uid && t.now.gid == c.gid && slices.Equal(t.now.groups, c.groups) {
		return nil
	}
	t.lost = true
	if err := setGroups(c.groups); err != nil {
		return fmt.Errorf("%w: groups %v: %w", errNoSuchID, c.groups, err)
	}
	if err := setFileID(unix.SYS_SETFSGID, c.gid); err != nil {
		return err
	}
	if err := setFileID(unix.SYS_SETFSUID, c.uid); err != nil {
		return err
	}
	t.now, t.lost = c, false
	return nil
}

// own makes the thread the server's own again.
func (t *thread) own() error { return t.become(credentials{}) }

func setGroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0)
	runtime.KeepAlive(groups)
	if errno != 0 {
		return errno
	}
	return nil
}

// setFileID sets an ID and reads it back, as setfsuid(2) and setfsgid(2) report no errors.
func setFileID(number uintptr, id uint32) error {
	const none = ^uintptr(0)
	_, _, _ = unix.RawSyscall(number, uintptr(id), 0, 0)
	if now, _, _ := unix.RawSyscall(number, none, 0, 0); uint32(now) != id {
		return fmt.Errorf("%w: %d", errNoSuchID, id)
	}
	return nil
}
