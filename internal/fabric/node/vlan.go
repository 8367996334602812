package node

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// ErrNoVLAN reports that the kernel has no VLANs.
var ErrNoVLAN = errors.New("the kernel has no VLANs (IEEE 802.1Q): load its module (modprobe 8021q), or boot a kernel that has it")

// CanTrunk returns ErrNoVLAN if this kernel has no VLANs. It tries, in a network namespace of its own.
func CanTrunk() error {
	space, err := netns.New()
	if err != nil {
		return err
	}
	defer func() { _ = space.Close() }()
	return space.Do(func() error {
		const bridge = "nmbr1" // the loopback link takes no VLANs
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridge}}); err != nil {
			return err
		}
		link, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		return addVLAN(plan.VLANName(1), link.Attrs().Index, api.MinVLAN)
	})
}

// mtuOf returns the MTU of a network's ports.
func (f *Fabric) mtuOf(n fabric.Network) int {
	return plan.MTU(n, plan.CarrierMTU(n, f.underlayMTU, f.trunkMTU))
}

// mtuOfLink returns the MTU of a link by its name, 0 if there is none.
func mtuOfLink(links []netlink.Link, name string) int {
	for _, l := range links {
		if name != "" && l.Attrs().Name == name {
			return l.Attrs().MTU
		}
	}
	return 0
}

// newVLAN makes a sub-interface of the trunk on its bridge.
func newVLAN(l plan.Link) error {
	bridge, err := netlink.LinkByName(l.Master)
	if err != nil {
		return fmt.Errorf("finding bridge %s: %w", l.Master, err)
	}
	trunk, err := netlink.LinkByName(l.Trunk)
	if err != nil {
		return fmt.Errorf("finding trunk %s: %w", l.Trunk, err)
	}
	err = addVLAN(l.Name, trunk.Attrs().Index, l.VID)
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("another link has VLAN %d of %s: remove it ('ip -d link' shows links with their VLANs), or take %[1]d out of the site's --vlan-pool: %[3]w", l.VID, l.Trunk, err)
	}
	if err != nil {
		return err
	}
	err = bringUp(l.Name, l.MTU, bridge.Attrs().Index)
	if errors.Is(err, unix.ENETDOWN) {
		return fmt.Errorf("trunk %s is down: set it up (ip link set %[1]s up): %w", l.Trunk, err)
	}
	if err != nil {
		return err
	}
	link, err := netlink.LinkByName(l.Name)
	if err != nil {
		return err
	}
	if err := setMulticastRouter(link.Attrs().Index, l.MulticastRouter); err != nil {
		return fmt.Errorf("sending all multicast to it: %w", err)
	}
	return nil
}

// addVLAN makes a sub-interface of the link with this index. It is down.
func addVLAN(name string, trunk, vid int) error {
	req := linkMessage(name)
	req.AddData(nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(trunk))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(plan.KindVLAN)))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_VLAN_ID, nl.Uint16Attr(uint16(vid)))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrNoVLAN
	}
	return err
}
