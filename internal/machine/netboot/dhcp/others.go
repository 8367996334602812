package dhcp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/netboot"
)

const (
	// ProbeWait is how long other servers have to answer: some ping the address first (RFC 2131, section 3.1), dnsmasq for three seconds.
	ProbeWait = 4 * time.Second
	// probePeriod is how often the wire is looked at while serving.
	probePeriod = 5 * time.Minute
	// sendWait is how long a full queue of the interface may last, and sendPause how often it is tried.
	sendWait  = 10 * time.Second
	sendPause = 20 * time.Millisecond
)

// OtherServerError tells of another DHCP server on the wire.
type OtherServerError struct {
	Interface string
	Server    netip.Addr
}

func (e *OtherServerError) Error() string {
	return fmt.Sprintf("another DHCP server, %s, answers on %s, and both would assign addresses; stop it, give the machines a separate network, "+
		"or run network boot in proxy mode", e.Server, e.Interface)
}

// Probe asks whether another DHCP server answers on the network's interface, by DISCOVERs that take no lease. The error is an
// *OtherServerError on a network of our own; beside a server it is another one, when none answers for so long.
func Probe(ctx context.Context, network netboot.Network, wait time.Duration) error {
	w, err := openWire(network.Interface)
	if err != nil {
		return err
	}
	defer func() { _ = w.Close() }()
	found, err := w.discover(ctx, network, wait)
	switch {
	case err != nil:
		return err
	case found.IsValid() && !network.Proxy:
		return &OtherServerError{Interface: network.Interface, Server: found}
	case !found.IsValid() && network.Proxy:
		return fmt.Errorf("no DHCP server answers on %s; proxy mode needs one that assigns the addresses", network.Interface)
	}
	return nil
}

// discover returns the first other server that answers, the zero address when none does.
func (w *wire) discover(ctx context.Context, network netboot.Network, wait time.Duration) (netip.Addr, error) {
	xid := dhcpv4.TransactionID{byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32()), byte(rand.Uint32())}
	message, err := dhcpv4.New(dhcpv4.WithHwAddr(w.iface.HardwareAddr), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover),
		dhcpv4.WithTransactionID(xid), dhcpv4.WithBroadcast(true))
	if err != nil {
		return netip.Addr{}, err
	}
	everyone := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	from, to := netip.AddrPortFrom(netip.IPv4Unspecified(), ClientPort), netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), ServerPort)
	buffer := make([]byte, 4096)
	for range 2 { // one may be lost
		ask := func() error { return w.send(everyone, from, to, message.ToBytes()) }
		if err := whileFull(ctx, sendWait, ask); err != nil {
			return netip.Addr{}, fmt.Errorf("detecting other DHCP servers on %s: %w", network.Interface, err)
		}
		for end := time.Now().Add(wait / 2); ctx.Err() == nil; {
			content, source, err := w.receive(buffer, end)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return netip.Addr{}, err
			}
			if server, ok := otherServer(content, source, network.Address.Addr()); ok {
				return server, nil
			}
		}
	}
	return netip.Addr{}, ctx.Err()
}

// whileFull sends, and sends again for so long while the interface's queue is full: on a busy wire that passes.
func whileFull(ctx context.Context, limit time.Duration, send func() error) error {
	for end := time.Now().Add(limit); ; {
		err := send()
		if !errors.Is(err, unix.ENOBUFS) || time.Now().After(end) || !pause(ctx, sendPause) {
			return err
		}
	}
}

// otherServer is the server (option 54, else the sender) of an offer of an address that is not ours. ProxyDHCP servers give none, and are no harm.
func otherServer(content []byte, source, ours netip.Addr) (netip.Addr, bool) {
	reply, err := dhcpv4.FromBytes(content)
	if err != nil || reply.OpCode != dhcpv4.OpcodeBootReply {
		return netip.Addr{}, false
	}
	if kind := reply.MessageType(); kind != dhcpv4.MessageTypeOffer && kind != dhcpv4.MessageTypeAck {
		return netip.Addr{}, false
	}
	if _, gives := address(reply.YourIPAddr); !gives {
		return netip.Addr{}, false
	}
	if id, ok := address(reply.ServerIdentifier()); ok {
		source = id
	}
	return source, source != ours
}

// watch hears what other servers broadcast.
func (s *Server) watch(ctx context.Context) {
	buffer := make([]byte, 4096)
	for ctx.Err() == nil {
		content, source, err := s.wire.receive(buffer, time.Time{})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if s.problems.tellLocked(s, "watch") {
				s.log.Warn("other DHCP servers can't be detected", "interface", s.network.Interface, "error", err)
			}
			if !pause(ctx, time.Second) {
				return
			}
			continue
		}
		if server, ok := otherServer(content, source, s.network.Address.Addr()); ok {
			s.foundOther(server)
		}
	}
}

// noticeServer sees by a client's REQUEST that it chose another server.
func (s *Server) noticeServer(request *dhcpv4.DHCPv4) {
	id, ok := address(request.ServerIdentifier())
	if ok && id != s.network.Address.Addr() && request.MessageType() == dhcpv4.MessageTypeRequest {
		s.foundOther(id)
	}
}

func (s *Server) foundOther(server netip.Addr) {
	now := s.now()
	s.mu.Lock()
	tell := !s.network.Proxy && s.problems.tell("other"+server.String(), now)
	s.mu.Unlock()
	if tell {
		s.presence.Problem("", (&OtherServerError{Interface: s.network.Interface, Server: server}).Error(), now)
	}
}

// probe looks at the wire now and then.
func (s *Server) probe(ctx context.Context) {
	for pause(ctx, probePeriod) {
		err := Probe(ctx, s.network, ProbeWait)
		var other *OtherServerError
		switch {
		case ctx.Err() != nil || err == nil:
		case errors.As(err, &other):
			s.foundOther(other.Server)
		case s.problems.tellLocked(s, "probe"):
			s.presence.Problem("", err.Error(), s.now())
		}
	}
}

func (q *quiet) tellLocked(s *Server, words string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return q.tell(words, s.now())
}

// pause waits; false when the context ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
