package node

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Frames made by hand, as a tenant's root can make them, and a listener that sees what arrives.

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
)

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

func ethernetFrame(dst, src net.HardwareAddr, etherType uint16, payload []byte) []byte {
	b := append(append([]byte{}, dst...), src...)
	return append(binary.BigEndian.AppendUint16(b, etherType), payload...)
}

// tagged puts a VLAN tag (IEEE 802.1Q or 802.1ad) into a frame.
func tagged(tag uint16, frame []byte) []byte {
	b := append([]byte{}, frame[:12]...)
	b = binary.BigEndian.AppendUint16(b, tag)
	b = binary.BigEndian.AppendUint16(b, 7)
	return append(b, frame[12:]...)
}

// arpPacket is RFC 826, with something to recognize it by behind.
func arpPacket(op uint16, senderMAC net.HardwareAddr, sender netip.Addr, targetMAC net.HardwareAddr, target netip.Addr, token string) []byte {
	b := []byte{0, 1, 8, 0, 6, 4}
	b = binary.BigEndian.AppendUint16(b, op)
	b = append(append(b, senderMAC...), sender.AsSlice()...)
	b = append(append(b, targetMAC...), target.AsSlice()...)
	return append(b, token...)
}

// udpPacket is an IPv4 packet (RFC 791) with a UDP datagram (RFC 768) without checksum.
func udpPacket(from, to netip.AddrPort, data []byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(data)))
	b = append(append(b, from.Addr().AsSlice()...), to.Addr().AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(data)))
	return append(append(b, 0, 0), data...)
}

var tokens atomic.Int64

// token is text that is in no other frame.
func token() string { return fmt.Sprintf("nearmetal-token-%06d.", tokens.Add(1)) }

func (m member) mac() net.HardwareAddr {
	mac, _ := net.ParseMAC(m.port.MAC)
	return mac
}

// send puts a frame on a link of a namespace.
func (n namespace) send(t testing.TB, link string, frame []byte) {
	t.Helper()
	if err := n.put(link, frame); err != nil {
		t.Fatalf("sending a frame: %v", err)
	}
}

// put is send with the kernel's answer.
func (n namespace) put(link string, frame []byte) error {
	return n.Do(func() error {
		fd, index, err := packetSocket(link, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index})
	})
}

// packetSocket opens a packet socket (packet(7)) on a link of the thread's namespace.
func packetSocket(name string, protocol int) (fd, index int, err error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return 0, 0, err
	}
	big := int(binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, uint16(protocol))))
	if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, big); err != nil {
		return 0, 0, err
	}
	return fd, link.Index, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(big), Ifindex: link.Index})
}

// listener sees all frames that arrive on a link.
type listener struct{ fd int }

func (n namespace) listen(t testing.TB, link string) listener {
	t.Helper()
	var l listener
	err := n.Do(func() (err error) {
		l.fd, _, err = packetSocket(link, unix.ETH_P_ALL)
		return err
	})
	if err != nil {
		t.Fatalf("listening on %s: %v", link, err)
	}
	t.Cleanup(func() { unix.Close(l.fd) })
	return l
}

// until returns all incoming frames up to the one that contains the marker, nil and false when that does not come in time.
func (l listener) until(marker string, wait time.Duration) ([][]byte, bool) {
	var frames [][]byte
	buffer := make([]byte, 1<<17)
	for deadline := time.Now().Add(wait); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return frames, false
		}
		timeout := unix.NsecToTimeval(int64(left))
		if err := unix.SetsockoptTimeval(l.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return frames, false
		}
		n, from, err := unix.Recvfrom(l.fd, buffer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return frames, false
		}
		if a, ok := from.(*unix.SockaddrLinklayer); ok && a.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		frames = append(frames, bytes.Clone(buffer[:n]))
		if bytes.Contains(buffer[:n], []byte(marker)) {
			return frames, true
		}
	}
}

func contains(frames [][]byte, token string) bool {
	for _, f := range frames {
		if bytes.Contains(f, []byte(token)) {
			return true
		}
	}
	return false
}

// marker is a frame that from may send to to.
func (m member) marker(to member) (frame []byte, text string) {
	text = token()
	packet := udpPacket(netip.AddrPortFrom(m.port.Address, 9), netip.AddrPortFrom(to.port.Address, 9), []byte(text))
	return ethernetFrame(to.mac(), m.mac(), etherIPv4, packet), text
}

// mustNotArrive sends a forbidden frame that contains text, and behind it a permitted one: when that arrives, the other would
// have arrived, too.
func mustNotArrive(t *testing.T, from, to member, what string, frame []byte, text string) {
	t.Helper()
	l := to.listen(t, memberLink)
	from.send(t, memberLink, frame)
	permitted, end := from.marker(to)
	from.send(t, memberLink, permitted)
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatalf("a permitted frame behind %s did not arrive", what)
	}
	if contains(frames, text) {
		t.Errorf("%s arrived, but must not", what)
	}
}

// mustArrive sends a permitted frame that contains text.
func mustArrive(t *testing.T, from, to member, what string, frame []byte, text string) {
	t.Helper()
	l := to.listen(t, memberLink)
	from.send(t, memberLink, frame)
	if _, ok := l.until(text, markerTimeout); !ok {
		t.Errorf("%s did not arrive", what)
	}
}

// markerTimeout is how long a frame may take to arrive on a busy machine.
const markerTimeout = 20 * time.Second
