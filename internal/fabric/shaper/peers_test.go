package shaper_test

import (
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/shaper"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

const link = "peers0"

// inSpace does something in a network namespace of its own, with a link whose neighbours 10.9.0.2 to 10.9.0.4 take everything and say nothing.
func inSpace(t *testing.T, do func(l netlink.Link)) {
	t.Helper()
	needs.Root(t, "makes a network namespace")
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = space.Close() }()
	if err := space.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: "others"}); err != nil {
			return err
		}
		others, err := netlink.LinkByName("others")
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(others); err != nil {
			return err
		}
		l, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 9, 0, 1), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		for _, last := range []byte{2, 3, 4} {
			if err := netlink.NeighSet(&netlink.Neigh{
				LinkIndex: l.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: net.IPv4(10, 9, 0, last), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, last},
			}); err != nil {
				return err
			}
		}
		do(l)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestPeersAreHeldToTheirRatesAndOthersToNone(t *testing.T) {
	peer := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, last}) }
	inSpace(t, func(l netlink.Link) {
		for _, rates := range []map[netip.Addr]int64{
			{}, {peer(2): 1 << 20}, {peer(2): 1 << 20, peer(3): 7 << 20}, {peer(3): 2 << 20}, {peer(3): 16 << 40, peer(4): 1 << 20}, {}, {peer(2): 3 << 20, peer(4): 5 << 20},
		} {
			for range 2 {
				if err := shaper.SetPeers(link, rates); err != nil {
					t.Fatalf("%v: %v", rates, err)
				}
			}
			got, whole, err := shaper.Peers(link)
			if err != nil || !whole || !maps.Equal(got, rates) {
				t.Errorf("got %v, %t (%v), want %v", got, whole, err, rates)
			}
		}
		before := classBytes(t, l)
		for _, last := range []byte{2, 3} {
			conn, err := net.Dial("udp4", peer(last).String()+":9")
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if _, err := conn.Write(make([]byte, 1000)); err != nil {
					t.Fatal(err)
				}
			}
			_ = conn.Close()
		}
		after := classBytes(t, l)
		if len(after) != 2 || after[0]-before[0] < 10*1000 || after[1] != before[1] {
			t.Errorf("classes counted %v and then %v, want what was sent to the first peer in its class, and nothing in the other's", before, after)
		}
	})
}

// classBytes is what passed each class of a link, in their order.
func classBytes(t *testing.T, l netlink.Link) []uint64 {
	t.Helper()
	classes, err := netlink.ClassList(l, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all []uint64
	for _, c := range classes {
		all = append(all, c.Attrs().Statistics.Basic.Bytes)
	}
	return all
}

func TestWhatSomebodyElseHasPutInPlaceOfRatesIsReplaced(t *testing.T) {
	rates := map[netip.Addr]int64{netip.MustParseAddr("10.9.0.2"): 1 << 20, netip.MustParseAddr("10.9.0.3"): 2 << 20}
	inSpace(t, func(l netlink.Link) {
		for what, meddle := range map[string]func() error{
			"another queue": func() error {
				return netlink.QdiscReplace(&netlink.Tbf{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(9, 0)}, Rate: 1 << 20, Buffer: 1 << 20, Limit: 1 << 20})
			},
			"a class without its filter": func() error {
				filters, err := netlink.FilterList(l, netlink.MakeHandle(0x6e6d, 0))
				for _, f := range filters {
					if u, ok := f.(*netlink.U32); ok && u.Sel != nil && len(u.Sel.Keys) > 0 {
						return netlink.FilterDel(f)
					}
				}
				return err
			},
			"a class that no filter chooses": func() error {
				return netlink.ClassAdd(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.MakeHandle(0x6e6d, 0), Handle: netlink.MakeHandle(0x6e6d, 9)}, netlink.HtbClassAttrs{Rate: 8 << 30}))
			},
			"another queue of a class": func() error {
				return netlink.QdiscReplace(&netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.MakeHandle(0x6e6d, 1), Handle: netlink.MakeHandle(9, 0)}, QdiscType: "pfifo"})
			},
			"another rate": func() error {
				return netlink.ClassChange(netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.MakeHandle(0x6e6d, 0), Handle: netlink.MakeHandle(0x6e6d, 1)}, netlink.HtbClassAttrs{Rate: 8 << 30}))
			},
		} {
			if err := shaper.SetPeers(link, rates); err != nil {
				t.Fatal(err)
			}
			if err := meddle(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if got, whole, err := shaper.Peers(link); err != nil || whole && maps.Equal(got, rates) {
				t.Errorf("%s: got %v as if it was whole (%v)", what, got, err)
			}
			if err := shaper.SetPeers(link, rates); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if got, whole, err := shaper.Peers(link); err != nil || !whole || !maps.Equal(got, rates) {
				t.Errorf("%s: afterwards got %v, %t (%v), want %v", what, got, whole, err, rates)
			}
		}
	})
}
