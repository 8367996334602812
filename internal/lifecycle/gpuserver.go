package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// A member whose GPU server is lost goes on: its programs get their API's error, and those that it starts later use another server. So the server is
// released by itself, and the leader looks for another place (NeedsServer). A server on a drained node is released when another place is found (LeavesNode).

// ReleaseServers turns these servers of GPUs to releasing. Their members stay.
type ReleaseServers struct{ IDs []string }

func (ReleaseServers) clusterOperation() {}

// lostServer is why a server of GPUs serves no more, "" while it does, or while its node is not heard of, which is no evidence.
func (in ClusterInput) lostServer(p ClusterAssignment) string {
	phase, message := MemberPhase(p, in.Observed, in.Nodes)
	switch {
	case in.Nodes[p.Node].Phase == api.NodeDown:
		return fmt.Sprintf("node %s is down", p.Node)
	case phase == api.MemberFailed:
		what, _, _ := strings.Cut(message, "; its last output: ") // which is the node's to show, and long
		return fmt.Sprintf("it failed on node %s%s", p.Node, because(what))
	default:
		return ""
	}
}

// NeedsServer reports whether a member of a group uses GPUs by a server. Who asked for any GPU and has a whole one needs none.
func NeedsServer(g *api.Group, m *api.Assignment) bool {
	return slices.ContainsFunc(g.Devices, func(r api.DeviceRequest) bool {
		return r.MayBeServed() && (r.Way == api.WayRemote || !slices.ContainsFunc(m.Devices, func(c api.DeviceClaim) bool { return c.Class == api.ClassGPU }))
	})
}

// MayNeedServers reports whether members of a group may use GPUs by servers.
func MayNeedServers(g *api.Group) bool {
	return slices.ContainsFunc(g.Devices, func(r api.DeviceRequest) bool { return r.MayBeServed() })
}

// withServers notes of a member which of its GPU servers are lost, and that it has none.
func (l *look) withServers(m *member, parts []ClusterAssignment) {
	i := slices.IndexFunc(l.Intent.Spec.Groups, func(g api.Group) bool { return g.Name == m.Group })
	if i < 0 || !NeedsServer(&l.Intent.Spec.Groups[i], m.Assignment) {
		return
	}
	why := "no node has room for it"
	for _, p := range parts {
		if !p.ServesGPU() {
			continue
		}
		lost := l.lostServer(p)
		if lost == "" {
			return
		}
		why = lost
		l.servers = append(l.servers, lostServer{p, lost})
	}
	if m.loss == "" && m.phase == api.MemberReady {
		m.phase, m.message = api.MemberUnhealthy, "it has no GPU server: "+why
	}
}

// lostServer is a server that is to be released, and why.
type lostServer struct {
	ClusterAssignment
	why string
}

// planServers releases servers that are lost.
func (l *look) planServers() []ClusterOperation {
	if len(l.servers) == 0 {
		return nil
	}
	var release ReleaseServers
	var events []ClusterOperation
	for _, s := range l.servers {
		release.IDs = append(release.IDs, s.ID)
		events = append(events, Emit{
			Reason: EventGPUServerLost, Member: s.Member, Node: s.Node,
			Message: fmt.Sprintf("the GPU server of %s is lost: %s; programs that use it get an error, and later ones another server", s.Member, s.why),
		})
	}
	return append([]ClusterOperation{release}, events...)
}

// LeavesNode reports whether a member's GPU server is to leave its node as soon as another has room for one: an operator wants the node empty. A server
// beside its own member stays: the node is not empty before that member is gone, and its server goes with it.
func LeavesNode(phase api.ClusterPhase, member, server *api.Assignment, nodes map[string]NodeState) bool {
	switch phase {
	case api.ClusterReady, api.ClusterDegraded, api.ClusterScaling:
		node := nodes[server.Node]
		return node.Drained && !node.DrainedAt.IsZero() && member.Node != server.Node && !member.Saved
	default:
		return false
	}
}

// NewServer is a GPU server that a running member gets. Leaves is the one that it has until then, nil for none.
type NewServer struct {
	api.Assignment
	Leaves *api.Assignment
}

// PlanServers returns what to commit for members that get other GPU servers.
func PlanServers(servers []NewServer) []ClusterOperation {
	var left ReleaseServers
	var placed Hold
	var events []ClusterOperation
	for _, s := range servers {
		placed.Assignments = append(placed.Assignments, s.Assignment)
		if s.Leaves == nil {
			events = append(events, Emit{
				Reason: EventGPUServerPlaced, Member: s.Member, Node: s.Node, Message: fmt.Sprintf("programs that %s starts from now on use the GPU server on %s", s.Member, s.Node),
			})
			continue
		}
		left.IDs = append(left.IDs, s.Leaves.ID)
		events = append(events, Emit{
			Reason: EventGPUServerMoved, Member: s.Member, Node: s.Node,
			Message: fmt.Sprintf("the GPU server of %s left node %s, which is drained, for %s; programs that used it get an error, and those that %s starts from now on use the other one", s.Member, s.Leaves.Node, s.Node, s.Member),
		})
	}
	ops := []ClusterOperation{placed}
	if len(left.IDs) > 0 { // first: a member has one server at a time
		ops = []ClusterOperation{left, placed}
	}
	return append(ops, events...)
}
