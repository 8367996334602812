package shortcut

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/clsact"
)

// The program's place among the filters of a link (tc(8)): the priority is "nm", so that others have room before and after it.
const (
	filterPriority = 0x6e6d
	filterHandle   = 1
	filterName     = "nearmetal"
)

// attach puts a program where frames come in at a link, in place of another process's. It stays until the link goes.
func attach(link netlink.Link, program *ebpf.Program) error {
	if err := clsact.Prepare(link); err != nil {
		return err
	}
	f := filter(link.Attrs().Index)
	f.Fd, f.Name, f.DirectAction = program.FD(), filterName, true
	if err := netlink.FilterReplace(f); err != nil {
		return fmt.Errorf("attaching the program to %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// detach removes the program of any process from a link. A link that is gone, or has none, is no error.
func detach(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return err
	}
	id, err := attached(link.Attrs().Index)
	if err != nil || id == 0 {
		return err
	}
	if err := netlink.FilterDel(filter(link.Attrs().Index)); err != nil && !clsact.IsAbsent(err) {
		return fmt.Errorf("removing the program from %s: %w", name, err)
	}
	return clsact.Unprepare(link)
}

// attached returns the ID of the program at a link, 0 for none.
func attached(index int) (int, error) {
	list, err := netlink.FilterList(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: index}}, netlink.HANDLE_MIN_INGRESS)
	if clsact.IsAbsent(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, f := range list {
		if program, ok := f.(*netlink.BpfFilter); ok && program.Priority == filterPriority && program.Name == filterName {
			return program.Id, nil
		}
	}
	return 0, nil
}

func filter(index int) *netlink.BpfFilter {
	return &netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
		LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: filterHandle, Priority: filterPriority, Protocol: unix.ETH_P_ALL,
	}}
}

// learn tells the bridge of a link for good which MAC address is behind it. The bridge hears a member only when a frame passes it, forgets
// after minutes, and would then send frames to that member to every port and through tunnels to every node.
func learn(link netlink.Link, mac net.HardwareAddr) error {
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP, Flags: netlink.NTF_MASTER, HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("adding %s to the bridge of %s: %w", mac, link.Attrs().Name, err)
	}
	return nil
}
