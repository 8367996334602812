package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
)

// Count reads the counters of ports. What the bridge gives a member passes the node's end, and what a shortcut gives it does not: so the
// member's end is asked what it received (older kernels than Linux 6.7 may not count there what shortcuts pass). The node's end of a TAP port sees everything.
func (f *Fabric) Count(ctx context.Context) (map[string]api.PortCounters, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ids := map[string]string{}
	f.mu.RLock()
	for _, n := range f.applied {
		for _, p := range n.Ports {
			ids[plan.PortName(p.ID)] = p.ID
		}
	}
	f.mu.RUnlock()
	counted := map[string]api.PortCounters{}
	err := f.node.Do(func() error {
		links, err := dump(func() ([]netlink.Link, error) { return netlink.LinkList() })
		if err != nil {
			return fmt.Errorf("reading links: %w", err)
		}
		for _, l := range links {
			id, own := ids[l.Attrs().Name]
			if !own || l.Attrs().Statistics == nil {
				continue
			}
			member, err := memberStatistics(l.Attrs())
			if err != nil {
				return fmt.Errorf("reading the member's end of %s: %w", l.Attrs().Name, err)
			}
			counted[id] = countersOf(l.Attrs().Statistics, member)
		}
		return nil
	})
	return counted, err
}

// countersOf are the counters of a port by those of its ends. Member is nil for a port whose other end can't be asked.
func countersOf(node, member *netlink.LinkStatistics) api.PortCounters {
	c := api.PortCounters{
		SentBytes: int64(node.RxBytes), SentPackets: int64(node.RxPackets), SentDropped: int64(node.RxDropped),
		ReceivedBytes: int64(node.TxBytes), ReceivedPackets: int64(node.TxPackets), ReceivedDropped: int64(node.TxDropped),
	}
	if member != nil {
		c.ReceivedBytes, c.ReceivedPackets = int64(member.RxBytes), int64(member.RxPackets)
		c.SentDropped += int64(member.TxDropped)
		c.ReceivedDropped += int64(member.RxDropped)
	}
	return c
}

// memberStatistics reads the counters of the member's end of a veth pair without entering its network namespace; nil if there is no such end, or
// if it moves just now.
func memberStatistics(port *netlink.LinkAttrs) (*netlink.LinkStatistics, error) {
	if port.NetNsID < 0 || port.ParentIndex == 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_ACK)
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(port.ParentIndex)
	req.AddData(info)
	req.AddData(nl.NewRtAttr(unix.IFLA_TARGET_NETNSID, nl.Uint32Attr(uint32(port.NetNsID))))
	messages, err := req.Execute(unix.NETLINK_ROUTE, 0)
	if isGone(err) || errors.Is(err, unix.EINVAL) { // the namespace, or the link in it
		return nil, nil //nolint:nilnil // it is gone
	}
	if err != nil || len(messages) == 0 {
		return nil, err
	}
	link, err := netlink.LinkDeserialize(nil, messages[0])
	if err != nil {
		return nil, err
	}
	return link.Attrs().Statistics, nil
}
