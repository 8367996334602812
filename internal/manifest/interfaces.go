package manifest

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// interfaces checks what the ports of a group's members are. Whether a network of the project can bear them is for the server to find out: the
// manifest does not tell its technology.
func (n *normalizer) interfaces(path string, spec *api.ClusterSpec, g api.Group) {
	for i, network := range g.Networks {
		at, kind := fmt.Sprintf("%s[%d].interface", path, i), network.Interface
		_, joined := api.CutProjectNetwork(network.Name)
		if network.Limited && !joined {
			n.add(fmt.Sprintf("%s[%d].limited", path, i), "true", "is for networks of the project on InfiniBand only; %q is a private network of the cluster", network.Name)
		}
		n.standby(fmt.Sprintf("%s[%d]", path, i), network, g)
		if !joined && spec.TechnologyOf(network.Name) == api.TechnologyInfiniBand {
			continue // ownNetwork has checked it
		}
		if kind == "" {
			continue
		}
		if problem := interfaceProblem(kind, g.Stack); problem != "" {
			n.add(at, string(kind), "%q %s", kind, problem)
			continue
		}
		if !kind.OnFunction() {
			continue
		}
		if !joined {
			n.add(at, string(kind), "%q is not possible on %q, a further private network of the cluster: nodes carry its packets by tunnels, in which a function of an adapter has no part; "+
				"write interface %s without a network for the cluster's own, or name a network of the project that is a VLAN or on InfiniBand", kind, network.Name, kind)
		}
		n.noSpares(at, kind, g)
	}
}

// standby checks that what is to have a standby can be unplugged from its member, and missed.
func (n *normalizer) standby(path string, on api.GroupNetwork, g api.Group) {
	at := join(path, "standby")
	if !n.src.Has(at) {
		at = join(path, "interface") // where a flag has it
	}
	switch {
	case !on.Standby:
	case g.Stack != api.StackVM:
		n.add(at, "standby", "a standby is for virtual machines: a member on stack %q has its interfaces for as long as it runs; omit it, or use stack %q", g.Stack, api.StackVM)
	case on.Interface != api.InterfaceVF:
		n.add(at, "standby", "a standby is for interface %s, which is unplugged while a machine is saved or moved; omit it, or write that interface", api.InterfaceVF)
	}
}

// noSpares refuses spares of members with functions.
func (n *normalizer) noSpares(at string, kind api.Interface, g api.Group) {
	if g.Spares > 0 {
		n.add(at, string(kind), "%q is a part of an adapter, which a spare can't hold for its member; omit the spares", kind)
	}
}

// interfaceProblem returns why ports of members on a stack can't be of a kind; "" if they can.
func interfaceProblem(kind api.Interface, stack api.Stack) string {
	switch {
	case !slices.Contains(api.Interfaces(), kind):
		return "is no kind of port; " + oneOf(string(kind), interfaceNames())
	case stack == api.StackMetal:
		return fmt.Sprintf("is not possible on stack %q, whose members have all ports of their nodes; omit it", stack)
	case kind == api.InterfaceVeth && stack == api.StackVM:
		return fmt.Sprintf("is for containers; write %s, or omit it", api.InterfaceVirtio)
	case (kind == api.InterfaceVirtio || kind == api.InterfaceMACVTAP) && stack == api.StackContainer:
		return "is for virtual machines; omit it, or use stack " + string(api.StackVM)
	default:
		return ""
	}
}
