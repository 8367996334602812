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
	// clusters are the names of the clusters with members here, by UID. Names that stay the same are not read again.
	clusters map[string]*responder.Names
}

// serveNames gives the responder the networks that are in force, with the names that their members know.
func (a *Agent) serveNames() {
	n := &a.networks
	if a.cfg.Responder == nil || !n.ok || n.busy || a.names.desired == a.desired && a.names.applied == n.count {
		return
	}
	next := names{desired: a.desired, applied: n.count, clusters: map[string]*responder.Names{}}
	served := make([]responder.Network, 0, len(n.applied))
	for _, network := range n.applied {
		members := map[string]responder.Member{}
		for _, port := range network.Ports {
			if m := a.members[fabric.AssignmentOf(port.ID)]; m != nil && m.want != nil {
				members[port.ID] = responder.Member{Name: m.want.Assignment.Member, Names: next.of(m.want, a.names.clusters)}
			}
		}
		served = append(served, responder.Network{Network: network, Members: members})
	}
	a.names = next
	a.cfg.Responder.Serve(served)
}

// of returns the names of a member's cluster: those of the files that all its members share. A member that is being released has no files, and knows
// no names.
func (n *names) of(m *agentstream.Member, before map[string]*responder.Names) *responder.Names {
	a := &m.Assignment
	hosts := contentOf(m.Files, "/etc/hosts")
	if known := n.clusters[a.ClusterUID]; known != nil || hosts == nil {
		return known
	}
	_, cluster := tenancy.Split(a.Cluster)
	resolvers := contentOf(m.Files, "/etc/resolv.conf")
	names := before[a.ClusterUID]
	if !names.Same(cluster, hosts, resolvers) {
		names = responder.NewNames(cluster, hosts, resolvers)
	}
	n.clusters[a.ClusterUID] = names
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
