package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// executeAll carries out a plan. Links to be deleted one after the other are deleted together.
func (f *Fabric) executeAll(ctx context.Context, ops []plan.Operation) error {
	for len(ops) > 0 {
		var names []string
		for len(names) < len(ops) {
			o, ok := ops[len(names)].(plan.DeleteLink)
			if !ok {
				break
			}
			names = append(names, o.Name)
		}
		done := max(len(names), 1)
		for _, op := range ops[:done] {
			f.log.DebugContext(ctx, "changing the network", "operation", op.String())
		}
		var err error
		if len(names) > 0 {
			err = f.node.Do(func() error { return deleteLinks(names) })
			failpoint.Hit("node.after-delete-links")
		} else {
			err = f.execute(ctx, ops[0])
		}
		if err != nil {
			return fmt.Errorf("%s: %w", firstLine(ops[0].String()), err)
		}
		ops = ops[done:]
	}
	return nil
}

// execute carries out one operation. It decides nothing.
func (f *Fabric) execute(ctx context.Context, op plan.Operation) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if o, ok := op.(plan.LoadRules); ok {
		err := f.nft.load(ctx, f.node, o.Script)
		failpoint.Hit("node.after-rules")
		return err
	}
	return f.node.Do(func() error {
		switch o := op.(type) {
		case plan.AddLink:
			if o.Link.Kind == plan.KindWireGuard {
				return f.newCipher(o.Link)
			}
			return addLink(o.Link)
		case plan.SetLink:
			return f.setLink(o)
		case plan.SetForwarding:
			err := netns.SetForwarding(o.Link, o.On)
			failpoint.Hit("node.after-forwarding")
			return err
		case plan.AddAddress:
			return addAddress(o.Link, o.Address)
		case plan.DeleteAddress:
			return changeAddress(netlink.AddrDel, o.Link, o.Address.Addr().AsSlice(), o.Address.Bits())
		case plan.AddPeer:
			return addPeer(o.Link, o.Peer)
		case plan.DeletePeer:
			return changePeer(netlink.NeighDel, o.Link, o.Peer.AsSlice())
		case plan.ForgetMember:
			err := forgetMember(o.Link, o.Heard)
			failpoint.Hit("node.after-forget")
			return err
		case plan.DeleteFilter:
			return setFilter(o.Link, o.MAC, false)
		case plan.SetParentRate:
			return f.limits.setParent(o)
		case plan.SetLimit:
			return f.limits.set(o.Port, o.Limit)
		case plan.ClearLimit:
			return f.limits.clear(o.Port)
		case plan.DeleteClass:
			return f.limits.deleteClass(o.Class)
		case plan.SetCipher:
			return f.setCipher(o)
		case plan.AddNeighbour:
			return addNeighbour(o.Link, o.Neighbour)
		case plan.DeleteNeighbour:
			return deleteNeighbour(o.Link, o.Neighbour)
		case plan.PlaceMember:
			return placeMember(o.Link, o.Heard)
		case plan.UnplaceMember:
			return unplaceMember(o.Link, o.Placed)
		case plan.AddFloating:
			return f.addFloating(o.Link, o.Address)
		case plan.DeleteFloating:
			return deleteFloating(o.Link, o.Address)
		case plan.ForgetConnections:
			return forgetConnections(o.Address)
		case plan.OpenShortcut:
			f.shortcuts.open(ctx, o.Name, o.Shortcut)
			return nil
		case plan.ShutShortcut:
			return f.shortcuts.shut(o.Name)
		case plan.ChangeShortcut:
			return f.shortcuts.change(o.Name, o.To)
		default:
			return fmt.Errorf("unknown operation %T", op)
		}
	})
}

// addLink makes a bridge or a tunnel with its addresses, peers and forwarding.
func addLink(l plan.Link) error {
	switch l.Kind {
	case plan.KindBridge:
		if err := newBridge(l); err != nil {
			return err
		}
		failpoint.Hit("node.after-bridge")
	case plan.KindIFB:
		if err := newIFB(l); err != nil {
			return err
		}
		failpoint.Hit("node.after-ifb")
	case plan.KindVLAN:
		if err := newVLAN(l); err != nil {
			return err
		}
	case plan.KindVXLAN:
		bridge, err := netlink.LinkByName(l.Master)
		if err != nil {
			return fmt.Errorf("finding bridge %s: %w", l.Master, err)
		}
		if err := newTunnel(l, bridge.Attrs().Index); err != nil {
			return err
		}
		failpoint.Hit("node.after-tunnel")
		tunnel, err := netlink.LinkByName(l.Name)
		if err != nil {
			return err
		}
		if err := setMulticastRouter(tunnel.Attrs().Index, l.MulticastRouter); err != nil {
			return fmt.Errorf("sending all multicast to it: %w", err)
		}
	default:
		return fmt.Errorf("links of kind %s are not supported", l.Kind)
	}
	for _, a := range l.Addresses {
		if err := addAddress(l.Name, a); err != nil {
			return fmt.Errorf("adding address %v: %w", a, err)
		}
		failpoint.Hit("node.after-address")
	}
	for _, p := range l.Peers {
		if err := addPeer(l.Name, p); err != nil {
			return fmt.Errorf("adding peer %v: %w", p, err)
		}
	}
	if err := addRoutes(l); err != nil {
		return err
	}
	if l.Kind == plan.KindBridge {
		return netns.SetForwarding(l.Name, l.Forwarding) // also off: on a machine that routes, new links forward
	}
	return nil
}

// setLink changes an attribute of a link. A port that is gone by then is no error: it goes with its member's last process, whenever that
// ends, and must not keep the others from being brought up to date.
func (f *Fabric) setLink(o plan.SetLink) error {
	err := f.setAttribute(o)
	if o.Link.Kind == plan.KindVeth && isGone(err) {
		return nil
	}
	return err
}

func (f *Fabric) setAttribute(o plan.SetLink) error {
	link, err := netlink.LinkByName(o.Link.Name)
	if err != nil {
		return err
	}
	switch o.Attribute {
	case "address":
		mac, err := net.ParseMAC(o.Link.MAC)
		if err != nil {
			return err
		}
		return netlink.LinkSetHardwareAddr(link, mac)
	case "mcast_snooping":
		return setSnooping(link.Attrs().Index, o.Link.Snooping)
	case "mcast_router":
		return setMulticastRouter(link.Attrs().Index, o.Link.MulticastRouter)
	case "master":
		bridge, err := netlink.LinkByName(o.Link.Master)
		if err != nil {
			return fmt.Errorf("finding bridge %s: %w", o.Link.Master, err)
		}
		return netlink.LinkSetMaster(link, bridge)
	case "mtu":
		return f.setMTU(link, o.Link)
	case "state":
		if o.Link.Up {
			return netlink.LinkSetUp(link)
		}
		return netlink.LinkSetDown(link)
	default:
		return fmt.Errorf("unknown attribute %q", o.Attribute)
	}
}

// addAddress gives a bridge an address.
func addAddress(name string, a netip.Prefix) error {
	if a.Addr().Is6() {
		return addBridgeAddress6(name, a)
	}
	return changeAddress(netlink.AddrAdd, name, a.Addr().AsSlice(), a.Bits())
}

func changeAddress(change func(netlink.Link, *netlink.Addr) error, name string, ip net.IP, bits int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return change(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, 8*len(ip))}})
}

func addPeer(name string, peer netip.Addr) error {
	err := changePeer(netlink.NeighAppend, name, peer.AsSlice())
	failpoint.Hit("node.after-peer")
	return err
}

func changePeer(change func(*netlink.Neigh) error, name string, ip net.IP) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return change(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: ip, HardwareAddr: allZero,
	})
}

// forgetMember removes the entry of a tunnel's table that sends frames for a member to a peer. One that went away meanwhile, as entries do when
// nothing is heard for a while, is no error.
func forgetMember(name string, heard plan.Heard) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(heard.MAC)
	if err != nil {
		return err
	}
	err = netlink.NeighDel(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, IP: heard.Peer.AsSlice(), HardwareAddr: mac,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
