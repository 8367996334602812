package apiserver

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// Observed is the reading side of Live: what joining needs.
type Observed interface {
	Member(assignmentID string) (phase api.MemberPhase, message string, ok bool)
	Node(name string) (phase api.NodePhase, lastSeen time.Time, message string)
}

// joinCluster makes what users see of a cluster: the user's intent, the leader's record and what agents report. It is pure.
func joinCluster(c *state.Cluster, seen Observed) api.Cluster {
	out := api.Cluster{
		Name: c.Intent.Name, UID: c.Intent.UID, Labels: c.Intent.Labels, Spec: c.Intent.Spec,
		Status: api.ClusterStatus{
			Phase: api.ClusterPending, Message: "waiting for a decision",
			Members: []api.MemberStatus{}, CreatedAt: c.Intent.CreatedAt, DeletedAt: c.Intent.DeleteRequestedAt,
		},
	}
	st := &out.Status
	settled := false
	if rec := c.Record; rec != nil {
		st.Phase, st.Message, st.Generation, st.ReadyAt = rec.Phase, rec.Message, rec.Generation, rec.ReadyAt
		if rec.Network.Prefix.IsValid() {
			st.CIDR = rec.Network.Prefix.String()
		}
		settled = rec.Phase == api.ClusterReady || rec.Phase == api.ClusterDegraded
	}
	if c.Intent.DeleteRequestedAt != nil && st.Phase != api.ClusterDeleting {
		// The leader has not taken notice yet; to the user it is being deleted from the moment they asked.
		st.Phase, st.Message = api.ClusterDeleting, "waiting for its members to be released"
	}
	for a := range c.Held() {
		m := joinMember(a, seen, settled)
		if m.Phase == api.MemberReady {
			st.ReadyMembers++
		}
		st.TotalMembers++
		st.Members = append(st.Members, m)
	}
	for a := range c.Releasing() {
		m := newMember(a)
		m.Phase = api.MemberReleasing
		if phase, _, message := seen.Node(a.Node); phase != api.NodeReady {
			m.Message = "waiting for node " + a.Node + ": " + message
		}
		st.Members = append(st.Members, m)
	}
	if st.TotalMembers == 0 {
		for _, g := range c.Intent.Spec.Groups {
			st.TotalMembers += g.Size
		}
	}
	for _, m := range st.Members {
		st.Oversubscribed = st.Oversubscribed || m.Oversubscribed
	}
	return out
}

// newMember is the part of a member that its assignment says.
func newMember(a *api.Assignment) api.MemberStatus {
	m := api.MemberStatus{
		Name: a.Member, Group: a.Group, Rank: a.Rank, Node: a.Node, CPUs: a.CPUs, MemoryBytes: a.MemoryBytes,
		Oversubscribed: a.Oversubscribed,
	}
	if a.Address.IsValid() {
		m.Address = a.Address.String()
	}
	if m.CPUs == nil {
		m.CPUs = []int{}
	}
	return m
}

// joinMember adds what the member's node says. settled tells that the cluster has been ready: a member nobody has reported on
// is then not new but unknown (the server has just started).
func joinMember(a *api.Assignment, seen Observed, settled bool) api.MemberStatus {
	m := newMember(a)
	node, _, trouble := seen.Node(a.Node)
	phase, message, ok := seen.Member(a.ID)
	switch {
	case node != api.NodeReady:
		m.Phase, m.Message = api.MemberUnknown, "node "+a.Node+": "+trouble
	case ok:
		m.Phase, m.Message = phase, message
	case settled:
		m.Phase, m.Message = api.MemberUnknown, "node "+a.Node+" has not reported on it yet"
	default:
		m.Phase = api.MemberAssigned
	}
	return m
}

// joinNodes makes what users see of all nodes. It is pure.
func joinNodes(v *state.View, seen Observed) []api.Node {
	nodes := make([]api.Node, 0, len(v.Nodes))
	index := map[string]int{}
	for i, rec := range v.Nodes {
		n := api.Node{NodeRecord: *rec, Members: []string{}}
		phase, lastSeen, message := seen.Node(rec.Name)
		n.Phase, n.Message = phase, message
		if !lastSeen.IsZero() {
			n.LastSeenAt = &lastSeen
		}
		nodes, index[rec.Name] = append(nodes, n), i
	}
	for _, c := range v.Clusters {
		for a := range c.All() {
			i, ok := index[a.Node]
			if !ok {
				continue // the node was taken out of the inventory while it held members
			}
			nodes[i].AllocatedCores += len(a.Slots)
			nodes[i].AllocatedMemoryBytes += a.MemoryBytes
			nodes[i].Members = append(nodes[i].Members, c.Name()+"/"+a.Member)
		}
	}
	for _, q := range v.Quarantines {
		if i, ok := index[q.Assignment.Node]; ok {
			nodes[i].QuarantinedCores += len(q.Assignment.Slots)
		}
	}
	return nodes
}
