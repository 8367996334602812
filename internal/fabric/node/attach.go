package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Attach connects a member; its port must be among the networks last applied, so that the rules that pin it are in force. A
// port that is as it should be is left alone.
func (f *Fabric) Attach(ctx context.Context, port fabric.Port, place fabric.Place) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := f.attach(ctx, port, place); err != nil {
		return fmt.Errorf("attaching port %s: %w", port.ID, err)
	}
	return nil
}

func (f *Fabric) attach(ctx context.Context, port fabric.Port, place fabric.Place) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := place.Validate(); err != nil {
		return err
	}
	if place.Kind != api.PortVeth && place.Kind != api.PortTAP {
		return f.attachPlace(ctx, port, place)
	}
	if port.OnFunction() && (!port.Standby || place.Kind != api.PortTAP) {
		return fmt.Errorf("%w: it is to be on %s, and %s was asked for", fabric.ErrPortKind, port.Function, place)
	}
	network, err := fabric.FindPort(f.applied, port)
	if err != nil {
		return err
	}
	if why := f.guards.refusal(); why != nil && network.Guarded(port.ID) {
		return fmt.Errorf("%w; its kernel needs nf_tables 5.6 or later for the family bridge, and nft(8) 0.9.4 or later: %w", fabric.ErrUnguarded, why)
	}
	if why := f.limits.refusal(); why != nil && port.Shaped() {
		return fmt.Errorf("%w; its kernel needs ifb, sch_htb, sch_tbf, cls_bpf and act_mirred: %w", fabric.ErrUnshaped, why)
	}
	if place.Kind == api.PortTAP {
		return f.attachTAP(ctx, network, port, place)
	}
	return f.attachVeth(ctx, network, port, place)
}

// attachVeth makes the port of a container.
func (f *Fabric) attachVeth(ctx context.Context, network fabric.Network, port fabric.Port, place fabric.Place) error {
	mac, err := net.ParseMAC(port.MAC)
	if err != nil {
		return err
	}
	member, err := netns.Open(place.At)
	if err != nil {
		return err
	}
	defer member.Close()

	pair := veth{name: plan.PortName(port.ID), inside: cmp.Or(port.Interface, memberLink), mtu: f.mtuOf(network), mac: mac, address: port.Address}
	if err := f.node.Do(func() error { return makePair(&pair, plan.BridgeName(network.Index), member) }); err != nil {
		return err
	}
	if err := f.node.Do(func() error { return f.limit(port) }); err != nil {
		return err
	}
	f.spaces.Store(pair.name, place.At)
	failpoint.Hit("node.after-veth")
	if err := member.Do(func() error { return configureMember(pair, network, fabric.GatewayRoutes(f.applied, port.ID)) }); err != nil {
		return fmt.Errorf("inside the member: %w", err)
	}
	failpoint.Hit("node.after-member-address")
	if err := f.node.Do(func() error { return awaitForwarding(ctx, pair.name) }); err != nil {
		return err
	}
	if err := member.Do(func() error { return announce(pair, memberAddresses6(pair, network)) }); err != nil {
		return fmt.Errorf("announcing the member: %w", err)
	}
	if !f.shortcutting || network.Bridged(port) {
		return nil
	}
	return f.node.Do(func() error { return f.shortcuts.openNew(ctx, pair.name, plan.ShortcutOf(network, port)) })
}

// makePair makes the veth pair, unless it is there and leads into this member.
func makePair(pair *veth, bridge string, member netns.Handle) error {
	link, err := netlink.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("finding bridge %s: %w", bridge, err)
	}
	pair.bridge = link.Attrs().Index
	err = newVeth(*pair, member)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	leads, err := leadsInto(*pair, member)
	if err != nil {
		return err
	}
	if leads {
		return bringUp(pair.name, pair.mtu, pair.bridge)
	}
	if err := deleteLinks([]string{pair.name}); err != nil {
		return fmt.Errorf("removing the port of another member: %w", err)
	}
	if err := newVeth(*pair, member); err != nil {
		return fmt.Errorf("making the port (does the member already have a link %s?): %w", pair.inside, err)
	}
	return nil
}

// leadsInto reports whether the host's link is there and its other end is this member's, with the right address.
func leadsInto(pair veth, member netns.Handle) (bool, error) {
	here, err := netlink.LinkByName(pair.name)
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	leads := false
	err = member.Do(func() error {
		there, err := netlink.LinkByName(pair.inside)
		if isGone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		leads = there.Attrs().ParentIndex == here.Attrs().Index && here.Attrs().ParentIndex == there.Attrs().Index &&
			there.Attrs().HardwareAddr.String() == pair.mac.String()
		return nil
	})
	return leads, err
}

// configureMember sets up the member's end, in the member's network namespace. The routes are by the network's gateway.
func configureMember(pair veth, network fabric.Network, routes []netip.Prefix) error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("setting lo up: %w", err)
	}
	link, err := netlink.LinkByName(pair.inside)
	if err != nil {
		return err
	}
	if link.Attrs().MTU != pair.mtu {
		if err := netlink.LinkSetMTU(link, pair.mtu); err != nil {
			return err
		}
	}
	// Before the link is up, or the kernel would choose a link-local address and spend a second to detect duplicates.
	if err := configureMember6(link, pair, network); err != nil {
		return err
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: pair.address.AsSlice(), Mask: net.CIDRMask(network.Prefix.Bits(), 32)}}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("adding address %v: %w", pair.address, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("setting %s up: %w", pair.inside, err)
	}
	if err := introduce(link, pair, network); err != nil {
		return err
	}
	for _, to := range routes {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: network.Gateway.AsSlice(), Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)}}
		if err := netlink.RouteReplace(route); err != nil {
			return fmt.Errorf("adding the route to %v by %v: %w", to, network.Gateway, err)
		}
	}
	return nil
}

// introduce tells a member the MAC addresses of the others on this node for good. All members of a host share one kernel table of
// what ARP (RFC 826) has found, of 1,024 entries unless the host's administrator raised it (neigh/default/gc_thresh3), which
// three dozen members that talk to each other overflow; permanent entries do not count. An address never changes its MAC
// address, since both are made from the same number.
func introduce(link netlink.Link, pair veth, network fabric.Network) error {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer handle.Close()
	for _, p := range network.Ports {
		if p.Address == pair.address {
			continue
		}
		mac, err := net.ParseMAC(p.MAC)
		if err != nil {
			return err
		}
		err = handle.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: p.Address.AsSlice(), HardwareAddr: mac,
		})
		if err != nil {
			return fmt.Errorf("adding neighbour %v: %w", p.Address, err)
		}
		six := network.Address6(p.Address)
		if !six.IsValid() {
			continue
		}
		err = handle.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, Family: unix.AF_INET6, State: netlink.NUD_PERMANENT, IP: six.AsSlice(), HardwareAddr: mac,
		})
		if err != nil {
			return fmt.Errorf("adding neighbour %v: %w", six, err)
		}
	}
	return nil
}

// awaitForwarding returns once the bridge forwards frames from the port. Some kernels tell the bridge that the port has a
// carrier from a work queue, a moment after the member's end was set up.
func awaitForwarding(ctx context.Context, name string) error {
	if forwards, err := isForwarding(name); forwards || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, forwardingTimeout)
	defer cancel()
	updates := make(chan netlink.LinkUpdate)
	if err := netlink.LinkSubscribe(updates, ctx.Done()); err != nil {
		return fmt.Errorf("watching port %s: %w", name, err)
	}
	for {
		if forwards, err := isForwarding(name); forwards || err != nil {
			return err
		}
		select {
		case <-updates:
		case <-ctx.Done():
			return fmt.Errorf("the bridge does not forward frames from port %s: %w", name, ctx.Err())
		}
	}
}

// forwardingTimeout is how long a bridge may take to use a port; the kernel holds back news of a carrier for a second at most.
const forwardingTimeout = 5 * time.Second

func isForwarding(name string) (bool, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return false, err
	}
	state, err := bridgePortState(link.Attrs().Index)
	return state == bridgePortForwarding, err
}

// Detach removes a member's ports, both ends of each. A further port whose network is no longer applied went with that.
func (f *Fabric) Detach(ctx context.Context, id string) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, port := range fabric.PortsOf(f.applied, id) {
		if err := f.node.Do(func() error { return f.shortcuts.shut(plan.PortName(port)) }); err != nil {
			return fmt.Errorf("detaching port %s: %w", port, err)
		}
		if err := f.remover.remove(f.node, plan.PortName(port)); err != nil {
			return fmt.Errorf("detaching port %s: %w", port, err)
		}
		f.spaces.Delete(plan.PortName(port))
	}
	if err := f.detachStandbys(id); err != nil {
		return fmt.Errorf("detaching the standbys of assignment %s: %w", id, err)
	}
	if err := f.releaseFunctions(ctx, id); err != nil {
		return fmt.Errorf("releasing the functions of assignment %s: %w", id, err)
	}
	failpoint.Hit("node.after-detach")
	return nil
}
