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
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Port is TFTP's (RFC 1350, section 4).
const Port = 69

const (
	// maxTransfers bounds those at once, each a socket and some KiB; requests beyond are dropped and come again.
	maxTransfers = 2048
	// maxPerClient bounds those of one address: firmware asks for the size first, and gives that transfer up without a word.
	maxPerClient = 8
	// socketBytes is the room for requests that arrive at once: some thousands.
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
	local  netip.Addr
	block  int // largest without fragments

	mu        sync.Mutex
	transfers map[netip.AddrPort]bool
	clients   map[netip.Addr]int
}

// Open binds TFTP's port on an interface. get gives the files; they must not change.
func Open(device string, local netip.Addr, get func(name string) ([]byte, bool), events Events, log *slog.Logger) (*Server, error) {
	iface, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("TFTP on %q: %w", device, err)
	}
	s := &Server{
		get: get, events: events, log: log, device: device, local: local, block: max(iface.MTU-ipv4UDP-4, defaultBlock),
		transfers: map[netip.AddrPort]bool{}, clients: map[netip.Addr]int{},
	}
	if s.conn, err = s.listen(context.Background(), Port); err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("another TFTP server has UDP port %d on %s: stop it: %w", Port, local, err)
		}
		return nil, fmt.Errorf("TFTP on %s: %w", device, err)
	}
	return s, nil
}

func (s *Server) listen(ctx context.Context, port uint16) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(
				unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, s.device),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, interactive),
			)
			// More than net.core.rmem_max is only for the privileged; who is not makes do with that.
			if port == Port && unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBytes) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBytes)
			}
		})
		return errors.Join(err, failed)
	}}
	conn, err := config.ListenPacket(ctx, "udp4", netip.AddrPortFrom(s.local, port).String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// Close gives the port back.
func (s *Server) Close() { _ = s.conn.Close() }

// Run serves until the context ends or the socket fails.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	var group sync.WaitGroup
	defer group.Wait()
	buffer := make([]byte, 2048)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ECONNREFUSED) {
			continue
		}
		if err != nil {
			return fmt.Errorf("TFTP on %s: %w", s.device, err)
		}
		s.accept(ctx, &group, buffer[:n], netip.AddrPortFrom(from.Addr().Unmap(), from.Port()))
	}
}

// accept begins a transfer, or refuses it.
func (s *Server) accept(ctx context.Context, group *sync.WaitGroup, packet []byte, from netip.AddrPort) {
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
	if !s.enter(from) {
		return
	}
	if s.events.Asked != nil {
		s.events.Asked(from.Addr(), r.name)
	}
	group.Go(func() {
		defer s.leave(from)
		if err := s.transfer(ctx, r, content, from); err != nil {
			s.log.Debug("TFTP transfer given up", "client", from, "file", r.name, "reason", err)
		}
	})
}

func (s *Server) refuse(to netip.AddrPort, code uint16, text string) {
	_, _ = s.conn.WriteToUDPAddrPort(refusal(code, text), to)
}

// enter takes a place for a transfer; a repeated request of one that goes on has its place already.
func (s *Server) enter(from netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.transfers[from] || len(s.transfers) >= maxTransfers || s.clients[from.Addr()] >= maxPerClient {
		return false
	}
	s.transfers[from] = true
	s.clients[from.Addr()]++
	return true
}

func (s *Server) leave(from netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.transfers, from)
	if s.clients[from.Addr()]--; s.clients[from.Addr()] == 0 {
		delete(s.clients, from.Addr())
	}
}

// patience of one transfer: the first wait for an ACK, doubled at each repetition up to the last.
const (
	firstWait = 500 * time.Millisecond
	lastWait  = 4 * time.Second
	maxTries  = 10
)
