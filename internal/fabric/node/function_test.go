package node

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// playedFunctions hands out functions that TAP devices play. They have settings, owners and drivers in this process only; the interface of each
// is a link of the node that the test makes.
type playedFunctions struct {
	netdev   string
	owners   map[fabric.Function]fabric.FunctionOwner
	settings map[fabric.Function]fabric.FunctionSettings
	driver   string
	released []fabric.Function
}

const playedPCI = "0000:3b:10.2"

func (p *playedFunctions) Assign(_ context.Context, o fabric.FunctionOwner, f fabric.Function, s fabric.FunctionSettings) (fabric.FunctionState, error) {
	if was, held := p.owners[f]; held && was.Assignment != o.Assignment {
		return fabric.FunctionState{}, fabric.ErrFunctionHeld
	}
	p.owners[f], p.settings[f] = o, s
	return p.Look(context.Background(), o, f)
}

func (p *playedFunctions) Bind(ctx context.Context, o fabric.FunctionOwner, f fabric.Function, driver string) (fabric.FunctionState, error) {
	p.driver = driver
	return p.Look(ctx, o, f)
}

func (p *playedFunctions) Look(context.Context, fabric.FunctionOwner, fabric.Function) (fabric.FunctionState, error) {
	if p.driver == fabric.DriverVFIO {
		return fabric.FunctionState{PCI: playedPCI, Driver: p.driver, IOMMUGroup: "17"}, nil
	}
	return fabric.FunctionState{PCI: playedPCI, Driver: "dummy", Interface: p.netdev}, nil
}

func (p *playedFunctions) Reset(context.Context, fabric.FunctionOwner, fabric.Function) error {
	return nil
}

func (p *playedFunctions) Release(_ context.Context, o fabric.FunctionOwner, f fabric.Function) error {
	if p.owners[f] == o {
		delete(p.owners, f)
		p.released = append(p.released, f)
	}
	return nil
}

func (p *playedFunctions) Readmit(context.Context, string) error { return nil }

func (p *playedFunctions) Held(assignment string) (held []fabric.Function) {
	for f, o := range p.owners {
		if o.Assignment == assignment {
			held = append(held, f)
		}
	}
	return held
}

// functionNetwork is a network on a VLAN with one port on a function.
func functionNetwork() fabric.Network {
	return fabric.Network{
		Network: api.Network{Index: 1, Technology: api.TechnologyVLAN, VLAN: 101, Prefix: netip.MustParsePrefix("10.65.0.0/20"), Gateway: netip.MustParseAddr("10.65.0.1")},
		Ports: []fabric.Port{{
			ID: "uid.c-0.4", Address: netip.MustParseAddr("10.65.0.2"), MAC: "02:6e:00:01:00:02", Interface: "eth0",
			Function: fabric.Function{Kind: api.PortVF, Device: "0000:3b:00.0", Part: "vf3"},
		}},
	}
}

// functionNode is a node whose only function a TAP device plays.
func functionNode(t *testing.T) (node, *playedFunctions) {
	t.Helper()
	needRoot(t)
	played := &playedFunctions{
		netdev: "nmtest0", owners: map[fabric.Function]fabric.FunctionOwner{}, settings: map[fabric.Function]fabric.FunctionSettings{},
	}
	n := newNode(t, Config{Functions: played})
	n.run(t, "ip tuntap add nmtest0 mode tap && ip link set nmtest0 address 02:6e:00:01:00:02")
	return n, played
}

func TestAFunctionsInterfaceMovesIntoItsMember(t *testing.T) {
	n, played := functionNode(t)
	network := functionNetwork()
	port := network.Ports[0]
	if err := n.fabric.Apply(t.Context(), []fabric.Network{network}); err != nil {
		t.Fatal(err)
	}
	member := newSpace(t)
	place := fabric.Place{Kind: api.PortVF, At: playedPCI, Namespace: member.Path()}
	for range 2 {
		if err := n.fabric.Attach(t.Context(), port, place); err != nil {
			t.Fatal(err)
		}
	}
	out := member.run(t, "ip -o addr show eth0; ip -o link show eth0")
	if !strings.Contains(out, "10.65.0.2/20") || !strings.Contains(out, "02:6e:00:01:00:02") || !strings.Contains(out, "UP") || !strings.Contains(out, "mtu 1500") {
		t.Errorf("in the member: %s", out)
	}
	if out, err := n.try("ip link show nmtest0"); err == nil {
		t.Errorf("the node still has it: %s", out)
	}
	want := fabric.FunctionSettings{MAC: port.MAC, VLAN: 101, SpoofCheck: true, Link: fabric.FunctionLinkAuto}
	if got := played.settings[port.Function]; got != want {
		t.Errorf("the adapter was told %+v, want %+v", got, want)
	}
	if got, want := played.owners[port.Function], (fabric.FunctionOwner{Assignment: "uid.c-0.4", Generation: 4}); got != want {
		t.Errorf("the owner is %+v, want %+v", got, want)
	}
	if drifts, err := n.fabric.Audit(t.Context()); err != nil || len(drifts) > 0 {
		t.Errorf("audit: %v, %v", drifts, err)
	}
	if wrong, err := n.fabric.Probe(t.Context()); err != nil || len(wrong) > 0 {
		t.Errorf("probe: %v, %v", wrong, err)
	}
	n.run(t, "ip tuntap add nmtest0 mode tap") // the kernel gives real ones back
	if err := n.fabric.Detach(t.Context(), "uid.c-0.4"); err != nil || len(played.released) != 1 {
		t.Errorf("released: %v, %v", played.released, err)
	}
}

func TestAMACVTAPDeviceIsMadeOnAFunctionAndGoesBeforeItsRelease(t *testing.T) {
	n, played := functionNode(t)
	_, err := n.try("ip link add nmtest1 link nmtest0 type macvtap mode passthru && ip link del nmtest1")
	needs.Ability(t, err == nil, "macvtap")
	network := functionNetwork()
	port := &network.Ports[0]
	port.Function.Kind = api.PortMACVTAP
	if err := n.fabric.Apply(t.Context(), []fabric.Network{network}); err != nil {
		t.Fatal(err)
	}
	place := fabric.MACVTAP(*port)
	for range 2 {
		if err := n.fabric.Attach(t.Context(), *port, place); err != nil {
			t.Fatal(err)
		}
	}
	if out := n.run(t, "ip -d -o link show "+place.At); !strings.Contains(out, "passthru") || !strings.Contains(out, port.MAC) {
		t.Errorf("the device: %s", out)
	}
	if err := n.fabric.Apply(t.Context(), []fabric.Network{network}); err != nil {
		t.Errorf("applied again: %v", err)
	}
	if err := n.fabric.Detach(t.Context(), "uid.c-0.4"); err != nil || len(played.released) != 1 {
		t.Errorf("released: %v, %v", played.released, err)
	}
	err = n.Do(func() error { _, err := netlink.LinkByName(place.At); return err })
	if !isGone(err) {
		t.Errorf("the device is left: %v", err)
	}
}

func TestWhatNoAdapterEnforcesIsRefusedOnFunctions(t *testing.T) {
	n, played := functionNode(t)
	place := fabric.Place{Kind: api.PortVF, At: playedPCI}
	for name, c := range map[string]struct {
		change func(*fabric.Network)
		place  fabric.Place
		want   error
	}{
		"marked packets":     {func(n *fabric.Network) { n.Ports[0].DSCP = "10" }, place, fabric.ErrFunctionUnfit},
		"a veth port":        {func(*fabric.Network) {}, fabric.Namespace("/proc/self/ns/net"), fabric.ErrPortKind},
		"another kind":       {func(*fabric.Network) {}, fabric.Place{Kind: api.PortPF, At: playedPCI}, fabric.ErrPortKind},
		"an ordinary member": {func(n *fabric.Network) { n.Ports[0].Function = fabric.Function{} }, place, fabric.ErrPortKind},
	} {
		network := functionNetwork()
		c.change(&network)
		applied := network
		if err := n.fabric.Apply(t.Context(), []fabric.Network{applied}); err != nil && network.Ports[0].OnFunction() {
			t.Fatalf("%s: %v", name, err)
		}
		if err := n.fabric.Attach(t.Context(), network.Ports[0], c.place); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
	if len(played.owners) > 0 {
		t.Errorf("a refused port made %v somebody's", played.owners)
	}
}

// TestABridgeAndAFunctionOnOneVLANNeedATrunk: the member on the function is beyond the VLAN to the member on the bridge.
func TestABridgeAndAFunctionOnOneVLANNeedATrunk(t *testing.T) {
	n, _ := functionNode(t)
	network := functionNetwork()
	beside := network.Ports[0]
	beside.ID, beside.Address, beside.MAC, beside.Function = "uid.c-1.4", beside.Address.Next(), "02:6e:00:01:00:03", fabric.Function{}
	network.Ports = append(network.Ports, beside)
	err := n.fabric.Apply(t.Context(), []fabric.Network{network})
	if err == nil || !strings.Contains(err.Error(), "network 1 needs VLAN 101, but this node has no trunk") {
		t.Errorf("got %v", err)
	}
}
