package node

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

func TestAStandbyOnAVLANHasItsMembersAddressWhileTheFunctionIsParked(t *testing.T) {
	needVLAN(t)
	played := &playedFunctions{owners: map[fabric.Function]fabric.FunctionOwner{}, settings: map[fabric.Function]fabric.FunctionSettings{}}
	n := newNode(t, Config{Functions: played, Config: plan.Config{Trunk: "nmtrunk0"}})
	n.run(t, "ip link add nmtrunk0 type veth peer name nmtrunk1 && ip link set nmtrunk0 up && ip link set nmtrunk1 up")
	network := functionNetwork()
	network.Ports[0].Standby = true
	port := network.Ports[0]
	apply(t, n.fabric, network)
	must := func(what, mac string, filters ...string) {
		t.Helper()
		if got := played.settings[port.Function]; got.MAC != mac || mac != "" && (got.VLAN != 101 || !got.SpoofCheck) {
			t.Errorf("%s: the adapter has %+v for the function, want the MAC %q", what, got, mac)
		}
		var got []string
		if err := n.Do(func() error { got = vlanFilters(t, network); return nil }); err != nil || !slices.Equal(got, filters) {
			t.Errorf("%s: the trunk takes %v, want %v (%v)", what, got, filters, err)
		}
		if drifts, err := n.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
			t.Errorf("%s: audit: %v, %v", what, drifts, err)
		}
	}
	if wrong, err := n.fabric.Probe(t.Context()); err != nil || wrong[port.ID] != "its network port is gone" {
		t.Errorf("before it is attached: %v, %v", wrong, err)
	}
	for range 2 {
		if err := n.fabric.Attach(t.Context(), port, fabric.TAP(port)); err != nil {
			t.Fatal(err)
		}
	}
	must("before the machine runs", "")
	plug := func() {
		t.Helper()
		if _, err := n.fabric.AttachFunction(t.Context(), port, fabric.DriverVFIO); err != nil {
			t.Fatal(err)
		}
	}
	plug()
	must("with its function", port.MAC)
	if wrong, err := n.fabric.Probe(t.Context()); err != nil || len(wrong) > 0 {
		t.Errorf("with its function: %v, %v", wrong, err)
	}
	if err := n.fabric.Attach(t.Context(), port, fabric.TAP(port)); err != nil {
		t.Fatal(err)
	}
	must("attached again", port.MAC)
	for range 2 {
		if err := n.fabric.ParkFunction(t.Context(), port); err != nil {
			t.Fatal(err)
		}
	}
	must("parked", "", port.MAC)
	fixed := func() string { return n.run(t, "bridge fdb show br nmbr1 | grep "+port.MAC+" | grep sticky || true") }
	if got := fixed(); !strings.Contains(got, plan.PortName(port.ID)) {
		t.Errorf("parked: the bridge may learn the member's address elsewhere: %q", got)
	}
	plug()
	must("with its function again", port.MAC)
	if got := fixed(); got != "" {
		t.Errorf("with its function again, the bridge has the address fixed: %s", got)
	}

	const stray = "02:6e:00:01:00:99"
	if err := n.Do(func() error { return setFilter(plan.VLANName(1), stray, true) }); err != nil {
		t.Fatal(err)
	}
	drifts, err := n.fabric.Audit(t.Context())
	if err != nil || len(drifts) != 1 || !strings.Contains(drifts[0].Object, stray) {
		t.Errorf("an address that nobody here has: %v, %v", drifts, err)
	}
	apply(t, n.fabric, network)
	must("after the repair", port.MAC)

	if err := errors.Join(n.fabric.ParkFunction(t.Context(), port), n.fabric.Detach(t.Context(), "uid.c-0.4")); err != nil || len(played.released) != 1 {
		t.Errorf("detached: %v, released %v", err, played.released)
	}
	must("detached", "")
	if err := n.Do(func() error { _, err := netlink.LinkByName(plan.PortName(port.ID)); return err }); !isGone(err) {
		t.Errorf("the TAP device is left: %v", err)
	}
	apply(t, n.fabric)
	if out := n.run(t, "ip -o link show type vlan; ip -o link show type bridge; nft list ruleset"); out != "" {
		t.Errorf("left: %s", out)
	}
}

func TestAStandbyIsForAPortThatHasOneOnly(t *testing.T) {
	n, played := functionNode(t)
	network := functionNetwork()
	port := network.Ports[0]
	if err := n.fabric.Apply(t.Context(), []fabric.Network{network}); err != nil {
		t.Fatal(err)
	}
	if err := n.fabric.ParkFunction(t.Context(), port); err == nil || !strings.Contains(err.Error(), "it has no standby") {
		t.Errorf("parked without a standby: %v", err)
	}
	if err := n.fabric.Attach(t.Context(), port, fabric.TAP(port)); !errors.Is(err, fabric.ErrPortKind) {
		t.Errorf("a TAP device without a standby: %v", err)
	}
	network.Ports[0].Standby = true
	err := n.fabric.Apply(t.Context(), []fabric.Network{network})
	if err == nil || !strings.Contains(err.Error(), "network 1 needs VLAN 101, but this node has no trunk") {
		t.Errorf("on a node without a trunk: %v", err)
	}
	if len(played.owners) > 0 {
		t.Errorf("a refused port made %v somebody's", played.owners)
	}
}
