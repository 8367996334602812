package apiserver

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// ownNetworkFits refuses an own network of a technology that the site does not have. It adds the cell of a partition where the site has only one.
// Whether a number is free is for the leader to find out, as it gives them.
func (s *Server) ownNetworkFits(spec *api.ClusterSpec) error {
	if err := s.untunnelled(spec); err != nil {
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

// untunnelled refuses whole machines in a cluster whose network nodes carry by tunnels, or lead to the outside: the users of a machine, who are root there,
// could speak to any node by the first, and no node carries their packets for the second.
func (s *Server) untunnelled(spec *api.ClusterSpec) error {
	metal := func(g api.Group) bool { return g.Stack == api.StackMetal }
	i := slices.IndexFunc(spec.Groups, metal)
	if !s.cfg.Offers.Metal || i < 0 {
		return nil
	}
	name := spec.Groups[i].Name
	mixed := slices.ContainsFunc(spec.Groups, func(g api.Group) bool { return !metal(g) })
	switch {
	case spec.Egress:
		return failFields(codeInvalidCluster, api.FieldProblem{
			Location: "egress", Value: "true", Message: fmt.Sprintf("is not possible with whole machines (group %q): no node carries their packets; omit it", name),
		})
	case mixed && (spec.Technology == "" || spec.Technology == api.TechnologyVXLAN):
		return failFields(codeInvalidCluster, api.FieldProblem{
			Location: "technology", Value: string(spec.Technology),
			Message: fmt.Sprintf("group %q has whole machines, which reach members on other stacks by no tunnel; write technology %s on a site with managed switches and trunks, or make two clusters", name, api.TechnologyVLAN),
		})
	}
	return nil
}

// reachesVolumes refuses volumes for whole machines without a VLAN of their own: nodes know such a machine by its address, which any other machine on a shared
// Ethernet could take.
func (s *Server) reachesVolumes(spec *api.ClusterSpec) error {
	i := slices.IndexFunc(spec.Groups, func(g api.Group) bool { return g.Stack == api.StackMetal })
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

// switched reports whether all members of a cluster have whole machines, and the site manages switches: then the cluster's own network is a VLAN on
// their ports. One with egress has a gateway on nodes, which switches are not.
func (s *Server) switched(spec *api.ClusterSpec) bool {
	metal := func(g api.Group) bool { return g.Stack == api.StackMetal }
	return len(s.cfg.Offers.Switches) > 0 && s.cfg.VLANs != (api.VLANPool{}) && !spec.Egress && !slices.ContainsFunc(spec.Groups, func(g api.Group) bool { return !metal(g) })
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
