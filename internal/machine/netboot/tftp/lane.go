package tftp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lookAround is how often a lane looks for clients that are silent, and whether it is to end.
const lookAround = 100 * time.Millisecond

// tellBytes of progress are told at once.
const tellBytes = 256 << 10

// lane carries transfers over a socket of its own, on a thread of its own: with one that waits in the kernel an answer goes out sooner than
// with one that is woken by the runtime, and loaders come block by block (RFC 1350), so that is their speed. A thread exists only while the
// lane has transfers.
type lane struct {
	socket int // blocking, for lookAround at most
	events Events
	gone   func(*transfer, error)

	mu        sync.Mutex
	transfers map[netip.AddrPort]*transfer
	work      chan struct{}
	buffer    []byte // of what goes out
}

func openLane(device string, local netip.Addr, mtu int, events Events, gone func(*transfer, error)) (*lane, error) {
	fd, err := socket(device, local, 0)
	if err != nil {
		return nil, err
	}
	timeout := unix.NsecToTimeval(lookAround.Nanoseconds())
	// A line that takes nothing any more must not hold the lane, and with it who waits for its lock.
	if err := errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
	); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &lane{
		socket: fd, events: events, gone: gone, transfers: map[netip.AddrPort]*transfer{},
		work: make(chan struct{}, 1), buffer: make([]byte, mtu),
	}, nil
}

func (l *lane) close() { _ = unix.Close(l.socket) }

// begin starts a transfer; an earlier one with the same client is forgotten.
func (l *lane) begin(t *transfer) {
	l.mu.Lock()
	l.transfers[t.client] = t
	err := l.send(t)
	l.mu.Unlock()
	if err != nil {
		l.end(t, err)
	}
	select {
	case l.work <- struct{}{}:
	default:
	}
}

// end forgets a transfer; nil: it is complete.
func (l *lane) end(t *transfer, err error) {
	l.mu.Lock()
	there := l.transfers[t.client] == t
	if there {
		delete(l.transfers, t.client)
	}
	bytes := t.untold
	l.mu.Unlock()
	if !there {
		return
	}
	l.tell(t, bytes)
	l.gone(t, err)
}

func (l *lane) tell(t *transfer, bytes int64) {
	if bytes > 0 && l.events.Sent != nil {
		l.events.Sent(t.client.Addr(), bytes)
	}
}

// send puts on the wire what a transfer wants now. The lane is locked.
func (l *lane) send(t *transfer) error {
	to := &unix.SockaddrInet4{Addr: t.client.Addr().As4(), Port: int(t.client.Port())}
	progress, err := t.next(l.buffer, func(packet []byte) error {
		err := unix.Sendto(l.socket, packet, 0, to)
		if passing(err) {
			return nil // as if lost on the wire: it is sent again
		}
		return err
	})
	t.untold += progress
	return err
}

// passing are the errors that say something of the line's present state, or of another client.
func passing(err error) bool {
	for _, e := range []error{unix.EAGAIN, unix.EINTR, unix.ENOBUFS, unix.ENETDOWN, unix.ENETUNREACH, unix.EHOSTUNREACH, unix.ECONNREFUSED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// run carries transfers until the context ends or the socket fails.
func (l *lane) run(ctx context.Context) error {
	looked := time.Now()
	buffer := make([]byte, 512)
	for {
		if l.idle() {
			select {
			case <-ctx.Done():
				return nil
			case <-l.work:
			}
			continue
		}
		n, from, err := unix.Recvfrom(l.socket, buffer, 0)
		if ctx.Err() != nil {
			return nil
		}
		now := time.Now()
		switch client, ok := from.(*unix.SockaddrInet4); {
		case err == nil && ok:
			l.hear(netip.AddrPortFrom(netip.AddrFrom4(client.Addr), uint16(client.Port)), buffer[:n], now)
		case err != nil && !passing(err):
			return fmt.Errorf("TFTP: %w", err)
		}
		if now.Sub(looked) >= lookAround {
			looked = now
			l.remind(now)
		}
	}
}

func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.transfers) == 0
}

// hear hands a packet to its transfer. One from elsewhere belongs to none (another TID: RFC 1350, section 4).
func (l *lane) hear(client netip.AddrPort, packet []byte, now time.Time) {
	l.mu.Lock()
	t := l.transfers[client]
	if t == nil {
		l.mu.Unlock()
		return
	}
	verdict, err := t.hear(packet, now)
	if verdict == sendNext && err == nil {
		err = l.send(t)
	}
	told := t.untold
	if told >= tellBytes {
		t.untold = 0
	}
	l.mu.Unlock()
	if told >= tellBytes {
		l.tell(t, told)
	}
	if err != nil || verdict == finished {
		l.end(t, err)
	}
}

// remind sends again to those that were silent too long.
func (l *lane) remind(now time.Time) {
	ended := map[*transfer]error{}
	l.mu.Lock()
	for _, t := range l.transfers {
		again, err := t.remind(now)
		if again {
			err = l.send(t)
		}
		if err != nil {
			ended[t] = err
		}
	}
	l.mu.Unlock()
	for t, err := range ended {
		l.end(t, err)
	}
}

// socket is a UDP socket on an interface.
func socket(device string, local netip.Addr, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	err = errors.Join(
		unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, device),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PRIORITY, interactive),
	)
	// More than net.core.rmem_max is only for the privileged; who is not makes do with that.
	if err == nil && unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBytes) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBytes)
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: local.As4(), Port: port})
	}
	if err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// goesOn tells whether a transfer's client still waits for it.
func (l *lane) goesOn(t *transfer, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.goesOn(now)
}
