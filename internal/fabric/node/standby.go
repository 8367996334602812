package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// A port with a standby is a function, and a TAP device on the network's bridge besides. Both have one MAC address, so somebody has to say to which of
// them frames go. On the wire's side that is the adapter's switch: it has the address for the function, or for the trunk while the function is parked.
// The bridge has the address fixed to the TAP device while the function is parked, since some adapters give the node's own broadcasts back to it. Else
// it goes by where it heard the member last, which the member's announcements tell.

// ParkFunction takes the MAC address off the function of a port that has a standby. An adapter's switch gives frames for that address to the function
// even while nobody uses it.
func (f *Fabric) ParkFunction(ctx context.Context, port fabric.Port) error {
	f.mu.RLock()
	defer f.mu.RUnlock()
	owner, settings, err := f.settingsOf(ctx, port)
	switch {
	case err != nil:
	case !port.Standby:
		err = errors.New("it has no standby, which could carry its traffic")
	default:
		settings.MAC = ""
		if _, err = f.cfg.Functions.Assign(ctx, owner, port.Function, settings); err == nil {
			err = f.filterStandby(port, true)
		}
	}
	if err != nil {
		return fmt.Errorf("parking the function of port %s: %w", port.ID, err)
	}
	return nil
}

// filterStandby leads frames to a port with a standby to its TAP device, or no longer. The trunk's adapter takes them for the port's VLAN by name: its switch
// may give frames between its functions to no port that only listens to everything. The bridge does not learn the address elsewhere.
func (f *Fabric) filterStandby(port fabric.Port, on bool) error {
	network, err := fabric.FindPort(f.applied, port)
	if err != nil {
		return err
	}
	return f.node.Do(func() error {
		if err := fixAddress(plan.PortName(port.ID), port.MAC, on); err != nil {
			return err
		}
		return setFilter(plan.VLANName(network.Index), port.MAC, on)
	})
}

// fixAddress keeps an address at a port of a bridge, whatever the bridge hears elsewhere (Linux 4.20 or later), or no longer. The kernel forgets it with
// the port.
func fixAddress(name, mac string, on bool) error {
	entry := netlink.Neigh{Flags: netlink.NTF_MASTER}
	if on {
		entry.State, entry.Flags = netlink.NUD_NOARP, netlink.NTF_MASTER|netlink.NTF_STICKY
	}
	return setEntry(name, mac, entry, on)
}

// setFilter adds an address to the unicast addresses of a VLAN's link, from where the kernel hands it to the trunk's adapter, or removes it.
func setFilter(name, mac string, on bool) error {
	return setEntry(name, mac, netlink.Neigh{Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT}, on)
}

// setEntry adds an address to the forwarding table of a link, or removes it. Repeating it is harmless, and so is removing it from a link that is gone.
func setEntry(name, mac string, entry netlink.Neigh, on bool) error {
	link, err := netlink.LinkByName(name)
	if isGone(err) && !on {
		return nil
	}
	if err != nil {
		return fmt.Errorf("finding link %s: %w", name, err)
	}
	if entry.HardwareAddr, err = net.ParseMAC(mac); err != nil {
		return err
	}
	entry.LinkIndex, entry.Family = link.Attrs().Index, unix.AF_BRIDGE
	if on {
		err = netlink.NeighSet(&entry)
	} else {
		err = ignoring(netlink.NeighDel(&entry), unix.ENOENT)
	}
	if err != nil {
		return fmt.Errorf("setting address %s in the table of %s: %w", mac, name, err)
	}
	return nil
}

// filtersOf reads the unicast addresses of a link besides its own.
func filtersOf(index int) (macs []string, err error) {
	entries, err := tunnelTable(index)
	for _, e := range entries {
		if e.Flags&netlink.NTF_SELF != 0 && len(e.HardwareAddr) == 6 && e.HardwareAddr[0]&1 == 0 {
			macs = append(macs, e.HardwareAddr.String())
		}
	}
	slices.Sort(macs)
	return slices.Compact(macs), err
}

// detachStandbys removes the filters of an assignment's ports. Those of a network that is no longer applied go by the plan.
func (f *Fabric) detachStandbys(id string) error {
	for _, n := range f.applied {
		for _, p := range n.Ports {
			if !p.Standby || fabric.AssignmentOf(p.ID) != id {
				continue
			}
			if err := f.filterStandby(p, false); err != nil {
				return err
			}
		}
	}
	return nil
}
