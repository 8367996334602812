package dhcp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Sizes of IPv4 (RFC 791) and UDP (RFC 768) headers without options.
const (
	ipBytes  = 20
	udpBytes = 8
)

// wire sends to machines that have no address yet, and hears what other servers say to clients, without taking the clients' port.
type wire struct {
	conn  *packet.Conn
	iface *net.Interface
}

// openWire opens an interface. What is received is filtered in the kernel: IPv4, UDP, no fragment, from port 67 to port 68.
func openWire(name string) (*wire, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("the provisioning network's interface %q: %w", name, err)
	}
	filter, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1}, // protocol
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 8},
		bpf.LoadAbsolute{Off: 6, Size: 2}, // flags and fragment offset
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 6},
		bpf.LoadMemShift{Off: 0}, // X = length of the IP header
		bpf.LoadIndirect{Off: 0, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: ServerPort, SkipTrue: 3},
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: ClientPort, SkipTrue: 1},
		bpf.RetConstant{Val: 4096},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, err
	}
	conn, err := packet.Listen(iface, packet.Datagram, unix.ETH_P_IP, &packet.Config{Filter: filter})
	if err != nil {
		return nil, fmt.Errorf("raw frames on %s (needs CAP_NET_RAW): %w", name, err)
	}
	return &wire{conn: conn, iface: iface}, nil
}

func (w *wire) Close() error { return w.conn.Close() }

// send sends one UDP datagram to a MAC.
func (w *wire) send(to net.HardwareAddr, source, destination netip.AddrPort, content []byte) error {
	_, err := w.conn.WriteTo(datagram(source, destination, content), &packet.Addr{HardwareAddr: to})
	return err
}

// receive waits for a server's message to a client: its content and the server's address.
func (w *wire) receive(buffer []byte, deadline time.Time) ([]byte, netip.Addr, error) {
	if err := w.conn.SetReadDeadline(deadline); err != nil {
		return nil, netip.Addr{}, err
	}
	n, _, err := w.conn.ReadFrom(buffer)
	if err != nil {
		return nil, netip.Addr{}, err
	}
	content, source := payload(buffer[:n])
	return content, source, nil
}

// datagram frames content in UDP and IPv4.
func datagram(source, destination netip.AddrPort, content []byte) []byte {
	p := make([]byte, ipBytes+udpBytes+len(content))
	ip, udp := p[:ipBytes], p[ipBytes:]
	from, to := source.Addr().As4(), destination.Addr().As4()
	ip[0] = 4<<4 | ipBytes/4
	binary.BigEndian.PutUint16(ip[2:], uint16(len(p)))
	ip[8], ip[9] = 64, unix.IPPROTO_UDP
	copy(ip[12:], from[:])
	copy(ip[16:], to[:])
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip))
	binary.BigEndian.PutUint16(udp, source.Port())
	binary.BigEndian.PutUint16(udp[2:], destination.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[udpBytes:], content)
	pseudo := uint32(unix.IPPROTO_UDP) + uint32(len(udp)) + uint32(sum(0, from[:])) + uint32(sum(0, to[:]))
	check := ^sum(pseudo, udp)
	if check == 0 {
		check = 0xffff // 0 means none (RFC 768)
	}
	binary.BigEndian.PutUint16(udp[6:], check)
	return p
}

// sum adds 16-bit words in ones' complement (RFC 1071).
func sum(start uint32, data []byte) uint16 {
	total := start
	for ; len(data) >= 2; data = data[2:] {
		total += uint32(data[0])<<8 | uint32(data[1])
	}
	if len(data) == 1 {
		total += uint32(data[0]) << 8
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// payload is the content of an IPv4 UDP datagram, nil when it is cut short.
func payload(p []byte) ([]byte, netip.Addr) {
	if len(p) < ipBytes {
		return nil, netip.Addr{}
	}
	header := int(p[0]&0xf) * 4
	if p[0]>>4 != 4 || header < ipBytes || len(p) < header+udpBytes {
		return nil, netip.Addr{}
	}
	size := int(binary.BigEndian.Uint16(p[header+4:]))
	if size < udpBytes || len(p) < header+size {
		return nil, netip.Addr{}
	}
	return p[header+udpBytes : header+size], netip.AddrFrom4([4]byte(p[12:16]))
}
