package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// A messenger is one of two processes that exchange messages by TCP when asked to, and sleep in between: the same program in members and
// outside. The first is asked through a named pipe in a directory that its caller sees, too, and answers through another; it asks the
// second over the connection itself. While they measure both poll, as MPI's ranks do.
//
//	bench messenger DIR RANK ADDRESS CPU
//
// RANK is 0, 1, or "mpi" for that of Open MPI's environment; ADDRESS is that of rank 0, or "eth0" for what this link of it has; CPU is
// where it is pinned to, or "-".
const messengerCommand = "messenger"

// Files of a pair of messengers, in their directory.
const (
	askPipe, answerPipe = "ask", "answer"
	addressFile         = "address"
)

// exchange is one thing to be measured.
type exchange struct {
	// Bytes is the size of a message, and Count how many of them go in a batch. What counts is the median batch: another program that takes the
	// CPU for a while disturbs some of them only.
	Bytes, Count, Batches uint32
	// OneWay sends a batch without waiting; else each message is sent back before the next.
	OneWay bool
}

// wire is an exchange as it is sent to the second messenger, and how long that is in bytes.
func (e exchange) wire() []byte {
	b := make([]byte, wireBytes)
	binary.BigEndian.PutUint32(b, e.Bytes)
	binary.BigEndian.PutUint32(b[4:], e.Count)
	binary.BigEndian.PutUint32(b[8:], e.Batches)
	if e.OneWay {
		b[12] = 1
	}
	return b
}

const wireBytes = 13

// largestMessage is how long a message may be, in bytes.
const largestMessage = 1 << 20

func fromWire(b []byte) exchange {
	return exchange{Bytes: binary.BigEndian.Uint32(b), Count: binary.BigEndian.Uint32(b[4:]), Batches: binary.BigEndian.Uint32(b[8:]), OneWay: b[12] == 1}
}

// messengerLife is how long a messenger waits for its other half and for what it is asked, so that none is left behind.
const messengerLife = 15 * time.Minute

// runMessenger is the whole life of a messenger.
func runMessenger(args []string) error {
	debug.SetGCPercent(-1)
	time.AfterFunc(messengerLife, func() { os.Exit(3) })
	if len(args) != 4 {
		return fmt.Errorf("usage: bench %s DIR RANK ADDRESS CPU", messengerCommand)
	}
	dir, rank, address, cpu := args[0], args[1], args[2], args[3]
	if rank == "mpi" {
		rank = os.Getenv("OMPI_COMM_WORLD_RANK")
	}
	if cpu != "-" {
		n, err := strconv.Atoi(cpu)
		if err != nil {
			return err
		}
		var set unix.CPUSet
		set.Set(n)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("pinning to CPU %d: %w", n, err)
		}
	}
	switch rank {
	case "0":
		return firstMessenger(dir, address)
	case "1":
		return secondMessenger(dir)
	default:
		return fmt.Errorf("rank %q is neither 0 nor 1", rank)
	}
}

// firstMessenger listens, and measures what it is asked to.
func firstMessenger(dir, address string) error {
	if address == "eth0" {
		link, err := net.InterfaceByName(address)
		if err != nil {
			return err
		}
		addresses, err := link.Addrs()
		if err != nil || len(addresses) == 0 {
			return fmt.Errorf("eth0 has no address: %w", err)
		}
		prefix, err := netip.ParsePrefix(addresses[0].String())
		if err != nil {
			return err
		}
		address = prefix.Addr().String()
	}
	listener, err := net.Listen("tcp4", address+":0") //nolint:noctx // ends with the process
	if err != nil {
		return err
	}
	said := filepath.Join(dir, addressFile)
	if err := errors.Join(os.WriteFile(said+".new", []byte(listener.Addr().String()), 0o644), os.Rename(said+".new", said)); err != nil {
		return err
	}
	conn, err := listener.Accept()
	if err != nil {
		return err
	}
	fd, err := descriptor(conn)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ask, err := os.OpenFile(filepath.Join(dir, askPipe), os.O_RDONLY, 0)
	if err != nil {
		return err
	}
	answer, err := os.OpenFile(filepath.Join(dir, answerPipe), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	lines, buffer := bufio.NewScanner(ask), make([]byte, largestMessage) // one for all, because nothing collects garbage
	for lines.Scan() {
		var e exchange
		if _, err := fmt.Sscan(lines.Text(), &e.Bytes, &e.Count, &e.Batches, &e.OneWay); err != nil {
			return fmt.Errorf("asked for %q: %w", lines.Text(), err)
		}
		took, err := e.lead(fd, buffer)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(answer, measure.Median(took)); err != nil {
			return err
		}
	}
	return lines.Err() // the caller closed the pipe: done
}

// secondMessenger connects, and does what the first asks.
func secondMessenger(dir string) error {
	var address []byte
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		var err error
		if address, err = os.ReadFile(filepath.Join(dir, addressFile)); err == nil {
			break
		}
		if time.Since(begun) > time.Minute {
			return err
		}
	}
	conn, err := net.DialTimeout("tcp4", strings.TrimSpace(string(address)), 30*time.Second) //nolint:noctx // ends with the process
	if err != nil {
		return err
	}
	fd, err := descriptor(conn)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	header, buffer := make([]byte, wireBytes), make([]byte, largestMessage)
	for {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if err := receive(fd, header); errors.Is(err, errClosed) {
			return nil
		} else if err != nil {
			return err
		}
		if err := fromWire(header).follow(fd, buffer); err != nil {
			return err
		}
	}
}

// lead does an exchange as the first and returns what a message took one way in each batch, in seconds.
func (e exchange) lead(fd int, buffer []byte) ([]float64, error) {
	if err := send(fd, e.wire()); err != nil {
		return nil, err
	}
	if err := receive(fd, buffer[:1]); err != nil { // it polls now
		return nil, err
	}
	took := make([]float64, e.Batches)
	for batch := range took {
		start := time.Now()
		for range e.Count {
			if err := send(fd, buffer[:e.Bytes]); err != nil {
				return nil, err
			}
			if e.OneWay {
				continue
			}
			if err := receive(fd, buffer[:e.Bytes]); err != nil {
				return nil, err
			}
		}
		ways := 2 * float64(e.Count)
		if e.OneWay {
			ways = float64(e.Count)
			if err := receive(fd, buffer[:1]); err != nil {
				return nil, err
			}
		}
		took[batch] = time.Since(start).Seconds() / ways
	}
	return took, nil
}

// follow does an exchange as the second.
func (e exchange) follow(fd int, buffer []byte) error {
	if err := send(fd, buffer[:1]); err != nil {
		return err
	}
	for range e.Batches {
		for range e.Count {
			if err := receive(fd, buffer[:e.Bytes]); err != nil {
				return err
			}
			if e.OneWay {
				continue
			}
			if err := send(fd, buffer[:e.Bytes]); err != nil {
				return err
			}
		}
		if !e.OneWay {
			continue
		}
		if err := send(fd, buffer[:1]); err != nil {
			return err
		}
	}
	return nil
}

// descriptor takes a connection from Go's poller, so that it can be polled without it.
func descriptor(conn net.Conn) (int, error) {
	file, err := conn.(*net.TCPConn).File()
	if err != nil {
		return 0, err
	}
	fd, err := unix.Dup(int(file.Fd()))
	if err := errors.Join(err, file.Close(), conn.Close()); err != nil {
		return 0, err
	}
	return fd, errors.Join(unix.SetNonblock(fd, true), unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
}

// errClosed: the other messenger has ended.
var errClosed = errors.New("the other messenger has closed the connection")

func send(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Write(fd, b)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

func receive(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := unix.Read(fd, b)
		switch {
		case err == nil && n == 0:
			return errClosed
		case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return err
		}
		b = b[max(n, 0):]
	}
	return nil
}

// messengers are a pair of them, from their caller's side.
type messengers struct {
	dir         string
	ask, answer *os.File
	lines       *bufio.Scanner
}

// newMessengers makes the directory and its pipes. The messengers are started by whoever knows where they belong.
func newMessengers(dir string) (*messengers, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	m := &messengers{dir: dir}
	for _, name := range []string{askPipe, answerPipe} {
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o666); err != nil {
			return nil, fmt.Errorf("pipe %s: %w", name, err)
		}
		if err := os.Chmod(filepath.Join(dir, name), 0o666); err != nil { // whatever the umask
			return nil, err
		}
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return nil, err
	}
	// Open for both, so that neither end waits for the other to be there, and none sees an end before the caller is done.
	var err error
	if m.ask, err = os.OpenFile(filepath.Join(dir, askPipe), os.O_RDWR, 0); err != nil {
		return nil, err
	}
	m.answer, err = os.OpenFile(filepath.Join(dir, answerPipe), os.O_RDWR, 0)
	m.lines = bufio.NewScanner(m.answer)
	return m, err
}

// measure has an exchange done and returns what a message takes one way, in seconds.
func (m *messengers) measure(e exchange, patience time.Duration) (float64, error) {
	if err := m.answer.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	if _, err := fmt.Fprintln(m.ask, e.Bytes, e.Count, e.Batches, e.OneWay); err != nil {
		return 0, err
	}
	if !m.lines.Scan() {
		return 0, fmt.Errorf("messengers in %s gave no answer in %s: %w", m.dir, patience, m.lines.Err())
	}
	return strconv.ParseFloat(m.lines.Text(), 64)
}

// close ends the messengers: the first one reads the end of its pipe.
func (m *messengers) close() error { return errors.Join(m.ask.Close(), m.answer.Close()) }
