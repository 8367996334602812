package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// fullMember is the membership bit of a partition key. Linux looks for a key in the port's table without it, and joins the partition's broadcast
// group with it (RFC 4391, section 4), so a limited member's interface has it too.
const fullMember = 0x8000

// portSuffix ends the member's name of a port whose partitions are its children's.
const portSuffix = "-ib"

// ipoib is an interface that carries IP over InfiniBand.
type ipoib struct {
	name string
	// key is the partition key, with or without the membership bit.
	key       int
	connected bool
	// index is the kernel's number of the interface. 0: it is to be made.
	index int
}

// ipoibOf returns the interface that a port's member is to have on a network, and whether the network carries IP over InfiniBand.
func ipoibOf(network fabric.Network, port fabric.Port) (want ipoib, carried bool) {
	want = ipoib{name: port.Interface, key: network.PKey, connected: network.Partition.IPoIBMode == api.IPoIBConnected}
	return want, network.OnInfiniBand() && network.Partition.IPoIB
}

func samePartition(a, b int) bool { return a&^fullMember == b&^fullMember }

// portName returns the member's name for a port's own interface. It is the wanted name where the partition at index 0 of the port's table is the
// wanted one, as on a function of mlx4. Else a child gets that name. The port's interface is then never set up, so that the member has no address in
// the port's default partition.
func portName(want, port ipoib) string {
	if samePartition(want.key, port.key) {
		return want.name
	}
	return want.name + portSuffix
}

// ipoibStep is one change to the interfaces of a member.
type ipoibStep struct {
	// Make is the name of the child that is made on interface On; "": the mode of On is set.
	Make string
	On   ipoib
	ipoib
}

func (s ipoibStep) String() string {
	mode := api.IPoIBDatagram
	if s.connected {
		mode = api.IPoIBConnected
	}
	if s.Make == "" {
		return fmt.Sprintf("set %s to mode %s", s.On.name, mode)
	}
	return fmt.Sprintf("make %s on %s with partition key 0x%04x in mode %s", s.Make, s.On.name, s.key|fullMember, mode)
}

// planIPoIB returns what makes a member's interface as wanted, from the interfaces with IP over InfiniBand that the member has.
func planIPoIB(want ipoib, seen []ipoib) ([]ipoibStep, error) {
	named := func(name string) *ipoib {
		if i := slices.IndexFunc(seen, func(i ipoib) bool { return i.name == name }); i >= 0 {
			return &seen[i]
		}
		return nil
	}
	if own := named(want.name); own != nil {
		switch {
		case !samePartition(own.key, want.key):
			return nil, fmt.Errorf("the member's interface %s has partition key 0x%04x, not 0x%04x", own.name, own.key, want.key|fullMember)
		case own.connected != want.connected:
			return []ipoibStep{{On: *own, ipoib: want}}, nil
		}
		return nil, nil
	}
	port := named(want.name + portSuffix)
	if port == nil {
		return nil, fmt.Errorf("the member has neither an interface %s nor the port %s%s to make it on", want.name, want.name, portSuffix)
	}
	return []ipoibStep{{Make: want.name, On: *port, ipoib: want}}, nil
}

// The attributes of links of kind ipoib, and the modes (linux/if_link.h, IFLA_IPOIB_* and IPOIB_MODE_*).
const (
	kindIPoIB          = plan.Kind("ipoib")
	ipoibDatagramMode  = 0
	ipoibConnectedMode = 1
)

// request returns the message to the kernel for a step. Attributes and their order are those of iproute2 6.1. Multicast by programs (IFLA_IPOIB_UMCAST)
// stays off.
func (s ipoibStep) request() *nl.NetlinkRequest {
	flags, info := unix.NLM_F_ACK, nl.NewIfInfomsg(unix.AF_UNSPEC)
	if s.Make != "" {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_EXCL
	} else {
		info.Index = int32(s.On.index)
	}
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, flags)
	req.AddData(info)
	if s.Make != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_LINK, nl.Uint32Attr(uint32(s.On.index))))
		req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(s.Make)))
	}
	kind := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	kind.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(kindIPoIB)))
	data := kind.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	if s.Make != "" {
		data.AddRtAttr(nl.IFLA_IPOIB_PKEY, nl.Uint16Attr(uint16(s.key|fullMember)))
	}
	mode := uint16(ipoibDatagramMode)
	if s.connected {
		mode = ipoibConnectedMode
	}
	data.AddRtAttr(nl.IFLA_IPOIB_MODE, nl.Uint16Attr(mode))
	data.AddRtAttr(nl.IFLA_IPOIB_UMCAST, nl.Uint16Attr(0))
	req.AddData(kind)
	return req
}

// makeIPoIB makes a member's interface, or sets its mode, in the member's network namespace.
func makeIPoIB(want ipoib) error {
	seen, err := readIPoIB()
	if err != nil {
		return err
	}
	steps, err := planIPoIB(want, seen)
	if err != nil {
		return err
	}
	for _, s := range steps {
		if _, err := s.request().Execute(unix.NETLINK_ROUTE, 0); err != nil {
			return ipoibError(s, err)
		}
	}
	return nil
}

// ipoibError adds to the kernel's answer what it means.
func ipoibError(s ipoibStep, err error) error {
	switch {
	case errors.Is(err, unix.EINVAL) && s.connected:
		return fmt.Errorf("%w: %s: the adapter's driver has no connected mode, such as mlx5 with enhanced IPoIB (option ipoib_enhanced of ib_ipoib); make the network with --ipoib-mode datagram: %w",
			fabric.ErrFunctionUnfit, s, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %s: the kernel has no IP over InfiniBand; run: modprobe ib_ipoib: %w", fabric.ErrFunctionUnfit, s, err)
	}
	return fmt.Errorf("%s: %w", s, err)
}

// readIPoIB returns the interfaces with IP over InfiniBand of the thread's network namespace.
func readIPoIB() ([]ipoib, error) {
	links, err := dump(func() ([]netlink.Link, error) { return netlink.LinkList() })
	if err != nil {
		return nil, err
	}
	return ipoibAmong(links), nil
}

func ipoibAmong(links []netlink.Link) (all []ipoib) {
	for _, l := range links {
		if i, is := l.(*netlink.IPoIB); is {
			all = append(all, ipoib{name: i.Name, key: int(i.Pkey), connected: i.Mode == netlink.IPOIB_MODE_CONNECTED, index: i.Index})
		}
	}
	return all
}

// memberNameOf returns the member's name for an interface of the node that is to carry IP over InfiniBand.
func memberNameOf(want ipoib, netdev string) (string, error) {
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return "", err
	}
	ports := ipoibAmong([]netlink.Link{link})
	if len(ports) == 0 {
		return "", fmt.Errorf("%w: interface %s is of kind %q and not of kind %s; run: modprobe ib_ipoib", fabric.ErrFunctionUnfit, netdev, cmp.Or(link.Type(), "none"), kindIPoIB)
	}
	return portName(want, ports[0]), nil
}

// onInterface reports whether a link is a device on another one: what a member leaves on a function's interface.
func onInterface(l netlink.Link, lower int) bool {
	switch l.(type) {
	case *netlink.Macvtap, *netlink.IPoIB:
		return l.Attrs().ParentIndex == lower && l.Attrs().Index != lower
	}
	return false
}
