package apiserver

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// interfacesFit refuses ports of a kind that their network can't bear. Groups that the cluster had before are not looked at.
func (s *Server) interfacesFit(was, want api.ClusterSpec, project string, view *state.View) error {
	for i, g := range want.Groups {
		if groupIndex(was, g.Name) >= 0 {
			continue
		}
		for j, network := range g.Networks {
			own, joined := api.CutProjectNetwork(network.Name)
			in := view.NetworkIntent(state.NetworkIntentName(project, own))
			if !joined || in == nil {
				continue
			}
			field, problem := portProblem(&g, network, in)
			if problem == "" && s.cfg.Offers.Metal && g.Stack == api.StackMetal && in.Technology != api.TechnologyVLAN {
				field, problem = "name", "whole machines are ends of no tunnels, for their users could speak to any node; use a network of technology vlan"
			}
			if problem == "" && g.Stack == api.StackVM && network.Interface == api.InterfacePF {
				field, problem = "interface", s.unguarded(in)
			}
			if problem == "" && !in.IsOwnedBy(project) && !network.Limited {
				field, problem = "limited", fmt.Sprintf("project %s shares it with limited members only, which reach its own members and not each other: ask for limited membership", projectOr(in.Project))
			}
			if problem == "" {
				continue
			}
			f := fail(codeInvalidCluster, "group %q: network %s: %s", g.Name, network.Name, problem)
			f.Errors = []api.FieldProblem{{Location: fmt.Sprintf("%s[%d].%s", groupField(want, i, "networks"), j, field), Value: string(network.Interface), Message: problem}}
			return f
		}
	}
	return nil
}

// unguarded returns why no virtual machine can have a whole adapter on a network's fabric; "" if one can.
func (s *Server) unguarded(in *api.NetworkIntent) string {
	if keeper := s.cfg.Fabrics[in.Cell]; in.Technology != api.TechnologyInfiniBand || keeper == nil || keeper.Guarded() {
		return ""
	}
	return fmt.Sprintf("no key protects fabric %s, so a virtual machine with a whole port could change the partitions of all tenants; write vf, or let the operator set keys in the fabric's settings", in.Cell)
}

// portProblem returns why members of a group can't have ports of that kind on a network, and which field says so; "" if they can.
func portProblem(g *api.Group, on api.GroupNetwork, in *api.NetworkIntent) (field, problem string) {
	if in.Technology == api.TechnologyInfiniBand {
		return infiniBandProblem(g, on)
	}
	switch {
	case on.Limited:
		return "limited", "limited membership is for networks on InfiniBand"
	case g.Stack == api.StackMetal && in.Technology == api.TechnologyVLAN && in.HasGateway():
		return "name", "a whole machine can't be on a VLAN with egress: its packets pass no node, which is the network's gateway"
	case g.Stack == api.StackMetal && in.Technology == api.TechnologyVLAN:
		return unenforced(on)
	case !on.Interface.OnFunction():
		return "", ""
	case in.Technology != api.TechnologyVLAN:
		return "interface", fmt.Sprintf("a port of kind %s can't be on a network of technology %s: nodes carry its packets by tunnels, in which a function of an adapter has no part; "+
			"use a network of technology %s or %s", on.Interface, api.TechnologyVXLAN, api.TechnologyVLAN, api.TechnologyInfiniBand)
	case in.HasGateway():
		return "interface", fmt.Sprintf("a port of kind %s can't be on a network with egress: its packets pass no node, which is the network's gateway", on.Interface)
	default:
		return unenforced(on)
	}
}

// infiniBandProblem is portProblem on a partition.
func infiniBandProblem(g *api.Group, on api.GroupNetwork) (field, problem string) {
	switch {
	case g.Stack == api.StackMetal:
		return "interface", "members that get whole nodes can't join a partition yet; their nodes' ports are in the partition of the cluster's own network"
	case on.Interface == api.InterfaceMACVTAP:
		return "interface", "macvtap is an Ethernet interface, and InfiniBand carries no Ethernet; write vf, or pf for a whole port"
	case !on.Interface.OnFunction():
		return "interface", fmt.Sprintf("InfiniBand can't be bridged to a port of kind %s; write vf, or pf for a whole port, or use a network of technology vxlan, whose tunnels may cross InfiniBand", defaultInterface(g, on))
	case on.Standby:
		return "standby", "a standby is an Ethernet interface, and InfiniBand carries no Ethernet; omit it"
	default:
		return unenforced(on)
	}
}

func defaultInterface(g *api.Group, on api.GroupNetwork) api.Interface {
	switch {
	case on.Interface != "":
		return on.Interface
	case g.Stack == api.StackVM:
		return api.InterfaceVirtio
	default:
		return api.InterfaceVeth
	}
}

// unenforced returns what a port on a function of an adapter asks for that only bridges enforce.
func unenforced(on api.GroupNetwork) (field, problem string) {
	why := "nodes can't enforce on a port of kind %s, whose packets pass no bridge; omit them, or the interface"
	if on.Interface == "" {
		why = "nodes can't enforce on the port of a whole machine%s, whose packets pass no bridge; omit them"
	}
	switch {
	case len(on.SecurityGroups) > 0:
		return "security_groups", fmt.Sprintf("has security groups, which "+why, on.Interface)
	case on.DSCP != "":
		return "dscp", fmt.Sprintf("has a DSCP, which "+why, on.Interface)
	default:
		return "", ""
	}
}
