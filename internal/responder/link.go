package responder

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Bounds of what the members of one network make the node do. Frames beyond readsPerSecond wait in the socket's buffer, which is small, and are
// lost when that is full. Questions of a port beyond its share are not answered, so that its neighbours' are.
const (
	readsPerSecond = 10_000
	portsPerSecond = 1_000
	maxForwarded   = 64
	receiveBuffer  = 128 << 10
	frameBytes     = 4 << 10
)

// device is a link of the node.
type device = net.Interface

// findDevice finds a link in the namespace of the calling thread.
func findDevice(name string) (device, error) {
	found, err := net.InterfaceByName(name)
	if err != nil {
		return device{}, err
	}
	return *found, nil
}

// link reads the questions of one network's members from its bridge, and writes answers to it.
type link struct {
	name   string
	index  int
	conn   *packet.Conn
	subnet atomic.Pointer[subnet]
	ctx    context.Context
	cancel context.CancelFunc
	reads  *rate.Limiter
	// shares are the limits of ports, by MAC address.
	shares map[string]*rate.Limiter
	// forwards are the questions that other servers are being asked.
	forwards  chan struct{}
	asking    sync.WaitGroup
	forwarder forwarder
}

// open opens the link of a network.
func (r *Responder) open(ctx context.Context, iface device, s *subnet) (*link, error) {
	filter, err := bpf.Assemble(questions)
	if err != nil {
		return nil, err
	}
	var conn *packet.Conn
	err = r.space.Do(func() (err error) {
		conn, err = packet.Listen(&iface, packet.Raw, unix.ETH_P_ALL, &packet.Config{Filter: filter})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket on %s: %w", iface.Name, err)
	}
	if err := tune(conn); err != nil {
		return nil, errors.Join(fmt.Errorf("setting up the packet socket on %s: %w", iface.Name, err), conn.Close())
	}
	l := &link{
		name: iface.Name, index: iface.Index, conn: conn, reads: rate.NewLimiter(readsPerSecond, readsPerSecond/10),
		shares: map[string]*rate.Limiter{}, forwards: make(chan struct{}, maxForwarded), forwarder: forwarder{space: r.space},
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	l.subnet.Store(s)
	return l, nil
}

// tune keeps the socket's buffer small, and outgoing frames out of it: the way out of members with egress is over the same bridge.
func tune(conn *packet.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = errors.Join(
			os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)),
			os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)))
	})
	return errors.Join(err, failed)
}

// end makes run return.
func (l *link) end() { l.cancel() }

// run answers until the link is ended or its bridge is gone.
func (l *link) run() {
	stop := context.AfterFunc(l.ctx, func() { _ = l.conn.SetReadDeadline(unixEpoch) })
	defer func() {
		stop()
		l.cancel()
		l.asking.Wait()
		_ = l.conn.Close()
	}()
	buffer := make([]byte, frameBytes)
	for l.reads.Wait(l.ctx) == nil {
		n, _, err := l.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		l.hear(buffer[:n])
	}
}

// hear answers one frame, if there is something to answer.
func (l *link) hear(frame []byte) {
	s := l.subnet.Load()
	q, ok := s.read(frame)
	if !ok || !l.allowed(q.port.MAC) {
		return
	}
	reply, outside := s.answer(q)
	if reply != nil {
		l.send(q, reply)
	}
	if outside != nil {
		l.forward(s, q, *outside)
	}
}

// allowed reports whether a port has not used up its share.
func (l *link) allowed(mac string) bool {
	share := l.shares[mac]
	if share == nil {
		if len(l.shares) > 4096 { // of ports that are gone
			clear(l.shares)
		}
		share = rate.NewLimiter(portsPerSecond, portsPerSecond)
		l.shares[mac] = share
	}
	return share.Allow()
}

// send sends a frame. A member that is gone by then, or a full queue, is its loss alone.
func (l *link) send(q question, frame []byte) {
	_, _ = l.conn.WriteTo(frame, &packet.Addr{HardwareAddr: q.mac})
}

// forward asks other servers, without holding up the questions that follow.
func (l *link) forward(s *subnet, q question, outside outsideQuestion) {
	select {
	case l.forwards <- struct{}{}:
	default:
		l.send(q, s.datagram(q, outside.refusal()))
		return
	}
	q = q.clone()
	outside = outside.clone()
	l.asking.Go(func() {
		defer func() { <-l.forwards }()
		l.send(q, s.datagram(q, l.forwarder.ask(l.ctx, outside)))
	})
}

// questions is what the kernel hands to the link: ARP (RFC 826), and UDP to the ports of DHCP and DNS servers in whole IPv4 packets.
var questions = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 12, Size: 2}, // EtherType
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.ETH_P_ARP, SkipTrue: 9},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.ETH_P_IP, SkipTrue: 9},
	bpf.LoadAbsolute{Off: 23, Size: 1}, // protocol
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 7},
	bpf.LoadAbsolute{Off: 20, Size: 2}, // "more fragments", and the offset
	bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x3fff, SkipTrue: 5},
	bpf.LoadMemShift{Off: 14},          // X = length of the IP header
	bpf.LoadIndirect{Off: 16, Size: 2}, // target port
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: portDHCP, SkipTrue: 1},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: portDNS, SkipTrue: 1},
	bpf.RetConstant{Val: frameBytes},
	bpf.RetConstant{Val: 0},
}
