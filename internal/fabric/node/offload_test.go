package node

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// offload is what a sender leaves to the kernel to do with a frame (virtio_net_hdr of linux/virtio_net.h). Packet sockets and virtual machines
// choose it as they like.
type offload struct {
	Flags, GSO    uint8
	Headers, Size uint16 // of each piece
	Start, Offset uint16 // of the checksum
}

const (
	needsChecksum = 1 // VIRTIO_NET_HDR_F_NEEDS_CSUM
	gsoTCP        = 1 // VIRTIO_NET_HDR_GSO_TCPV4
	gsoECN        = 0x80
)

func (o offload) header() []byte {
	b := []byte{o.Flags, o.GSO}
	for _, field := range []uint16{o.Headers, o.Size, o.Start, o.Offset} {
		b = binary.NativeEndian.AppendUint16(b, field)
	}
	return b
}

// putOffloaded puts a frame on a link of a namespace, with work left to the kernel, and returns the kernel's answer.
func (n namespace) putOffloaded(link string, o offload, frame []byte) error {
	return n.Do(func() error {
		fd, index, err := packetSocket(link, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
			return err
		}
		return unix.Sendto(fd, append(o.header(), frame...), 0, &unix.SockaddrLinklayer{Ifindex: index})
	})
}

// tcpPacket is an IPv4 packet (RFC 791) with a TCP segment (RFC 9293) whose checksum is that of the pseudo header alone, as for hardware to
// complete.
func tcpPacket(from, to netip.AddrPort, data []byte) []byte {
	b := udpPacket(from, to, nil)[:24]
	b[9] = unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(b[2:], uint16(40+len(data)))
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint16(b[10:], checksum(b[:20]))
	b = append(b, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 0x18, 0xff, 0xff) // sequence and acknowledgement, the header's length, PSH and ACK, window
	pseudo := append(bytes.Clone(b[12:20]), 0, unix.IPPROTO_TCP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(20+len(data)))
	b = binary.BigEndian.AppendUint16(b, ^checksum(pseudo))
	return append(append(b, 0, 0), data...)
}

// Where things are in a frame with IPv4 without options.
const (
	sourceAt, transportAt   = 26, 34
	tcpChecksum, tcpHeaders = 16, 54
)

// wholeTCP is what a sender of TCP leaves to the kernel that it wants cut into pieces of so many bytes.
func wholeTCP(size uint16) offload {
	return offload{Flags: needsChecksum, GSO: gsoTCP, Headers: tcpHeaders, Size: size, Start: transportAt, Offset: tcpChecksum}
}

// TestWhatIsLeftToTheKernelIsPinnedAllTheSame: a hostile member sends frames that are to be cut, and whose checksums are to be written, in
// ways that no stack would, to a member of another node. Only what bears its own addresses arrives, in frames that fit the underlay.
func TestWhatIsLeftToTheKernelIsPinnedAllTheSame(t *testing.T) {
	for _, offloads := range []bool{true, false} {
		t.Run(map[bool]string{true: "an underlay that cuts and sums", false: "an underlay that does neither"}[offloads], func(t *testing.T) {
			lab := newTunnelShortcutLab(t)
			if !offloads {
				for _, n := range lab.nodes {
					if err := n.Do(func() error { return withoutOffloads("under0") }); err != nil {
						needs.Hardware(t, "the kernel can't switch offloads of a veth pair off: %v", err)
					}
				}
			}
			testLeftToTheKernel(t, lab, offloads)
		})
	}
}

func testLeftToTheKernel(t *testing.T, lab underlayLab, offloads bool) {
	a, b := lab.members[0], lab.members[1]
	stranger := netip.AddrFrom4([4]byte{10, 64, 48, 9})
	if !lab.networks[0].Prefix.Contains(stranger) {
		t.Fatalf("%v is not in %v", stranger, lab.networks[0].Prefix)
	}
	port := func(of netip.Addr) netip.AddrPort { return netip.AddrPortFrom(of, 9) }
	tcp := func(from netip.Addr, length int) (frame []byte, text string) {
		text = token()
		data := []byte(strings.Repeat(text, 1+length/len(text)))
		return ethernetFrame(b.mac(), a.mac(), etherIPv4, tcpPacket(port(from), port(b.port.Address), data)), text
	}
	udp := func(length int) (frame []byte, text string) {
		text = token()
		data := []byte(strings.Repeat(text, 1+length/len(text)))
		return ethernetFrame(b.mac(), a.mac(), etherIPv4, udpPacket(port(a.port.Address), port(b.port.Address), data)), text
	}
	marked := wholeTCP(1000)
	marked.GSO |= gsoECN
	for _, tt := range []struct {
		name string
		o    offload
		make func() ([]byte, string)
		want bool // that it arrives
	}{
		{"a stream to be cut", wholeTCP(1000), func() ([]byte, string) { return tcp(a.port.Address, 20000) }, true},
		{"one under another's address", wholeTCP(1000), func() ([]byte, string) { return tcp(stranger, 20000) }, false},
		{"one to be cut into pieces longer than the MTU", wholeTCP(12000), func() ([]byte, string) { return tcp(a.port.Address, 30000) }, true},
		{"one to be cut into a single piece", wholeTCP(0xffff), func() ([]byte, string) { return tcp(a.port.Address, 30000) }, false},
		{"one that is to be marked for congestion", marked, func() ([]byte, string) { return tcp(a.port.Address, 20000) }, true},
		{"a datagram to be cut like a stream", wholeTCP(1000), func() ([]byte, string) { return udp(5000) }, false},
		{"a frame whose checksum is to be written over its addresses and that is to be cut", offload{
			Flags: needsChecksum, GSO: gsoTCP, Headers: tcpHeaders, Size: 1000, Start: 20, Offset: sourceAt - 20,
		}, func() ([]byte, string) { return tcp(a.port.Address, 5000) }, false},
	} {
		frame, text := tt.make()
		heard := b.listen(t, memberLink)
		wire := lab.nodes[1].listen(t, "under0")
		answer := a.putOffloaded(memberLink, tt.o, frame)
		permitted, end := a.marker(b)
		a.send(t, memberLink, permitted)
		frames, ok := heard.until(end, markerTimeout)
		if !ok {
			t.Fatalf("a permitted frame behind %s did not arrive", tt.name)
		}
		if got := contains(frames, text); got != tt.want {
			t.Errorf("%s: arrived: %t, want %t (the kernel answered its sender %v)", tt.name, got, tt.want, answer)
		}
		passing, ok := wire.until(end, markerTimeout)
		if !ok {
			t.Fatalf("the underlay did not see the frame behind %s", tt.name)
		}
		for _, f := range passing {
			if !offloads && len(f) > underlayMTUInTests+14 {
				t.Errorf("%s: a frame of %d bytes is on an underlay with an MTU of %d", tt.name, len(f), underlayMTUInTests)
			}
		}
	}
	for i := range lab.nodes {
		lab.nodes[i].run(t, "nft delete table bridge watch")
		if drifts, err := lab.nodes[i].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("audit of node %d: %v, %v", i, drifts, err)
		}
	}
}
