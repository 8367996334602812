package situation

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
)

// LeavingServer is a GPU server that is to leave its node, and the member that uses it.
type LeavingServer struct{ Member, Server *api.Assignment }

// LeavingServers are the GPU servers of a cluster that are to leave drained nodes.
func (s *Site) LeavingServers(c *state.Cluster) (leaving []LeavingServer) {
	if !s.drains || c.Record == nil || c.Intent.DeleteRequestedAt != nil {
		return nil
	}
	for server := range c.Held() {
		if !server.ServesGPU() || !s.Nodes[server.Node].Drained {
			continue
		}
		for m := range c.Held() {
			if m.ID == server.Of && lifecycle.LeavesNode(c.Record.Phase, m, server, s.Nodes) {
				leaving = append(leaving, LeavingServer{m, server})
			}
		}
	}
	return leaving
}

// ServedGroup is the group of a member that has its place, as placement takes it to find a GPU server for that member.
func (s *Site) ServedGroup(c *state.Cluster, m *api.Assignment) (api.Group, bool) {
	i := slices.IndexFunc(c.Intent.Spec.Groups, func(g api.Group) bool { return g.Name == m.Group })
	if i < 0 {
		return api.Group{}, false
	}
	g := c.Intent.Spec.Groups[i]
	g.Ends = s.Ends(c)
	return g, true
}

// stayingServers says of GPU servers on drained nodes why they are still there.
func (p plan) stayingServers(c *state.Cluster) (texts []string) {
	for _, l := range p.site.LeavingServers(c) {
		group, ok := p.site.ServedGroup(c, l.Member)
		if !ok {
			continue
		}
		why := "the leader is about to place another"
		if _, missing := p.free.Sketch().FitServer(l.Member.Node, group); missing != "" {
			why = "no other node has room for it: " + missing
		}
		texts = append(texts, fmt.Sprintf("The GPU server of %s is still on node %s, which is drained; %s.", l.Member.Member, l.Server.Node, why))
	}
	return texts
}
