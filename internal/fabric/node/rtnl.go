package node

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Messages of rtnetlink(7) that say everything about a new link at once, which the netlink library does in several round trips.

// addrGenNone is IN6_ADDR_GEN_MODE_NONE of linux/if_link.h: the link gets no IPv6 link-local address, hence no duplicate address
// detection, no router solicitations, no multicast reports.
const addrGenNone = 1

// bridgePortForwarding is BR_STATE_FORWARDING of linux/if_bridge.h.
const bridgePortForwarding = 3

// leastIPv6 is the smallest MTU of a link with IPv6 (RFC 8200, section 5).
const leastIPv6 = 1280

// linkMessage is the common part of a message that makes a link. The link is down: bringUp follows.
func linkMessage(name string) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	return req
}

// bringUp sets a link's MTU, puts it on a bridge (0: on none), keeps IPv6 from choosing addresses for it, and sets it up. The
// kernel takes the mode of IPv6 for links that exist only, and a bridge keeps its MTU without ports only when that was
// changed after it was made.
func bringUp(name string, mtu, bridge int) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Flags, info.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(info)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(mtu))))
	if bridge != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge))))
	}
	if mtu >= leastIPv6 { // below, the link has no IPv6, and the kernel refuses its mode
		spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
		inet6 := spec.AddRtAttr(unix.AF_INET6, nil)
		inet6.AddRtAttr(unix.IFLA_INET6_ADDR_GEN_MODE, nl.Uint8Attr(addrGenNone))
		req.AddData(spec)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// newBridge makes a bridge.
func newBridge(l plan.Link) error {
	mac, err := net.ParseMAC(l.MAC)
	if err != nil {
		return err
	}
	req := linkMessage(l.Name)
	req.AddData(nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(plan.KindBridge)))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	addSnooping(data, l.Snooping)
	data.AddRtAttr(nl.IFLA_BR_STP_STATE, nl.Uint32Attr(0))
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return err
	}
	return bringUp(l.Name, l.MTU, 0)
}

// newIFB makes a device that packets pass to wait for their turn.
func newIFB(l plan.Link) error {
	req := linkMessage(l.Name)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(plan.KindIFB)))
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return err
	}
	return bringUp(l.Name, l.MTU, 0)
}

// newTunnel makes a VXLAN tunnel on the bridge with this link index.
func newTunnel(l plan.Link, bridge int) error {
	req := linkMessage(l.Name)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(plan.KindVXLAN)))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_VXLAN_ID, nl.Uint32Attr(uint32(l.VNI)))
	local := l.Local.As4()
	data.AddRtAttr(nl.IFLA_VXLAN_LOCAL, local[:])
	data.AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(1))
	data.AddRtAttr(nl.IFLA_VXLAN_PORT, binary.BigEndian.AppendUint16(nil, uint16(l.Port)))
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return err
	}
	return bringUp(l.Name, l.MTU, bridge)
}

// memberLink is the name of the member's end of its first veth pair.
const memberLink = "eth0"

// veth is a pair of links, one end on a bridge here, the other in a member.
type veth struct {
	name    string
	inside  string // name of the member's end
	mtu     int
	bridge  int // link index
	mac     net.HardwareAddr
	address netip.Addr
}

// newVeth makes the pair in one step, the member's end directly in its namespace: moving a link between namespaces is slow. One
// queue each is enough, as the driver takes no queue lock, and makes the links much cheaper to register.
func newVeth(v veth, member netns.Handle) error {
	req := linkMessage(v.name)
	req.AddData(nl.NewRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1)))
	req.AddData(nl.NewRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1)))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(plan.KindVeth)))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	peer := data.AddRtAttr(nl.VETH_INFO_PEER, nil)
	peer.AddChild(nl.NewIfInfomsg(unix.AF_UNSPEC))
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(v.inside))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(v.mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, v.mac)
	peer.AddRtAttr(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1))
	peer.AddRtAttr(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1))
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(member.FD())))
	req.AddData(info)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return err
	}
	return bringUp(v.name, v.mtu, v.bridge)
}

// bridgePortState returns the state of a bridge port (BR_STATE_* of linux/if_bridge.h), -1 when the link is none.
func bridgePortState(index int) (int, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(index)
	req.AddData(info)
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil || len(messages) == 0 {
		return -1, err
	}
	attrs, err := nl.ParseRouteAttrAsMap(messages[0][unix.SizeofIfInfomsg:])
	if err != nil {
		return -1, err
	}
	linkInfo, err := nl.ParseRouteAttrAsMap(attrs[unix.IFLA_LINKINFO].Value)
	if err != nil {
		return -1, err
	}
	slave, err := nl.ParseRouteAttrAsMap(linkInfo[nl.IFLA_INFO_SLAVE_DATA].Value)
	if err != nil {
		return -1, err
	}
	state, ok := slave[nl.IFLA_BRPORT_STATE]
	if !ok || len(state.Value) == 0 {
		return -1, nil
	}
	return int(state.Value[0]), nil
}
