package shortcut

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// The answers of the program: TC_ACT_UNSPEC and TC_ACT_REDIRECT of linux/pkt_cls.h.
const (
	bridged    = ^uint32(0)
	redirected = uint32(7)
)

// Three ports: the first two of one network, the third of another. Links of a namespace stand in for them.
var (
	sent     = Pins{Network: 1, Address: netip.MustParseAddr("10.64.16.2"), MAC: "02:00:00:01:00:02"}
	received = Pins{Network: 1, Address: netip.MustParseAddr("10.64.16.3"), MAC: "02:00:00:01:00:03"}
	foreign  = Pins{Network: 2, Address: netip.MustParseAddr("10.64.32.2"), MAC: "02:00:00:02:00:02"}
)

// lab is a loaded table, and ports by their pins.
type lab struct {
	table *Table
	space netns.Handle
	links map[Pins]int
}

func newLab(t *testing.T) lab {
	t.Helper()
	needs.Root(t, "loads a program into the kernel")
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	l := lab{New(), space, map[Pins]int{}}
	t.Cleanup(func() {
		l.table.Close()
		space.Close()
	})
	if err := l.table.Load(); err != nil {
		needs.Hardware(t, "the kernel can't make shortcuts: %v", err)
	}
	l.do(t, func() error {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}); err != nil {
			return err
		}
		for _, pins := range []Pins{sent, received, foreign} {
			link, err := addPort(name(pins))
			if err != nil {
				return err
			}
			if err := l.table.Open(name(pins), pins); err != nil {
				return err
			}
			l.links[pins] = link.Attrs().Index
		}
		return nil
	})
	return l
}

// addPort makes a link on the bridge.
func addPort(name string) (netlink.Link, error) {
	bridge, err := netlink.LinkByName("br0")
	if err != nil {
		return nil, err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index}, PeerName: "x" + name}
	if err := netlink.LinkAdd(pair); err != nil {
		return nil, err
	}
	return netlink.LinkByName(name)
}

func name(p Pins) string { return fmt.Sprintf("p%d-%x", p.Network, p.Address.As4()) }

func (l lab) do(t *testing.T, f func() error) {
	t.Helper()
	if err := l.space.Do(f); err != nil {
		t.Fatal(err)
	}
}

// run returns what the program says of a frame that comes in at a port.
func (l lab) run(t *testing.T, link int, frame []byte) uint32 {
	t.Helper()
	return l.runProgram(t, l.table.fromPorts.program, link, frame)
}

func (l lab) runProgram(t *testing.T, program *ebpf.Program, link int, frame []byte) uint32 {
	t.Helper()
	var answer uint32
	l.do(t, func() (err error) {
		skb := make([]byte, 192) // struct __sk_buff of linux/bpf.h
		binary.NativeEndian.PutUint32(skb[skbIfindex:], uint32(link))
		answer, err = program.Run(&ebpf.RunOptions{Data: frame, Context: skb})
		return err
	})
	return answer
}

// packet is a frame with a UDP or TCP header's ports, from one port to another.
func packet(from, to Pins) []byte {
	src, _ := net.ParseMAC(from.MAC)
	dst, _ := net.ParseMAC(to.MAC)
	b := binary.BigEndian.AppendUint16(slices.Concat(dst, src), unix.ETH_P_IP)
	b = append(b, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0) // with the flag "don't fragment"
	b = slices.Concat(b, from.Address.AsSlice(), to.Address.AsSlice())
	return append(binary.BigEndian.AppendUint16(b, 40000), make([]byte, 18)...)
}

func TestAFrameTakesTheShortcutOnlyAsPinned(t *testing.T) {
	l := newLab(t)
	with := func(at int, value ...byte) func([]byte) []byte {
		return func(frame []byte) []byte {
			copy(frame[at:], value)
			return frame
		}
	}
	for _, tt := range []struct {
		name   string
		to     Pins
		change func([]byte) []byte
		want   uint32
	}{
		{"TCP to a port of the same network", received, nil, redirected},
		{"UDP to a port of the same network", received, with(frameProtocol, unix.IPPROTO_UDP), redirected},
		{"SCTP", received, with(frameProtocol, unix.IPPROTO_SCTP), bridged},
		{"ICMP", received, with(frameProtocol, unix.IPPROTO_ICMP), bridged},
		{"a DHCP server's port", received, with(framePort, 0, 67), bridged},
		{"a port whose second byte is that of a DHCP server's", received, with(framePort, 1, 67), redirected},
		{"a first fragment", received, with(frameFragment, 0x20, 0), bridged},
		{"a later fragment", received, with(frameFragment, 0, 1), bridged},
		{"IPv4 with options", received, with(frameVersion, 0x46), bridged},
		{"IPv6 by its type", received, with(frameType, 0x86, 0xdd), bridged},
		{"ARP by its type", received, with(frameType, 0x08, 0x06), bridged},
		{"a tagged frame", received, with(frameType, 0x81, 0x00), bridged},
		{"a frame that ends before its port numbers", received, func(b []byte) []byte { return b[:framePort] }, bridged},
		{"another source address", received, with(frameSource+3, 9), bridged},
		{"the receiver's source address", received, with(frameSource+3, 3), bridged},
		{"another source MAC, first bytes", received, with(frameFrom, 6), bridged},
		{"another source MAC, last byte", received, with(frameFrom+5, 9), bridged},
		{"another destination MAC, first bytes", received, with(frameTo, 6), bridged},
		{"another destination MAC, last byte", received, with(frameTo+5, 9), bridged},
		{"broadcast", received, with(frameTo, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), bridged},
		{"an address of nobody", received, with(frameTarget+3, 9), bridged},
		{"the other network's port, by the address of its own", foreign, nil, bridged},
		{"a port of the same network, by the address of the other's", received, with(frameTarget, 10, 64, 32, 2), bridged},
	} {
		frame := packet(sent, tt.to)
		if tt.change != nil {
			frame = tt.change(frame)
		}
		if got := l.run(t, l.links[sent], frame); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, int32(got), int32(tt.want))
		}
	}
	if got := l.run(t, l.links[foreign], packet(sent, received)); got != bridged {
		t.Errorf("the frame of one port at another: got %d, want that the bridge gets it", int32(got))
	}
}

func TestAPlaceWithOtherPinsIsNotFollowed(t *testing.T) {
	l := newLab(t)
	nobody := received
	nobody.Address = netip.MustParseAddr("10.64.16.9")
	l.do(t, func() error { return l.table.places.Put(nobody.Address.As4(), uint32(l.links[received])) })
	if got := l.run(t, l.links[sent], packet(sent, nobody)); got != bridged {
		t.Errorf("got %d, want that the bridge gets a frame to an address whose place has other pins", int32(got))
	}
}

func TestWhatIsShutIsNeitherLeftNorReached(t *testing.T) {
	l := newLab(t)
	l.do(t, func() error { return l.table.Shut(name(received)) })
	if got := l.run(t, l.links[sent], packet(sent, received)); got != bridged {
		t.Errorf("to a port whose shortcut is shut: got %d", int32(got))
	}
	if got := l.run(t, l.links[received], packet(received, sent)); got != bridged {
		t.Errorf("from a port whose shortcut is shut: got %d", int32(got))
	}
	l.do(t, l.table.ShutAll)
	l.wantEmpty(t)
}

// wantEmpty requires that no map has an entry.
func (l lab) wantEmpty(t *testing.T) {
	t.Helper()
	for what, m := range map[string]*ebpf.Map{
		"ports": l.table.ports, "places": l.table.places, "mouths": l.table.mouths, "exits": l.table.exits, "remotes": l.table.remotes,
		"peers": l.table.peers, "underlays": l.table.underlays,
	} {
		key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
		entries := m.Iterate()
		for entries.Next(key, value) {
			t.Errorf("the map of %s still holds % x", what, key)
		}
		if err := entries.Err(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheKernelForgetsThePlaceOfALinkThatIsGone(t *testing.T) {
	l := newLab(t)
	l.do(t, func() error {
		link, err := netlink.LinkByName(name(received))
		if err != nil {
			return err
		}
		if err := netlink.LinkDel(link); err != nil {
			return err
		}
		// Somebody else's link gets the index, and the pins are still there.
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "other", Index: l.links[received]}, PeerName: "xother"})
	})
	if got := l.run(t, l.links[sent], packet(sent, received)); got != bridged {
		t.Errorf("a frame to a port that is gone: got %d, want that the bridge gets it", int32(got))
	}
}

func TestATableTellsItsOwnFromAnothers(t *testing.T) {
	l := newLab(t)
	other := New()
	defer other.Close()
	l.do(t, func() error {
		mine, err := l.table.Read(l.byName())
		if err != nil {
			return err
		}
		theirs, err := other.Read(l.byName())
		if err != nil {
			return err
		}
		for pins := range l.links {
			if got, want := mine[name(pins)], (State{Pins: pins}); got != want {
				t.Errorf("its own: got %+v, want %+v", got, want)
			}
			if got, want := theirs[name(pins)], (State{Broken: true}); got != want {
				t.Errorf("another's: got %+v, want %+v", got, want)
			}
		}
		if err := other.Shut(name(received)); err != nil {
			return err
		}
		mine, err = l.table.Read(l.byName())
		if err == nil && !mine[name(received)].Broken {
			t.Error("a program that another process removed is reported as whole")
		}
		return err
	})
	if got := l.run(t, l.links[sent], packet(sent, received)); got != redirected {
		t.Errorf("got %d; removing a program takes nothing from the table of another process", int32(got))
	}
}

func TestNothingIsLeftInTheKernelWithoutPortsAndProcess(t *testing.T) {
	l := newLab(t)
	id := ebpf.ProgramID(l.table.fromPorts.id)
	exists := func() bool {
		program, err := ebpf.NewProgramFromID(id)
		if err == nil {
			program.Close()
		}
		return err == nil
	}
	if err := l.table.Close(); err != nil {
		t.Fatal(err)
	}
	if !exists() {
		t.Fatal("the program went with its process, and the shortcuts of running members with it")
	}
	l.do(t, func() error {
		for pins := range l.links {
			link, err := netlink.LinkByName(name(pins))
			if err != nil {
				return err
			}
			if err := netlink.LinkDel(link); err != nil {
				return err
			}
		}
		return nil
	})
	for deadline := time.Now().Add(20 * time.Second); exists(); runtime.Gosched() { // the kernel frees it after a grace period
		if time.Now().After(deadline) {
			t.Fatal("the program is still in the kernel")
		}
	}
}

// byName returns the indexes of the links of ports.
func (l lab) byName() map[string]int {
	links := map[string]int{}
	for pins, index := range l.links {
		links[name(pins)] = index
	}
	return links
}
