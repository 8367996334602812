package node

import (
	"net/netip"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// TestARoutedNetworkLeadsNeitherOutsideNorToTheNode lets a member send everything to its gateway. The node knows a way to the outside.
func TestARoutedNetworkLeadsNeitherOutsideNorToTheNode(t *testing.T) {
	lab := newRoutedLab(t, nil)
	here, peer, outside := lab.nodes[0], lab.nodes[1].namespace, lab.stranger
	a, b := lab.members["1 on 0"], lab.members["2 on 1"]
	way := " via " + underlayAddress(2).String()
	here.run(t, "ip route add default"+way)
	peer.run(t, "ip route add "+internet+way)
	outside.run(t, "ip address add "+internet+"/32 dev lo; for i in all under0; do echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter; done")
	a.run(t, "ip route add default via "+lab.networks[0][0].Gateway.String())
	for _, tt := range []struct {
		what, address, off string
		at                 namespace
	}{
		{"the outside", internet, "nft flush chain inet nm forward", outside},
		{"the node", underlayAddress(0).String(), "nft flush chain inet nm input", here.namespace},
	} {
		heard := tt.at.hear(t, tt.address)
		arrives := func() bool {
			t.Helper()
			text, end := token(), token()
			a.tell(t, tt.address, text)
			mustReach(t, a.namespace, "a member on another routed network", b.address()) // comes behind it, on the same way
			peer.tell(t, tt.address, end)
			return heard(text, end)
		}
		here.run(t, tt.off)
		if !arrives() {
			t.Errorf("a packet to %s does not arrive with the guard off, so the test shows nothing", tt.what)
		}
		apply(t, here.fabric, lab.networks[0]...)
		if arrives() {
			t.Errorf("a packet to %s arrived, but must not", tt.what)
		}
	}
}

// TestOnlyNetworksWithEgressCallFloatingAddresses lets a member of a routed network without egress send to the address of a member that it may reach
// by its own.
func TestOnlyNetworksWithEgressCallFloatingAddresses(t *testing.T) {
	lab := newFloatingLab(t)
	m, closed := lab.members[0], testNetwork(5, 2)
	open := lab.networks[0]
	pool := netip.MustParsePrefix("10.64.0.0/10")
	closed.Routed, closed.Pool, open.Routed, open.Pool = true, pool, true, pool
	open.Floating = []fabric.Floating{floatingTo(floatingOne, m.port)}
	apply(t, lab.nodes[0].fabric, open, closed)
	from := attach(t, lab.nodes[0].fabric, closed, 0)
	from.run(t, "ip route add default via "+closed.Gateway.String())
	m.run(t, "ip route replace "+closed.Prefix.String()+" via "+open.Gateway.String())
	heard := m.hear(t, m.address())
	arrives := func() bool {
		t.Helper()
		text, end := token(), token()
		from.tell(t, floatingOne, text)
		mustReach(t, from.namespace, "the member by its own address", m.address()) // comes behind it, on the same way
		lab.client.tell(t, floatingOne, end)
		return heard(text, end)
	}
	lab.nodes[0].run(t, "nft flush chain inet nm floated")
	if !arrives() {
		t.Error("a packet to a floating address does not arrive with the guard off, so the test shows nothing")
	}
	apply(t, lab.nodes[0].fabric, open, closed)
	if arrives() {
		t.Error("a packet of a network without egress to a floating address arrived, but must not")
	}
}

// TestWhatSomebodyElseTranslatesComesToNoMember lets rules of somebody else lead an address to a member.
func TestWhatSomebodyElseTranslatesComesToNoMember(t *testing.T) {
	lab := newFloatingLab(t)
	m := lab.members[0]
	lab.float(t, 0, floatingTo(floatingOne, m.port))
	lab.nodes[0].run(t, "ip address add "+floatingTwo+"/32 dev up0; nft add table ip theirs; "+
		"nft 'add chain ip theirs before { type nat hook prerouting priority -100; }'; nft add rule ip theirs before ip daddr "+floatingTwo+" dnat to "+m.address())
	heard := m.hear(t, m.address())
	arrives := func() bool {
		t.Helper()
		text, end := token(), token()
		lab.client.tell(t, floatingTwo, text)
		lab.client.tell(t, floatingOne, end)
		return heard(text, end)
	}
	lab.nodes[0].run(t, "nft flush chain inet nm forward")
	if !arrives() {
		t.Error("a packet that somebody else translates does not arrive with the guard off, so the test shows nothing")
	}
	lab.float(t, 0, floatingTo(floatingOne, m.port))
	if arrives() {
		t.Error("a packet that somebody else translates arrived, but must not")
	}
}
