package bootagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/boot"
)

// network is what DHCP gave.
type network struct {
	boot.Lease
	Nameservers []netip.Addr
	Domain      string
	lease       *nclient4.Lease
}

// findNIC returns the interface whose address is that of a MAC, waiting for its driver until ctx ends.
func findNIC(ctx context.Context, mac string, is func(net.HardwareAddr) bool, news <-chan struct{}) (*net.Interface, error) {
	for {
		interfaces, err := net.Interfaces()
		if err != nil {
			return nil, err
		}
		var seen []string
		for _, i := range interfaces {
			if is(i.HardwareAddr) {
				return &i, nil
			}
			if len(i.HardwareAddr) == 6 {
				seen = append(seen, i.Name+" "+i.HardwareAddr.String())
			}
		}
		select {
		case <-news:
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			if len(seen) == 0 {
				seen = []string{"none"}
			}
			return nil, fmt.Errorf("no network interface has the MAC %s that the machine booted from; its interfaces are: %s. "+
				"The driver may be missing from the initrd or need firmware", mac, strings.Join(seen, ", "))
		}
	}
}

// linkUp switches an interface on and waits for its carrier until ctx ends.
func linkUp(ctx context.Context, name string) error {
	if err := switchOn(name); err != nil || name == "lo" {
		return err
	}
	return awaitCarrier(ctx, name)
}

// awaitCarrier waits for the carrier of an interface that is on, until ctx ends.
func awaitCarrier(ctx context.Context, name string) error {
	for {
		// Not IFF_RUNNING, which the kernel may set a second later.
		if text, err := os.ReadFile(filepath.Join("/sys/class/net", name, "carrier")); err == nil && len(text) > 0 && text[0] == '1' {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s has no carrier: is its cable connected?", name)
		}
	}
}

// switchOn switches an interface on.
func switchOn(name string) error {
	ifreq, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, ifreq); err != nil {
		return fmt.Errorf("switch %s on: %w", name, err)
	}
	ifreq.SetUint16(ifreq.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, ifreq); err != nil {
		return fmt.Errorf("switch %s on: %w", name, err)
	}
	return nil
}

// identifier is what iPXE sends (option 61, RFC 2132, section 9.14: hardware type 1 and the MAC): the same client, so the same lease as
// the firmware had.
func identifier(mac net.HardwareAddr) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptClientIdentifier(append([]byte{1}, mac...)))
}

// askDHCP gets the interface's lease and sets its address, route and MTU.
func askDHCP(ctx context.Context, nic *net.Interface, hostname string) (*network, error) {
	client, err := nclient4.New(nic.Name, nclient4.WithTimeout(time.Second), nclient4.WithRetry(4))
	if err != nil {
		return nil, fmt.Errorf("DHCP on %s: %w", nic.Name, err)
	}
	defer client.Close()
	modifiers := []dhcpv4.Modifier{
		identifier(nic.HardwareAddr),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainNameServer, dhcpv4.OptionDomainName,
			dhcpv4.OptionInterfaceMTU, dhcpv4.OptionIPAddressLeaseTime),
		// A vendor class of its own: a DHCP server must not take it for firmware and offer a loader (option 60, RFC 2132, section 9.13).
		dhcpv4.WithOption(dhcpv4.OptClassIdentifier("nearmetal-boot")),
	}
	if hostname != "" {
		modifiers = append(modifiers, dhcpv4.WithOption(dhcpv4.OptHostName(hostname)))
	}
	lease, err := client.Request(ctx, modifiers...)
	if err != nil {
		return nil, fmt.Errorf("DHCP on %s (%s): %w", nic.Name, nic.HardwareAddr, err)
	}
	n, err := readLease(nic.Name, lease.ACK)
	if err != nil {
		return nil, err
	}
	n.lease = lease
	return n, n.apply(lease.ACK)
}

// readLease takes what is needed of a DHCPACK.
func readLease(name string, ack *dhcpv4.DHCPv4) (*network, error) {
	address, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	bits, size := ack.SubnetMask().Size()
	if !ok || size != 32 || address.IsUnspecified() {
		return nil, fmt.Errorf("DHCP on %s: the answer has no usable address and mask (%s, %s)", name, ack.YourIPAddr, ack.SubnetMask())
	}
	n := &network{Lease: boot.Lease{Interface: name, Address: netip.PrefixFrom(address, bits)}, Domain: ack.DomainName()}
	if routers := ack.Router(); len(routers) > 0 {
		n.Gateway, _ = netip.AddrFromSlice(routers[0].To4())
	}
	for _, ip := range ack.DNS() {
		if a, ok := netip.AddrFromSlice(ip.To4()); ok {
			n.Nameservers = append(n.Nameservers, a)
		}
	}
	return n, nil
}

// apply sets the interface as the lease says.
func (n *network) apply(ack *dhcpv4.DHCPv4) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	set := func(what string, code uint, fill func(*unix.Ifreq) error) error {
		ifreq, err := unix.NewIfreq(n.Interface)
		if err == nil {
			err = fill(ifreq)
		}
		if err == nil {
			err = unix.IoctlIfreq(socket, code, ifreq)
		}
		if err != nil {
			return fmt.Errorf("set the %s of %s: %w", what, n.Interface, err)
		}
		return nil
	}
	address := n.Address.Addr().As4()
	mask := net.CIDRMask(n.Address.Bits(), 32)
	err = errors.Join(
		set("address", unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(address[:]) }),
		set("mask", unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr(mask) }),
	)
	if mtu := ack.Options.Get(dhcpv4.OptionInterfaceMTU); len(mtu) == 2 {
		// RFC 2132, section 5.1. An MTU that the NIC refuses is no reason not to boot.
		_ = set("MTU", unix.SIOCSIFMTU, func(r *unix.Ifreq) error { r.SetUint32(uint32(mtu[0])<<8 | uint32(mtu[1])); return nil })
	}
	if err == nil && n.Gateway.IsValid() {
		err = addRoute(socket, netip.PrefixFrom(netip.IPv4Unspecified(), 0), n.Gateway)
	}
	return err
}

// rtentry is struct rtentry (Linux, include/uapi/linux/route.h).
type rtentry struct {
	_       uintptr
	dst     unix.RawSockaddrInet4
	gateway unix.RawSockaddrInet4
	mask    unix.RawSockaddrInet4
	flags   uint16
	_       int16
	_       uintptr
	_       uintptr
	metric  int16
	dev     *byte
	_       uintptr
	_       uintptr
	_       uint16
}

// addRoute adds a route by a gateway (SIOCADDRT, route(7)). One that is there is no error.
func addRoute(socket int, to netip.Prefix, gateway netip.Addr) error {
	r := rtentry{flags: unix.RTF_UP | unix.RTF_GATEWAY}
	r.dst.Family, r.mask.Family, r.gateway.Family = unix.AF_INET, unix.AF_INET, unix.AF_INET
	r.dst.Addr, r.mask.Addr, r.gateway.Addr = to.Addr().As4(), [4]byte(net.CIDRMask(to.Bits(), 32)), gateway.As4()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCADDRT, uintptr(unsafe.Pointer(&r))); errno != 0 && errno != unix.EEXIST {
		return fmt.Errorf("set the route to %s by %s: %w", to, gateway, errno)
	}
	return nil
}

// renew keeps the lease until ctx ends: the first half of its time it is sure (RFC 2131, section 4.4.5). The address is kept even when no
// server answers: members may run here, and nobody else is given it.
func (n *network) renew(ctx context.Context, failed func(error)) {
	for {
		half := n.lease.ACK.IPAddressLeaseTime(time.Hour) / 2
		select {
		case <-time.After(max(half, 10*time.Second)):
		case <-ctx.Done():
			return
		}
		if err := n.renewOnce(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}

func (n *network) renewOnce(ctx context.Context) error {
	client, err := nclient4.New(n.Interface, nclient4.WithTimeout(5*time.Second))
	if err != nil {
		return err
	}
	defer client.Close()
	mac := n.lease.ACK.ClientHWAddr
	lease, err := client.Renew(ctx, n.lease, identifier(mac))
	if err != nil {
		return fmt.Errorf("renew the lease of %s: %w", n.Interface, err)
	}
	n.lease = lease
	return nil
}
