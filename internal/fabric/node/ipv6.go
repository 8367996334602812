package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// errNoIPv6 reports that the kernel can't give members of a network with IPv6 their addresses.
var errNoIPv6 = errors.New("the network has IPv6, and this node's kernel has none: boot it without ipv6.disable, or load its module ipv6")

// minMTU6 is the smallest MTU of links that carry IPv6 (RFC 8200, section 5), in bytes.
const minMTU6 = 1280

const ipv6Settings = "/proc/sys/net/ipv6/conf/"

// hasIPv6 reports whether the kernel has IPv6, in the thread's network namespace.
func hasIPv6() bool {
	_, err := os.Stat(ipv6Settings)
	return err == nil
}

// setIPv6 sets what IPv6 does on a link, before the link is up. A kernel without IPv6 has no such settings.
func setIPv6(link string, settings map[string]string) error {
	for name, value := range settings {
		err := os.WriteFile(ipv6Settings+link+"/"+name, []byte(value), 0o644)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("setting %s of IPv6 to %s: %w", name, value, err)
		}
	}
	return nil
}

// onlyGiven are the settings of a link that has the IPv6 addresses that it is given, and none that routers or the kernel choose.
func onlyGiven() map[string]string {
	const noAddress = "1" // IN6_ADDR_GEN_MODE_NONE of linux/if_link.h
	return map[string]string{"addr_gen_mode": noAddress, "accept_ra": "0", "router_solicitations": "0", "disable_ipv6": "0"}
}

// observeAddresses6 adds the IPv6 addresses of bridges, and whether the kernel has IPv6 at all.
func observeAddresses6(seen *plan.Observed, names map[int]string) error {
	if seen.IPv6 = hasIPv6(); !seen.IPv6 {
		return nil
	}
	addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V6) })
	if err != nil {
		return fmt.Errorf("reading IPv6 addresses: %w", err)
	}
	for name, link := range seen.Links {
		if _, own := plan.OwnLink(name); !own || link.Kind != plan.KindBridge {
			continue
		}
		for _, a := range addresses {
			if names[a.LinkIndex] == name {
				link.Addresses = append(link.Addresses, addressPrefix(a))
			}
		}
		seen.Links[name] = link
	}
	return nil
}

// memberAddresses6 are the addresses of a member's end: its own and the link-local one.
func memberAddresses6(pair veth, network fabric.Network) []netip.Addr {
	own := network.Address6(pair.address)
	if !own.IsValid() {
		return nil
	}
	return []netip.Addr{own, fabric.LinkLocal(pair.mac.String())}
}

// configureMember6 switches IPv6 on at the member's end of a network that has it, and off at others, before the link is up. Nobody else can have
// the addresses, so the kernel need not spend a second on finding that out.
func configureMember6(link netlink.Link, pair veth, network fabric.Network) error {
	addresses := memberAddresses6(pair, network)
	if len(addresses) == 0 {
		return setIPv6(pair.inside, map[string]string{"disable_ipv6": "1"})
	}
	if !hasIPv6() {
		return errNoIPv6
	}
	if pair.mtu < minMTU6 {
		return fmt.Errorf("the network has IPv6, which needs an MTU of %d, and its links have %d bytes: raise the MTU of the underlay", minMTU6, pair.mtu)
	}
	if err := setIPv6(pair.inside, onlyGiven()); err != nil {
		return err
	}
	for _, a := range addresses {
		address := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(api.Prefix6Bits, 128)}, Flags: unix.IFA_F_NODAD}
		if err := netlink.AddrReplace(link, address); err != nil {
			return fmt.Errorf("adding address %v: %w", a, err)
		}
	}
	return nil
}

// addBridgeAddress6 gives a bridge an IPv6 address.
func addBridgeAddress6(name string, address netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if err := setIPv6(name, onlyGiven()); err != nil {
		return err
	}
	return netlink.AddrReplace(link, &netlink.Addr{
		IPNet: &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), 128)}, Flags: unix.IFA_F_NODAD,
	})
}

// The multicast groups of neighbour discovery and of listeners' reports (RFC 4291, section 2.7.1, and RFC 3810, section 5.2.14).
var (
	allNodes   = netip.MustParseAddr("ff02::1")
	allRouters = netip.MustParseAddr("ff02::16")
)

// announcements6 are frames that make a member's IPv6 addresses known: a report of the groups that questions for them are sent to, and an
// unsolicited advertisement of each (RFC 4861, section 7.2.6). The kernel's own reports may have been sent before the bridge took frames from the
// port, and it does not repeat them for long.
func announcements6(mac net.HardwareAddr, addresses []netip.Addr) [][]byte {
	if len(addresses) == 0 {
		return nil
	}
	linkLocal := addresses[len(addresses)-1]
	const (
		report        = 143 // RFC 3810, section 5.2
		advertisement = 136 // RFC 4861, section 4.4
		toExclude     = 4   // "change to exclude mode", of no source: the group is joined
		override      = 0x20
		targetOption  = 2
		behindAlert   = 0 // the hop-by-hop options header
	)
	body := []byte{report, 0, 0, 0, 0, 0, 0, byte(len(addresses))}
	for _, a := range addresses {
		body = append(append(body, toExclude, 0, 0, 0), solicited(a).AsSlice()...)
	}
	alert := []byte{unix.IPPROTO_ICMPV6, 0, 5, 2, 0, 0, 1, 0} // RFC 2711, and padding
	frames := [][]byte{frame6(mac, linkLocal, allRouters, behindAlert, 1, alert, body)}
	for _, a := range addresses {
		body := slices.Concat([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, a.AsSlice(), []byte{targetOption, 1}, mac)
		frames = append(frames, frame6(mac, a, allNodes, unix.IPPROTO_ICMPV6, 255, nil, body))
	}
	return frames
}

// solicited returns the group that questions for an address are sent to.
func solicited(a netip.Addr) netip.Addr {
	group, own := netip.MustParseAddr("ff02::1:ff00:0").As16(), a.As16()
	copy(group[13:], own[13:])
	return netip.AddrFrom16(group)
}

// frame6 is an ICMPv6 message to a multicast group, with its checksum, behind extension headers.
func frame6(mac net.HardwareAddr, from, to netip.Addr, next, hops byte, extension, body []byte) []byte {
	group := to.As16()
	pseudo := slices.Concat(from.AsSlice(), group[:], []byte{0, 0, byte(len(body) >> 8), byte(len(body)), 0, 0, 0, unix.IPPROTO_ICMPV6}, body)
	binary.BigEndian.PutUint16(body[2:], internetChecksum(pseudo))
	frame := slices.Concat([]byte{0x33, 0x33}, group[12:], mac)
	frame = binary.BigEndian.AppendUint16(frame, unix.ETH_P_IPV6)
	frame = append(frame, 0x60, 0, 0, 0)
	frame = binary.BigEndian.AppendUint16(frame, uint16(len(extension)+len(body)))
	return slices.Concat(frame, []byte{next, hops}, from.AsSlice(), group[:], extension, body)
}

// internetChecksum is that of RFC 1071.
func internetChecksum(b []byte) uint16 {
	var sum uint32
	for i, octet := range b {
		sum += uint32(octet) << (8 * (1 - i&1))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
