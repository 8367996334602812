package virtioport

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Taken is for the host's end: it reports whether the hypervisor has read all that was written to conn so far, its end of a port's Unix socket
// (SIOCOUTQ). QEMU reads nothing while its machine is paused, or has not opened the port. Of a connection that is no socket it is always true.
//
// A host's end that QEMU has read, and that hears nothing, must be closed. QEMU 7.2 to 10.0 stop passing on what a guest says once they could not write
// to a host's end that was gone, until they see one close; and they don't look at host's ends while the machine is paused. So if the host's end ends and
// comes back meanwhile, nothing from the guest arrives any more.
func Taken(conn net.Conn) bool {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return true
	}
	var unread int
	var unreadErr error
	err = raw.Control(func(fd uintptr) { unread, unreadErr = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
	return err != nil || unreadErr != nil || unread == 0
}
