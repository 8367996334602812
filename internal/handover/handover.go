// Package handover gives a server connections that it could not accept itself: those of other network namespaces.
//
// A socket belongs to the namespace that it was made in, and most servers can't be handed one. So the kernel stops a server's accept4(2) and asks this program,
// which has the kernel put a connection of its choice into the server and return that (seccomp_unotify(2)). From then on the connection is the server's: no
// byte of it passes this program. Connections that come to the server's own port are handed to it the same way. The package must never decide who may connect
// to what. Start with Install and Gate.Serve.
package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// lookEvery is how often the connections of a server are looked at for those that have ended.
	lookEvery = 200 * time.Millisecond
	// partTime bounds how long a server may take to close a connection that was shut down.
	partTime = 5 * time.Second
)

// ErrEnded reports that the server has ended.
var ErrEnded = errors.New("the server has ended")

// ErrKept reports that a server has not closed a connection that was shut down.
var ErrKept = errors.New("the server keeps a connection that has ended")

// Gate stands before the accept of one server.
type Gate struct {
	notify int // where the kernel asks
	wake   int // an event that ends the wait for it
	ended  chan struct{}
	asking sync.WaitGroup

	mu   sync.Mutex
	pid  int
	open chan struct{} // closed once pid is known
	own  *net.TCPListener
	// ownInode and ownFamily are of the server's listening socket.
	ownInode  uint64
	ownFamily int
	// watched are closed once the server no longer has the socket of a number.
	watched map[uint64]chan struct{}
	waiting chan handed
}

// handed is a connection on its way to the server: a descriptor of this program, its peer, and the socket's number.
type handed struct {
	fd    int
	peer  *net.TCPAddr
	inode uint64
	taken chan error // has room for one; nil: nobody waits to hear of it
}

// The layout of struct seccomp_data (linux/seccomp.h): the number of the system call is first.
const dataNumber = 0

// Install puts a gate before the servers that the calling thread starts from now on, and returns it. The thread has the filter until it ends: its goroutine
// must be locked to it, and must do nothing else but start one server and wait for its end. It needs CAP_SYS_ADMIN.
func Install() (*Gate, error) {
	// Another architecture's system calls are not looked for: the servers are this machine's own programs, and the filter protects nothing.
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: dataNumber},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_ACCEPT4, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_ACCEPT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("making an event: %w", err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_SPEC_ALLOW,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		_ = unix.Close(wake)
		return nil, fmt.Errorf("having the kernel ask before a server accepts connections (seccomp): %w", errno)
	}
	g := &Gate{notify: int(fd), wake: wake, ended: make(chan struct{}), open: make(chan struct{}), waiting: make(chan handed), watched: map[uint64]chan struct{}{}}
	g.asking.Go(g.listen)
	return g, nil
}

// Started says which process the server is. Until then it accepts nothing.
func (g *Gate) Started(pid int) {
	g.pid = pid
	close(g.open)
}

// Close ends the gate after its server has ended.
func (g *Gate) Close() error {
	close(g.ended)
	g.mu.Lock()
	if g.own != nil {
		_ = g.own.Close()
	}
	g.mu.Unlock()
	_, err := unix.Write(g.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	g.asking.Wait()
	return errors.Join(err, unix.Close(g.notify), unix.Close(g.wake))
}

// Serve has the server serve a connection until that ends, the server does, or ctx does. Afterwards the connection is closed, by the server, too: what it was
// made in, such as the network of a member, can go. ErrKept: the server holds on to it, and must be ended. The connection is no longer the caller's.
func (g *Gate) Serve(ctx context.Context, conn *net.TCPConn) error {
	h, err := take(conn)
	if err != nil {
		return err
	}
	h.taken = make(chan error, 1)
	select {
	case g.waiting <- h:
	case <-ctx.Done():
		_ = unix.Close(h.fd)
		return ctx.Err()
	case <-g.ended:
		_ = unix.Close(h.fd)
		return ErrEnded
	}
	select { // who has it hands it over, or closes it
	case err := <-h.taken:
		if err != nil {
			return err
		}
	case <-g.ended:
		return ErrEnded
	}
	return g.await(ctx, h.inode)
}

// take makes a connection one that a server can have: what its descriptor is set to does not come from this program.
func take(conn *net.TCPConn) (handed, error) {
	defer func() { _ = conn.Close() }()
	peer, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return handed{}, fmt.Errorf("%v is no address of TCP", conn.RemoteAddr())
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return handed{}, err
	}
	h := handed{fd: -1, peer: peer}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if h.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); failed == nil {
			h.inode, failed = inodeOf(h.fd)
		}
	})
	if err = errors.Join(err, failed); err == nil {
		err = unix.SetNonblock(h.fd, false) // servers expect what accept4 returns
	}
	if err != nil && h.fd >= 0 {
		_ = unix.Close(h.fd)
	}
	return h, err
}

func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return st.Ino, err
}

// await returns when the server no longer has a socket. When ctx ends, it shuts the socket down, and the server has some time to close it.
func (g *Gate) await(ctx context.Context, inode uint64) error {
	select {
	case <-g.watch(inode):
		return nil
	case <-g.ended:
		return nil
	case <-ctx.Done():
	}
	ticks := time.NewTicker(lookEvery / 20)
	defer ticks.Stop()
	late := time.After(partTime)
	for {
		fd, there := g.find(inode)
		if !there {
			return nil
		}
		g.shutdown(fd, inode)
		select {
		case <-g.ended:
			return nil
		case <-late:
			return ErrKept
		case <-ticks.C:
		}
	}
}

// watch returns what is closed once the server no longer has a socket. One goroutine looks for all sockets of a server, as long as it has any.
func (g *Gate) watch(inode uint64) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	gone := make(chan struct{})
	g.watched[inode] = gone
	if len(g.watched) == 1 {
		g.asking.Go(g.look)
	}
	return gone
}

func (g *Gate) look() {
	ticks := time.NewTicker(lookEvery)
	defer ticks.Stop()
	for {
		select {
		case <-g.ended:
			return
		case <-ticks.C:
		}
		g.mu.Lock()
		there := g.sockets() // with the lock: a socket that is watched from now on was handed over before
		for inode, gone := range g.watched {
			if _, has := there[inode]; !has {
				close(gone)
				delete(g.watched, inode)
			}
		}
		none := len(g.watched) == 0
		g.mu.Unlock()
		if none {
			return
		}
	}
}

// find returns the server's descriptor of a socket.
func (g *Gate) find(inode uint64) (fd int, there bool) {
	fd, there = g.sockets()[inode]
	return fd, there
}

// sockets are the server's sockets by number, with a descriptor of each.
func (g *Gate) sockets() map[uint64]int {
	dir := fmt.Sprintf("/proc/%d/fd", g.pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // it has ended
	}
	all := map[uint64]int{}
	for _, e := range entries {
		to, err := os.Readlink(dir + "/" + e.Name())
		if err != nil {
			continue
		}
		if text, is := strings.CutPrefix(to, "socket:["); is {
			inode, _ := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
			all[inode], _ = strconv.Atoi(e.Name())
		}
	}
	return all
}

// shutdown ends a connection of the server, if its descriptor is still that socket's.
func (g *Gate) shutdown(fd int, inode uint64) {
	mine, err := g.copyOf(fd)
	if err != nil {
		return // it has just closed it
	}
	defer func() { _ = unix.Close(mine) }()
	if is, err := inodeOf(mine); err == nil && is == inode {
		_ = unix.Shutdown(mine, unix.SHUT_RDWR)
	}
}

// copyOf is a descriptor of what one of the server's is of.
func (g *Gate) copyOf(fd int) (int, error) {
	pidfd, err := unix.PidfdOpen(g.pid, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(pidfd) }()
	return unix.PidfdGetfd(pidfd, fd, 0)
}

// tcpListener copies a descriptor of the server if it is a listening socket of TCP; others are none of the gate's.
func (g *Gate) tcpListener(fd int) (mine int, inode uint64, ok bool) {
	mine, err := g.copyOf(fd)
	if err != nil {
		return -1, 0, false
	}
	if protocol, err := unix.GetsockoptInt(mine, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || protocol != unix.IPPROTO_TCP {
		_ = unix.Close(mine)
		return -1, 0, false
	}
	if inode, err = inodeOf(mine); err != nil {
		_ = unix.Close(mine)
		return -1, 0, false
	}
	return mine, inode, true
}

// isOwn reports whether a descriptor is the server's listening socket. The first one that it accepts from is: from then on, who connects to that is handed over.
func (g *Gate) isOwn(fd int) bool {
	mine, inode, ok := g.tcpListener(fd)
	if !ok {
		return false
	}
	file := os.NewFile(uintptr(mine), "listener")
	defer func() { _ = file.Close() }()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.own != nil {
		return inode == g.ownInode
	}
	family, err := unix.GetsockoptInt(mine, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return false
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return false
	}
	g.own, g.ownInode, g.ownFamily = listener.(*net.TCPListener), inode, family
	select {
	case <-g.ended:
		_ = g.own.Close()
	default:
		g.asking.Go(func() { g.acceptOwn(g.own) })
	}
	return true
}

// acceptOwn hands over who connects to the server's own port.
func (g *Gate) acceptOwn(listener *net.TCPListener) {
	for {
		conn, err := listener.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // of one connection, or of too many: the server would try again, too
			select {
			case <-g.ended:
				return
			case <-time.After(lookEvery):
			}
			continue
		}
		h, err := take(conn)
		if err != nil {
			continue
		}
		select {
		case g.waiting <- h:
		case <-g.ended:
			_ = unix.Close(h.fd)
			return
		}
	}
}

// threadGroup is the process of a thread.
func threadGroup(tid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if text, found := strings.CutPrefix(line, "Tgid:"); found {
			pid, _ := strconv.Atoi(strings.TrimSpace(text))
			return pid
		}
	}
	return 0
}
