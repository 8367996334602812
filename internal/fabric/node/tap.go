package node

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// attachTAP makes the port of a virtual machine: a TAP device on the network's bridge, which stays when nobody has it open, so that the rules
// that pin it are never in force for another device. The hypervisor opens it by its name. The machine itself sets up its end and announces it.
func (f *Fabric) attachTAP(ctx context.Context, network fabric.Network, port fabric.Port, place fabric.Place) error {
	name := plan.PortName(port.ID)
	if at := place.At; at != name {
		return fmt.Errorf("the device of port %s is named %s, not %s", port.ID, name, at)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return f.node.Do(func() error {
		bridge, err := netlink.LinkByName(plan.BridgeName(network.Index))
		if err != nil {
			return fmt.Errorf("finding bridge %s: %w", plan.BridgeName(network.Index), err)
		}
		if err := makeTAP(name, place.Queues > 1); err != nil {
			return err
		}
		failpoint.Hit("node.after-tap")
		if err := f.limit(port); err != nil {
			return err
		}
		return bringUp(name, f.mtuOf(network), bridge.Attrs().Index)
	})
}

// makeTAP makes the device, unless it is there. What has its name and is of another kind goes, such as the port of a container that had the same
// ID, or a device with one queue in place of several: a hypervisor can't open that.
func makeTAP(name string, several bool) error {
	link, err := netlink.LinkByName(name)
	switch {
	case isGone(err):
	case err != nil:
		return err
	case link.Type() == string(plan.KindTAP) && hasSeveralQueues(link) == several:
		return nil
	default:
		if err := deleteLinks([]string{name}); err != nil {
			return fmt.Errorf("removing the port of another member: %w", err)
		}
	}
	device, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("virtual machines' ports need TUN/TAP: %w; run: modprobe tun", err)
	}
	defer func() { _ = device.Close() }()
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	// As the hypervisor opens it: frames only, with the header that offloads need (tuntap.rst, section 3.2).
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if several {
		flags |= unix.IFF_MULTI_QUEUE
	}
	request.SetUint16(flags)
	fd := int(device.Fd())
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("making TAP device %s: %w", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return errors.Join(fmt.Errorf("keeping TAP device %s: %w", name, err), device.Close())
	}
	if several {
		return dropQueueing(name)
	}
	return nil
}

// dropQueueing lets a device with several queues do without a queueing discipline. The kernel would give each of 256 queues one of its own, 6.6 MiB
// in all, however few are opened. They would never hold a frame: the device takes each at once, into the ring that the hypervisor reads.
func dropQueueing(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	none := &netlink.GenericQdisc{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Parent: netlink.HANDLE_ROOT}, QdiscType: "noqueue"}
	if err := netlink.QdiscReplace(none); err != nil {
		return fmt.Errorf("taking the queueing discipline off TAP device %s: %w", name, err)
	}
	return nil
}

// hasSeveralQueues reports whether a TAP device was made for several queues, however many are open.
func hasSeveralQueues(link netlink.Link) bool {
	tap, ok := link.(*netlink.Tuntap)
	return ok && tap.Flags&netlink.TUNTAP_MULTI_QUEUE != 0
}
