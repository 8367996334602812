package node

import (
	"bytes"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// multicastRouter is MDB_RTR_TYPE_PERM of linux/if_bridge.h: a port that takes all multicast, because routers live behind it.
const multicastRouter = 2

// observeMulticast adds how bridges and tunnels treat multicast, which the netlink library does not read.
func observeMulticast(links map[string]plan.Link) error {
	kinds := []plan.Kind{plan.KindBridge, plan.KindVXLAN}
	for _, l := range links {
		if l.Kind == plan.KindVLAN { // a kernel that has none would list all its links
			kinds = append(kinds, plan.KindVLAN)
			break
		}
	}
	for _, kind := range kinds {
		messages, err := dump(func() ([][]byte, error) { return linksOfKind(kind) })
		if err != nil {
			return err
		}
		for _, message := range messages {
			name, snooping, router, err := multicastOf(message)
			if err != nil {
				return err
			}
			if link, own := links[name]; own && link.Kind == kind {
				link.Snooping, link.MulticastRouter = snooping, router
				links[name] = link
			}
		}
	}
	return nil
}

// linksOfKind asks for links of one kind only: a node has few bridges and tunnels, and may have thousands of ports.
func linksOfKind(kind plan.Kind) ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(kind)))
	req.AddData(info)
	return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
}

// multicastOf reads a link message: whether a bridge snoops and asks, and whether a bridge's port takes all multicast.
func multicastOf(message []byte) (name string, snooping, router bool, err error) {
	var on, asks bool
	attrs, err := nl.ParseRouteAttr(message[nl.DeserializeIfInfomsg(message).Len():])
	if err != nil {
		return "", false, false, err
	}
	for _, attr := range attrs {
		switch attr.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.IFLA_IFNAME:
			name = string(bytes.TrimRight(attr.Value, "\x00"))
		case unix.IFLA_LINKINFO:
			err = eachByte(attr.Value, nl.IFLA_INFO_DATA, map[uint16]*bool{nl.IFLA_BR_MCAST_SNOOPING: &on, nl.IFLA_BR_MCAST_QUERIER: &asks}, 1)
			if err == nil {
				err = eachByte(attr.Value, nl.IFLA_INFO_SLAVE_DATA, map[uint16]*bool{nl.IFLA_BRPORT_MULTICAST_ROUTER: &router}, multicastRouter)
			}
			if err != nil {
				return "", false, false, err
			}
		}
	}
	return name, on && asks, router, nil
}

// eachByte sets what is wanted of a nest of attributes to whether its byte has this value.
func eachByte(info []byte, nest uint16, wanted map[uint16]*bool, value byte) error {
	nests, err := nl.ParseRouteAttr(info)
	if err != nil {
		return err
	}
	for _, n := range nests {
		if n.Attr.Type&^unix.NLA_F_NESTED != nest {
			continue
		}
		attrs, err := nl.ParseRouteAttr(n.Value)
		if err != nil {
			return err
		}
		for _, a := range attrs {
			if to := wanted[a.Attr.Type]; to != nil && len(a.Value) > 0 {
				*to = a.Value[0] == value
			}
		}
	}
	return nil
}

// addSnooping lets a bridge send multicast to the ports that asked for it (RFC 4541), and ask for that itself (RFC 3376): no member does.
func addSnooping(data *nl.RtAttr, on bool) {
	value := uint8(0)
	if on {
		value = 1
	}
	data.AddRtAttr(nl.IFLA_BR_MCAST_SNOOPING, nl.Uint8Attr(value))
	data.AddRtAttr(nl.IFLA_BR_MCAST_QUERIER, nl.Uint8Attr(value))
}

// setSnooping switches multicast snooping of a bridge, and its questions.
func setSnooping(bridge int, on bool) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(bridge)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(string(plan.KindBridge)))
	addSnooping(info.AddRtAttr(nl.IFLA_INFO_DATA, nil), on)
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// setMulticastRouter lets a tunnel take all multicast of its bridge, or what its other end asked for. The tunnel has to be on the bridge.
func setMulticastRouter(tunnel int, on bool) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(tunnel)
	req.AddData(msg)
	value := uint8(1) // MDB_RTR_TYPE_TEMP_QUERY, the kernel's default
	if on {
		value = multicastRouter
	}
	nest := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	nest.AddRtAttr(nl.IFLA_BRPORT_MULTICAST_ROUTER, nl.Uint8Attr(value))
	req.AddData(nest)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
