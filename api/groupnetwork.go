package api

import (
	"bytes"
	"encoding/json"
)

// GroupNetwork is a network on which each member of a group has a port. As text it is the network's name alone where that says it all.
type GroupNetwork struct {
	// Name is NAME for a further private network of the cluster, or project/NAME for one of the cluster's project.
	Name string `json:"name"`
	// SecurityGroups are the security groups of the ports, by their names in the cluster's project. Ports without one are not restricted.
	SecurityGroups []string `json:"security_groups,omitempty"`
}

// OnNetworks returns networks of a group by their names alone.
func OnNetworks(names ...string) []GroupNetwork {
	networks := make([]GroupNetwork, len(names))
	for i, name := range names {
		networks[i].Name = name
	}
	return networks
}

// groupNetwork is a GroupNetwork that is always written in full.
type groupNetwork GroupNetwork

// MarshalJSON writes the name alone if the ports have no security group.
func (n GroupNetwork) MarshalJSON() ([]byte, error) {
	if len(n.SecurityGroups) == 0 {
		return json.Marshal(n.Name)
	}
	return json.Marshal(groupNetwork(n))
}

// UnmarshalJSON reads a name, or an object.
func (n *GroupNetwork) UnmarshalJSON(text []byte) error {
	*n = GroupNetwork{}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte(`"`)) {
		return json.Unmarshal(text, &n.Name)
	}
	return json.Unmarshal(text, (*groupNetwork)(n))
}

// Network returns the entry of a group for a network, by the name that the group writes, and whether it has one.
func (g *Group) Network(name string) (GroupNetwork, bool) {
	for _, n := range g.Networks {
		if n.Name == name {
			return n, true
		}
	}
	return GroupNetwork{}, false
}

// SecurityGroupsOf returns the names of the security groups that groups name for their ports, each once, in the order in which they are first
// named.
func SecurityGroupsOf(groups []Group) []string {
	var names []string
	seen := map[string]bool{}
	for i := range groups {
		for _, n := range groups[i].Networks {
			for _, name := range n.SecurityGroups {
				if !seen[name] {
					seen[name], names = true, append(names, name)
				}
			}
		}
	}
	return names
}
