package agent

import (
	"slices"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/responder"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// Responder answers DHCP and DNS on the networks that it is given. Serve replaces them all, and does not wait.
type Responder interface {
	Serve(networks []responder.Network)
}

// names is what the responder answers from.
type names struct {
	// desired and applied are those that it was given last.
	desired *agentstream.Desired
	applied int
	// known are the names that members here know. Names that stay the same are not read again.
	known map[namesKey]*responder.Names
}

// namesKey is common to the members that know the same names: those of one cluster that ask the same servers for names of the outside, or none.
type namesKey struct{ cluster, resolvConf string }

// serveNames gives the responder the networks that are in force, with the names that their members know.
func (a *Agent) serveNames() {
	n := &a.networks
	if a.cfg.Responder == nil || !n.ok || n.busy || a.names.desired == a.desired && a.names.applied == n.count {
		return
	}
	next := names{desired: a.desired, applied: n.count, known: map[namesKey]*responder.Names{}}
	served := make([]responder.Network, 0, len(n.applied))
	for _, network := range fabric.OnBridges(n.applied) {
		members := map[string]responder.Member{}
		for _, port := range network.Ports {
			if m := a.members[fabric.AssignmentOf(port.ID)]; m != nil && m.want != nil {
				members[port.ID] = responder.Member{
					Name: m.want.Assignment.Member, Names: next.of(m.want, a.names.known), Routes: fabric.GatewayRoutes(n.applied, port.ID),
				}
			}
		}
		served = append(served, responder.Network{Network: network, Members: members})
	}
	a.names = next
	a.cfg.Responder.Serve(served)
}

// of returns the names that a member knows: those of the file that all members of its cluster share, and with a way out those of the outside. A
// member that is being released has no files, and knows no names.
func (n *names) of(m *agentstream.Member, before map[namesKey]*responder.Names) *responder.Names {
	a := &m.Assignment
	hosts, resolvers := contentOf(m.Files, "/etc/hosts"), contentOf(m.Files, "/etc/resolv.conf")
	key := namesKey{a.ClusterUID, string(resolvers)}
	if known := n.known[key]; known != nil || hosts == nil {
		return known
	}
	_, cluster := tenancy.Split(a.Cluster)
	names := before[key]
	if !names.Same(cluster, hosts, resolvers) {
		names = responder.NewNames(cluster, hosts, resolvers)
	}
	n.known[key] = names
	return names
}

// contentOf returns the content of a member's file, nil if there is none.
func contentOf(files []driver.File, path string) []byte {
	i := slices.IndexFunc(files, func(f driver.File) bool { return f.Path == path })
	if i < 0 {
		return nil
	}
	return files[i].Content
}
