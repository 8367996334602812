// Package tftp hands loaders to firmware over TFTP (RFC 1350), with options (RFC 2347): blksize (RFC 2348), tsize and timeout (RFC 2349), and
// windowsize (RFC 7440).
//
// It only reads, only from a set of files held in memory, by their exact names: there is no path to play tricks with. Start with Server.
package tftp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Port is TFTP's (RFC 1350, section 4).
const Port = 69

const (
	// maxTransfers bounds those at once; requests beyond are dropped and come again.
	maxTransfers = 8192
	// minLanes lets a client that asks anew tell its transfers apart, and the server what it says to which: they come from other ports.
	// maxLanes bounds the threads that carry transfers.
	minLanes, maxLanes = 2, 4
	// maxPerClient bounds those of one address: firmware asks for the size first, and gives that transfer up without a word.
	maxPerClient = 8
	// socketBytes is the room for requests, or acknowledgements, that arrive at once: some thousands.
	socketBytes = 4 << 20
	// ipv4UDP is what IPv4 and UDP headers take of an interface's MTU.
	ipv4UDP = 28
	// interactive is TC_PRIO_INTERACTIVE: before bulk in Linux' default queue.
	interactive = 6
)

// Events are told of transfers. All may be called at once from many.
type Events struct {
	// Asked: a client asks for a file that exists.
	Asked func(client netip.Addr, name string)
	// Sent: bytes of content went out to it.
	Sent func(client netip.Addr, bytes int64)
}

// Server serves on one address.
type Server struct {
	get    func(name string) ([]byte, bool)
	events Events
	log    *slog.Logger
	conn   *net.UDPConn
	device string
	block  int // largest without fragments
	lanes  []*lane

	mu        sync.Mutex
	transfers map[netip.AddrPort]place
	clients   map[netip.Addr]int
	next      int // lane
}

// place is where a transfer is carried.
type place struct {
	*transfer
	lane *lane
}

// Open binds TFTP's port on an interface. get gives the files; they must not change.
func Open(device string, local netip.Addr, get func(name string) ([]byte, bool), events Events, log *slog.Logger) (*Server, error) {
	iface, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("TFTP on %q: %w", device, err)
	}
	s := &Server{
		get: get, events: events, log: log, device: device, block: max(iface.MTU-ipv4UDP-4, defaultBlock),
		transfers: map[netip.AddrPort]place{}, clients: map[netip.Addr]int{},
	}
	if err := s.open(local); err != nil {
		s.Close()
		if errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("another TFTP server uses UDP port %d on %s; stop it: %w", Port, local, err)
		}
		return nil, fmt.Errorf("TFTP on %s: %w", device, err)
	}
	return s, nil
}

func (s *Server) open(local netip.Addr) error {
	fd, err := socket(s.device, local, Port)
	if err != nil {
		return err
	}
	// Requests are rare: the runtime waits for them.
	file := os.NewFile(uintptr(fd), "TFTP")
	conn, err := net.FilePacketConn(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	s.conn = conn.(*net.UDPConn)
	for range max(minLanes, min(maxLanes, runtime.GOMAXPROCS(0))) {
		l, err := openLane(s.device, local, s.block+4, s.events, s.leave)
		if err != nil {
			return err
		}
		s.lanes = append(s.lanes, l)
	}
	return nil
}

// Close gives the ports back; for a server that is not run.
func (s *Server) Close() {
	if s.conn != nil {
		_ = s.conn.Close()
	}
	for _, l := range s.lanes {
		l.close()
	}
	s.lanes = nil
}

// Run serves until the context ends or a socket fails.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	for _, l := range s.lanes {
		group.Go(func() {
			if err := l.run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	cancel(s.listen(ctx))
	group.Wait()
	s.Close()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// listen takes requests until the context ends or the socket fails.
func (s *Server) listen(ctx context.Context) error {
	buffer := make([]byte, 2048)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && passing(err):
		case err != nil:
			return fmt.Errorf("TFTP on %s: %w", s.device, err)
		default:
			s.accept(buffer[:n], netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), time.Now())
		}
	}
}

// accept begins a transfer, or refuses it.
func (s *Server) accept(packet []byte, from netip.AddrPort, now time.Time) {
	r, err := parseRequest(packet, s.block)
	switch {
	case errors.Is(err, errNoRead) && len(packet) >= 2 && packet[0] == 0 && packet[1] == opWrite:
		s.refuse(from, codeViolation, err.Error())
		return
	case errors.Is(err, errNoRead):
		return // an answer to such a packet could be answered again, for ever
	case err != nil:
		s.refuse(from, codeIllegal, err.Error())
		return
	}
	content, ok := s.get(r.name)
	if !ok {
		s.refuse(from, codeNotFound, "no such file")
		return
	}
	t := newTransfer(from, r, content, now)
	lane, ok := s.enter(t)
	if !ok {
		return
	}
	if s.events.Asked != nil {
		s.events.Asked(from.Addr(), r.name)
	}
	lane.begin(t)
}

func (s *Server) refuse(to netip.AddrPort, code uint16, text string) {
	_, _ = s.conn.WriteToUDPAddrPort(refusal(code, text), to)
}

// enter finds a transfer its place. A request that came twice has its place already: a client that waited too long for the answer repeats it,
// and it may be read when the transfer is well under way. Any other that comes from a transfer's port is a client that has given that up
// without a word.
func (s *Server) enter(t *transfer) (*lane, bool) {
	s.mu.Lock()
	earlier, ok := s.transfers[t.client]
	if ok && earlier.request.same(t.request) && earlier.lane.goesOn(earlier.transfer, t.moved) {
		s.mu.Unlock()
		return nil, false
	}
	s.mu.Unlock()
	if ok {
		earlier.lane.end(earlier.transfer, errors.New("the client started again"))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.transfers) >= maxTransfers || s.clients[t.client.Addr()] >= maxPerClient {
		return nil, false
	}
	l := s.lane()
	if ok && l == earlier.lane {
		l = s.lane() // a client that uses its port again tells the transfers apart by ours
	}
	s.transfers[t.client] = place{t, l}
	s.clients[t.client.Addr()]++
	return l, true
}

// lane is whose turn it is. The server is locked.
func (s *Server) lane() *lane {
	s.next++
	return s.lanes[s.next%len(s.lanes)]
}

// leave gives a transfer's place to others.
func (s *Server) leave(t *transfer, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transfers[t.client].transfer == t {
		delete(s.transfers, t.client)
	}
	if s.clients[t.client.Addr()]--; s.clients[t.client.Addr()] == 0 {
		delete(s.clients, t.client.Addr())
	}
	if reason != nil {
		s.log.Debug("TFTP transfer abandoned", "client", t.client, "file", t.request.name, "reason", reason)
	}
}
