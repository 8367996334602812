package node

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// meet has both nodes of a lab meet, and returns what each heard of the other. Patience bounds a meeting that fails.
func (lab underlayLab) meet(t *testing.T, patience time.Duration) [2]fabric.Meeting {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var heard [2]fabric.Meeting
	var both sync.WaitGroup
	for i := range heard {
		both.Go(func() {
			all, err := lab.nodes[i].fabric.Meet(ctx, lab.networks[i].Index, 77)
			if err != nil || len(all) != 1 || all[0].Peer != underlayAddress(1-i) || all[0].FullBytes != underlayMTUInTests {
				t.Errorf("node %d: got %+v, %v; want one peer and full packets of %d bytes", i, all, err, underlayMTUInTests)
				return
			}
			heard[i] = all[0]
		})
	}
	both.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return heard
}

// shortly is enough for what arrives to arrive.
const shortly = 500 * time.Millisecond

func TestPeersHearEachOthersProbes(t *testing.T) {
	withAndWithoutEgress(t, func(t *testing.T, lab underlayLab) {
		for i, got := range lab.meet(t, markerTimeout) {
			if !got.Small || !got.Full || got.Problem != "" {
				t.Errorf("node %d heard %+v, want all probes of its peer", i, got)
			}
		}
	})
}

func TestAnMTUTooSmallOnTheWayIsFound(t *testing.T) {
	lab := newUnderlayLab(t, false)
	lab.sw.run(t, "ip link set p0 mtu 1500")
	for i, got := range lab.meet(t, shortly) {
		// The switch drops what is larger than the link of the first node takes, in either direction.
		if !got.Small || got.Full {
			t.Errorf("node %d heard %+v, want small probes only", i, got)
		}
	}
}

func TestALinkTooSmallForANetworkIsNamedByItsOwnNode(t *testing.T) {
	lab := newUnderlayLab(t, false)
	lab.nodes[0].run(t, "ip link set under0 mtu 1500")
	heard := lab.meet(t, shortly)
	if got := heard[0]; !strings.Contains(got.Problem, "packets of 9000 bytes don't fit") {
		t.Errorf("the node with the small link heard %+v, want the problem named", got)
	}
	if got := heard[1]; !got.Small || got.Full {
		t.Errorf("the other node heard %+v, want small probes only", got)
	}
}

func TestAFirewallBeforeTunnelsIsFoundInItsDirection(t *testing.T) {
	lab := newUnderlayLab(t, false)
	lab.nodes[1].run(t, "nft 'table inet site { chain input { type filter hook input priority 0; udp dport 4789 drop; }; }'")
	heard := lab.meet(t, shortly)
	if got := heard[0]; !got.Small || !got.Full {
		t.Errorf("the node without a firewall heard %+v, want all probes", got)
	}
	if got := heard[1]; got.Small || got.Full {
		t.Errorf("the node with the firewall heard %+v, want nothing", got)
	}
}

func TestOnlyProbesOfPeersForThisMeetingCount(t *testing.T) {
	peer, stranger := netip.MustParseAddr("198.18.0.2"), netip.MustParseAddr("198.18.0.9")
	fresh := func() *meeting {
		return &meeting{network: 3, mark: 5, full: 8972, peers: []fabric.Meeting{{Peer: peer}}, at: []netip.Addr{peer}, heardUs: make([]bool, 1)}
	}
	packet := func(m meeting, full bool) []byte { return append(make([]byte, udpHeader), m.probe(full, true)...) }
	other := func(change func(m *meeting)) meeting { m := *fresh(); change(&m); return m }
	for name, tt := range map[string]struct {
		from        netip.Addr
		packet      []byte
		small, full bool
	}{
		"a small probe of a peer":          {peer, packet(*fresh(), false), true, false},
		"a full probe of a peer":           {peer, packet(*fresh(), true), false, true},
		"a probe of a stranger":            {stranger, packet(*fresh(), true), false, false},
		"a probe of another meeting":       {peer, packet(other(func(m *meeting) { m.mark = 6 }), true), false, false},
		"a probe for another network":      {peer, packet(other(func(m *meeting) { m.network = 4 }), true), false, false},
		"a full probe for smaller packets": {peer, packet(other(func(m *meeting) { m.full = 1472 }), true), false, false},
		"a packet that ends in the middle": {peer, packet(*fresh(), false)[:udpHeader+probeFlags], false, false},
		"a packet without anything in it":  {peer, nil, false, false},
	} {
		m := fresh()
		m.take(tt.from, tt.packet)
		if got := m.peers[0]; got.Small != tt.small || got.Full != tt.full || m.heardUs[0] != (tt.small || tt.full || strings.HasPrefix(name, "a full probe for")) {
			t.Errorf("%s: got %+v, heard back %v", name, got, m.heardUs)
		}
	}
}
