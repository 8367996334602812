package vdc

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Plug connects a machine that the data centre does not have to its networks, for as long as the files are open: TAP devices for its two NICs, on the provisioning
// network and on the data network, where it is on a trunk of all VLANs if a switch is managed. The name is of eight characters at most.
func (dc *DataCentre) Plug(ctx context.Context, name string) (provisioning, data *os.File, err error) {
	err = dc.inside.Do(func() error {
		if provisioning, err = plug("x"+provisioningPort+name, provisioningBridge); err != nil {
			return err
		}
		bridge := dataBridge
		if dc.config.Switch {
			bridge = ""
		}
		data, err = plug("x"+dataPort+name, bridge)
		return err
	})
	if err == nil && dc.config.Switch {
		err = dc.vsctl(ctx, "add-port", switchBridge, "x"+dataPort+name)
	}
	if err != nil {
		for _, f := range []*os.File{provisioning, data} {
			if f != nil {
				err = errors.Join(err, f.Close())
			}
		}
		return nil, nil, fmt.Errorf("plugging %s in: %w", name, err)
	}
	return provisioning, data, nil
}

// plug makes a TAP device in the calling thread's network namespace, on a bridge unless that is empty. Frames have no header before them.
func plug(name, bridge string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), name)
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = place(name, bridge)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func place(name, bridge string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if bridge != "" {
		master, err := netlink.LinkByName(bridge)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(link, master); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}
