package bootagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
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
	find := func() (*net.Interface, error) { return findNIC(ctx, i.MAC, i.IsOf, nil) }
	if i.Standby {
		find = func() (*net.Interface, error) { return findPair(ctx, classNet, i.MAC) }
	}
	nic, err := find()
	if err != nil {
		return err
	}
	if i.PKey != 0 {
		name, err := kernelIPoIB().partition(i)
		if err != nil {
			return err
		}
		if nic, err = net.InterfaceByName(name); err != nil {
			return err
		}
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	if err := nameNIC(socket, nic.Name, i.Name); err != nil {
		return err
	}
	settings := settings6(i)
	settings["ipv4/conf/"+i.Name+"/arp_notify"] = "1"
	if err := writeSettings(settings); err != nil {
		return err
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
	if err == nil && carriesIP(i) {
		err = linkUp(ctx, i.Name)
	} else if err == nil {
		err = switchOn(i.Name)
	}
	if err == nil && i.Address6.IsValid() {
		err = addAddress6(nic.Index, i.Address6)
	}
	for _, to := range i.Routes {
		if err == nil {
			err = addRoute(socket, to, i.Gateway)
		}
	}
	return err
}

// nameNIC gives a link that is down its name. The parts of pairs that have such a name make way: they get theirs from the kernel whenever they come.
func nameNIC(socket int, from, to string) error {
	const tries = 3
	for try := 1; ; try++ {
		if err := nameParts(socket); err != nil {
			return err
		}
		if from == to {
			return nil
		}
		if err := renameLink(socket, from, to); !errors.Is(err, unix.EEXIST) || try == tries {
			return err
		}
	}
}

// carriesIP reports whether a NIC can have a carrier. A port on InfiniBand has none without a broadcast group, as on a network for RDMA alone.
func carriesIP(i guestlink.Interface) bool { return i.GUID == "" || i.PKey != 0 }

func writeSettings(settings map[string]string) error {
	for file, value := range settings {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", file), []byte(value), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// settings6 are what IPv6 does on a NIC, before it is up: nothing, or what it is given. Nobody else can have its addresses, so the kernel need not
// find out.
func settings6(i guestlink.Interface) map[string]string {
	conf := "ipv6/conf/" + i.Name + "/"
	if !i.Address6.IsValid() {
		return map[string]string{conf + "disable_ipv6": "1"}
	}
	return map[string]string{
		conf + "disable_ipv6": "0", conf + "accept_ra": "0", conf + "accept_dad": "0", conf + "router_solicitations": "0", conf + "ndisc_notify": "1",
	}
}

// addAddress6 gives a NIC an IPv6 address (SIOCSIFADDR of a socket for IPv6, struct in6_ifreq of linux/ipv6.h). One that it has is no error.
func addAddress6(nic int, address netip.Prefix) error {
	socket, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("the kernel has no IPv6: %w", err)
	}
	defer func() { _ = unix.Close(socket) }()
	request := struct {
		address [16]byte
		bits    uint32
		index   int32
	}{address.Addr().As16(), uint32(address.Bits()), int32(nic)}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCSIFADDR, uintptr(unsafe.Pointer(&request))); errno != 0 && errno != unix.EEXIST {
		return fmt.Errorf("set the address %s: %w", address, errno)
	}
	return nil
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
