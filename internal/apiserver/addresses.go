package apiserver

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// addressesFree refuses fixed addresses of groups that their networks don't have, or that others have. Groups that the cluster had before are not
// looked at. What happens meanwhile is for the leader to find out.
func addressesFree(p tenancy.Principal, was, want api.ClusterSpec, project string, view *state.View) error {
	for i, g := range want.Groups {
		if groupIndex(was, g.Name) >= 0 {
			continue
		}
		for j, network := range g.Networks {
			name, address := network.Name, g.FixedAddress(network.Name)
			if !address.IsValid() {
				continue
			}
			own, _ := api.CutProjectNetwork(name)
			in := view.NetworkIntent(state.NetworkIntentName(project, own))
			if in == nil {
				continue // refused already
			}
			refused := func(code Code, message string) error {
				f := fail(code, "group %q: %s", g.Name, message)
				f.Errors = []api.FieldProblem{{Location: fmt.Sprintf("%s[%d].address", groupField(want, i, "networks"), j), Value: network.Address, Message: message}}
				return f
			}
			if n := view.Network(in.UID); n != nil && n.Refused == "" {
				if err := placement.CheckHost(n, address); err != nil {
					return refused(codeInvalidCluster, err.Error())
				}
			}
			if holder := addressHolder(p, view, in, project, name, address); holder != "" && !want.Queue {
				return refused(codeAddressTaken, fmt.Sprintf("address %s on network %s is taken by %s; choose another one", address, name, holder))
			}
		}
	}
	return nil
}

// addressHolder names the member or the group that has an address on a project's network, "" for none. Clusters that the principal may not know of
// have no names.
func addressHolder(p tenancy.Principal, view *state.View, in *api.NetworkIntent, project, network string, address netip.Addr) string {
	describe := func(c *state.Cluster, what string) string {
		if !seesCluster(p, c.Name()) {
			return "another cluster"
		}
		return fmt.Sprintf("%s of cluster %q", what, shownName(p, c.Name()))
	}
	for _, c := range view.ClustersOnNetwork(in.UID) {
		for a := range c.All() {
			if slices.ContainsFunc(a.Ports, func(port api.PortClaim) bool { return port.Network == in.UID && port.Address == address }) {
				return describe(c, "member "+a.Member)
			}
		}
	}
	for _, q := range view.Quarantines {
		if slices.ContainsFunc(q.Assignment.Ports, func(port api.PortClaim) bool { return port.Network == in.UID && port.Address == address }) {
			return "a quarantined member"
		}
	}
	for _, c := range view.Clusters {
		if c.Intent.DeleteRequestedAt != nil || projectOr(c.Intent.Project) != project {
			continue
		}
		for i := range c.Intent.Spec.Groups {
			if g := &c.Intent.Spec.Groups[i]; g.FixedAddress(network) == address {
				return describe(c, fmt.Sprintf("group %q", g.Name))
			}
		}
	}
	return ""
}

// sizesFit refuses more than one member in a group with a fixed address.
func sizesFit(spec api.ClusterSpec) error {
	for _, g := range spec.Groups {
		if g.HasFixedAddress() && (g.Size > 1 || g.Spares > 0) {
			return fail(codeInvalidRequest, "group %q has a fixed address, so it has one member and no spares", g.Name)
		}
	}
	return nil
}
