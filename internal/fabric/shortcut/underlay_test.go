package shortcut

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const underlayName = "u0"

var (
	local, peer, noPeer = netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.18.0.3")
	tunnelOver          = Tunnel{
		Network: 1, Remotes: append(slices.Clone(tunnelOne.Remotes), remoteOf(other, noPeer)),
		Underlay: Underlay{Link: underlayName, Address: local, MTU: 1450}, Peers: []netip.Addr{peer},
	}
)

// other is a member behind noPeer.
var other = Pins{Network: 1, Address: netip.MustParseAddr("10.64.16.7"), MAC: "02:00:00:01:00:07"}

// underlayLab is newTunnelLab with an underlay, for which a link stands in.
type underlayLab struct {
	lab
	underlay netlink.Link
	device   int // of the tunnel
}

func newUnderlayLab(t *testing.T) underlayLab {
	t.Helper()
	l := underlayLab{lab: newLab(t)}
	l.do(t, func() (err error) {
		device, err := addPort(tunnelName)
		if err != nil {
			return err
		}
		l.device = device.Attrs().Index
		if l.underlay, err = addPort(underlayName); err != nil {
			return err
		}
		return l.table.OpenTunnel(tunnelName, tunnelOver)
	})
	return l
}

// through returns what a program says of a frame, and the frame after it.
func (l underlayLab) through(t *testing.T, program *ebpf.Program, link int, frame []byte) (uint32, []byte) {
	t.Helper()
	var answer uint32
	after := make([]byte, len(frame)+innerFrame)
	l.do(t, func() (err error) {
		skb := make([]byte, 192)
		binary.NativeEndian.PutUint32(skb[skbIfindex:], uint32(link))
		run := &ebpf.RunOptions{Data: frame, DataOut: after, Context: skb}
		answer, err = program.Run(run)
		after = run.DataOut
		return err
	})
	return answer, after
}

// arrive returns what becomes of a frame from the underlay.
func (l underlayLab) arrive(t *testing.T, frame []byte) (uint32, []byte) {
	t.Helper()
	return l.through(t, l.table.fromUnderlay.program, l.underlay.Attrs().Index, frame)
}

// hear lets the program at the tunnel's device hear a frame that the one at the underlay left to it.
func (l underlayLab) hear(t *testing.T, inner []byte) {
	t.Helper()
	l.through(t, l.table.fromTunnels.program, l.device, bytes.Clone(inner))
}

// wrapped is a frame as a peer sends it over the underlay.
func (l underlayLab) wrapped(from netip.Addr, inner []byte) []byte {
	b := slices.Concat(l.underlay.Attrs().HardwareAddr, []byte{2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0})
	b = binary.BigEndian.AppendUint16(b, uint16(innerFrame-frameVersion+len(inner)))
	b = append(b, 0, 7, 0, 0, 64, unix.IPPROTO_UDP, 0, 0)
	b = slices.Concat(b, from.AsSlice(), local.AsSlice(), []byte{0xc0, 0, 0x12, 0xb5})
	b = binary.BigEndian.AppendUint16(b, uint16(innerFrame-outerUDP+len(inner)))
	return slices.Concat(b, []byte{0x12, 0x34, 8, 0, 0, 0, 0, 0, 1, 0}, inner)
}

func TestAFrameFromTheUnderlayIsUncoveredOnlyAsAgreed(t *testing.T) {
	with := func(at int, value ...byte) func([]byte) {
		return func(frame []byte) { copy(frame[at:], value) }
	}
	for _, tt := range []struct {
		name     string
		source   netip.Addr
		from, to Pins
		change   func([]byte)
		want     uint32
	}{
		{"a member on a peer", peer, remote, received, nil, redirected},
		{
			"VXLAN in VXLAN, which is a datagram to a member", peer, remote, received,
			func(b []byte) {
				b[innerFrame+frameProtocol] = unix.IPPROTO_UDP
				copy(b[innerFrame+outerPort:], []byte{0x12, 0xb5, 0, 0, 0, 0, 8})
			}, redirected,
		},
		{"a node that is no peer", noPeer, remote, received, nil, bridged},
		{"a member of another peer", peer, other, received, nil, bridged},
		{"a member's address with another's MAC", peer, remote, received, with(innerFrame+frameFrom+5, 6), bridged},
		{"this node itself", local, remote, received, nil, bridged},
		{"another destination", peer, remote, received, with(outerTo+3, 9), bridged},
		{"another host's MAC", peer, remote, received, with(frameTo, 6), bridged},
		{"a network without the peer", peer, remote, received, with(outerVNI+2, 2), bridged},
		{"a network with that number in a higher byte", peer, remote, received, with(outerVNI, 1, 0, 0), bridged},
		{"a reserved byte behind the network", peer, remote, received, with(outerVNI+3, 1), bridged},
		{"no network", peer, remote, received, with(outerVXLAN, 0), bridged},
		{"more flags", peer, remote, received, with(outerVXLAN, 0x0c), bridged},
		{"another port", peer, remote, received, with(outerPort+1, 0xb6), bridged},
		{"TCP", peer, remote, received, with(frameProtocol, unix.IPPROTO_TCP), bridged},
		{"outer options", peer, remote, received, with(frameVersion, 0x46), bridged},
		{"an outer fragment", peer, remote, received, with(outerFragment, 0x20), bridged},
		{"congestion on the underlay", peer, remote, received, with(outerTOS, 3), bridged},
		{"an inner fragment", peer, remote, received, with(innerFrame+frameFragment, 0x20), bridged},
		{"inner IPv6", peer, remote, received, with(innerFrame+frameType, 0x86, 0xdd), bridged},
		{"an inner VLAN tag", peer, remote, received, with(innerFrame+frameType, 0x81, 0), bridged},
		{"a DHCP server", peer, remote, received, with(innerFrame+framePort, 0, 67), bridged},
		{"the address of a member here", peer, sent, received, nil, bridged},
		{"an address of no member", peer, remote, received, with(innerFrame+frameSource, 192, 0, 2, 1), bridged},
		{"a group's MAC", peer, remote, received, with(innerFrame+frameFrom, 3), bridged},
		{"to nobody here", peer, remote, received, with(innerFrame+frameTarget+3, 9), bridged},
		{"to another MAC", peer, remote, received, with(innerFrame+frameTo+5, 9), bridged},
		{"to a member of another network", peer, remote, foreign, nil, bridged},
	} {
		l := newUnderlayLab(t)
		inner := packet(tt.from, tt.to)
		frame := l.wrapped(tt.source, inner)
		if tt.change != nil {
			tt.change(frame)
		}
		if got, after := l.arrive(t, bytes.Clone(frame)); got != bridged || !bytes.Equal(after, frame) {
			t.Errorf("%s, first: got %d; want that the tunnel's device gets it as it is", tt.name, int32(got))
		}
		l.hear(t, inner)
		got, after := l.arrive(t, bytes.Clone(frame))
		want := frame
		if tt.want == redirected {
			want = frame[innerFrame:]
		}
		if got != tt.want || !bytes.Equal(after, want) {
			t.Errorf("%s, again: got %d and\n% x; want %d and\n% x", tt.name, int32(got), after, int32(tt.want), want)
		}
	}
}

// send returns what becomes of a frame that the first member sends.
func (l underlayLab) send(t *testing.T, frame []byte) (uint32, []byte) {
	t.Helper()
	return l.through(t, l.table.fromPorts.program, l.links[sent], bytes.Clone(frame))
}

func TestAFrameToAPeerIsPlainVXLAN(t *testing.T) {
	l := newUnderlayLab(t)
	l.arrive(t, l.wrapped(peer, packet(remote, received)))
	for _, tos := range []byte{0, 1, 2, 0xb8 | 2} {
		frame := append(packet(sent, remote), make([]byte, 1000)...)
		frame[outerTOS] = tos
		got, after := l.send(t, frame)
		if got != redirected || len(after) != len(frame)+innerFrame {
			t.Fatalf("TOS %#x: got %d and %d bytes for %d", tos, int32(got), len(after), len(frame))
		}
		if !bytes.Equal(after[innerFrame:], frame) {
			t.Errorf("the inner frame was changed:\n% x\n% x", after[innerFrame:], frame)
		}
		length := uint16(len(after) - frameVersion)
		want := []byte{8, 0, 0x45, tos & 3, byte(length >> 8), byte(length), 0, 0, 0x40, 0, 64, unix.IPPROTO_UDP}
		if got := after[frameType:outerChecksum]; !bytes.Equal(got, want) {
			t.Errorf("outer headers: got % x, want % x", got, want)
		}
		if got, want := after[outerFrom:outerUDP], slices.Concat(local.AsSlice(), peer.AsSlice()); !bytes.Equal(got, want) {
			t.Errorf("outer addresses: got % x, want % x", got, want)
		}
		if sum := onesSum(after[frameVersion:outerUDP]); sum != 0xffff {
			t.Errorf("the outer checksum is wrong: %#x", sum)
		}
		length -= outerUDP - frameVersion
		want = []byte{0x12, 0xb5, byte(length >> 8), byte(length), 0, 0, 8, 0, 0, 0, 0, 0, 1, 0}
		if got := after[outerPort:innerFrame]; !bytes.Equal(got, want) {
			t.Errorf("UDP and VXLAN: got % x, want % x", got, want)
		}
		if port := binary.BigEndian.Uint16(after[outerUDP:]); port < firstPort || port > firstPort+portBits {
			t.Errorf("source port %d", port)
		}
	}
}

// onesSum adds words in ones' complement (RFC 1071).
func onesSum(b []byte) uint32 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum
}

func TestWhatAPeerMayNotGetGoesToTheTunnelsDevice(t *testing.T) {
	for _, tt := range []struct {
		name   string
		frame  []byte
		change func(t *testing.T, l underlayLab)
	}{
		{name: "a frame marked for congestion", frame: func() []byte {
			frame := packet(sent, remote)
			frame[outerTOS] = 3
			return frame
		}()},
		{name: "a frame longer than the network's MTU", frame: append(packet(sent, remote), make([]byte, 1450)...)},
		{name: "a frame to a peer that was withdrawn", change: func(t *testing.T, l underlayLab) {
			if err := l.table.peers.Delete(tunnelOver.key(peer)); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "a frame over a link that is gone", change: func(t *testing.T, l underlayLab) {
			l.do(t, func() error { return netlink.LinkDel(l.underlay) })
		}},
	} {
		l := newUnderlayLab(t)
		l.arrive(t, l.wrapped(peer, packet(remote, received)))
		frame := packet(sent, remote)
		if got, after := l.send(t, frame); got != redirected || len(after) != len(frame)+innerFrame {
			t.Fatalf("before: got %d and %d bytes", int32(got), len(after))
		}
		if tt.frame != nil {
			frame = tt.frame
		}
		if tt.change != nil {
			tt.change(t, l)
		}
		if got, after := l.send(t, frame); got != redirected || !bytes.Equal(after, frame) {
			t.Errorf("%s: got %d and %d bytes for %d; want it as it is", tt.name, int32(got), len(after), len(frame))
		}
	}
}

func TestAMemberIsHeardAndReachedOnlyBehindItsPeer(t *testing.T) {
	l := newUnderlayLab(t)
	both := tunnelOver
	both.Peers = []netip.Addr{peer, noPeer}
	l.do(t, func() error { return l.table.OpenTunnel(tunnelName, both) })
	for _, at := range []netip.Addr{peer, noPeer, peer} {
		l.do(t, func() error { return l.table.ChangeTunnel(tunnelName, []Remote{remoteOf(remote, at)}) })
		for _, from := range []netip.Addr{peer, noPeer} {
			frame := l.wrapped(from, packet(remote, received))
			if got, _ := l.arrive(t, bytes.Clone(frame)); got != bridged {
				t.Errorf("behind %v, first from %v: got %d, want that the tunnel's device hears it", at, from, int32(got))
			}
			want := uint32(bridged)
			if from == at {
				l.hear(t, packet(remote, received))
				want = redirected
			}
			if got, _ := l.arrive(t, frame); got != want {
				t.Errorf("behind %v, again from %v: got %d, want %d", at, from, int32(got), int32(want))
			}
		}
		if _, after := l.send(t, packet(sent, remote)); !bytes.Equal(after[outerTo:outerUDP], at.AsSlice()) {
			t.Errorf("sent to % x, want %v", after[outerTo:outerUDP], at)
		}
	}
}

func TestAPeerThatIsWithdrawnReachesNobody(t *testing.T) {
	l := newUnderlayLab(t)
	frame := l.wrapped(peer, packet(remote, received))
	l.arrive(t, frame)
	l.do(t, func() error { return l.table.Shut(tunnelName) })
	other := tunnelOver
	other.Peers = []netip.Addr{noPeer}
	l.do(t, func() error { return l.table.OpenTunnel(tunnelName, other) })
	for range 2 {
		if got, _ := l.arrive(t, bytes.Clone(frame)); got != bridged {
			t.Errorf("got %d, want that the node's rules see it", int32(got))
		}
	}
}

func TestNothingIsLeftAtTheUnderlay(t *testing.T) {
	l := newUnderlayLab(t)
	links := map[string]int{underlayName: l.underlay.Attrs().Index}
	other := New()
	defer other.Close()
	left := func(table *Table) (names []string) {
		t.Helper()
		l.do(t, func() (err error) {
			names, err = table.Left(links)
			return err
		})
		return names
	}
	if got := left(l.table); len(got) > 0 {
		t.Errorf("its own: %v", got)
	}
	if got := left(other); !slices.Equal(got, []string{underlayName}) {
		t.Errorf("another process finds %v", got)
	}
	second := Tunnel{Network: 2, Underlay: tunnelOver.Underlay, Peers: tunnelOver.Peers}
	l.do(t, func() error {
		if _, err := addPort("t2"); err != nil {
			return err
		}
		return l.table.OpenTunnel("t2", second)
	})
	program := func() (id int) {
		t.Helper()
		l.do(t, func() (err error) {
			id, err = attached(l.underlay.Attrs().Index)
			return err
		})
		return id
	}
	l.do(t, func() error { return l.table.Shut(tunnelName) })
	if program() == 0 {
		t.Error("the program went while another network needs it")
	}
	l.do(t, l.table.ShutAll)
	if program() != 0 {
		t.Error("the program stayed at the underlay")
	}
	l.do(t, func() error {
		ready, err := prepared()
		if ready[l.underlay.Attrs().Index] {
			t.Error("the underlay is still prepared for programs")
		}
		return err
	})
	l.wantEmpty(t)
}
