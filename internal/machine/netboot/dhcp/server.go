package dhcp

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

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/loaders"
	"github.com/nearmetal/nearmetal/internal/machine/netboot/presence"
)

const (
	// maxKeeping bounds how many leases are being stored at once; the packet that would be one too many is dropped, its client asks again.
	maxKeeping = 256
	// keepTimeout bounds the storing of one: a client's patience is 4 s for its first DISCOVER (RFC 2131, section 4.1).
	keepTimeout = 3 * time.Second
	// socketBytes is the room for packets that arrive while others are answered: some thousands. Machines powered on together ask
	// together, and together again after each wait; what finds no room then finds none the next time.
	socketBytes = 8 << 20
	// interactive is TC_PRIO_INTERACTIVE: the first band of Linux' default queue, so that small answers overtake bulk in it.
	interactive = 6
)

// Server answers on the sockets of one network.
type Server struct {
	network  netboot.Network
	presence *presence.Presence
	loaders  loaders.Set
	leases   netboot.Leases
	now      func() time.Time
	log      *slog.Logger

	conns map[uint16]*net.UDPConn
	wire  *wire

	mu       sync.Mutex
	pool     *Pool
	problems *quiet
	keeping  map[string]bool // MACs whose lease is being stored
	stored   *spacing
}

// Open binds the sockets; Close, or the end of Run, gives them back.
func Open(network netboot.Network, who *presence.Presence, files loaders.Set, leases netboot.Leases, now func() time.Time,
	log *slog.Logger,
) (*Server, error) {
	s := &Server{
		network: network, presence: who, loaders: files, leases: leases, now: now, log: log,
		conns: map[uint16]*net.UDPConn{}, keeping: map[string]bool{}, problems: newQuiet(), stored: newSpacing(),
	}
	s.pool = NewPool(network.Strangers, leases.All())
	for _, l := range leases.All() {
		who.Bind(l.MAC, l.Address)
	}
	ports := []uint16{ServerPort}
	if network.Proxy {
		ports = append(ports, ProxyPort)
	}
	for _, port := range ports {
		conn, err := listen(network.Interface, port)
		if err != nil {
			s.Close()
			return nil, err
		}
		s.conns[port] = conn
	}
	w, err := openWire(network.Interface)
	if err != nil {
		s.Close()
		return nil, err
	}
	s.wire = w
	return s, nil
}

// listen binds a port on one interface: broadcasts of other networks are not ours.
func listen(iface string, port uint16) (*net.UDPConn, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) {
			failed = errors.Join(
				unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, iface),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1),
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PRIORITY, interactive),
			)
			// More than net.core.rmem_max is only for the privileged; who is not makes do with that.
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBytes) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBytes)
			}
		})
		return errors.Join(err, failed)
	}}
	conn, err := config.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(netip.IPv4Unspecified(), port).String())
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("another DHCP server of this machine uses UDP port %d; stop it, or exclude %s from its configuration: %w", port, iface, err)
		}
		return nil, fmt.Errorf("DHCP on %s: %w", iface, err)
	}
	return conn.(*net.UDPConn), nil
}

// Close gives the sockets back.
func (s *Server) Close() {
	for _, c := range s.conns {
		_ = c.Close()
	}
	if s.wire != nil {
		_ = s.wire.Close()
	}
}

// Run answers until the context ends or a socket fails.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	var group sync.WaitGroup
	for port, conn := range s.conns {
		group.Go(func() { cancel(s.serve(ctx, port, conn)) })
	}
	group.Go(func() { s.watch(ctx) })
	group.Go(func() { s.probe(ctx) })
	group.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func (s *Server) serve(ctx context.Context, port uint16, conn *net.UDPConn) error {
	var group sync.WaitGroup
	defer group.Wait()
	buffer := make([]byte, 4096)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ECONNREFUSED) {
			continue // the interface may come back
		}
		if err != nil {
			return fmt.Errorf("DHCP on %s: %w", s.network.Interface, err)
		}
		request, err := dhcpv4.FromBytes(buffer[:n])
		if err != nil {
			continue
		}
		s.noticeServer(request)
		s.handle(ctx, &group, conn, request, port, from)
	}
}

// handle carries out what Answer decides. A lease is stored beside the loop, for the store may need a disk's patience; its reply follows.
func (s *Server) handle(ctx context.Context, group *sync.WaitGroup, conn *net.UDPConn, request *dhcpv4.DHCPv4, port uint16, from netip.AddrPort) {
	now := s.now()
	s.mu.Lock()
	d := Answer(request, port, View{
		Network: s.network, Table: s.presence.Table(), Pool: s.pool, Loaders: s.loaders, Holder: s.presence.Holder,
	}, now)
	if d.Problem != "" && s.problems.tell(d.MAC+d.Problem, now) {
		s.presence.Problem(d.MAC, d.Problem, now)
	}
	if d.Declined.IsValid() {
		s.pool.Quarantine(d.Declined, now.Add(quarantineTime), now)
	}
	store := d.Drop != "" || d.Keep != nil
	if store && (s.keeping[d.MAC] || len(s.keeping) >= maxKeeping || !s.stored.take(d.MAC, now)) {
		s.mu.Unlock()
		return
	}
	if d.Drop != "" {
		s.pool.Remove(d.Drop)
	}
	earlier, _ := s.pool.Of(d.MAC, now)
	if d.Keep != nil {
		s.pool.Put(*d.Keep, d.Asked, now) // nobody else gets it while it is stored
	} else if d.Asked {
		s.pool.asked(d.MAC)
	}
	if store {
		s.keeping[d.MAC] = true
	}
	s.mu.Unlock()
	if !store {
		s.send(conn, request, d, from, now)
		return
	}
	group.Go(func() {
		if s.store(ctx, d, earlier) {
			s.send(conn, request, d, from, now)
		}
	})
}

// store makes leases durable; false when it could not, and then nothing is answered and the client keeps the earlier lease, if it has one.
func (s *Server) store(ctx context.Context, d Decision, earlier api.Lease) bool {
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	var err error
	if d.Drop != "" {
		err = s.leases.Drop(ctx, d.Drop)
	}
	if err == nil && d.Keep != nil {
		err = s.leases.Keep(ctx, *d.Keep)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.keeping, d.MAC)
	if err == nil {
		return true
	}
	if d.Keep != nil {
		s.pool.Remove(d.Keep.MAC)
		if earlier.Address == d.Keep.Address {
			s.pool.Put(earlier, true, s.now()) // nobody else gets it: the client uses it still
		}
	}
	if s.problems.tell("store", s.now()) {
		s.presence.Problem(d.MAC, fmt.Sprintf("the lease of %s can't be stored, so it gets no address: %v", d.MAC, err), s.now())
	}
	return false
}

func (s *Server) send(conn *net.UDPConn, request *dhcpv4.DHCPv4, d Decision, from netip.AddrPort, now time.Time) {
	if d.Address.IsValid() {
		s.presence.Bind(d.MAC, d.Address)
	}
	if d.Reply == nil {
		return
	}
	if d.Heard != nil {
		s.presence.Hear(*d.Heard, now)
	}
	to := destination(request, d.Reply, from)
	content := d.Reply.ToBytes()
	var err error
	if to.mac != nil {
		err = s.wire.send(to.mac, netip.AddrPortFrom(s.network.Address.Addr(), ServerPort), to.addr, content)
	} else {
		_, err = conn.WriteToUDPAddrPort(content, to.addr)
	}
	if err != nil && s.problems.tell("send", now) {
		s.log.Warn("a DHCP reply can't be sent", "mac", d.MAC, "to", to.addr, "error", err)
	}
}

// target is where a reply goes; with a MAC it must be framed by hand, since nobody answers ARP for the address yet.
type target struct {
	addr netip.AddrPort
	mac  net.HardwareAddr
}

// destination follows RFC 2131, section 4.1: to the relay, to the address the client has, by broadcast, or to its MAC.
func destination(request, reply *dhcpv4.DHCPv4, from netip.AddrPort) target {
	broadcast := target{addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), ClientPort)}
	if relay, ok := address(request.GatewayIPAddr); ok {
		return target{addr: netip.AddrPortFrom(relay, ServerPort)}
	}
	yours, given := address(reply.YourIPAddr)
	has, configured := address(request.ClientIPAddr)
	switch {
	case reply.MessageType() == dhcpv4.MessageTypeNak:
		return broadcast
	case configured && from.Addr().Unmap() == has:
		return target{addr: netip.AddrPortFrom(has, from.Port())} // also on PXE's port 4011, from any port
	case configured:
		return target{addr: netip.AddrPortFrom(has, ClientPort)}
	case request.IsBroadcast() || !given:
		return broadcast
	default:
		return target{addr: netip.AddrPortFrom(yours, ClientPort), mac: request.ClientHWAddr}
	}
}

// quiet lets the same words through once a minute; its memory is bounded.
type quiet struct{ last map[string]time.Time }

const (
	quietTime = time.Minute
	maxQuiet  = 1024
)

func newQuiet() *quiet { return &quiet{last: map[string]time.Time{}} }

func (q *quiet) tell(words string, now time.Time) bool {
	if at, ok := q.last[words]; ok && now.Sub(at) < quietTime {
		return false
	}
	if len(q.last) >= maxQuiet {
		for w, at := range q.last {
			if now.Sub(at) >= quietTime {
				delete(q.last, w)
			}
		}
		if len(q.last) >= maxQuiet {
			return false
		}
	}
	q.last[words] = now
	return true
}
