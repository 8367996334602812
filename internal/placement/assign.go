package placement

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pool"
)

// Decision is what turns placed members into assignments.
type Decision struct {
	ClusterUID, Cluster string
	// Generation is the cluster generation this decision makes true.
	Generation int64
	Network    api.Network
	// Held are the cluster's assignments that are not confirmed clean, quarantined ones and spares among them: their addresses are not
	// given to another member.
	Held []api.Assignment
	// Members names those that are placed: the n-th placed of a group is the n-th of that group here. Without it they keep the names and
	// ranks that placement gave them, those of a new cluster.
	Members []MemberName
	// TakenAt is when it is decided, by the site's clock.
	TakenAt time.Time
}

// MemberName says who gets a place.
type MemberName struct {
	Group, Member string
	Rank          int
	// Replaces is the lost assignment in whose place it stands, Attempt counts such replacements; Spare marks room held for one.
	Replaces string
	Attempt  int
	Spare    bool
}

// AssignmentID is unique for ever: a member has at most one assignment in a generation.
func AssignmentID(clusterUID, member string, generation int64) string {
	return fmt.Sprintf("%s.%s.%d", clusterUID, member, generation)
}

// Assign completes placed members to assignments: IDs, names, ranks, and the lowest addresses of the network that are not held. It fails
// only when the network has no address left, or when Members does not name exactly those that are placed.
func Assign(placed []Placed, d Decision) ([]api.Assignment, error) {
	base := d.Network.Prefix.Addr()
	lastHost := 1<<(32-d.Network.Prefix.Bits()) - 2 // the last is broadcast
	hosts := pool.New(firstHost, lastHost)
	for i := range d.Held {
		if a := &d.Held[i]; d.Network.Prefix.Contains(a.Address()) {
			hosts.Hold(int(pool.Host(base, a.Address())), a.ID)
		}
	}
	names, err := nameAll(placed, d)
	if err != nil {
		return nil, err
	}
	assignments := make([]api.Assignment, 0, len(placed))
	for i, p := range placed {
		name := names[i]
		id := AssignmentID(d.ClusterUID, name.Member, d.Generation)
		host, ok := hosts.Take(id)
		if !ok {
			return nil, fmt.Errorf("cluster %q: network %s has no free address for member %s: it has room for %d members",
				d.Cluster, d.Network.Prefix, name.Member, lastHost-firstHost+1)
		}
		assignments = append(assignments, api.Assignment{
			ID: id, ClusterUID: d.ClusterUID, Cluster: d.Cluster,
			Generation: d.Generation, Group: p.Group, Member: name.Member, Rank: name.Rank, Node: p.Node, CleanBy: api.ByAgents(p.Node), RAMBoot: p.RAMBoot,
			Slots: p.Slots, CPUs: p.CPUs, NUMANodes: p.NUMANodes, Memory: p.Memory, Oversubscribed: p.Oversubscribed,
			Ports: []api.PortClaim{{Kind: api.PortVeth, Address: pool.Offset(base, uint32(host)), MAC: MAC(d.Network.Index, host)}},
			Stack: p.Stack, Environment: p.Environment,
			TakenAt: d.TakenAt, Replaces: name.Replaces, Attempt: name.Attempt, Spare: name.Spare,
		})
	}
	return assignments, nil
}

// nameAll says who each of the placed is.
func nameAll(placed []Placed, d Decision) ([]MemberName, error) {
	names := make([]MemberName, 0, len(placed))
	if len(d.Members) == 0 {
		for _, p := range placed {
			names = append(names, MemberName{Group: p.Group, Member: p.Member, Rank: p.Rank})
		}
		return names, nil
	}
	byGroup := map[string][]MemberName{}
	for _, m := range d.Members {
		byGroup[m.Group] = append(byGroup[m.Group], m)
	}
	for _, p := range placed {
		waiting := byGroup[p.Group]
		if len(waiting) == 0 {
			return nil, fmt.Errorf("cluster %q: group %q has more placed members than requested", d.Cluster, p.Group)
		}
		names, byGroup[p.Group] = append(names, waiting[0]), waiting[1:]
	}
	if len(names) < len(d.Members) {
		return nil, fmt.Errorf("cluster %q: %d members were requested, but %d are placed", d.Cluster, len(d.Members), len(names))
	}
	return names, nil
}
