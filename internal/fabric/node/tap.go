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
func (f *Fabric) attachTAP(ctx context.Context, network fabric.Network, port fabric.Port, at string) error {
	name := plan.PortName(port.ID)
	if at != name {
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
		if err := makeTAP(name); err != nil {
			return err
		}
		failpoint.Hit("node.after-tap")
		return bringUp(name, plan.MTU(network, f.underlayMTU), bridge.Attrs().Index)
	})
}

// makeTAP makes the device, unless it is there. A link of another kind with its name, such as the port of a container that had the same ID, goes.
func makeTAP(name string) error {
	link, err := netlink.LinkByName(name)
	switch {
	case isGone(err):
	case err != nil:
		return err
	case link.Type() == string(plan.KindTAP):
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
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	fd := int(device.Fd())
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("making TAP device %s: %w", name, err)
	}
	if err := unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1); err != nil {
		return errors.Join(fmt.Errorf("keeping TAP device %s: %w", name, err), device.Close())
	}
	return nil
}
