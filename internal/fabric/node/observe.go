package node

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/wayout"
)

// observe reads what Plan has to know, links and rules at once.
func (f *Fabric) observe(ctx context.Context) (plan.Observed, error) {
	if err := ctx.Err(); err != nil {
		return plan.Observed{}, err
	}
	type rulesResult struct {
		rules plan.Ruleset
		err   error
	}
	listed := make(chan rulesResult, 1)
	go func() {
		rules, err := f.nft.read(ctx, f.node)
		listed <- rulesResult{rules, err}
	}()
	var seen plan.Observed
	policies := false
	err := f.node.Do(func() (err error) {
		var links shortcutLinks
		if seen, links, err = observeLinks(f.cfg); err != nil {
			return err
		}
		if seen.Limits, err = f.limits.read(seen.Links, links.limited); err != nil {
			return err
		}
		seen.CanShortcut = f.shortcuts.load(ctx)
		if seen.OpenShortcuts, err = f.shortcuts.read(links); err != nil {
			return err
		}
		policies, err = othersPolicies()
		return err
	})
	result := <-listed
	seen.Rules = result.rules
	seen.BridgeRules, seen.UnderlayRules = f.nft.othersRules()
	seen.UnderlayRules = seen.UnderlayRules || policies
	listing, docker := f.nft.others()
	seen.Docker, seen.OthersSwitched = docker, listing.Others(plan.InetTable)
	return seen, errors.Join(err, result.err)
}

// observeLinks reads links, addresses, tunnel peers and forwarding in the thread's network namespace.
func observeLinks(cfg Config) (seen plan.Observed, links shortcutLinks, err error) {
	seen.Links, seen.UplinkRate = map[string]plan.Link{}, cfg.UplinkRate
	links = shortcutLinks{ports: map[string]int{}, tunnels: map[string]int{}, others: map[string]int{}, limited: map[string]int{}}
	list, err := dump(func() ([]netlink.Link, error) { return netlink.LinkList() })
	if err != nil {
		return seen, links, fmt.Errorf("reading links: %w", err)
	}
	seen.TrunkMTU = mtuOfLink(list, cfg.Trunk)
	names := map[int]string{}
	for _, l := range list {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addresses, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return seen, links, fmt.Errorf("reading addresses: %w", err)
	}
	neighbours, err := readNeighbours()
	if err != nil {
		return seen, links, err
	}
	if seen.Uplinks, err = defaultLinks(names); err != nil {
		return seen, links, err
	}
	for _, l := range list {
		attrs := l.Attrs()
		link := plan.Link{
			Name: attrs.Name, Kind: plan.Kind(l.Type()), MTU: attrs.MTU, Master: names[attrs.MasterIndex], Up: attrs.Flags&unix.IFF_UP != 0,
			Away: attrs.NetNsID >= 0,
		}
		for _, a := range addresses {
			prefix := addressPrefix(a)
			if a.LinkIndex == attrs.Index {
				link.Addresses = append(link.Addresses, prefix)
			}
			if a.LinkIndex == attrs.Index && cfg.Underlay.IsValid() && prefix.Addr() == cfg.Underlay {
				seen.Underlay, seen.UnderlayMTU = prefix.Masked(), attrs.MTU
				seen.UplinkRate, seen.UnderlayLink = cmp.Or(cfg.UplinkRate, rateOf(l)), shortcutLink(attrs)
			}
		}
		_, own := plan.OwnLink(attrs.Name)
		if !own {
			links.others[attrs.Name] = attrs.Index
		}
		if !own && !slices.Contains(seen.Uplinks, attrs.Name) {
			continue
		}
		if err := observeLink(l, &link); err != nil {
			return seen, links, err
		}
		if own && link.Kind == plan.KindBridge {
			link.Neighbours = neighbours[attrs.Index]
			slices.SortFunc(link.Neighbours, plan.Neighbour.Compare)
		}
		seen.Links[link.Name] = link
		if own && link.Kind == plan.KindVeth {
			links.ports[link.Name] = attrs.Index
		}
		if own && (link.Kind == plan.KindVeth || link.Kind == plan.KindTAP) {
			links.limited[link.Name] = attrs.Index
		}
		if own && link.Kind == plan.KindVXLAN {
			links.tunnels[link.Name] = attrs.Index
		}
	}
	if err := observeAddresses6(&seen, names); err != nil {
		return seen, links, err
	}
	if err := observeMulticast(seen.Links); err != nil {
		return seen, links, fmt.Errorf("reading how bridges treat multicast: %w", err)
	}
	if err := observeForwarding(&seen); err != nil {
		return seen, links, err
	}
	if cfg.UnderlayMTU != 0 {
		seen.UnderlayMTU = cfg.UnderlayMTU
	}
	return seen, links, nil
}

// observeForwarding reads who forwards on this node besides the networks.
func observeForwarding(seen *plan.Observed) error {
	links, router, err := netns.Forwarding()
	if err != nil {
		return err
	}
	seen.Router = router
	seen.Forwarding = slices.DeleteFunc(links, func(link string) bool { return wayout.OfSite(link) || slices.Contains(seen.Uplinks, link) })
	return nil
}

// listPorts reads what Probe has to know, in the thread's network namespace.
func listPorts() (map[string]plan.Link, error) {
	list, err := dump(func() ([]netlink.Link, error) { return netlink.LinkList() })
	if err != nil {
		return nil, fmt.Errorf("reading links: %w", err)
	}
	names, links := map[int]string{}, map[string]plan.Link{}
	for _, l := range list {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, l := range list {
		attrs := l.Attrs()
		links[attrs.Name] = plan.Link{Name: attrs.Name, Master: names[attrs.MasterIndex], Up: attrs.Flags&unix.IFF_UP != 0}
	}
	return links, nil
}

// observeLink adds what belongs to one kind of link only.
func observeLink(l netlink.Link, link *plan.Link) error {
	switch l := l.(type) {
	case *netlink.Bridge:
		link.MAC = l.HardwareAddr.String()
	case *netlink.Vxlan:
		link.VNI, link.Port, link.Learning = l.VxlanId, l.Port, l.Learning
		link.Local = addr4(l.SrcAddr)
		entries, err := tunnelTable(l.Index)
		if err != nil {
			return fmt.Errorf("reading peers of %s: %w", link.Name, err)
		}
		link.Placed = placedIn(entries)
		for _, e := range entries {
			if e.IP == nil || isPlaced(e) {
				continue // of the bridge's table, or placed
			}
			if bytes.Equal(e.HardwareAddr, allZero) {
				link.Peers = append(link.Peers, addr4(e.IP))
			} else {
				link.Learned = append(link.Learned, plan.Heard{MAC: e.HardwareAddr.String(), Peer: addr4(e.IP)})
			}
		}
	case *netlink.Vlan:
		if trunk, err := netlink.LinkByIndex(l.ParentIndex); err == nil && l.VlanProtocol == netlink.VLAN_PROTOCOL_8021Q {
			link.VID, link.Trunk = l.VlanId, trunk.Attrs().Name
		}
		if _, own := plan.OwnLink(link.Name); own {
			var err error
			if link.Filters, err = filtersOf(l.Index); err != nil {
				return fmt.Errorf("reading the filters of %s: %w", link.Name, err)
			}
		}
	case *netlink.Wireguard:
		cipher, err := readCipher(link.Name)
		if err != nil {
			return err
		}
		link.Cipher = cipher
	case *netlink.Veth, *netlink.Tuntap:
		if _, own := plan.OwnLink(link.Name); own {
			return nil // a member's port: no routing happens on it
		}
		// Any other one is an uplink: that of a machine made of namespaces is a veth.
	}
	on, err := netns.Forwards(link.Name)
	link.Forwarding = on
	return err
}

// tunnelTable lists where a tunnel sends frames, and where its bridge sends frames through the tunnel.
func tunnelTable(index int) ([]netlink.Neigh, error) {
	entries, err := dump(func() ([]netlink.Neigh, error) {
		return netlink.NeighListExecute(netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(index)})
	})
	return slices.DeleteFunc(entries, func(e netlink.Neigh) bool { return e.LinkIndex != index }), err
}

// allZero is the address whose entries in a tunnel's table list where frames of unknown destination go.
var allZero = []byte{0, 0, 0, 0, 0, 0}

// defaultLinks returns the names of the links that IPv4 default routes lead over.
func defaultLinks(names map[int]string) ([]string, error) {
	routes, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_DST)
	})
	if err != nil {
		return nil, fmt.Errorf("reading default routes: %w", err)
	}
	var links []string
	for _, r := range routes {
		indexes := []int{r.LinkIndex}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
		for _, index := range indexes {
			if name, ok := names[index]; ok {
				links = append(links, name)
			}
		}
	}
	slices.Sort(links)
	return slices.Compact(links), nil
}

// dump repeats a reading that the kernel says was interrupted by a change.
func dump[T any](read func() ([]T, error)) ([]T, error) {
	const attempts = 10
	for range attempts - 1 {
		list, err := read()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
	return read()
}

func addressPrefix(a netlink.Addr) netip.Prefix {
	bits, _ := a.Mask.Size()
	return netip.PrefixFrom(addr4(a.IP), bits)
}

func addr4(ip []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
