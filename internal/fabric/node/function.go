package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// FunctionHolder hands out functions and knows who has which, also after a restart.
type FunctionHolder interface {
	fabric.Functions
	// Held returns the functions of an assignment, also those that it is releasing.
	Held(assignment string) []fabric.Function
}

var _ fabric.FunctionAttacher = (*Fabric)(nil)

var errNoFunctions = fmt.Errorf("%w: this node hands out no functions of adapters", fabric.ErrPortKind)

// AttachFunction makes the function of a port its assignment's, sets it up for the port's network, and gives it to a driver.
func (f *Fabric) AttachFunction(ctx context.Context, port fabric.Port, driver string) (fabric.FunctionState, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	state, err := f.attachFunction(ctx, port, driver)
	if err != nil {
		err = fmt.Errorf("attaching port %s: %w", port.ID, err)
	}
	return state, err
}

// Readmit lets an assignment that has released functions have them again.
func (f *Fabric) Readmit(ctx context.Context, assignment string) error {
	if f.cfg.Functions == nil {
		return nil
	}
	return f.cfg.Functions.Readmit(ctx, assignment)
}

func (f *Fabric) attachFunction(ctx context.Context, port fabric.Port, driver string) (state fabric.FunctionState, err error) {
	owner, settings, err := f.settingsOf(ctx, port)
	if err != nil {
		return state, err
	}
	if port.Standby { // before the function has its address: the node would get a copy of each frame to it
		if err := f.filterStandby(port, false); err != nil {
			return state, err
		}
	}
	if _, err := f.cfg.Functions.Assign(ctx, owner, port.Function, settings); err != nil {
		return state, err
	}
	return f.cfg.Functions.Bind(ctx, owner, port.Function, driver)
}

// settingsOf returns whose the function of a port is to be, and how it is to be set up.
func (f *Fabric) settingsOf(ctx context.Context, port fabric.Port) (owner fabric.FunctionOwner, settings fabric.FunctionSettings, err error) {
	if err := ctx.Err(); err != nil {
		return owner, settings, err
	}
	if f.cfg.Functions == nil {
		return owner, settings, errNoFunctions
	}
	network, err := fabric.FindPort(f.applied, port)
	if err != nil {
		return owner, settings, err
	}
	if !port.OnFunction() {
		return owner, settings, fmt.Errorf("%w: it is on no adapter", fabric.ErrPortKind)
	}
	if network.Guarded(port.ID) {
		return owner, settings, fmt.Errorf("%w: its traffic passes %s, and no rule of the node", fabric.ErrUnguarded, port.Function)
	}
	if settings, err = fabric.SettingsOf(network, port); err != nil {
		return owner, settings, err
	}
	owner, err = fabric.OwnerOf(port.ID)
	return owner, settings, err
}

// attachPlace makes a port at a place that is a function, or on one.
func (f *Fabric) attachPlace(ctx context.Context, port fabric.Port, place fabric.Place) error {
	if f.cfg.Functions == nil {
		return errNoFunctions
	}
	network, err := fabric.FindPort(f.applied, port)
	switch {
	case err != nil:
		return err
	case port.Function.Kind != place.Kind:
		return fmt.Errorf("%w: the port is of kind %q, and %s was asked for", fabric.ErrPortKind, port.Function.Kind, place)
	case place.Kind == api.PortMACVTAP:
		return f.attachMACVTAP(ctx, network, port, place.At)
	case place.Namespace != "":
		return f.moveFunction(ctx, network, port, place)
	}
	state, err := f.attachFunction(ctx, port, fabric.DriverVFIO)
	if err == nil && state.PCI != place.At {
		err = fmt.Errorf("%s is at %s, not at %s", port.Function, state.PCI, place.At)
	}
	return err
}

// attachMACVTAP makes a device on the function, which has it alone (passthru, linux/if_link.h). The function's address is the port's.
func (f *Fabric) attachMACVTAP(ctx context.Context, network fabric.Network, port fabric.Port, name string) error {
	if want := fabric.MACVTAP(port).At; name != want {
		return fmt.Errorf("the device of port %s is named %s, not %s", port.ID, want, name)
	}
	mac, err := net.ParseMAC(port.MAC)
	if err != nil {
		return err
	}
	state, err := f.attachFunction(ctx, port, fabric.DriverNative)
	if err != nil {
		return err
	}
	return f.node.Do(func() error {
		lower, err := netlink.LinkByName(state.Interface)
		if err != nil {
			return fmt.Errorf("finding the interface of %s: %w", port.Function, err)
		}
		if there, err := netlink.LinkByName(name); err == nil {
			if there.Attrs().ParentIndex == lower.Attrs().Index {
				return bringUp(name, fabric.FunctionMTU(network.Network), 0)
			}
			if err := deleteLinks([]string{name}); err != nil {
				return err
			}
		}
		if err := bringUp(state.Interface, fabric.FunctionMTU(network.Network), 0); err != nil {
			return fmt.Errorf("setting up %s of %s: %w", state.Interface, port.Function, err)
		}
		device := &netlink.Macvtap{Macvlan: netlink.Macvlan{
			LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: lower.Attrs().Index, HardwareAddr: mac}, Mode: netlink.MACVLAN_MODE_PASSTHRU,
		}}
		if err := netlink.LinkAdd(device); err != nil {
			return fmt.Errorf("making %s on %s of %s (is the module macvtap loaded?): %w", name, state.Interface, port.Function, err)
		}
		return bringUp(name, fabric.FunctionMTU(network.Network), 0)
	})
}

// moveFunction gives the function's network interface and RDMA device to a container.
func (f *Fabric) moveFunction(ctx context.Context, network fabric.Network, port fabric.Port, place fabric.Place) error {
	mac, err := net.ParseMAC(port.MAC)
	if err != nil {
		return err
	}
	member, err := netns.Open(place.Namespace)
	if err != nil {
		return err
	}
	defer member.Close()
	inside := veth{inside: port.Interface, mtu: fabric.FunctionMTU(network.Network), mac: mac, address: port.Address}
	want, carried := ipoibOf(network, port)
	there, err := isInside(inside, network, member)
	if err == nil && !there && carried { // as after a crash before the child was made
		half := inside
		half.inside += portSuffix
		there, err = isInside(half, network, member)
	}
	if err != nil {
		return err
	}
	if !there {
		state, err := f.attachFunction(ctx, port, fabric.DriverNative)
		switch {
		case err != nil:
			return err
		case state.PCI != place.At:
			return fmt.Errorf("%s is at %s, not at %s", port.Function, state.PCI, place.At)
		case state.Simulated:
			return nil
		case state.Interface == "":
			return fmt.Errorf("%s has no network interface with driver %q", port.Function, state.Driver)
		}
		if err := f.node.Do(func() (err error) {
			name := port.Interface
			if carried {
				if name, err = memberNameOf(want, state.Interface); err != nil {
					return err
				}
			}
			return moveInto(state, name, member)
		}); err != nil {
			return fmt.Errorf("giving %s of %s to the member: %w", state.Interface, port.Function, err)
		}
	}
	return member.Do(func() error {
		if carried {
			if err := makeIPoIB(want); err != nil {
				return fmt.Errorf("inside the member: %w", err)
			}
		}
		if err := configureFunction(inside, network, fabric.GatewayRoutes(f.applied, port.ID)); err != nil {
			return fmt.Errorf("inside the member: %w", err)
		}
		return nil
	})
}

// configureFunction sets up the member's interface, in the member's network namespace.
func configureFunction(inside veth, network fabric.Network, routes []netip.Prefix) error {
	if network.Technology == api.TechnologyInfiniBand {
		network.Ports = nil // neighbours on IPoIB have link addresses of 20 octets, which only the fabric knows
	}
	if err := configureMember(inside, network, routes); err != nil {
		return err
	}
	if network.Technology == api.TechnologyInfiniBand {
		return nil // IPoIB answers by itself
	}
	return announce(inside, memberAddresses6(inside, network))
}

// isInside reports whether a member has the interface already.
func isInside(inside veth, network fabric.Network, member netns.Handle) (there bool, err error) {
	err = member.Do(func() error {
		link, err := netlink.LinkByName(inside.inside)
		switch {
		case isGone(err):
			return nil
		case err != nil:
			return err
		case network.Technology != api.TechnologyInfiniBand && link.Attrs().HardwareAddr.String() != inside.mac.String():
			return fmt.Errorf("the member has another link %s, with the address %s", inside.inside, link.Attrs().HardwareAddr)
		}
		there = true
		return nil
	})
	return there, err
}

// moveInto moves a function's RDMA device and its network interface, which gets the member's name for it on its way, so that no name of the node
// collides with one of the member's.
func moveInto(state fabric.FunctionState, name string, member netns.Handle) error {
	if state.RDMA != "" {
		if err := moveRDMA(state.RDMA, member); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(state.Interface)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetDown(link); err != nil {
		return err
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(link.Attrs().Index)
	req.AddData(info)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(member.FD()))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	_, err = req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// moveRDMA moves an RDMA device. In the kernel's shared mode, all namespaces see all devices, and nothing could be kept from the other members.
func moveRDMA(name string, member netns.Handle) error {
	mode, err := netlink.RdmaSystemGetNetnsMode()
	if err != nil {
		return fmt.Errorf("reading the mode of RDMA namespaces: %w", err)
	}
	if mode != "exclusive" {
		return fmt.Errorf("%w: RDMA devices of this node are %s by all network namespaces; run: rdma system set netns exclusive", fabric.ErrFunctionUnfit, mode)
	}
	device, err := netlink.RdmaLinkByName(name)
	if err != nil {
		return fmt.Errorf("finding RDMA device %s: %w", name, err)
	}
	if err := netlink.RdmaLinkSetNsFd(device, uint32(member.FD())); err != nil {
		return fmt.Errorf("moving RDMA device %s: %w", name, err)
	}
	return nil
}

// returnPatience is how long the kernel may take to give back the interfaces of a network namespace that has ended.
const returnPatience = 10 * time.Second

// releaseFunctions releases what an assignment has of adapters. What a member had is back first.
func (f *Fabric) releaseFunctions(ctx context.Context, id string) error {
	if f.cfg.Functions == nil {
		return nil
	}
	for _, function := range f.cfg.Functions.Held(id) {
		owner, err := fabric.OwnerOf(id)
		if err != nil {
			return err
		}
		if err := f.takeBack(ctx, owner, function); err != nil {
			return err
		}
		if err := f.cfg.Functions.Release(ctx, owner, function); err != nil {
			return err
		}
	}
	return nil
}

// takeBack returns once the function's network interface is the node's, and nothing is on it. A namespace that ends gives its interfaces back.
func (f *Fabric) takeBack(ctx context.Context, owner fabric.FunctionOwner, function fabric.Function) error {
	ctx, cancel := context.WithTimeout(ctx, returnPatience)
	defer cancel()
	for {
		state, err := f.cfg.Functions.Look(ctx, owner, function)
		switch {
		case errors.Is(err, fabric.ErrNoFunction) || errors.Is(err, fabric.ErrFunctionOutdated):
			return nil // Release knows what that means
		case err != nil:
			return err
		case state.Driver == "" || state.Driver == fabric.DriverVFIO || state.Simulated:
			return nil
		case state.Interface != "":
			return f.node.Do(func() error { return bare(state.Interface) })
		}
		select {
		case <-time.After(lookPause):
		case <-ctx.Done():
			return fmt.Errorf("the network interface of %s has not come back from the member's network namespace: %w", function, ctx.Err())
		}
	}
}

// lookPause is between two looks at a function.
const lookPause = 50 * time.Millisecond

// bare removes the devices on an interface.
func bare(name string) error {
	lower, err := netlink.LinkByName(name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	links, err := dump(func() ([]netlink.Link, error) { return netlink.LinkList() })
	if err != nil {
		return err
	}
	var above []string
	for _, l := range links {
		if onInterface(l, lower.Attrs().Index) {
			above = append(above, l.Attrs().Name)
		}
	}
	return deleteLinks(above)
}

// probeFunctions adds what is wrong with ports that are functions.
func (f *Fabric) probeFunctions(ctx context.Context, wrong map[string]string) {
	for _, n := range f.applied {
		for _, p := range n.Ports {
			if !p.OnFunction() {
				continue
			}
			if why := f.functionProblem(ctx, p); why != "" {
				wrong[p.ID] = why
			}
		}
	}
}

func (f *Fabric) functionProblem(ctx context.Context, p fabric.Port) string {
	if f.cfg.Functions == nil {
		return errNoFunctions.Error()
	}
	owner, err := fabric.OwnerOf(p.ID)
	if err != nil {
		return err.Error()
	}
	state, err := f.cfg.Functions.Look(ctx, owner, p.Function)
	switch {
	case err != nil:
		return err.Error()
	case state.Driver == "":
		return p.Function.String() + " has no driver"
	}
	return ""
}
