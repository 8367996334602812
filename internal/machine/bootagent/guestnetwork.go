package bootagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// configureInterface gives the NIC of a MAC its name, address and route. Once it is up, the kernel announces the address by ARP (arp_notify,
// ip-sysctl.rst): it may have been another machine's, and bridges remember for minutes where they heard it last.
func configureInterface(ctx context.Context, i guestlink.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, nicDeadline)
	defer cancel()
	nic, err := findNIC(ctx, i.MAC, nil)
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	if nic.Name != i.Name {
		if err := renameLink(socket, nic.Name, i.Name); err != nil {
			return err
		}
	}
	for file, value := range map[string]string{"ipv6/conf/" + i.Name + "/disable_ipv6": "1", "ipv4/conf/" + i.Name + "/arp_notify": "1"} {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", file), []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	set := func(what string, code uint, fill func(*unix.Ifreq) error) error {
		request, err := unix.NewIfreq(i.Name)
		if err == nil {
			err = fill(request)
		}
		if err == nil {
			err = unix.IoctlIfreq(socket, code, request)
		}
		if err != nil {
			return fmt.Errorf("set the %s of %s: %w", what, i.Name, err)
		}
		return nil
	}
	address, mask := i.Address.Addr().As4(), net.CIDRMask(i.Address.Bits(), 32)
	err = errors.Join(
		set("MTU", unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(uint32(i.MTU)); return nil }),
		set("address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address[:]) }),
		set("mask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }),
	)
	if err == nil {
		err = linkUp(ctx, i.Name)
	}
	for _, to := range i.Routes {
		if err == nil {
			err = addRoute(socket, to, i.Gateway)
		}
	}
	return err
}

// renameLink gives a link that is down another name (SIOCSIFNAME, netdevice(7)).
func renameLink(socket int, from, to string) error {
	request := struct {
		from, to [unix.IFNAMSIZ]byte
		_        [8]byte
	}{}
	copy(request.from[:unix.IFNAMSIZ-1], from)
	copy(request.to[:unix.IFNAMSIZ-1], to)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCSIFNAME, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("rename %s to %s: %w", from, to, errno)
	}
	return nil
}
