package node

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/failpoint"
)

// addRoutes makes the members of a routed network known to a new bridge or tunnel.
func addRoutes(l plan.Link) error {
	for _, n := range l.Neighbours {
		if err := addNeighbour(l.Name, n); err != nil {
			return fmt.Errorf("adding neighbour %v: %w", n, err)
		}
	}
	for _, p := range l.Placed {
		if err := placeMember(l.Name, p.Heard); err != nil {
			return fmt.Errorf("placing member %s: %w", p.MAC, err)
		}
	}
	return nil
}

func addNeighbour(name string, n plan.Neighbour) error {
	err := changeNeighbour(netlink.NeighSet, name, n)
	failpoint.Hit("node.after-neighbour")
	return err
}

func deleteNeighbour(name string, n plan.Neighbour) error {
	return ignoring(changeNeighbour(netlink.NeighDel, name, n), unix.ENOENT)
}

func changeNeighbour(change func(*netlink.Neigh) error, name string, n plan.Neighbour) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return err
	}
	return change(&netlink.Neigh{
		LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: n.Address.AsSlice(), HardwareAddr: mac,
	})
}

// placeMember enters a member into the tables of a tunnel and of its bridge.
func placeMember(name string, heard plan.Heard) error {
	for _, table := range []int{netlink.NTF_SELF, netlink.NTF_MASTER} {
		if err := changePlace(netlink.NeighSet, name, heard, table); err != nil {
			return err
		}
		failpoint.Hit("node.after-place")
	}
	return nil
}

// unplaceMember removes a member from both tables, from that of the tunnel last: what a kill leaves is read there. A table that lacks it is no
// error.
func unplaceMember(name string, placed plan.Placed) error {
	for _, table := range []int{netlink.NTF_MASTER, netlink.NTF_SELF} {
		if err := ignoring(changePlace(netlink.NeighDel, name, placed.Heard, table), unix.ENOENT); err != nil {
			return err
		}
		failpoint.Hit("node.after-unplace")
	}
	return nil
}

func changePlace(change func(*netlink.Neigh) error, name string, heard plan.Heard, table int) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	mac, err := net.ParseMAC(heard.MAC)
	if err != nil {
		return err
	}
	entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, Flags: table, HardwareAddr: mac, State: netlink.NUD_NOARP}
	if table == netlink.NTF_SELF {
		entry.State, entry.IP = netlink.NUD_PERMANENT, heard.Peer.AsSlice()
	}
	return change(entry)
}

func ignoring(err, ignored error) error {
	if errors.Is(err, ignored) {
		return nil
	}
	return err
}

// readNeighbours returns the permanent neighbours of links, by link index, in order.
func readNeighbours() (map[int][]plan.Neighbour, error) {
	entries, err := dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("reading neighbours: %w", err)
	}
	all := map[int][]plan.Neighbour{}
	for _, e := range entries {
		if e.State&netlink.NUD_PERMANENT != 0 {
			all[e.LinkIndex] = append(all[e.LinkIndex], plan.Neighbour{Address: addr4(e.IP), MAC: e.HardwareAddr.String()})
		}
	}
	return all, nil
}

// placedIn returns the members that the table of a tunnel has for good, in order of their MAC addresses.
func placedIn(entries []netlink.Neigh) []plan.Placed {
	bridged := map[string]bool{}
	for _, e := range entries {
		if e.IP == nil && e.State&netlink.NUD_NOARP != 0 {
			bridged[e.HardwareAddr.String()] = true
		}
	}
	var list []plan.Placed
	for _, e := range entries {
		if isPlaced(e) {
			mac := e.HardwareAddr.String()
			list = append(list, plan.Placed{Heard: plan.Heard{MAC: mac, Peer: addr4(e.IP)}, Partial: !bridged[mac]})
		}
	}
	slices.SortFunc(list, func(a, b plan.Placed) int { return strings.Compare(a.MAC, b.MAC) })
	return list
}

// isPlaced reports whether an entry of a tunnel's table sends frames for one member to a peer, whatever is heard.
func isPlaced(e netlink.Neigh) bool {
	return e.IP != nil && e.State&netlink.NUD_PERMANENT != 0 && !bytes.Equal(e.HardwareAddr, allZero)
}
