package manifest

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// ownInterface checks what a group's ports on the cluster's own network are, and returns it in its normal form: "" is what nodes make by themselves.
func (n *normalizer) ownInterface(path string, g api.Group) api.Interface {
	kind := g.Interface
	if kind == "" {
		if n.src.Has(path) {
			n.add(path, "", "is empty; %s", oneOf("", interfaceNames()))
		}
		return ""
	}
	if problem := interfaceProblem(kind, g.Stack); problem != "" {
		n.add(path, string(kind), "%q %s", kind, problem)
		return ""
	}
	if !kind.OnFunction() {
		return ""
	}
	return kind
}

// ownNetwork checks what carries the cluster's own network, and chooses that where it follows from the interfaces of the groups alone. On InfiniBand
// the interfaces become those of ports on the cluster's partition.
func (n *normalizer) ownNetwork(spec *api.ClusterSpec, pathOf func(group int) string) {
	technologies := []string{string(api.TechnologyVXLAN), string(api.TechnologyVLAN), string(api.TechnologyInfiniBand)}
	switch {
	case spec.Technology == "" && !n.src.Has("technology"):
		spec.Technology = n.impliedTechnology(spec.Groups)
	case !slices.Contains(technologies, string(spec.Technology)):
		n.add("technology", string(spec.Technology), "%q is no technology of networks; %s", spec.Technology, oneOf(string(spec.Technology), technologies))
		return
	}
	if spec.Technology != api.TechnologyInfiniBand && (spec.Cell != "" || n.src.Has("cell")) {
		n.add("cell", spec.Cell, "is for clusters with a partition only; write technology %s, or omit it", api.TechnologyInfiniBand)
	}
	for i := range spec.Groups {
		g, path := &spec.Groups[i], pathOf(i)
		if g.Stack == api.StackMetal && spec.Technology == api.TechnologyInfiniBand {
			n.add(join(path, "stack"), string(g.Stack), "%q gives members the ports of their nodes, which can't be on an own network of technology %s; omit the technology, or use another stack",
				g.Stack, spec.Technology)
		}
		if g.Stack == api.StackMetal && spec.Technology == api.TechnologyVLAN && spec.Egress {
			n.add("egress", "true", "is not possible for stack %q on a VLAN: its packets pass no node, which is the network's gateway; omit it", g.Stack)
		}
		if spec.Technology != api.TechnologyInfiniBand && g.Interface.OnFunction() {
			n.noSpares(join(path, "interface"), g.Interface, *g)
		}
		if spec.Technology == api.TechnologyVXLAN && g.Interface.OnFunction() {
			n.add(join(path, "interface"), string(g.Interface), "%q is not possible on an own network of technology %s: nodes carry its packets by tunnels, in which a function of an adapter has no part; "+
				"write technology %s or %s, or omit it", g.Interface, api.TechnologyVXLAN, api.TechnologyVLAN, api.TechnologyInfiniBand)
		}
		if spec.Technology == api.TechnologyVLAN && g.Interface.OnFunction() && spec.Egress {
			n.add("egress", "true", "is not possible with interface %s: its packets pass no node, which is the network's gateway; omit it, or join a network of the project with egress", g.Interface)
		}
	}
	if spec.Technology == api.TechnologyInfiniBand {
		n.ownPartitions(spec, pathOf)
	}
}

// impliedTechnology returns the technology that groups with functions need: a partition where they ask for nodes on InfiniBand, else a VLAN; "" where
// no group has functions on the own network. Groups that need different ones are refused.
func (n *normalizer) impliedTechnology(groups []api.Group) api.Technology {
	var implied api.Technology
	first := ""
	for _, g := range groups {
		if !g.Interface.OnFunction() {
			continue
		}
		technology := api.TechnologyVLAN
		if g.Interconnect.Technology == api.FabricInfiniBand {
			technology = api.TechnologyInfiniBand
		}
		if implied == "" {
			implied, first = technology, g.Name
		} else if implied != technology {
			n.add("technology", "", "is missing: by their interconnects, group %q needs an own network of technology %s, and group %q one of technology %s; a cluster has one of them, so write which",
				first, implied, g.Name, technology)
			return ""
		}
	}
	return implied
}

// ownPartitions moves the interfaces of groups to the cluster's partition, and checks its ports. Groups without an interface are on the tunnels only.
func (n *normalizer) ownPartitions(spec *api.ClusterSpec, pathOf func(group int) string) {
	if spec.Cell != "" || n.src.Has("cell") {
		n.label("cell", spec.Cell, MaxLabel)
	}
	ports := false
	for i := range spec.Groups {
		g := &spec.Groups[i]
		at, networks := join(pathOf(i), "interface"), join(pathOf(i), "networks")
		named := slices.IndexFunc(g.Networks, func(on api.GroupNetwork) bool { return on.Name == api.OwnPartition })
		ports = ports || named >= 0 || g.Interface != ""
		switch {
		case named >= 0 && g.Interface != "":
			n.add(at, string(g.Interface), "conflicts with the group's network %q, which is the cluster's partition and has an interface; omit this one", api.OwnPartition)
		case named >= 0:
			n.ownPartition(fmt.Sprintf("%s[%d].interface", networks, named), *g, g.Networks[named])
		case g.Interface != "" && len(g.Networks) >= MaxGroupNetworks:
			n.add(networks, strconv.Itoa(len(g.Networks)), "has %d networks; at most %d are possible beside the cluster's own and its partition", len(g.Networks), MaxGroupNetworks-1)
		case g.Interface != "":
			on := api.GroupNetwork{Name: api.OwnPartition, Interface: g.Interface, Adapter: g.Adapter, Standby: g.Standby}
			n.ownPartition(at, *g, on)
			g.Networks = append([]api.GroupNetwork{on}, g.Networks...)
		}
		g.Interface, g.Adapter, g.Standby = "", api.DeviceChoice{}, false
	}
	if !ports && len(n.problems) == 0 {
		n.add("technology", string(spec.Technology), "gives the cluster a partition, and no group has ports there; write interface %s, or %s for whole ports", api.InterfaceVF, api.InterfacePF)
	}
}

// ownPartition checks the ports of a group on the cluster's partition. Their interface stands at a path.
func (n *normalizer) ownPartition(path string, g api.Group, on api.GroupNetwork) {
	switch kind := on.Interface; {
	case g.Stack == api.StackMetal: // said already
	case kind == api.InterfaceMACVTAP:
		n.add(path, string(kind), "%q is an Ethernet interface, and InfiniBand carries no Ethernet; write %s, or %s for a whole port", kind, api.InterfaceVF, api.InterfacePF)
	case !kind.OnFunction():
		n.add(path, string(kind), "is not %s, or %s for a whole port: %q is the cluster's partition, and InfiniBand can't be bridged", api.InterfaceVF, api.InterfacePF, on.Name)
	case len(on.SecurityGroups) > 0:
		n.add(path, string(kind), "has security groups, which nodes can't enforce on a port of kind %s, whose packets pass no bridge; omit them", kind)
	case on.Standby:
		n.add(path, string(kind), "has a standby, which is an Ethernet interface, and InfiniBand carries no Ethernet; omit it")
	case on.DSCP != "":
		n.add(path, string(kind), "has a DSCP, which nodes can't enforce on a port of kind %s, whose packets pass no bridge; omit it", kind)
	default:
		n.noSpares(path, kind, g)
	}
}

func interfaceNames() []string {
	var names []string
	for _, i := range api.Interfaces() {
		names = append(names, string(i))
	}
	return names
}
