package responder

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Ports of DHCP (RFC 2131, section 4.1) and DNS (RFC 1035, section 4.2.1).
const (
	portDHCP       = 67
	portDHCPClient = 68
	portDNS        = 53
)

// Lengths of headers in bytes: Ethernet, IPv4 without options (RFC 791), UDP (RFC 768), and an ARP packet for IPv4 over Ethernet (RFC 826).
const (
	etherBytes = 14
	ipBytes    = 20
	udpBytes   = 8
	arpBytes   = 28
)

// unixEpoch is a deadline that is over.
var unixEpoch = time.Unix(0, 0)

// subnet is a network as its members' questions are answered from it. It never changes.
type subnet struct {
	Network
	mac   net.HardwareAddr // of the gateway
	mtu   int
	ports map[string]port // by MAC address
}

// port is a port with the member at it.
type port struct {
	fabric.Port
	Member
}

func newSubnet(n Network) *subnet {
	s := &subnet{Network: n, ports: map[string]port{}}
	s.mac, _ = net.ParseMAC(fabric.GatewayMAC(n.Index))
	for _, p := range n.Ports {
		s.ports[fabric.NormalMAC(p.MAC)] = port{p, n.Members[p.ID]}
	}
	return s
}

// question is a frame that a member sent to the node. The rules pin its source MAC address to the port, so it says who asks.
type question struct {
	port port
	mac  net.HardwareAddr
	arp  bool
	// source and target are those of a datagram, and payload is its content.
	source, target netip.AddrPort
	payload        []byte
}

// clone returns a copy that does not share the buffer of the frame.
func (q question) clone() question {
	q.mac, q.payload = bytes.Clone(q.mac), bytes.Clone(q.payload)
	return q
}

// read takes a frame apart. It reports false for frames that are no question of a member's own.
func (s *subnet) read(frame []byte) (question, bool) {
	if len(frame) < etherBytes {
		return question{}, false
	}
	q := question{mac: frame[6:12]}
	var known bool
	if q.port, known = s.ports[q.mac.String()]; !known {
		return q, false
	}
	payload := frame[etherBytes:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case unix.ETH_P_ARP:
		q.arp = true
		return q, s.asksForGateway(q, payload)
	case unix.ETH_P_IP:
		return q, q.readDatagram(payload) && (q.source.Addr() == q.port.Address || q.source.Addr().IsUnspecified())
	default:
		return q, false
	}
}

// asksForGateway reports whether an ARP packet is a member's request for the gateway's MAC address.
func (s *subnet) asksForGateway(q question, b []byte) bool {
	if len(b) < arpBytes || !bytes.Equal(b[:8], []byte{0, 1, 8, 0, 6, 4, 0, 1}) {
		return false
	}
	sender, target := netip.AddrFrom4([4]byte(b[14:18])), netip.AddrFrom4([4]byte(b[24:28]))
	return sender == q.port.Address && target == s.Gateway
}

// readDatagram reads an IPv4 packet with UDP. Checksums are not verified: between a member and its node they are not filled in.
func (q *question) readDatagram(b []byte) bool {
	if len(b) < ipBytes || b[0]>>4 != 4 || b[9] != unix.IPPROTO_UDP || binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
		return false
	}
	header, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < ipBytes || total < header+udpBytes || total > len(b) {
		return false
	}
	udp := b[header:total]
	length := int(binary.BigEndian.Uint16(udp[4:]))
	if length < udpBytes || length > len(udp) {
		return false
	}
	q.source = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:16])), binary.BigEndian.Uint16(udp))
	q.target = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:20])), binary.BigEndian.Uint16(udp[2:]))
	q.payload = udp[udpBytes:length]
	return true
}

// answer returns the frame that answers a question, nil for none, or what other servers have to be asked.
func (s *subnet) answer(q question) (frame []byte, outside *outsideQuestion) {
	switch {
	case q.arp && s.HasGateway():
		return nil, nil // the node's own stack has the address, and answers
	case q.arp:
		return s.arpReply(q), nil
	case q.target.Port() == portDHCP:
		if to, reply := s.dhcp(q.port, q.payload); reply != nil {
			return s.packet(q, portDHCP, netip.AddrPortFrom(to, portDHCPClient), reply), nil
		}
		return nil, nil
	case q.target.Port() == portDNS && q.target.Addr() == s.Gateway && q.source.Addr() == q.port.Address:
		reply, outside := s.dns(q.port, q.payload)
		if reply == nil {
			return nil, outside
		}
		return s.datagram(q, reply), nil
	default:
		return nil, nil
	}
}

// arpReply says that the node has the gateway's address.
func (s *subnet) arpReply(q question) []byte {
	frame := s.ethernet(q, unix.ETH_P_ARP)
	return slices.Concat(frame, []byte{0, 1, 8, 0, 6, 4, 0, 2}, s.mac, s.Gateway.AsSlice(), q.mac, q.port.Address.AsSlice())
}

// datagram is the answer to a DNS question, nil for no answer.
func (s *subnet) datagram(q question, payload []byte) []byte {
	return s.packet(q, portDNS, q.source, payload)
}

// packet is a datagram from the gateway's address to the member that asked, whatever its address. Only the member gets it.
func (s *subnet) packet(q question, from uint16, to netip.AddrPort, payload []byte) []byte {
	if payload == nil {
		return nil
	}
	udp := binary.BigEndian.AppendUint16(nil, from)
	udp = binary.BigEndian.AppendUint16(udp, to.Port())
	udp = binary.BigEndian.AppendUint16(udp, uint16(udpBytes+len(payload)))
	udp = append(append(udp, 0, 0), payload...)
	source, target := s.Gateway.AsSlice(), to.Addr().AsSlice()
	pseudo := slices.Concat(source, target, []byte{0, unix.IPPROTO_UDP}, udp[4:6]) // RFC 768
	sum := checksum(pseudo, udp)
	if sum == 0 {
		sum = 0xffff // RFC 768: 0 says that there is none
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	const ttl = 64
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, ttl, unix.IPPROTO_UDP, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(ipBytes+len(udp)))
	ip = slices.Concat(ip, source, target)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return slices.Concat(s.ethernet(q, unix.ETH_P_IP), ip, udp)
}

// ethernet is the header of a frame to the member that asked.
func (s *subnet) ethernet(q question, etherType uint16) []byte {
	return binary.BigEndian.AppendUint16(slices.Concat(q.mac, s.mac), etherType)
}

// checksum is the Internet checksum of parts, of which only the last may have an odd length (RFC 1071).
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, b := range parts {
		for ; len(b) >= 2; b = b[2:] {
			sum += uint32(binary.BigEndian.Uint16(b))
		}
		if len(b) == 1 {
			sum += uint32(b[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
