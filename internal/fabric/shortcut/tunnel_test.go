package shortcut

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// A member of the first two ports' network on another node, and one of a network whose ports here have no tunnel.
var (
	remote   = Pins{Network: 1, Address: netip.MustParseAddr("10.64.16.4"), MAC: "02:00:00:01:00:04"}
	stranger = Pins{Network: 2, Address: netip.MustParseAddr("10.64.32.4"), MAC: "02:00:00:02:00:04"}
)

const tunnelName = "t1"

var tunnelOne = Tunnel{Network: 1, Remotes: []Remote{remoteOf(remote, peer), remoteOf(second, peer)}}

// second is another member of that network on another node.
var second = Pins{Network: 1, Address: netip.MustParseAddr("10.64.16.6"), MAC: "02:00:00:01:00:06"}

func remoteOf(p Pins, peer netip.Addr) Remote {
	return Remote{Address: p.Address, MAC: p.MAC, Peer: peer}
}

// newTunnelLab is newLab with an open tunnel of each network, for which links stand in. It returns the first.
func newTunnelLab(t *testing.T) (l lab, tunnel int) {
	t.Helper()
	l = newLab(t)
	l.do(t, func() error {
		link, err := addPort(tunnelName)
		if err != nil {
			return err
		}
		tunnel = link.Attrs().Index
		if _, err := addPort("t2"); err != nil {
			return err
		}
		two := Tunnel{Network: 2, Remotes: []Remote{remoteOf(stranger, peer)}}
		return errors.Join(l.table.OpenTunnel(tunnelName, tunnelOne), l.table.OpenTunnel("t2", two))
	})
	return l, tunnel
}

// arrive returns what the program says of a frame that comes out of a tunnel.
func (l lab) arrive(t *testing.T, tunnel int, frame []byte) uint32 {
	t.Helper()
	return l.runProgram(t, l.table.fromTunnels.program, tunnel, frame)
}

func TestAFrameFromATunnelTakesTheShortcutOnlyAsKnown(t *testing.T) {
	with := func(at int, value ...byte) func([]byte) {
		return func(frame []byte) { copy(frame[at:], value) }
	}
	for _, tt := range []struct {
		name     string
		from, to Pins
		change   func([]byte)
		want     uint32
	}{
		{"a frame from a member on another node", remote, received, nil, redirected},
		{"a fragment", remote, received, with(frameFragment, 0x20, 0), bridged},
		{"a frame under the address of a member here", sent, received, nil, bridged},
		{"a frame under an address of no member", remote, received, with(frameSource+3, 5), bridged},
		{"a frame under the address of another member there", remote, received, with(frameSource+3, 6), bridged},
		{"a frame under the MAC of another member there", remote, received, with(frameFrom+5, 6), bridged},
		{"a frame under a group's MAC", remote, received, with(frameFrom, 3), bridged},
		{"a frame from a member of another network", stranger, received, nil, bridged},
		{"a frame to an address of nobody here", remote, received, with(frameTarget+3, 9), bridged},
		{"a frame to the MAC of nobody here", remote, received, with(frameTo+5, 9), bridged},
		{"a frame to a member of another network", remote, foreign, nil, bridged},
	} {
		l, tunnel := newTunnelLab(t)
		frame := packet(tt.from, tt.to)
		if tt.change != nil {
			tt.change(frame)
		}
		if got := l.arrive(t, tunnel, frame); got != bridged {
			t.Errorf("%s, first: got %d, want that the bridge hears it", tt.name, int32(got))
		}
		if got := l.arrive(t, tunnel, frame); got != tt.want {
			t.Errorf("%s, again: got %d, want %d", tt.name, int32(got), int32(tt.want))
		}
	}
}

func TestAMemberThatIsNoLongerThereIsNeitherHeardNorReached(t *testing.T) {
	l, tunnel := newTunnelLab(t)
	heard := func(p Pins, want uint32, when string) {
		t.Helper()
		if got := l.arrive(t, tunnel, packet(p, received)); got != want {
			t.Errorf("from %v %s: got %d, want %d", p.Address, when, int32(got), int32(want))
		}
	}
	reached := func(p Pins, want uint32, when string) {
		t.Helper()
		if got := l.run(t, l.links[sent], packet(sent, p)); got != want {
			t.Errorf("to %v %s: got %d, want %d", p.Address, when, int32(got), int32(want))
		}
	}
	for _, p := range []Pins{remote, second} {
		heard(p, bridged, "for the first time")
		heard(p, redirected, "again")
		reached(p, redirected, "as planned")
	}
	l.do(t, func() error { return l.table.ChangeTunnel(tunnelName, tunnelOne.Remotes[1:]) })
	for range 2 {
		heard(remote, bridged, "after it was lost")
		reached(remote, bridged, "after it was lost")
	}
	heard(second, redirected, "when another was lost")
	reached(second, redirected, "when another was lost")
	other := remote
	other.MAC = "02:00:00:01:00:0f"
	changed := append([]Remote{remoteOf(other, peer)}, tunnelOne.Remotes[1:]...)
	l.do(t, func() error { return l.table.ChangeTunnel(tunnelName, changed) })
	reached(other, redirected, "under its new MAC")
	reached(remote, bridged, "under its former MAC")
	l.do(t, func() error {
		states, err := l.table.ReadTunnels(map[string]int{tunnelName: tunnel})
		if state := states[tunnelName]; err != nil || state.Broken || !slices.Equal(state.Tunnel.Remotes, changed) {
			t.Errorf("read back: %+v, %v", states, err)
		}
		return nil
	})
}

func TestTheBridgeHearsAMemberOfAnotherNodeFromTimeToTime(t *testing.T) {
	l, tunnel := newTunnelLab(t)
	frame := packet(remote, received)
	l.arrive(t, tunnel, frame)
	var value remoteValue
	if err := l.table.remotes.Lookup(remote.Address.As4(), &value); err != nil {
		t.Fatal(err)
	}
	value.Heard -= rehearing
	if err := l.table.remotes.Put(remote.Address.As4(), value); err != nil {
		t.Fatal(err)
	}
	if got := l.arrive(t, tunnel, frame); got != bridged {
		t.Errorf("after a while: got %d, want that the bridge hears it", int32(got))
	}
	if got := l.arrive(t, tunnel, frame); got != redirected {
		t.Errorf("right after that: got %d, want the shortcut", int32(got))
	}
}

func TestAFrameGoesIntoATunnelOnlyToAMemberThatIsThere(t *testing.T) {
	l, _ := newTunnelLab(t)
	send := func(to Pins) uint32 { return l.run(t, l.links[sent], packet(sent, to)) }
	if got := send(remote); got != redirected {
		t.Errorf("to a member on another node: got %d", int32(got))
	}
	if got := l.run(t, l.links[foreign], packet(foreign, remote)); got != bridged {
		t.Errorf("from a member of another network: got %d", int32(got))
	}
	if got := send(stranger); got != bridged {
		t.Errorf("to another network: got %d", int32(got))
	}
	mixed := remote
	mixed.MAC = second.MAC
	if got := send(mixed); got != bridged {
		t.Errorf("to the MAC of another member there: got %d", int32(got))
	}
	nobody := Pins{Network: 1, Address: netip.MustParseAddr("10.64.16.9"), MAC: "00:00:00:00:00:00"}
	if got := send(nobody); got != bridged {
		t.Errorf("to an address of nobody: got %d", int32(got))
	}
}

func TestAShutTunnelIsNeitherLeftNorReached(t *testing.T) {
	l, tunnel := newTunnelLab(t)
	l.arrive(t, tunnel, packet(remote, received))
	l.do(t, func() error { return l.table.Shut(tunnelName) })
	for range 2 {
		if got := l.arrive(t, tunnel, packet(remote, received)); got != bridged {
			t.Errorf("out of a tunnel that is shut: got %d", int32(got))
		}
	}
	if got := l.run(t, l.links[sent], packet(sent, remote)); got != bridged {
		t.Errorf("into a tunnel that is shut: got %d", int32(got))
	}
	l.do(t, func() error {
		return l.table.OpenTunnel(tunnelName, Tunnel{Network: 1, Remotes: tunnelOne.Remotes[1:]})
	})
	if got := l.run(t, l.links[sent], packet(sent, remote)); got != bridged {
		t.Errorf("to a member that was lost while the tunnel was shut: got %d", int32(got))
	}
	l.do(t, l.table.ShutAll)
	l.wantEmpty(t)
}

func TestATunnelsShortcutIsReadBack(t *testing.T) {
	l, tunnel := newTunnelLab(t)
	links := map[string]int{tunnelName: tunnel}
	want := func(table *Table, broken bool, when string) {
		t.Helper()
		l.do(t, func() error {
			states, err := table.ReadTunnels(links)
			if got := states[tunnelName]; err == nil && got.Broken != broken {
				t.Errorf("%s: broken is %t", when, got.Broken)
			}
			return err
		})
	}
	want(l.table, false, "as opened")
	other := New()
	defer other.Close()
	want(other, true, "by another process")
	for what, meddle := range map[string]func() error{
		"a member is taken for one behind another peer": func() error {
			value, err := remoteOf(remote, noPeer).value(1)
			return errors.Join(err, l.table.remotes.Put(remote.Address.As4(), value))
		},
		"a member is lost":    func() error { return l.table.remotes.Delete(remote.Address.As4()) },
		"its network is lost": func() error { return l.table.mouths.Delete(uint32(tunnel)) },
		"its place is lost":   func() error { return l.table.exits.Delete(uint32(1)) },
		"another process removed the program": func() error {
			return l.space.Do(func() error { return other.Shut(tunnelName) })
		},
	} {
		if err := meddle(); err != nil {
			t.Fatal(err)
		}
		want(l.table, true, what)
		l.do(t, func() error { return l.table.OpenTunnel(tunnelName, tunnelOne) })
		want(l.table, false, "opened again")
	}
	l.do(t, func() error {
		link, err := netlink.LinkByName(tunnelName)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	delete(links, tunnelName)
	want(l.table, true, "without its link")
	if got := l.run(t, l.links[sent], packet(sent, remote)); got != bridged {
		t.Errorf("into a tunnel that is gone: got %d", int32(got))
	}
}
