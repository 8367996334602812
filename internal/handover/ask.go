package handover

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The structures of seccomp_unotify(2), from linux/seccomp.h.
type (
	question struct { // struct seccomp_notif
		id    uint64
		tid   uint32
		flags uint32
		nr    int32
		arch  uint32
		at    uint64
		args  [6]uint64
	}
	answer struct { // struct seccomp_notif_resp
		id    uint64
		value int64
		errno int32
		flags uint32
	}
	addition struct { // struct seccomp_notif_addfd
		id      uint64
		flags   uint32
		fd      uint32
		asFD    uint32
		fdFlags uint32
	}
)

func (g *Gate) ioctl(request uint, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(g.notify), uintptr(request), uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

// listen takes the kernel's questions until the gate is closed, or no process is left that it could ask of.
func (g *Gate) listen() {
	for {
		fds := []unix.PollFd{{Fd: int32(g.notify), Events: unix.POLLIN}, {Fd: int32(g.wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return
		}
		if fds[1].Revents != 0 || fds[0].Revents&unix.POLLIN == 0 {
			return
		}
		var q question
		if err := g.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); err != nil {
			continue // ENOENT: the thread was interrupted, and asks again
		}
		g.asking.Go(func() { g.answer(q) })
	}
}

// answer answers one accept: with a connection once there is one, or by having the kernel go on where the gate has no part.
func (g *Gate) answer(q question) {
	select {
	case <-g.open:
	case <-g.ended:
		return // the server is gone, and the question with it
	}
	if threadGroup(int(q.tid)) != g.pid || !g.isOwn(int(q.args[0])) {
		_ = g.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer{id: q.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}))
		return
	}
	var h handed
	select {
	case h = <-g.waiting:
	case <-g.ended:
		return
	}
	err := g.hand(q, h)
	if errors.Is(err, unix.ENOENT) { // a signal has interrupted the thread, which asks again
		select {
		case g.waiting <- h:
			return
		case <-g.ended:
		}
	}
	_ = unix.Close(h.fd)
	if err != nil {
		_ = g.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer{id: q.id, errno: -int32(unix.ECONNABORTED)}))
	}
	if h.taken != nil {
		h.taken <- err
	}
}

// hand has the kernel put a connection into the server, and return its new descriptor to the thread that asked.
func (g *Gate) hand(q question, h handed) error {
	if err := g.ioctl(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&q.id)); err != nil {
		return err
	}
	if q.args[1] != 0 && q.args[2] != 0 {
		if err := g.tellPeer(q.args[1], q.args[2], h); err != nil {
			return err
		}
	}
	add := addition{id: q.id, flags: unix.SECCOMP_ADDFD_FLAG_SEND, fd: uint32(h.fd)}
	if q.nr == unix.SYS_ACCEPT4 && q.args[3]&unix.SOCK_CLOEXEC != 0 {
		add.fdFlags = unix.O_CLOEXEC
	}
	if q.nr == unix.SYS_ACCEPT4 && q.args[3]&unix.SOCK_NONBLOCK != 0 {
		if err := unix.SetNonblock(h.fd, true); err != nil {
			return err
		}
	}
	return g.ioctl(unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&add))
}

// tellPeer writes the peer's address where the thread that asked expects it, as accept4(2) does: for a listener of IPv6, which servers have for both, in the
// form of IPv6 (RFC 4291, section 2.5.5.2).
func (g *Gate) tellPeer(at, lengthAt uint64, h handed) error {
	pid := g.pid
	g.mu.Lock()
	family := g.ownFamily
	g.mu.Unlock()
	var address []byte
	if family == unix.AF_INET6 {
		address = make([]byte, unix.SizeofSockaddrInet6)
		copy(address[8:], h.peer.IP.To16())
	} else {
		address = make([]byte, unix.SizeofSockaddrInet4)
		copy(address[4:], h.peer.IP.To4())
	}
	binary.NativeEndian.PutUint16(address, uint16(family))
	binary.BigEndian.PutUint16(address[2:], uint16(h.peer.Port))
	room := make([]byte, 4)
	if err := move(unix.ProcessVMReadv, pid, room, lengthAt); err != nil {
		return err
	}
	full := len(address)
	if given := binary.NativeEndian.Uint32(room); given < uint32(full) {
		address = address[:given]
	}
	if err := move(unix.ProcessVMWritev, pid, address, at); err != nil {
		return err
	}
	binary.NativeEndian.PutUint32(room, uint32(full))
	return move(unix.ProcessVMWritev, pid, room, lengthAt)
}

// move copies bytes from or to the memory of a process.
func move(how func(int, []unix.Iovec, []unix.RemoteIovec, uint) (int, error), pid int, data []byte, at uint64) error {
	local := []unix.Iovec{{Base: &data[0]}}
	local[0].SetLen(len(data))
	_, err := how(pid, local, []unix.RemoteIovec{{Base: uintptr(at), Len: len(data)}}, 0)
	return err
}
