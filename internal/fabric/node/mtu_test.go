package node

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// unfragmented sends a datagram of this many bytes, its IPv4 packet, that nobody may cut. It reports whether it arrives in time.
func unfragmented(t *testing.T, from, to member, bytes int, patience time.Duration) (arrived bool, err error) {
	t.Helper()
	text := token()
	l := to.listen(t, memberLink)
	err = from.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
			return err
		}
		const headers = 20 + 8 // IPv4 and UDP
		return unix.Sendto(fd, append(make([]byte, bytes-headers-len(text)), text...), 0, &unix.SockaddrInet4{Port: 9, Addr: to.port.Address.As4()})
	})
	if err != nil {
		return false, err
	}
	_, arrived = l.until(text, patience)
	return arrived, nil
}

// mustCarry fails unless packets of this many bytes arrive, and a longer one does not leave its member.
func mustCarry(t *testing.T, from, to member, what string, bytes int) {
	t.Helper()
	if arrived, err := unfragmented(t, from, to, bytes, markerTimeout); !arrived {
		t.Errorf("%s: a packet of %d bytes that must not be cut does not arrive (%v)", what, bytes, err)
	}
	if _, err := unfragmented(t, from, to, bytes+1, shortly); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("%s: a packet of %d bytes got %v, want that it is too long", what, bytes+1, err)
	}
}

func TestAChosenMTUHoldsOnEveryNodeAndBetweenThem(t *testing.T) {
	for _, mtu := range []int{576, 1400, underlayMTUInTests - vxlanOverhead} {
		lab := newUnderlayLab(t, false)
		var members []member
		for i := range lab.nodes {
			n := testNetwork(4)
			n.MTU = mtu
			n.Ports = []fabric.Port{testPort(n, 2+i), testPort(n, 12+i)}
			apply(t, lab.nodes[i].fabric, lab.networks[i], n)
			members = append(members, attach(t, lab.nodes[i].fabric, n, 0))
			if got := mtuOf(t, members[2*i]); got != mtu {
				t.Errorf("on one node alone: MTU %d, want %d", got, mtu)
			}
			n.Remotes = behind(n, underlayAddress(1-i), 3-i)
			apply(t, lab.nodes[i].fabric, lab.networks[i], n)
			members = append(members, attach(t, lab.nodes[i].fabric, n, 1))
		}
		here, beside, there := members[0], members[1], members[2]
		mustCarry(t, here, there, "to another node", mtu)
		mustCarry(t, there, here, "from another node", mtu)
		mustCarry(t, here, beside, "on one node", mtu)
		if mtu < 1500 {
			// A member can lie to its own kernel. The port and the bridge take 4 bytes more than their MTU, for a tag of IEEE 802.1Q.
			here.run(t, "ip link set eth0 mtu 9000")
			if arrived, err := unfragmented(t, here, there, mtu+4+1, shortly); arrived || err != nil {
				t.Errorf("by force: a packet of %d bytes arrived: %t, %v", mtu+5, arrived, err)
			}
		}
		for i := range lab.nodes {
			if drifts, err := lab.nodes[i].fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
				t.Errorf("audit of node %d: %v, %v", i, drifts, err)
			}
		}
		if t.Failed() {
			t.Fatalf("with MTU %d", mtu)
		}
	}
}

func TestARoutedPacketThatIsTooLargeForTheNextNetworkIsAnsweredWithItsMTU(t *testing.T) {
	lab := newRoutedLab(t, func(n *fabric.Network) {
		if n.Index == 1 {
			n.MTU = 1400
		}
	})
	a, b := lab.members["1 on 0"], lab.members["2 on 1"]
	if arrived, err := unfragmented(t, b, a, 4000, shortly); arrived || err != nil {
		t.Fatalf("the first packet of 4000 bytes to a network with an MTU of 1400: arrived %t, %v", arrived, err)
	}
	if _, err := unfragmented(t, b, a, 4000, shortly); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("the second packet of 4000 bytes: got %v, want that the member's kernel has learned the MTU", err)
	}
	mustCarry(t, b, a, "to the network with the smaller MTU", 1400)
	mustCarry(t, a, b, "from the network with the smaller MTU", 1400)
	lab.mustBeAsWanted(t)
}

func TestAnUnderlayThatShrinksIsReportedForEachNetworkThatItIsTooSmallFor(t *testing.T) {
	lab := newUnderlayLab(t, false)
	f := lab.nodes[0].fabric
	chosen := lab.networks[0]
	chosen.MTU = 8000
	apply(t, f, chosen)
	under := func(mtu int) {
		if got, err := f.Underlay(t.Context()); err != nil || got.MTU != mtu {
			t.Errorf("underlay: got %+v, %v; want an MTU of %d", got, err, mtu)
		}
	}
	under(underlayMTUInTests)
	lab.nodes[0].run(t, "ip link set under0 mtu 8049")
	under(8049)
	drifts, err := f.Audit(t.Context())
	want := fabric.Drift{Network: 3, Object: "MTU of the underlay", Want: "at least 8050, for 8000 in a tunnel", Got: "8049"}
	if err != nil || !slices.Contains(drifts, want) {
		t.Errorf("audit: %+v, %v; want %+v", drifts, err, want)
	}
	apply(t, f, chosen) // others of its networks must still be made
	lab.nodes[0].run(t, "ip link set under0 mtu 8050")
	apply(t, f, chosen)
	if drifts, err := f.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("with a byte more: %+v, %v", drifts, err)
	}
}

func TestTheUnderlaysRateIsWhatTheOperatorSaid(t *testing.T) {
	needRoot(t)
	space := newSpace(t)
	space.run(t, "ip link add under0 mtu 1500 type veth peer name other0; ip link set under0 up; ip address add 198.18.0.1/24 dev under0")
	for _, tt := range []struct {
		cfg  plan.Config
		want fabric.Underlay
	}{
		{plan.Config{Underlay: underlayAddress(0), UplinkRate: 25e9}, fabric.Underlay{MTU: 1500, BitsPerSecond: 25e9}},
		{plan.Config{Underlay: underlayAddress(0)}, fabric.Underlay{MTU: 1500}}, // a veth pair has no speed
		{plan.Config{UplinkRate: 25e9}, fabric.Underlay{BitsPerSecond: 25e9}},
		{plan.Config{Underlay: underlayAddress(7)}, fabric.Underlay{}},
	} {
		if got, err := newFabric(t, space, Config{Config: tt.cfg}).Underlay(t.Context()); err != nil || got != tt.want {
			t.Errorf("%+v: got %+v, %v; want %+v", tt.cfg, got, err, tt.want)
		}
	}
}
