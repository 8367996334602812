package nodespace

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/pool"
)

const (
	switchName   = "_switch" // not a DNS label, hence no node's name
	switchBridge = "underlay"
	nodeLink     = "underlay" // a node's end
	hostPort     = "host"     // the switch's end of the host's link
	nodePort     = "node"     // nodeNUMBER, the switch's end of a node's link; the number is the host part of its address

	// underlayMTU is the most a veth pair and a bridge take, in bytes.
	underlayMTU = 65535
	// slotBits is the length of one underlay's prefix. Its last quarter is for floating addresses, so there is room for 766 nodes.
	slotBits = 22
	// floatingBits is the length of the prefix that floating addresses come from.
	floatingBits = 25
	// lastNode is the highest host part of a node.
	lastNode = 3<<(32-slotBits-2) - 1
)

// benchmarks is what underlays are cut from: the addresses set aside for benchmarks of network devices (RFC 2544, appendix C.2.2),
// which nobody routes.
var benchmarks = netip.MustParsePrefix("198.18.0.0/15")

// underlay is the network that joins host and nodes.
type underlay struct {
	prefix netip.Prefix // with the host's address
	sw     netns.Handle
}

func (u underlay) close() { _ = u.sw.Close() }

// hostLink is the name of the host's link to the nodes, the only one it gets.
func (s *site) hostLink() string { return "nmu" + s.id }

// ensureUnderlay makes the switch and joins the host to it.
func (s *site) ensureUnderlay() (underlay, error) {
	sw, err := s.ensureNetNS(switchName)
	if err != nil {
		return underlay{}, err
	}
	u := underlay{sw: sw}
	if err := sw.Do(ensureSwitch); err != nil {
		u.close()
		return underlay{}, fmt.Errorf("switch namespace: %w", err)
	}
	if err := s.host.Do(func() error { return s.ensureHostLink(&u) }); err != nil {
		u.close()
		return underlay{}, err
	}
	return u, nil
}

// ensureNetNS makes and pins a network namespace, and opens it.
func (s *site) ensureNetNS(node string) (netns.Handle, error) {
	pin := s.pin(node, "net")
	pinned, err := isPinned(pin)
	if err != nil {
		return netns.Handle{}, err
	}
	if pinned {
		return netns.Open(pin)
	}
	made, err := netns.New()
	if err != nil {
		return netns.Handle{}, err
	}
	if err := made.Do(quiet); err != nil {
		return netns.Handle{}, errors.Join(err, made.Close())
	}
	if err := pinNamespace(made.Path(), pin); err != nil {
		return netns.Handle{}, errors.Join(err, made.Close())
	}
	return made, nil
}

// quiet sets a new namespace up: loopback, no IPv6, no forwarding, and no second round through the rules for bridged packets. The kernel
// copies forwarding from the host's first namespace, where Docker or Podman may have switched it on.
func quiet() error {
	if err := setSysctl("ipv4/ip_forward", "0"); err != nil {
		return err
	}
	for _, path := range []string{"ipv6/conf/all/disable_ipv6", "ipv6/conf/default/disable_ipv6"} {
		if err := setSysctl(path, "1"); err != nil {
			return err
		}
	}
	for _, what := range []string{"ip", "ip6", "arp"} {
		if err := setSysctl("bridge/bridge-nf-call-"+what+"tables", "0"); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// setSysctl sets a value below /proc/sys/net in the thread's namespace; one that this kernel does not have needs no setting.
func setSysctl(name, value string) error {
	err := os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ensureSwitch makes the bridge of the underlay.
func ensureSwitch() error {
	link, err := netlink.LinkByName(switchBridge)
	if isGone(err) {
		snooping := false
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = switchBridge, underlayMTU
		link = &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
		err = netlink.LinkAdd(link)
	}
	if err != nil {
		return fmt.Errorf("making bridge %s: %w", switchBridge, err)
	}
	return netlink.LinkSetUp(link)
}

// ensureHostLink joins the host to the switch, in the host's namespace, and finds or chooses the underlay's prefix.
func (s *site) ensureHostLink(u *underlay) error {
	link, err := netlink.LinkByName(s.hostLink())
	if err == nil && !joined(u.sw, hostPort, link.Attrs().Index) {
		// What is left of an underlay whose switch is gone.
		if err := netlink.LinkDel(link); err != nil && !isGone(err) {
			return err
		}
		link, err = netlink.LinkByName(s.hostLink())
	}
	if isGone(err) {
		link, err = s.joinSwitch(s.hostLink(), s.hostMAC(), hostPort, u.sw)
	}
	if err != nil {
		return err
	}
	if err := plug(u.sw, hostPort); err != nil {
		return err
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	if len(addresses) > 0 {
		bits, _ := addresses[0].Mask.Size()
		ip, _ := netip.AddrFromSlice(addresses[0].IP)
		u.prefix = netip.PrefixFrom(ip.Unmap(), bits)
	} else {
		if u.prefix, err = s.choosePrefix(); err != nil {
			return err
		}
		if err := addAddress(link, u.prefix); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// hostMAC is the host's address on the switch, always the same one: nodes that outlive the link remember it, and would for most
// of a minute send to a former one. It is locally administered (IEEE 802, the second bit).
func (s *site) hostMAC() net.HardwareAddr {
	id, _ := hex.DecodeString(s.id) // made by open
	return append(net.HardwareAddr{0x02, 0x6e}, id...)
}

// joinSwitch makes a veth pair from the thread's namespace to the switch; without a MAC address the kernel chooses one.
func (s *site) joinSwitch(name string, mac net.HardwareAddr, port string, sw netns.Handle) (netlink.Link, error) {
	err := sw.Do(func() error { return removeLink(port) })
	if err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, underlayMTU, mac
	err = netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: attrs, PeerName: port, PeerMTU: underlayMTU, PeerNamespace: netlink.NsFd(sw.FD()),
	})
	if err != nil {
		return nil, fmt.Errorf("making link %s: %w", name, err)
	}
	// Without a link-local address of its own: it would announce itself to whoever listens.
	if err := setSysctl("ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil {
		return nil, err
	}
	return netlink.LinkByName(name)
}

// joined tells whether a port of the switch is the other end of the link with this index.
func joined(sw netns.Handle, port string, index int) bool {
	found := false
	_ = sw.Do(func() error {
		link, err := netlink.LinkByName(port)
		found = err == nil && link.Attrs().ParentIndex == index
		return err
	})
	return found
}

// plug puts a port on the switch's bridge.
func plug(sw netns.Handle, port string) error {
	return sw.Do(func() error {
		bridge, err := netlink.LinkByName(switchBridge)
		if err != nil {
			return err
		}
		link, err := netlink.LinkByName(port)
		if err != nil {
			return err
		}
		if link.Attrs().MasterIndex != bridge.Attrs().Index {
			if err := netlink.LinkSetMaster(link, bridge); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(link)
	})
}

// choosePrefix takes the slot of the pool that the state directory's name leads to, or the next that the host has no address in.
func (s *site) choosePrefix() (netip.Prefix, error) {
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return netip.Prefix{}, err
	}
	seed, err := strconv.ParseUint(s.id, 16, 32)
	if err != nil {
		return netip.Prefix{}, err
	}
	subnets, _ := pool.Cut(benchmarks, slotBits)
	slots := subnets.Count()
	for i := range slots {
		prefix, _ := subnets.At((int(seed) + i) % slots)
		taken := false
		for _, a := range addresses {
			ip, _ := netip.AddrFromSlice(a.IP)
			taken = taken || prefix.Contains(ip.Unmap())
		}
		if !taken {
			return netip.PrefixFrom(prefix.Addr().Next(), slotBits), nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("all %d subnets of %v are in use on this host; remove state directories that are no longer used", slots, benchmarks)
}

// nodeAddress is the underlay address with this host part.
func (u underlay) nodeAddress(number int) netip.Addr {
	return pool.Offset(u.prefix.Masked().Addr(), uint32(number))
}

// floating is the part of the underlay that floating addresses come from.
func (u underlay) floating() netip.Prefix {
	return netip.PrefixFrom(u.nodeAddress(lastNode+1), floatingBits)
}

// freeNumber is the lowest host part that no node's port has.
func (u underlay) freeNumber() (int, error) {
	numbers := pool.New(2, lastNode)
	err := u.sw.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if digits, ok := strings.CutPrefix(l.Attrs().Name, nodePort); ok {
				if number, err := strconv.Atoi(digits); err == nil {
					numbers.Hold(number, l.Attrs().Name)
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if number, ok := numbers.Lowest(); ok {
		return number, nil
	}
	return 0, fmt.Errorf("the underlay %v is full", u.prefix.Masked())
}

func addAddress(link netlink.Link, prefix netip.Prefix) error {
	address := &netlink.Addr{IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 32)}}
	if err := netlink.AddrReplace(link, address); err != nil {
		return fmt.Errorf("adding address %v to %s: %w", prefix, link.Attrs().Name, err)
	}
	return nil
}

// removeLink removes a link of the thread's namespace; one that is not there is no error.
func removeLink(name string) error {
	link, err := netlink.LinkByName(name)
	if isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := netlink.LinkDel(link); err != nil && !isGone(err) {
		return fmt.Errorf("removing link %s: %w", name, err)
	}
	return nil
}

// removeHostLink takes the host off the underlay.
func (s *site) removeHostLink() error {
	return s.host.Do(func() error { return removeLink(s.hostLink()) })
}

func isGone(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound) || errors.Is(err, unix.ENODEV)
}
