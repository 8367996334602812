package diskserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/nbd"
)

// The descriptors that a process is started with: it reads its order from one, says that it is ready on the next, and has the program, its listening socket and, to
// serve, its image.
const (
	fileOrders, fileAnswers, fileProgram, fileListener, fileImage = 0, 1, 3, 4, 5
)

// What is said over the descriptors.
const (
	ready = "ready"
	goOn  = "go"
)

// memoryLimit is what the Go runtime tries to keep to, in bytes, beside what package nbd has under way.
const memoryLimit = 96 << 20

const (
	// preambleTime bounds how long a node takes to say which disk it wants, dialTime how long a connection is waited for.
	preambleTime, dialTime = 10 * time.Second, 10 * time.Second
	// silenceTime is after how much time without an answer a node is held to be gone.
	silenceTime = 10 * time.Second
	maxName     = 128
	// mostCarried bounds the connections that a process carries at once. A machine has one for each disk, and one more while it connects again.
	mostCarried = 64
)

// Hold is the life of a process. It returns only when it can't begin, or can't go on.
func Hold() error {
	err := hold(os.Args)
	_, _ = unix.Write(fileAnswers, []byte(err.Error()))
	return err
}

func hold(args []string) error {
	if len(args) < 4 {
		return errors.New("it was started without what it should do")
	}
	runtime.GOMAXPROCS(min(4, runtime.NumCPU()))
	debug.SetMemoryLimit(memoryLimit)
	listener, err := net.FileListener(os.NewFile(fileListener, "the socket"))
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	_, _ = unix.Close(fileListener), unix.Close(fileProgram)
	var life func() error
	switch args[2] {
	case modeServe:
		life, err = serving(listener, args[3:])
	case modeReach:
		life, err = reaching(listener, args[3:])
	case modeShare:
		life, err = sharing(listener, args[3:])
	default:
		err = fmt.Errorf("%q is nothing that it does", args[2])
	}
	if err != nil {
		return err
	}
	if err := giveUp(args[2] == modeServe); err != nil {
		return err
	}
	if _, err := unix.Write(fileAnswers, []byte(ready)); err != nil {
		return err
	}
	order := make([]byte, len(goOn))
	if n, err := unix.Read(fileOrders, order); err != nil || string(order[:n]) != goOn {
		return errors.New("its maker has died")
	}
	_, _ = unix.Close(fileOrders), unix.Close(fileAnswers)
	return life()
}

// giveUp gives up all privileges over the process's own namespaces. One that serves gives up the host's files, too: it reads what guests make of QEMU.
func giveUp(files bool) error {
	if files {
		// A directory in which nothing can be made, and in which there are but numbers.
		if err := errors.Join(unix.Chroot("/proc/self/fdinfo"), unix.Chdir("/")); err != nil {
			return fmt.Errorf("giving up the host's files: %w", err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if _, _, number := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&none)), 0); number != 0 {
		return fmt.Errorf("giving up its privileges: %w", number)
	}
	if _, _, number := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); number != 0 {
		return fmt.Errorf("giving up new privileges: %w", number)
	}
	return nil
}

// image is a file or a block device.
type image struct{ *os.File }

// Sync implements nbd.Device. The size of an image does not change by writing, so its data is all.
func (i image) Sync() error { return unix.Fdatasync(int(i.Fd())) }

// serving serves an image to one client at a time, the latest. A client that comes ends the one before, and waits until that has nothing under way: so
// a machine that is held to be lost can't write any more once another has its disk.
func serving(listener net.Listener, args []string) (func() error, error) {
	if len(args) != 3 {
		return nil, errors.New("its arguments do not say how to serve")
	}
	limit, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("its limit of I/O: %w", err)
	}
	disk := image{os.NewFile(fileImage, "the image")}
	if disk.File == nil {
		return nil, errors.New("it has no image")
	}
	limits := newLimits(limit)
	return func() error {
		end, ended := func() {}, make(chan struct{})
		close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return fmt.Errorf("accepting: %w", err)
			}
			end()
			<-ended
			size, err := disk.Seek(0, io.SeekEnd) // it may have grown
			if err != nil {
				return fmt.Errorf("its size: %w", err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			end, ended = cancel, done
			go func() {
				defer close(done)
				defer cancel()
				_ = nbd.Serve(ctx, conn, nbd.Export{Device: limits.of(ctx, disk), SizeBytes: size, ReadOnly: args[1] == readOnly}) // its end is the client's affair
			}()
		}
	}, nil
}

// reaching connects each client to another node, and says which disk it wants.
func reaching(listener net.Listener, args []string) (func() error, error) {
	if len(args) != 2 || len(args[1]) > maxName {
		return nil, errors.New("its arguments do not say what to reach")
	}
	return func() error {
		return carryAll(listener, func(net.Conn) (net.Conn, error) {
			conn, err := net.DialTimeout("tcp4", args[0], dialTime)
			if err != nil {
				return nil, err
			}
			if err := noticeSilence(conn); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			if _, err := io.WriteString(conn, args[1]+"\n"); err != nil {
				return nil, errors.Join(err, conn.Close())
			}
			return conn, nil
		})
	}, nil
}

// sharing connects the nodes that it knows to the sockets of disks.
func sharing(listener net.Listener, args []string) (func() error, error) {
	var clients []netip.Addr
	sockets := map[string]string{}
	for _, word := range args[1:] {
		if name, socket, ok := strings.Cut(word, "="); ok {
			sockets[name] = socket
			continue
		}
		client, err := netip.ParseAddr(word)
		if err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	return func() error {
		return carryAll(listener, func(node net.Conn) (net.Conn, error) {
			from, err := netip.ParseAddrPort(node.RemoteAddr().String())
			if err != nil || !slices.Contains(clients, from.Addr().Unmap()) {
				return nil, errors.New("this node is not let in")
			}
			if err := errors.Join(noticeSilence(node), node.SetReadDeadline(time.Now().Add(preambleTime))); err != nil {
				return nil, err
			}
			name, err := readName(node)
			if err != nil {
				return nil, err
			}
			if err := node.SetReadDeadline(time.Time{}); err != nil {
				return nil, err
			}
			return net.DialTimeout("unix", sockets[name], dialTime)
		})
	}, nil
}

// readName reads a line, and nothing of what follows.
func readName(conn net.Conn) (string, error) {
	line, err := bufio.NewReaderSize(&oneByOne{conn, maxName + 1}, 1).ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

// oneByOne reads single bytes, at most so many.
type oneByOne struct {
	conn net.Conn
	left int
}

func (r *oneByOne) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, errors.New("the name is too long")
	}
	r.left--
	return r.conn.Read(p[:1])
}

// noticeSilence has the kernel end a connection whose other end does not answer any more. Without that, a machine would wait for a node that has started
// anew until the kernel repeats what was sent, and that takes minutes.
func noticeSilence(conn net.Conn) error {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return errors.New("this is no TCP connection")
	}
	if err := tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: silenceTime / 2, Interval: silenceTime / 5, Count: 3}); err != nil {
		return err
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		inner = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silenceTime/time.Millisecond))
	})
	return errors.Join(err, inner)
}

// carryAll accepts connections, and carries each to what connect returns, until either ends. Connections beyond mostCarried are closed at once.
func carryAll(listener net.Listener, connect func(net.Conn) (net.Conn, error)) error {
	places := make(chan struct{}, mostCarried)
	for {
		conn, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accepting: %w", err)
		}
		select {
		case places <- struct{}{}:
		default:
			_ = conn.Close()
			continue
		}
		go func() {
			defer func() { <-places }()
			defer func() { _ = conn.Close() }()
			other, err := connect(conn)
			if err != nil {
				return
			}
			defer func() { _ = other.Close() }()
			ended := make(chan struct{}, 2)
			for _, way := range [][2]net.Conn{{conn, other}, {other, conn}} {
				go func() {
					_, _ = io.Copy(way[0], way[1]) // the kernel moves it from one socket to the other
					ended <- struct{}{}
				}()
			}
			<-ended
		}()
	}
}
