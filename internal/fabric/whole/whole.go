// Package whole is the fabric of a node that one member has whole: the ports of the member are addresses on the machine's own interfaces.
//
// No bridge, tunnel or rule is made here. The users of the member are root on the machine, so nothing that runs there could keep them from anything: what
// the interfaces reach is up to the switches. The package must never be used on a node with members of several clusters. Start with New.
package whole

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Fabric implements fabric.Fabric. It belongs to the network namespace of the process.
type Fabric struct {
	// boot is the MAC address of the interface that the machine booted by. It keeps its own MAC address and addresses.
	boot string
	// kind is of links that are the machine's own; tests have others.
	kind string

	mu      sync.Mutex
	applied []fabric.Network
}

var _ fabric.Fabric = (*Fabric)(nil)

// New returns the fabric of a machine that booted by the interface with a MAC address.
func New(boot string) *Fabric { return &Fabric{boot: strings.ToLower(boot), kind: "device"} }

// Apply implements fabric.Fabric: ports that are in none of the networks leave their interfaces, and those on VLANs come to theirs.
func (f *Fabric) Apply(ctx context.Context, networks []fabric.Network) error {
	if err := fabric.Validate(networks); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, n := range f.applied {
		for _, p := range n.Ports {
			if _, err := fabric.FindPort(networks, p); err != nil {
				errs = append(errs, f.remove(n, p))
			}
		}
	}
	f.applied = slices.Clone(networks)
	for _, n := range networks {
		if n.OnVLAN() {
			f.join(n)
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// join gives the interfaces that are on a VLAN of the switches their addresses before the member begins, which needs volumes that are served there. Such a port has
// the MAC address of its interface. What fails is for Attach to tell.
func (f *Fabric) join(n fabric.Network) {
	for _, p := range n.Ports {
		if link, err := f.linkAt(fabric.NormalMAC(p.MAC), p.MAC); err == nil {
			_ = f.setUp(link, n, p)
		}
	}
}

// Attach implements fabric.Attacher. The place is of kind PortPF. It names an interface by the MAC address that the interface was made with; "" is the one
// that the machine booted by.
func (f *Fabric) Attach(ctx context.Context, port fabric.Port, place fabric.Place) error {
	if place.Kind != api.PortPF {
		return fmt.Errorf("a port of kind %s: %w", place.Kind, fabric.ErrPortKind)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	network, err := fabric.FindPort(f.applied, port)
	if err != nil {
		return err
	}
	link, err := f.linkAt(place.At, port.MAC)
	if err != nil {
		return err
	}
	if err := f.setUp(link, network, port); err != nil {
		return fmt.Errorf("interface %s: %w", link.Attrs().Name, err)
	}
	if wrong := f.wrong(network, port); wrong != "" {
		return fmt.Errorf("interface %s: %s", link.Attrs().Name, wrong)
	}
	if err := f.withdraw(); err != nil {
		return fmt.Errorf("the address that the machine booted with: %w", err)
	}
	return ctx.Err()
}

// withdraw takes addresses that are no port's off the interface that the machine booted by. They are the machine's own, and stay reachable: the loopback
// interface has them, and the kernel answers ARP requests for them (arp_ignore 0, ip-sysctl.rst). Programs that choose interfaces by their addresses
// would else use the site's own network. Open MPI 4.1 also publishes one address of an interface and connects from another, which it then refuses.
func (f *Fabric) withdraw() error {
	link, err := f.linkAt("", "")
	if err != nil {
		return nil // a machine whose interface is gone has no address there
	}
	own, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, a := range own {
		if f.isPort(a) {
			continue
		}
		if err := withdraw(link, a); err != nil {
			return fmt.Errorf("%v: %w", a.IPNet, err)
		}
	}
	return nil
}

// isPort reports whether an address is that of a port.
func (f *Fabric) isPort(a netlink.Addr) bool {
	for _, n := range f.applied {
		for _, p := range n.Ports {
			if a.Equal(*addressOf(n, p)) {
				return true
			}
		}
	}
	return false
}

// withdraw moves an address to the loopback interface. What went from it by the interface still does.
func withdraw(link netlink.Link, a netlink.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	routes, err := netlink.RouteList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	err = errors.Join(netlink.LinkSetUp(lo), netlink.AddrReplace(lo, &netlink.Addr{IPNet: &net.IPNet{IP: a.IP, Mask: net.CIDRMask(32, 32)}}), netlink.AddrDel(link, &a))
	if err != nil {
		return err
	}
	subnet := &net.IPNet{IP: a.IP.Mask(a.Mask), Mask: a.Mask}
	err = netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: subnet, Src: a.IP, Scope: netlink.SCOPE_LINK})
	for _, r := range routes {
		if r.Gw != nil && subnet.Contains(r.Gw) {
			r.Src, r.Flags = a.IP, r.Flags&int(netlink.FLAG_ONLINK) // the others say how the link is, and can't be set
			err = errors.Join(err, netlink.RouteReplace(&r))
		}
	}
	return err
}

// setUp gives an interface the MAC address, MTU and address of a port. The one that the machine booted by keeps what it has, for by it the machine is
// reached.
func (f *Fabric) setUp(link netlink.Link, network fabric.Network, port fabric.Port) error {
	if !f.isBoot(link) {
		mac, err := net.ParseMAC(port.MAC)
		if err != nil {
			return err
		}
		if !slices.Equal(link.Attrs().HardwareAddr, mac) {
			if err := errors.Join(netlink.LinkSetDown(link), netlink.LinkSetHardwareAddr(link, mac)); err != nil {
				return err
			}
		}
		if network.MTU > 0 {
			if err := netlink.LinkSetMTU(link, network.MTU); err != nil {
				return fmt.Errorf("set MTU %d: %w", network.MTU, err)
			}
		}
	}
	return errors.Join(netlink.LinkSetUp(link), netlink.AddrReplace(link, addressOf(network, port)))
}

// addressOf is a port's address with its network's length.
func addressOf(network fabric.Network, port fabric.Port) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: port.Address.AsSlice(), Mask: net.CIDRMask(network.Prefix.Bits(), port.Address.BitLen())}}
}

// linkAt is the interface that was made with a MAC address, or has got that of its port since: not every driver tells the first. "" is the interface that
// the machine booted by.
func (f *Fabric) linkAt(mac, given string) (netlink.Link, error) {
	if mac == "" {
		mac, given = f.boot, f.boot
	}
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if l.Type() == f.kind && (a.PermHWAddr.String() == mac || slices.Contains([]string{mac, given}, a.HardwareAddr.String())) {
			return l, nil
		}
	}
	return nil, fmt.Errorf("the machine has no interface with MAC address %s", mac)
}

func (f *Fabric) isBoot(l netlink.Link) bool {
	return l.Attrs().PermHWAddr.String() == f.boot || l.Attrs().HardwareAddr.String() == f.boot
}

// Detach implements fabric.Attacher. An address on a VLAN stays until its network goes: volumes are given back by it after the member has ended.
func (f *Fabric) Detach(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, n := range f.applied {
		for _, p := range n.Ports {
			if fabric.AssignmentOf(p.ID) == id && !n.OnVLAN() {
				errs = append(errs, f.remove(n, p))
			}
		}
	}
	return errors.Join(errs...)
}

// remove takes a port's address off its interface. What is not there is gone. The lock is held.
func (f *Fabric) remove(network fabric.Network, port fabric.Port) error {
	link, err := holder(network, port)
	if err != nil || link == nil {
		return err
	}
	return netlink.AddrDel(link, addressOf(network, port))
}

// holder is the interface that has a port's address, nil when none has. It is found by looking, since the agent may have been started anew.
func holder(network fabric.Network, port fabric.Port) (netlink.Link, error) {
	all, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the addresses: %w", err)
	}
	want := addressOf(network, port)
	for _, a := range all {
		if a.Equal(*want) {
			return netlink.LinkByIndex(a.LinkIndex)
		}
	}
	return nil, nil
}

// wrong says what is wrong with a port; empty: nothing. The lock is held.
func (f *Fabric) wrong(network fabric.Network, port fabric.Port) string {
	link, err := holder(network, port)
	switch {
	case err != nil:
		return err.Error()
	case link == nil:
		return fmt.Sprintf("no interface has its address %s", addressOf(network, port).IPNet)
	case link.Attrs().Flags&net.FlagUp == 0:
		return fmt.Sprintf("interface %s is down", link.Attrs().Name)
	}
	return ""
}

// Probe implements fabric.Fabric.
func (f *Fabric) Probe(ctx context.Context) (map[string]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]string{}
	for _, n := range f.applied {
		for _, p := range n.Ports {
			if wrong := f.wrong(n, p); wrong != "" {
				all[p.ID] = wrong
			}
		}
	}
	return all, ctx.Err()
}

// Audit implements fabric.Fabric. Nothing is put right here that the machine's users change.
func (f *Fabric) Audit(ctx context.Context) ([]fabric.Drift, error) { return nil, ctx.Err() }

// Seal implements fabric.Fabric: no tunnel of this node is sealed, since its users could open the seal.
func (f *Fabric) Seal([]fabric.Tunnel) {}

// Count implements fabric.Fabric. What an interface sent and received is the port's.
func (f *Fabric) Count(ctx context.Context) (map[string]api.PortCounters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string]api.PortCounters{}
	for _, n := range f.applied {
		for _, p := range n.Ports {
			link, err := holder(n, p)
			if err != nil || link == nil || link.Attrs().Statistics == nil {
				continue
			}
			s := link.Attrs().Statistics
			all[p.ID] = api.PortCounters{
				SentBytes: int64(s.TxBytes), SentPackets: int64(s.TxPackets), SentDropped: int64(s.TxDropped),
				ReceivedBytes: int64(s.RxBytes), ReceivedPackets: int64(s.RxPackets), ReceivedDropped: int64(s.RxDropped),
			}
		}
	}
	return all, ctx.Err()
}

// Meet implements fabric.Fabric: there are no tunnels, so nobody is met.
func (f *Fabric) Meet(ctx context.Context, network int, _ uint64) ([]fabric.Meeting, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.ContainsFunc(f.applied, func(n fabric.Network) bool { return n.Index == network }) {
		return nil, fabric.ErrNoNetwork
	}
	return nil, ctx.Err()
}
