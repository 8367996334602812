package hostsnapshot

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// prctlGet reads a prctl option that stores an int; x/sys/unix passes no pointers through Prctl safely.
func prctlGet(option int, value *int32) error {
	_, _, errno := unix.Syscall6(unix.SYS_PRCTL, uintptr(option), uintptr(unsafe.Pointer(value)), 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
