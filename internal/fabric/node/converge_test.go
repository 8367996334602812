package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// wideNetworks are one of each kind; the node they are for needs an uplink and an underlay.
func wideNetworks() []fabric.Network {
	one, two, three := testNetwork(1, 2, 3), testNetwork(2, 2), testNetwork(3, 2)
	two.Egress = true
	two.Floating = []fabric.Floating{{Address: netip.MustParseAddr("192.0.2.101"), Port: two.Ports[0].ID}}
	three.Egress = true
	three.Floating = []fabric.Floating{{Address: netip.MustParseAddr("192.0.2.102"), Port: three.Ports[0].ID, Forwards: []fabric.Forward{{Protocol: "tcp", Port: 2222, MemberPort: 22}}}}
	three.Remotes = append(behind(three, netip.MustParseAddr("192.0.2.3"), 3), behind(three, netip.MustParseAddr("192.0.2.4"), 4, 5)...)
	four, five := testNetwork(4, 2), testNetwork(5)
	four.Routed, five.Routed = true, true
	four.Remotes, five.Remotes = behind(four, netip.MustParseAddr("192.0.2.3"), 3, 4), behind(five, netip.MustParseAddr("192.0.2.4"), 3)
	return []fabric.Network{one, two, three, four, five}
}

// newWideNode is a node for wideNetworks, with things of others on it that have to stay.
func newWideNode(t testing.TB) (namespace, Config) {
	t.Helper()
	needRoot(t)
	space := newSpace(t)
	space.run(t, `echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; ip link set lo up; ip link add up0 type veth peer name up1; ip link set up1 up; ip link set up0 up; ip address add 192.0.2.1/24 dev up0; ip route add default via 192.0.2.2
		until ip -o link show up1 | grep -q 'state UP'; do :; done # the kernel notices a carrier a while later
		ip link add nmbrother type bridge; ip link add nmproxy type bridge
		printf 'table inet nmother {\n\tchain input {\n\t\ttype filter hook input priority 0; policy accept;\n\t}\n}\n' | nft -f -`)
	return space, Config{Config: plan.Config{Underlay: underlayOfWideNode}}
}

var underlayOfWideNode = netip.MustParseAddr("192.0.2.1")

func TestRemovingAllNetworksLeavesTheNodeAsItWas(t *testing.T) {
	space, cfg := newWideNode(t)
	before := space.snapshot(t)
	f := newFabric(t, space, cfg)
	networks := wideNetworks()
	apply(t, f, networks...)
	for _, n := range networks {
		for i := range n.Ports {
			attach(t, f, n, i)
		}
	}
	apply(t, f)
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(space.snapshot(t), "\n")); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

func TestWhatACrashLeavesAfterAnyOperationIsMendedByTheNextApply(t *testing.T) {
	space, cfg := newWideNode(t)
	before := space.snapshot(t)
	networks := wideNetworks()
	for _, target := range [][]fabric.Network{networks, nil} {
		for crash := 0; ; crash++ {
			start := nil2(target, networks)
			apply(t, newFabric(t, space, cfg), start...)
			doomed := newFabric(t, space, cfg)
			_, ops, err := doomed.plan(context.Background(), wanted{networks: target})
			if err != nil {
				t.Fatal(err)
			}
			if crash > len(ops) {
				break
			}
			if err := doomed.executeAll(context.Background(), ops[:crash]); err != nil {
				t.Fatalf("after %d operations: %v", crash, err)
			}
			successor := newFabric(t, space, cfg)
			apply(t, successor, networks...)
			a, b := attach(t, successor, networks[0], 0), attach(t, successor, networks[0], 1)
			mustReach(t, a.namespace, "another member", b.address())
		}
	}
	apply(t, newFabric(t, space, cfg))
	if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(space.snapshot(t), "\n")); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

// nil2 is where a plan for target starts from: nothing, or everything when target is nothing.
func nil2(target, everything []fabric.Network) []fabric.Network {
	if target == nil {
		return everything
	}
	return nil
}

func TestAuditFindsWhatSomebodyChanged(t *testing.T) {
	space, cfg := newWideNode(t)
	f := newFabric(t, space, cfg)
	networks := wideNetworks()
	apply(t, f, networks...)
	attach(t, f, networks[0], 0)
	port := plan.PortName(networks[0].Ports[0].ID)
	meddlings := []struct{ meddling, object string }{
		{"ip link set nmbr1 down", "bridge nmbr1 state"},
		{"ip link set nmbr1 type bridge mcast_snooping 0", "bridge nmbr1 mcast_snooping"},
		{"ip link set nmbr1 type bridge mcast_querier 0", "bridge nmbr1 mcast_snooping"},
		{"bridge link set dev nmvx3 mcast_router 1", "vxlan nmvx3 mcast_router"},
		{"ip link set nmbr1 address 02:00:00:00:00:01", "bridge nmbr1 address"},
		{"ip link set " + port + " nomaster", "veth " + port + " master"},
		{"ip link set " + port + " mtu 1500", "veth " + port + " mtu"},
		{"ip link delete nmvx3", "vxlan nmvx3"},
		{"ip address flush dev nmbr2", "address of nmbr2"},
		{"ip address delete 192.0.2.101/32 dev up0", "floating address on up0"},
		{"nft flush map inet nm floating_in", "nftables element { 192.0.2.101 : 10.64.32.2 } of set floating_in of table inet nm"},
		{"bridge fdb delete 00:00:00:00:00:00 dev nmvx3 dst 192.0.2.4", "peer of nmvx3"},
		{"bridge fdb append 00:00:00:00:00:00 dev nmvx3 dst 192.0.2.9", "peer of nmvx3"},
		{"echo 0 > /proc/sys/net/ipv4/conf/up0/forwarding", "forwarding on up0"},
		{"ip link add nmbr77 type bridge", "link nmbr77"},
		{"nft flush set inet nm remotes", "of set remotes of table inet nm"},
		{"nft flush set bridge nm remotes", "of set remotes of table bridge nm"},
		{"bridge fdb append 02:00:00:03:00:03 dev nmvx3 dst 192.0.2.4 self dynamic", "member 02:00:00:03:00:03 of nmvx3"},
		{"nft flush set bridge nm pins", "of set pins of table bridge nm"},
		{"nft flush chain bridge nm input", "nftables table bridge nm"},
		{"nft insert rule inet nm forward accept", "nftables table inet nm"},
		{"nft flush ruleset", "nftables table bridge nm"},
		{"nft add table ip nm5", "nftables table ip nm5"},
	}
	if f.shortcutting {
		meddlings = append(meddlings, struct{ meddling, object string }{"tc filter delete dev " + port + " ingress", "shortcut of " + port},
			struct{ meddling, object string }{"tc filter delete dev nmvx3 ingress", "shortcut of nmvx3"})
	}
	for _, tt := range meddlings {
		space.run(t, tt.meddling)
		drifts, err := f.Audit(context.Background())
		found := slices.ContainsFunc(drifts, func(d fabric.Drift) bool { return strings.Contains(d.Object, tt.object) })
		if err != nil || !found {
			t.Errorf("after %q: got %+v, %v; want a drift of %q", tt.meddling, drifts, err, tt.object)
		}
		apply(t, f, networks...)
		if drifts, err := f.Audit(context.Background()); err != nil || len(drifts) > 0 {
			t.Errorf("%q was not mended: %+v, %v", tt.meddling, drifts, err)
		}
	}
}

func TestANetworkWithoutMembersIsAsItShouldBe(t *testing.T) {
	lab := newPairLab(t)
	for _, m := range []member{lab.a, lab.b} {
		if err := lab.node.fabric.Detach(context.Background(), m.port.ID); err != nil {
			t.Fatal(err)
		}
	}
	if drifts, err := lab.node.fabric.Audit(context.Background()); err != nil || len(drifts) > 0 {
		t.Errorf("after the last member left: %+v, %v", drifts, err)
	}
}

func TestAttachingAgainDoesNotDisturbAMember(t *testing.T) {
	lab := newPairLab(t)
	index := lab.node.run(t, "ip -o link show "+plan.PortName(lab.a.port.ID)+" | cut -d: -f1")
	if err := lab.node.fabric.Attach(context.Background(), lab.a.port, lab.a.place()); err != nil {
		t.Fatal(err)
	}
	if again := lab.node.run(t, "ip -o link show "+plan.PortName(lab.a.port.ID)+" | cut -d: -f1"); again != index {
		t.Errorf("the port was made anew: link %s, before %s", again, index)
	}
	lab.a.run(t, "ip address flush dev eth0; ip link set eth0 down; ip link set lo down")
	lab.node.run(t, "ip link set "+plan.PortName(lab.a.port.ID)+" nomaster down")
	if err := lab.node.fabric.Attach(context.Background(), lab.a.port, lab.a.place()); err != nil {
		t.Fatal(err)
	}
	mustReach(t, lab.a.namespace, "another member, after its port was mended", lab.b.address())
}

func TestAPortMovesToTheNewNamespaceOfAMemberThatWasStartedAgain(t *testing.T) {
	lab := newPairLab(t)
	reborn := member{newSpace(t), lab.a.port}
	if err := lab.node.fabric.Attach(context.Background(), reborn.port, reborn.place()); err != nil {
		t.Fatal(err)
	}
	mustReach(t, reborn.namespace, "another member", lab.b.address())
}

func TestAttachRefusesAPortThatRulesDoNotPin(t *testing.T) {
	lab := newPairLab(t)
	space := newSpace(t)
	stranger := testPort(lab.network, 9)
	wrong := lab.a.port
	wrong.MAC = stranger.MAC
	for _, port := range []fabric.Port{stranger, wrong} {
		if err := lab.node.fabric.Attach(context.Background(), port, fabric.Namespace(space.Path())); !errors.Is(err, fabric.ErrNotApplied) {
			t.Errorf("%+v: got %v, want ErrNotApplied", port, err)
		}
	}
}

func TestAttachWaitsUntilTheBridgeForwards(t *testing.T) {
	lab := newPairLab(t)
	name := plan.PortName(lab.a.port.ID)
	lab.a.run(t, "ip link set eth0 down")
	waiting := make(chan error, 1)
	go func() {
		waiting <- lab.node.Do(func() error { return awaitForwarding(context.Background(), name) })
	}()
	lab.a.run(t, "ip link set eth0 up")
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	lab.a.run(t, "ip link set eth0 down")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := lab.node.Do(func() error { return awaitForwarding(ctx, name) })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it gives up when told to", err)
	}
}

func TestAMemberHasNoIPv6(t *testing.T) {
	lab := newPairLab(t)
	if out := lab.a.run(t, "ip -6 -o address show dev eth0"); out != "" {
		t.Errorf("got %s", out)
	}
}
