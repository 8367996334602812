package storm

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is a connection's kernel side; nil for none, which paces and loses nothing.
type socket struct {
	raw        syscall.RawConn
	again, out uint32 // when last looked at
	short      bool
}

func socketOf(conn net.Conn) *socket {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	return &socket{raw: raw}
}

// pace bounds bytes per second; 0: not at all. A kernel that can't is no error: then the link itself bounds them.
func (s *socket) pace(bytesPerSecond int64) {
	if s == nil {
		return
	}
	if bytesPerSecond == 0 {
		bytesPerSecond = -1 // ~0: no bound
	}
	_ = s.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, uint64(bytesPerSecond))
	})
}

// shortenQueue has the connection send at the rate that the link was seen to carry (BBR) instead of filling its queue until it overflows. It
// costs a fifth more processor time. Kernels without it keep their own way.
func (s *socket) shortenQueue() {
	if s == nil || s.short {
		return
	}
	s.short = true
	_ = s.raw.Control(func(fd uintptr) { _ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "bbr") })
}

// losses are the segments sent again, and all sent, since the last look (TCP_INFO).
func (s *socket) losses() (again, out uint32) {
	if s == nil {
		return 0, 0
	}
	_ = s.raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		again, out = info.Total_retrans-s.again, info.Segs_out-s.out
		s.again, s.out = info.Total_retrans, info.Segs_out
	})
	return again, out
}
