package lifecycle

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// partsByMember are the parts that are held, by the ID of their member; nil when there are none. Successors are no parts that a member needs.
func (in ClusterInput) partsByMember() map[string][]ClusterAssignment {
	var parts map[string][]ClusterAssignment
	for _, a := range in.Assignments {
		if a.Releasing || !a.IsPart() || a.IsSuccessor() {
			continue
		}
		if parts == nil {
			parts = map[string][]ClusterAssignment{}
		}
		parts[a.Of] = append(parts[a.Of], a)
	}
	return parts
}

// withParts makes a ready member no further than its parts are. It returns why the member is lost by the loss of one; empty: it is not. A part
// whose node is not heard of is no evidence, as for members.
func (in ClusterInput) withParts(m *member, parts []ClusterAssignment) string {
	for _, p := range parts {
		phase, message := MemberPhase(p, in.Observed, in.Nodes)
		switch {
		case p.ServesGPU() && (phase == api.MemberUnknown || in.lostServer(p) != ""): // its member goes on without it (withServers)
		case in.Nodes[p.Node].Phase == api.NodeDown:
			return fmt.Sprintf("its part %s is on node %s, which is down", p.ID, p.Node)
		case phase == api.MemberFailed:
			return fmt.Sprintf("its part %s on node %s failed%s", p.ID, p.Node, because(message))
		case phase == api.MemberReady || m.phase != api.MemberReady:
		default:
			m.phase, m.message = phase, fmt.Sprintf("its part %s on node %s is %s%s", p.ID, p.Node, phase, because(message))
			m.seen.Since = latest(m.seen.Since, in.Observed[p.ID].Since)
		}
	}
	return ""
}
