package whole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

const (
	bootMAC = "02:00:00:00:00:0b"
	dataMAC = "02:00:00:00:00:0d"
	portMAC = "02:6e:00:01:00:02"
)

// inMachine does something in a namespace that stands in for a machine with two interfaces, boot0 and data0.
func inMachine(t *testing.T, do func(f *Fabric)) {
	t.Helper()
	needs.Root(t, "makes a network namespace")
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = space.Close() }()
	err = space.Do(func() error {
		for name, mac := range map[string]string{"boot0": bootMAC, "data0": dataMAC} {
			address, err := net.ParseMAC(mac)
			if err != nil {
				return err
			}
			link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: address}, PeerName: name + "p"}
			if err := netlink.LinkAdd(link); err != nil {
				return err
			}
		}
		do(again())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// again is the fabric after a restart of the agent.
func again() *Fabric {
	f := New(strings.ToUpper(bootMAC))
	f.kind = "veth"
	return f
}

// oneNetwork has one port.
func oneNetwork() ([]fabric.Network, fabric.Port) {
	port := fabric.Port{ID: "c1.m-0.1", Address: netip.MustParseAddr("10.64.16.2"), MAC: portMAC, Interface: "eth0"}
	return []fabric.Network{{
		Network: api.Network{UID: "n", Index: 1, Prefix: netip.MustParsePrefix("10.64.16.0/20"), Gateway: netip.MustParseAddr("10.64.16.1"), MTU: 1400},
		Ports:   []fabric.Port{port},
	}}, port
}

func on(mac string) fabric.Place { return fabric.Place{Kind: api.PortPF, At: mac} }

// has tells an interface's MAC address, MTU, whether it is up and whether it has the port's address.
func has(t *testing.T, name string) (mac string, mtu int, up, address bool) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Error(err)
		return "", 0, false, false
	}
	all, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		t.Error(err)
	}
	for _, a := range all {
		address = address || a.IPNet.String() == "10.64.16.2/20"
	}
	return link.Attrs().HardwareAddr.String(), link.Attrs().MTU, link.Attrs().Flags&net.FlagUp != 0, address
}

func TestAPortIsAnAddressOnAnInterfaceOfTheMachine(t *testing.T) {
	inMachine(t, func(f *Fabric) {
		ctx := context.Background()
		networks, port := oneNetwork()
		if err := f.Attach(ctx, port, on(dataMAC)); !errors.Is(err, fabric.ErrNotApplied) {
			t.Errorf("before its network: %v", err)
		}
		if err := f.Apply(ctx, networks); err != nil {
			t.Error(err)
		}
		if wrong, _ := f.Probe(ctx); !strings.Contains(wrong[port.ID], "no interface has its address 10.64.16.2/20") {
			t.Errorf("before it is attached it has %v", wrong)
		}
		for range 2 {
			if err := f.Attach(ctx, port, on(dataMAC)); err != nil {
				t.Error(err)
			}
		}
		if mac, mtu, up, address := has(t, "data0"); mac != portMAC || mtu != 1400 || !up || !address {
			t.Errorf("the interface has MAC address %s, MTU %d, is up: %v, has the address: %v", mac, mtu, up, address)
		}
		next := again()
		if err := next.Apply(ctx, networks); err != nil {
			t.Error(err)
		}
		if wrong, err := next.Probe(ctx); len(wrong) > 0 || err != nil {
			t.Errorf("after a restart of the agent: %v, %v", wrong, err)
		}
		if counted, err := next.Count(ctx); len(counted) != 1 || err != nil {
			t.Errorf("counted: %v, %v", counted, err)
		}
		if err := next.Detach(ctx, "c1.m-0.1"); err != nil {
			t.Error(err)
		}
		if _, _, _, address := has(t, "data0"); address {
			t.Error("the address is there after Detach")
		}
	})
}

func TestTheInterfaceThatTheMachineBootedByKeepsWhatItHas(t *testing.T) {
	inMachine(t, func(f *Fabric) {
		ctx := context.Background()
		networks, port := oneNetwork()
		if err := f.Apply(ctx, networks); err != nil {
			t.Error(err)
		}
		if err := f.Attach(ctx, port, on("")); err != nil {
			t.Error(err)
		}
		if mac, mtu, up, address := has(t, "boot0"); mac != bootMAC || mtu != 1500 || !up || !address {
			t.Errorf("the interface has MAC address %s, MTU %d, is up: %v, has the address: %v", mac, mtu, up, address)
		}
		if err := f.Apply(ctx, nil); err != nil {
			t.Error(err)
		}
		if _, _, _, address := has(t, "boot0"); address {
			t.Error("the address is there without its network")
		}
	})
}

func TestAPortThatTheMachineCanNotHaveIsRefused(t *testing.T) {
	inMachine(t, func(f *Fabric) {
		networks, port := oneNetwork()
		if err := f.Apply(context.Background(), networks); err != nil {
			t.Error(err)
		}
		if err := f.Attach(context.Background(), port, on("02:00:00:00:00:ff")); err == nil || !strings.Contains(err.Error(), "no interface with MAC address") {
			t.Errorf("an interface that is not there: %v", err)
		}
		if err := f.Attach(context.Background(), port, fabric.Namespace("/proc/1/ns/net")); !errors.Is(err, fabric.ErrPortKind) {
			t.Errorf("a port of another kind: %v", err)
		}
	})
}

func TestAMachineIsOnItsVLANBeforeItsMemberBegins(t *testing.T) {
	inMachine(t, func(f *Fabric) {
		networks, _ := oneNetwork()
		networks[0].Ports[0].MAC = dataMAC
		there := func() bool {
			_, _, _, address := has(t, "data0")
			return address
		}
		if err := f.Apply(t.Context(), networks); err != nil || there() {
			t.Errorf("on a shared network: %v, and the address is there: %v", err, there())
		}
		networks[0].Technology, networks[0].VLAN = api.TechnologyVLAN, 120
		if err := f.Apply(t.Context(), networks); err != nil || !there() {
			t.Errorf("on a VLAN: %v, and the address is there: %v", err, there())
		}
		if err := f.Detach(t.Context(), networks[0].Ports[0].ID); err != nil || !there() {
			t.Errorf("after the member: %v, and the address is there: %v", err, there())
		}
		if err := f.Apply(t.Context(), nil); err != nil || there() {
			t.Errorf("without the network: %v, and the address is there: %v", err, there())
		}
	})
}

// routes are those of the machine by an interface, as ip-route(8) would write them.
func routes(t *testing.T, name string) (all []string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Error(err)
		return nil
	}
	found, err := netlink.RouteList(link, netlink.FAMILY_V4)
	if err != nil {
		t.Error(err)
	}
	for _, r := range found {
		all = append(all, fmt.Sprintf("%v by %v from %v", r.Dst, r.Gw, r.Src))
	}
	slices.Sort(all)
	return all
}

// An interface has the address of a port alone: programs of MPI choose addresses by interfaces. The machine's own address stays reachable by the same
// interface, and so do networks behind a gateway there.
func TestTheAddressThatTheMachineBootedWithIsOnNoInterfaceThatProgramsUse(t *testing.T) {
	for name, port := range map[string]string{"a port beside it": bootMAC, "a port elsewhere": dataMAC} {
		inMachine(t, func(f *Fabric) {
			ctx := context.Background()
			boot, err := netlink.LinkByName("boot0")
			if err != nil {
				t.Fatal(err)
			}
			own, err := netlink.ParseAddr("10.99.0.3/24")
			if err == nil {
				err = errors.Join(netlink.AddrAdd(boot, own), netlink.LinkSetUp(boot), netlink.RouteAdd(&netlink.Route{Gw: net.IPv4(10, 99, 0, 1)}))
			}
			if err != nil {
				t.Fatal(err)
			}
			networks, p := oneNetwork()
			if err := f.Apply(ctx, networks); err != nil {
				t.Error(err)
			}
			for range 2 {
				if err := f.Attach(ctx, p, on(port)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			addresses := map[string]string{}
			all, err := netlink.AddrList(nil, netlink.FAMILY_V4)
			if err != nil {
				t.Error(err)
			}
			for _, a := range all {
				link, err := netlink.LinkByIndex(a.LinkIndex)
				if err != nil {
					t.Fatal(err)
				}
				addresses[a.IPNet.String()] = link.Attrs().Name
			}
			on := map[string]string{bootMAC: "boot0", dataMAC: "data0"}[port]
			if want := map[string]string{"127.0.0.1/8": "lo", "10.99.0.3/32": "lo", "10.64.16.2/20": on}; !maps.Equal(addresses, want) {
				t.Errorf("%s: addresses %v, want %v", name, addresses, want)
			}
			want := []string{"0.0.0.0/0 by 10.99.0.1 from 10.99.0.3", "10.99.0.0/24 by <nil> from 10.99.0.3"}
			if on == "boot0" {
				want = slices.Insert(want, 1, "10.64.16.0/20 by <nil> from 10.64.16.2")
			}
			if got := routes(t, "boot0"); !slices.Equal(got, want) {
				t.Errorf("%s: routes %q, want %q", name, got, want)
			}
		})
	}
}
