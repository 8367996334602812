package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nearmetal/nearmetal/internal/netns"
)

const (
	// linkName is the end of the link that is a port of the bridge, linkOther the other end, with an address and a port.
	linkName, linkOther   = "vmlink", "vmlinkother"
	linkAddress, linkPort = "10.99.70.2", 5001
	// streamLook is how long a stream waits for something to read before it looks whether it is still on.
	streamLook = 100 * time.Millisecond
)

// link is a node's link to another computer, which takes what machines send.
type link struct {
	other    netns.Handle
	listener net.Listener
	mu       sync.Mutex
	// streams are the connections of each machine, and changed is closed when one comes.
	streams map[netip.Addr][]*stream
	changed chan struct{}
}

// stream is one connection; it is read only while on.
type stream struct {
	on    chan bool
	taken atomic.Int64
}

func layLink(ctx context.Context) (*link, error) {
	other, err := netns.New()
	if err != nil {
		return nil, err
	}
	l := &link{other: other, streams: map[netip.Addr][]*stream{}, changed: make(chan struct{})}
	for _, c := range []string{
		fmt.Sprintf("link add %s type veth peer name %s netns %s", linkName, linkOther, other.Path()),
		fmt.Sprintf("link set %s master %s up", linkName, handBridge),
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
			return nil, errors.Join(fmt.Errorf("ip %s: %w: %s", c, err, out), l.close())
		}
	}
	for _, c := range []string{fmt.Sprintf("address add %s/24 dev %s", linkAddress, linkOther), "link set " + linkOther + " up"} {
		if _, err := inside(ctx, other, "ip", strings.Fields(c)...); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	err = other.Do(func() (err error) {
		l.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("%s:%d", linkAddress, linkPort))
		return err
	})
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	go l.accept()
	return l, nil
}

// bound limits the link's rate with one plain queue; an empty rate: no limit.
func (l *link) bound(ctx context.Context, rate string) error {
	if rate == "" {
		return nil
	}
	args := []string{"qdisc", "replace", "dev", linkName, "root", "tbf", "rate", rate, "burst", "64k", "latency", "50ms"}
	if out, err := exec.CommandContext(ctx, "tc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("tc %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (l *link) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return // closed
		}
		address := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		s := &stream{on: make(chan bool)}
		l.mu.Lock()
		l.streams[address] = append(l.streams[address], s)
		close(l.changed)
		l.changed = make(chan struct{})
		l.mu.Unlock()
		go s.read(conn)
	}
}

// read takes what comes while it is on. What came before waits in the kernel's buffers, and its sender waits, too.
func (s *stream) read(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	buffer := make([]byte, 256<<10)
	for on := range s.on {
		for on {
			if err := conn.SetReadDeadline(time.Now().Add(streamLook)); err != nil {
				break
			}
			n, err := conn.Read(buffer)
			s.taken.Add(int64(n))
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				break // nothing comes any more: its machine's share shows that
			}
			select {
			case on = <-s.on:
			default:
			}
		}
	}
}

// connected returns once a machine has all its streams.
func (l *link) connected(ctx context.Context, m *handMachine) error {
	for {
		l.mu.Lock()
		count, changed := len(l.streams[m.address]), l.changed
		l.mu.Unlock()
		if count >= sharerStreams {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("it has connected %d of %d streams: %w", count, sharerStreams, ctx.Err())
		}
	}
}

// take reads from these machines, and returns what came of each in Mbit/s.
func (l *link) take(ctx context.Context, machines []*handMachine) ([]float64, error) {
	l.turn(machines, true)
	defer l.turn(machines, false)
	if err := wait(ctx, shareSettle); err != nil {
		return nil, err
	}
	begun, before := time.Now(), l.taken(machines)
	if err := wait(ctx, shareWatch); err != nil {
		return nil, err
	}
	rates, took := l.taken(machines), time.Since(begun).Seconds()
	for i := range rates {
		rates[i] = (rates[i] - before[i]) * 8 / 1e6 / took
	}
	return rates, nil
}

func (l *link) of(m *handMachine) []*stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.streams[m.address])
}

func (l *link) turn(machines []*handMachine, on bool) {
	for _, m := range machines {
		for _, s := range l.of(m) {
			s.on <- on
		}
	}
}

// taken is how many bytes have come of each machine.
func (l *link) taken(machines []*handMachine) (sums []float64) {
	for _, m := range machines {
		sum := 0.0
		for _, s := range l.of(m) {
			sum += float64(s.taken.Load())
		}
		sums = append(sums, sum)
	}
	return sums
}

// close removes the link; its streams end with it.
func (l *link) close() error {
	var err error
	if l.listener != nil {
		err = l.listener.Close()
	}
	l.mu.Lock()
	for _, streams := range l.streams {
		for _, s := range streams {
			close(s.on)
		}
	}
	l.streams = nil
	l.mu.Unlock()
	return errors.Join(err, l.other.Close())
}
