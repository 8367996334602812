package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// Probes go to the port of tunnels, the way that members' frames go. They lack the flag that makes the kernel read a network identifier (RFC
// 7348, section 5), so the receiver's tunnels drop them. Before that, a raw socket gets a copy of what has passed the node's own rules.
const (
	tunnelPort = 4789
	// meetTime bounds a meeting, and meetPace is the pause between two rounds of probes.
	meetTime = 3 * time.Second
	meetPace = 100 * time.Millisecond

	udpHeader   = 8
	vxlanHeader = 8
	ipHeader    = 20
	innerHeader = 14 // of Ethernet
)

// probeName begins the payload of a probe, behind the header of VXLAN.
const probeName = "nmprobe1"

// The fields of a probe, as offsets in bytes from the header of VXLAN, and its flags.
const (
	probeAt      = vxlanHeader
	probeMark    = probeAt + len(probeName)
	probeNetwork = probeMark + 8
	probeFlags   = probeNetwork + 4
	probeBytes   = probeFlags + 1

	probeFull  = 1 // as large as packets get
	probeHeard = 2 // the sender has heard full probes of the receiver
)

// probeFilter passes UDP to the port of tunnels whose payload begins like a probe. Offsets are from the IPv4 header, which has no options.
func probeFilter() []bpf.Instruction {
	name := []byte(probeName)
	at := uint32(ipHeader + udpHeader + probeAt)
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: ipHeader + 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: tunnelPort, SkipTrue: 5},
		bpf.LoadAbsolute{Off: at, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(name), SkipTrue: 3},
		bpf.LoadAbsolute{Off: at + 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(name[4:]), SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
}

// meeting is one exchange of probes.
type meeting struct {
	network   int
	mark      uint64
	full      int // bytes of a full probe, from the header of VXLAN on
	peers     []fabric.Meeting
	at        []netip.Addr // where each peer's tunnel ends
	heardUs   []bool       // by peer: it has heard full probes of this node
	out       *net.UDPConn
	in        *net.IPConn
	nextRound time.Time
}

// Meet exchanges probes with the peers of a network.
func (f *Fabric) Meet(ctx context.Context, network int, mark uint64) ([]fabric.Meeting, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.RLock()
	i := slices.IndexFunc(f.applied, func(n fabric.Network) bool { return n.Index == network })
	if i < 0 {
		f.mu.RUnlock()
		return nil, fmt.Errorf("network %d: %w", network, fabric.ErrNoNetwork)
	}
	peers, mtu, encrypted := f.applied[i].Peers(), plan.MTU(f.applied[i], f.underlayMTU), f.applied[i].Encrypted
	onVLAN := f.applied[i].OnVLAN() || f.applied[i].OnInfiniBand()
	f.mu.RUnlock()
	if len(peers) == 0 || onVLAN {
		return nil, nil
	}
	m := meeting{network: network, mark: mark, full: vxlanHeader + innerHeader + mtu, heardUs: make([]bool, len(peers))}
	for _, peer := range peers {
		met, at := fabric.Meeting{Peer: peer, FullBytes: ipHeader + udpHeader + m.full}, peer
		if encrypted {
			met.FullBytes, at = met.FullBytes+api.CipherOverheadBytes, fabric.Inside(peer)
		}
		m.peers, m.at = append(m.peers, met), append(m.at, at)
	}
	self := f.cfg.Underlay
	if encrypted {
		self = fabric.Inside(self)
	}
	if err := f.node.Do(func() error { return m.open(self) }); err != nil {
		return nil, fmt.Errorf("probes can't be sent: %w", err)
	}
	defer m.close()
	ctx, cancel := context.WithTimeout(ctx, meetTime)
	defer cancel()
	if err := m.exchange(ctx); err != nil {
		return nil, err
	}
	return m.peers, nil
}

// open opens the sockets in the thread's network namespace.
func (m *meeting) open(underlay netip.Addr) (err error) {
	if m.in, err = net.ListenIP("ip4:udp", &net.IPAddr{IP: underlay.AsSlice()}); err != nil {
		return err
	}
	filter, err := bpf.Assemble(probeFilter())
	if err != nil {
		return err
	}
	program := make([]unix.SockFilter, len(filter))
	for i, f := range filter {
		program[i] = unix.SockFilter{Code: f.Op, Jt: f.Jt, Jf: f.Jf, K: f.K}
	}
	if err := control(m.in, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	}); err != nil {
		return errors.Join(err, m.in.Close())
	}
	if m.out, err = net.ListenUDP("udp4", &net.UDPAddr{IP: underlay.AsSlice()}); err != nil {
		return errors.Join(err, m.in.Close())
	}
	// "Don't fragment", and no attention to what the kernel has learned of the way (ip(7)).
	if err := control(m.out, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	}); err != nil {
		m.close()
		return err
	}
	return nil
}

// control runs f on the descriptor of a socket.
func control(socket syscall.Conn, f func(fd int) error) error {
	raw, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	return errors.Join(raw.Control(func(fd uintptr) { err = f(int(fd)) }), err)
}

func (m *meeting) close() {
	_ = m.in.Close()
	_ = m.out.Close()
}

// exchange sends rounds of probes until all have heard each other, or the time is over. The last round says that it is so.
func (m *meeting) exchange(ctx context.Context) error {
	buffer := make([]byte, 1<<16)
	for {
		m.round()
		if m.over() || ctx.Err() != nil {
			return nil
		}
		m.nextRound = time.Now().Add(meetPace)
		for !m.over() {
			if err := m.in.SetReadDeadline(m.nextRound); err != nil {
				return err
			}
			count, from, err := m.in.ReadFromIP(buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return fmt.Errorf("reading probes: %w", err)
			}
			sender, _ := netip.AddrFromSlice(from.IP)
			m.take(sender.Unmap(), buffer[:count])
		}
	}
}

// over reports whether this node and all peers heard each other.
func (m *meeting) over() bool {
	for i, p := range m.peers {
		if !p.Full || !m.heardUs[i] {
			return false
		}
	}
	return true
}

// round sends each peer a small probe and a full one.
func (m *meeting) round() {
	for i := range m.peers {
		p := &m.peers[i]
		for _, full := range []bool{false, true} {
			_, err := m.out.WriteToUDPAddrPort(m.probe(full, p.Full), netip.AddrPortFrom(m.at[i], tunnelPort))
			if errors.Is(err, unix.EMSGSIZE) {
				err = fmt.Errorf("packets of %d bytes don't fit this node's link to the underlay", p.FullBytes)
			}
			if err != nil && p.Problem == "" {
				p.Problem = err.Error()
			}
		}
	}
}

// probe is a probe from the header of VXLAN on. Heard says that this node has heard full probes of the receiver.
func (m *meeting) probe(full, heard bool) []byte {
	b := make([]byte, probeAt, probeBytes)
	b = append(b, probeName...)
	b = binary.BigEndian.AppendUint64(b, m.mark)
	b = binary.BigEndian.AppendUint32(b, uint32(m.network))
	flags := byte(0)
	if full {
		flags |= probeFull
	}
	if heard {
		flags |= probeHeard
	}
	b = append(b, flags)
	if full {
		b = append(b, make([]byte, m.full-len(b))...)
	}
	return b
}

// take notes a probe, which begins with its UDP header.
func (m *meeting) take(sender netip.Addr, packet []byte) {
	i := slices.Index(m.at, sender)
	if i < 0 || len(packet) < udpHeader+probeBytes {
		return
	}
	b := packet[udpHeader:]
	if binary.BigEndian.Uint64(b[probeMark:]) != m.mark || int(binary.BigEndian.Uint32(b[probeNetwork:])) != m.network {
		return
	}
	flags := b[probeFlags]
	m.heardUs[i] = m.heardUs[i] || flags&probeHeard != 0
	if flags&probeFull == 0 {
		m.peers[i].Small = true
	} else if len(b) >= m.full {
		m.peers[i].Full = true
	}
}
