package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// Group is a security group as the ports of one network need it. Ports without a group are not restricted by any. A port with groups takes
// what a rule of one of them allows, and replies; it sends anything, unless one of them has rules for that direction.
type Group struct {
	// ID is unique within the network.
	ID string `json:"id"`
	// Rules name other groups of this network by ID, or this one.
	Rules []securitygroup.Rule `json:"rules,omitempty"`
	// Members are the addresses of all ports with this group, on whichever node. Rules of groups that name this group are about them.
	Members []netip.Addr `json:"members,omitempty"`
	// Ports are the IDs of all ports with this group. Those that are not among the network's ports on this node change nothing here, so a group
	// is the same on every node.
	Ports []string `json:"ports,omitempty"`
}

// The limits of what groups cost a packet, and the node's memory.
const (
	// MaxGroupsOfPort is how many groups a port may have.
	MaxGroupsOfPort = 8
	// MaxGroupsNamed is how many other groups the rules of a group may name.
	MaxGroupsNamed = 16
	// MaxGroupBoxes is how many ranges the rules of a group in one direction may need.
	MaxGroupBoxes = 4096
)

// ErrUnguarded reports that the port has security groups and the node's kernel can't enforce them.
var ErrUnguarded = errors.New("this node can't enforce security groups, so it refuses ports that have some")

// GroupsOf returns the security groups of a port, in the order of the network's.
func (n Network) GroupsOf(portID string) []Group {
	var groups []Group
	for _, g := range n.Groups {
		if slices.Contains(g.Ports, portID) {
			groups = append(groups, g)
		}
	}
	return groups
}

// Guarded reports whether a port has security groups.
func (n Network) Guarded(portID string) bool { return len(n.GroupsOf(portID)) > 0 }

// Bridged reports whether all packets of a port have to take the bridge: it has security groups or a quality of service, or a function that frames
// may have to go to instead.
func (n Network) Bridged(p Port) bool { return p.Shaped() || p.Standby || n.Guarded(p.ID) }

// Named returns the IDs of the groups that the rules of a group name in one direction, in order.
func (g Group) Named(direction securitygroup.Direction) []string {
	var named []string
	for _, r := range g.Rules {
		if r.Direction == direction && r.Group != "" {
			named = append(named, r.Group)
		}
	}
	slices.Sort(named)
	return slices.Compact(named)
}

// validateGroups checks the security groups of one network.
func validateGroups(n Network) error {
	ids := map[string]bool{}
	for _, g := range n.Groups {
		if g.ID == "" || ids[g.ID] {
			return fmt.Errorf("network %d: security group ID %q is empty or appears twice", n.Index, g.ID)
		}
		ids[g.ID] = true
	}
	ports := map[string]int{}
	for _, g := range n.Groups {
		if err := g.validate(ids, ports); err != nil {
			return fmt.Errorf("network %d: security group %s: %w", n.Index, g.ID, err)
		}
	}
	return nil
}

// validate checks one group; ids are the IDs of the network's groups, and ports counts the groups of each port.
func (g Group) validate(ids map[string]bool, ports map[string]int) error {
	if err := securitygroup.Validate(g.Rules); err != nil {
		return err
	}
	for _, d := range []securitygroup.Direction{securitygroup.In, securitygroup.Out} {
		named := g.Named(d)
		if len(named) > MaxGroupsNamed {
			return fmt.Errorf("rules for %q name %d groups; the limit is %d", d, len(named), MaxGroupsNamed)
		}
		for _, id := range named {
			if !ids[id] {
				return fmt.Errorf("a rule for %q names group %s, which the network doesn't have", d, id)
			}
		}
		if boxes := len(securitygroup.Boxes(g.Rules, d, securitygroup.IPv4)) + len(securitygroup.Boxes(g.Rules, d, securitygroup.IPv6)); boxes > MaxGroupBoxes {
			return fmt.Errorf("rules for %q need %d ranges; the limit is %d: use fewer prefixes within each other", d, boxes, MaxGroupBoxes)
		}
	}
	for _, a := range g.Members {
		if !a.Is4() {
			return fmt.Errorf("member %v is not an IPv4 address", a)
		}
	}
	seen := map[string]bool{}
	for _, id := range g.Ports {
		if seen[id] || id == "" {
			return fmt.Errorf("port ID %q is empty or appears twice", id)
		}
		seen[id] = true
		if ports[id]++; ports[id] > MaxGroupsOfPort {
			return fmt.Errorf("port %s has more than %d security groups", id, MaxGroupsOfPort)
		}
	}
	return nil
}
