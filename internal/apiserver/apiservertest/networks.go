package apiservertest

import (
	"context"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// joined are the networks of its project that a cluster names. One without numbers gets 10.64.128.0/20, or what was requested, and an index from
// 100 on.
func (s *Site) joined(c *state.Cluster) (networks []api.Network, refs []api.NetworkRef) {
	for i, name := range api.JoinedNetworks(c.Intent.Spec.Groups) {
		own, _ := api.CutProjectNetwork(name)
		in := s.Cache.View().NetworkIntent(state.NetworkIntentName(c.Intent.Project, own))
		n := s.Cache.View().Network(in.UID)
		if n == nil {
			prefix := netip.MustParsePrefix("10.64.128.0/20")
			if in.Prefix.IsValid() {
				prefix = in.Prefix
			}
			n = &api.Network{UID: in.UID, Name: name, Project: in.Project, Technology: api.TechnologyVXLAN, Index: 100 + i, Prefix: prefix, Gateway: prefix.Addr().Next(), Egress: in.Egress, Routed: in.Routed}
			rev, err := s.Leader.PutNetworks(context.Background(), *n)
			must(s.t, err)
			s.reach(rev)
		}
		networks, refs = append(networks, *n), append(refs, api.NetworkRef{UID: n.UID, Name: name, Prefix: n.Prefix})
	}
	return networks, refs
}

// networks are those of a cluster, its own first: 10.64.16.0/20 and those that follow it.
func (s *Site) networks(c *state.Cluster) (refs []api.NetworkRef, networks []api.Network) {
	for i, name := range append([]string{""}, api.FurtherNetworks(c.Intent.Spec.Groups)...) {
		prefix := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64, byte(16 + 16*i), 0}), 20)
		n := api.Network{
			UID: api.NetworkUID(c.UID(), name), Name: api.NetworkName(c.Name(), name), Project: c.Intent.Project, Cluster: c.Name(), ClusterUID: c.UID(),
			Technology: api.TechnologyVXLAN, Index: 1 + i, Prefix: prefix, Gateway: prefix.Addr().Next(), Egress: c.Intent.Spec.Egress && name == "",
		}
		refs, networks = append(refs, api.NetworkRef{UID: n.UID, Prefix: prefix}), append(networks, n)
	}
	return refs, networks
}
