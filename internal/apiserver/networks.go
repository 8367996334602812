package apiserver

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// networkInput names a network, by its name or its UID.
type networkInput struct {
	Name string `path:"name" doc:"CLUSTER, CLUSTER:NETWORK or a UID; of another project PROJECT.CLUSTER"`
}

func noNetwork(name string) *failure {
	return fail(codeNoNetwork, "network %q does not exist; 'nearmetal network list' lists the networks", name)
}

func (s *Server) listNetworks(ctx context.Context, _ *struct{}) (*body[api.List[api.NetworkStatus]], error) {
	view, p := s.cfg.Reader.View(), who(ctx)
	list := api.List[api.NetworkStatus]{Items: []api.NetworkStatus{}}
	quarantined := quarantinedPorts(view)
	for _, n := range view.Networks {
		if seesCluster(p, n.Cluster) {
			list.Items = append(list.Items, joinNetwork(view, n, quarantined[n.ClusterUID]))
		}
	}
	slices.SortFunc(list.Items, func(a, b api.NetworkStatus) int {
		return cmp.Or(cmp.Compare(a.Project, b.Project), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return &body[api.List[api.NetworkStatus]]{list}, nil
}

func (s *Server) getNetwork(ctx context.Context, in *networkInput) (*body[api.NetworkStatus], error) {
	view := s.cfg.Reader.View()
	n := findNetwork(who(ctx), view, in.Name)
	if n == nil || !seesCluster(who(ctx), n.Cluster) {
		return nil, noNetwork(in.Name)
	}
	return &body[api.NetworkStatus]{joinNetwork(view, n, quarantinedPorts(view)[n.ClusterUID])}, nil
}

// findNetwork returns the network that a principal means by a name or a UID, or nil. Whether they may know of it is for the caller.
func findNetwork(p tenancy.Principal, view *state.View, name string) *api.Network {
	cluster, own, further := strings.Cut(name, ":")
	if full, err := tenancy.Resolve(p, "", cluster); err == nil && (own != "" || !further) {
		if n := view.NetworkNamed(api.NetworkName(full, own)); n != nil {
			return n
		}
	}
	return view.Network(name)
}

// quarantinedPorts returns the assignments that were not proved clean in time, by the UIDs of their clusters.
func quarantinedPorts(view *state.View) map[string][]*api.Assignment {
	all := map[string][]*api.Assignment{}
	for _, q := range view.Quarantines {
		all[q.Assignment.ClusterUID] = append(all[q.Assignment.ClusterUID], &q.Assignment)
	}
	return all
}

// joinNetwork makes what users see of a network: as it is stored, with its ports by their addresses. Spares hold addresses and have no ports.
func joinNetwork(view *state.View, n *api.Network, quarantined []*api.Assignment) api.NetworkStatus {
	out := api.NetworkStatus{Network: *n, Ports: []api.NetworkPort{}}
	project, cluster := tenancy.Split(n.Cluster)
	out.Project, out.Cluster, out.Name = project, cluster, api.NetworkName(cluster, n.OwnName())
	add := func(a *api.Assignment, releasing, quarantined bool) {
		for i := range a.Ports {
			if p := &a.Ports[i]; p.Network == n.UID && !a.Spare {
				out.Ports = append(out.Ports, api.NetworkPort{
					Member: a.Member, Node: a.Node, Kind: p.Kind, Address: p.Address, MAC: p.MAC, Releasing: releasing, Quarantined: quarantined,
				})
			}
		}
	}
	if c := view.ClusterByUID(n.ClusterUID); c != nil {
		for a, ref := range c.AllWithRef() {
			if a.IsSuccessor() && !ref.Releasing { // its member's ports, until it takes over
				continue
			}
			add(a, ref.Releasing, false)
		}
	}
	for _, a := range quarantined {
		add(a, false, true)
	}
	slices.SortFunc(out.Ports, func(a, b api.NetworkPort) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Member, b.Member))
	})
	return out
}
