package apiserver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// ownNetworkFits refuses an own network of a technology that the site does not have. It adds the cell of a partition where the site has only one.
// Whether a number is free is for the leader to find out, as it gives them.
func (s *Server) ownNetworkFits(view *state.View, spec *api.ClusterSpec) error {
	if err := s.untunnelled(spec); err != nil {
		return err
	}
	if err := s.joinable(view, spec); err != nil {
		return err
	}
	if spec.Technology == "" && s.switched(spec) {
		spec.Technology = api.TechnologyVLAN
	}
	if err := s.reachesVolumes(spec); err != nil {
		return err
	}
	switch spec.Technology {
	case api.TechnologyVLAN:
		if s.switched(spec) { // whatever the nodes encrypt, a whole machine's own port carries it
			return nil
		}
		return s.hasVLANs()
	case api.TechnologyInfiniBand:
		if err := s.hasInfiniBand(); err != nil {
			return err
		}
		cell, problem := s.cellOf(spec.Cell)
		if problem != "" {
			f := fail(codeInvalidCluster, "the cell of the cluster's partition %s", problem)
			f.Errors = []api.FieldProblem{{Location: "cell", Value: spec.Cell, Message: problem}}
			return f
		}
		spec.Cell = cell
	}
	return nil
}

// sameTunnels refuses groups by which a cluster comes to have whole machines beside members on other stacks, unless its network is a VLAN: the network of a
// cluster that exists stays what it is. The group with rank 0 is always there, so what goes meanwhile does not matter.
func (s *Server) sameTunnels(was, is *api.ClusterSpec) error {
	if !s.cfg.Offers.Metal || mixed(was) || !mixed(is) || is.Technology == api.TechnologyVLAN {
		return nil
	}
	f := failFields(codeUnchangeable, api.FieldProblem{
		Location: "groups",
		Message:  "mix whole machines with members on other stacks; only a VLAN joins these, and the cluster's network is none",
	})
	f.Detail += "; create another cluster"
	return f
}

func onMetal(g api.Group) bool { return g.Stack == api.StackMetal }

// mixed reports whether some members of a cluster have whole machines, and others have not.
func mixed(spec *api.ClusterSpec) bool {
	return slices.ContainsFunc(spec.Groups, onMetal) && slices.ContainsFunc(spec.Groups, func(g api.Group) bool { return !onMetal(g) })
}

// untunnelled refuses whole machines in a cluster whose network nodes carry by tunnels, or lead to the outside: the users of a machine, who are root there,
// could speak to any node by the first, and no node carries their packets for the second.
func (s *Server) untunnelled(spec *api.ClusterSpec) error {
	i := slices.IndexFunc(spec.Groups, onMetal)
	if !s.cfg.Offers.Metal || i < 0 {
		return nil
	}
	name := spec.Groups[i].Name
	switch {
	case spec.Egress:
		return failFields(codeInvalidCluster, api.FieldProblem{
			Location: "egress", Value: "true", Message: fmt.Sprintf("is not possible with whole machines (group %q): no node carries their packets; omit it", name),
		})
	case mixed(spec) && spec.Technology == api.TechnologyVXLAN:
		return failFields(codeInvalidCluster, api.FieldProblem{
			Location: "technology", Value: string(spec.Technology),
			Message: fmt.Sprintf("group %q has whole machines, which reach members on other stacks by no tunnel; write technology %s, or make two clusters", name, api.TechnologyVLAN),
		})
	}
	return nil
}

// reachesVolumes refuses volumes for whole machines without a VLAN of their own: nodes know such a machine by its address, which any other machine on a shared
// Ethernet could take.
func (s *Server) reachesVolumes(spec *api.ClusterSpec) error {
	i := slices.IndexFunc(spec.Groups, onMetal)
	if !s.cfg.Offers.Metal || i < 0 || spec.Technology == api.TechnologyVLAN && len(s.cfg.Offers.Switches) > 0 {
		return nil
	}
	why := fmt.Sprintf("is a volume, which whole machines (group %q) have over a VLAN that the site's switches make for the cluster: start its servers with --ethernet, or use the stack %q or %q",
		spec.Groups[i].Name, api.StackContainer, api.StackVM)
	switch {
	case len(spec.Volumes) > 0:
		return failFields(codeInvalidCluster, api.FieldProblem{Location: "volumes[0]", Value: spec.Volumes[0].Name, Message: why})
	case spec.Home.Kind == api.HomeOfUser || spec.Home.Bounded():
		return failFields(codeInvalidCluster, api.FieldProblem{Location: "home", Value: cmp.Or(spec.Home.Kind, spec.Home.Size.String()), Message: why})
	}
	return nil
}

// joinable refuses whole machines together with members on other stacks where no VLAN can join them: it needs the ports of managed switches for the first,
// and trunks of nodes for the others.
func (s *Server) joinable(view *state.View, spec *api.ClusterSpec) error {
	problem := ""
	switch {
	case !s.cfg.Offers.Metal || !mixed(spec) || spec.Technology == api.TechnologyVXLAN:
		return nil
	case len(s.cfg.Offers.Switches) == 0 || s.cfg.VLANs == (api.VLANPool{}):
		problem = "this site manages no Ethernet switches (server --ethernet)"
	case s.cfg.Encrypted:
		problem = "the site's underlay is encrypted, and WireGuard carries no VLANs"
	case !hasTrunk(view):
		problem = "no node has a usable trunk (agent --trunk-interface, node set --trunk-mac)"
	default:
		return nil
	}
	name := spec.Groups[slices.IndexFunc(spec.Groups, onMetal)].Name
	return failFields(codeInvalidCluster, api.FieldProblem{
		Location: "technology", Value: string(spec.Technology),
		Message: fmt.Sprintf("group %q has whole machines, and only a VLAN joins them to members on other stacks: %s; make two clusters", name, problem),
	})
}

// hasTrunk reports whether some node carries VLANs.
func hasTrunk(view *state.View) bool {
	for agent := range view.Agents() {
		if agent.Trunk.Usable() {
			return true
		}
	}
	return false
}

// switched reports whether the own network of a cluster is a VLAN because it has whole machines, and the site manages the switches of their ports. One with
// egress has a gateway on nodes, which switches are not.
func (s *Server) switched(spec *api.ClusterSpec) bool {
	return len(s.cfg.Offers.Switches) > 0 && s.cfg.VLANs != (api.VLANPool{}) && !spec.Egress && slices.ContainsFunc(spec.Groups, onMetal) && (s.cfg.Offers.Metal || !mixed(spec))
}

// hasVLANs refuses networks on VLANs where the site has none.
func (s *Server) hasVLANs() error {
	switch {
	case s.cfg.VLANs == (api.VLANPool{}):
		return fail(codeNoVLANs, "this site has no VLANs for networks: start its servers with --vlan-pool FIRST-LAST")
	case s.cfg.Encrypted:
		return fail(codeNoVLANs, "the site's underlay is encrypted, and WireGuard carries no VLANs: choose technology %s without functions of adapters, or start the servers without --encrypt-underlay", api.TechnologyVXLAN)
	default:
		return nil
	}
}

// hasInfiniBand refuses partitions where the site can't make any.
func (s *Server) hasInfiniBand() error {
	switch {
	case s.cfg.PKeys == (api.PKeyPool{}):
		return fail(codeNoInfiniBand, "this site has no partition keys for networks: start its servers with --pkey-pool FIRST-LAST")
	case len(s.cfg.Offers.Fabrics) == 0:
		return fail(codeNoInfiniBand, "this site's servers control no InfiniBand fabric")
	default:
		return nil
	}
}

// cellOf returns the cell of a partition: the one that was asked for, or the site's only one. Else it returns what is wrong.
func (s *Server) cellOf(asked string) (cell, problem string) {
	cells := slices.Sorted(slices.Values(s.cfg.Offers.Fabrics))
	switch {
	case asked == "" && len(cells) == 1:
		return cells[0], ""
	case asked == "":
		return "", "is missing; the site has several: " + strings.Join(cells, ", ")
	case !slices.Contains(cells, asked):
		return "", fmt.Sprintf("%q is no cell of an InfiniBand fabric that this site controls; those are: %s", asked, strings.Join(cells, ", "))
	default:
		return asked, ""
	}
}

// ownNetworkDiffers returns how the own network of a cluster is to become another, which none can. A file need not name its technology and cell.
func ownNetworkDiffers(was, want *api.ClusterSpec, differ func(path string, was, want any)) {
	if want.Technology != "" {
		differ("technology", cmp.Or(was.Technology, api.TechnologyVXLAN), want.Technology)
	}
	if want.Cell != "" {
		differ("cell", was.Cell, want.Cell)
	}
	for _, w := range want.Groups {
		if i := groupIndex(*was, w.Name); i >= 0 {
			g := &was.Groups[i]
			differ(groupPath(w.Name)+".interface", cmp.Or(g.OwnNetwork().InterfaceText(), "made by nodes"), cmp.Or(w.OwnNetwork().InterfaceText(), "made by nodes"))
		}
	}
}
