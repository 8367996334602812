package placement

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// Decision is what turns placed members into assignments.
type Decision struct {
	ClusterUID, Cluster string
	// Generation is the cluster generation this decision makes true.
	Generation int64
	Network    api.Network
	// Held are the cluster's assignments that are not confirmed clean: their addresses are not given to another member.
	Held []api.Assignment
}

// AssignmentID is unique for ever: a member has at most one assignment in a generation.
func AssignmentID(clusterUID, member string, generation int64) string {
	return fmt.Sprintf("%s.%s.%d", clusterUID, member, generation)
}

// Assign completes placed members to assignments: IDs, ranks, and the lowest addresses of the network that are not held. It fails only
// when the network has no address left.
func Assign(placed []Placed, d Decision) ([]api.Assignment, error) {
	held := make(map[int]bool, len(d.Held))
	base := d.Network.Prefix.Addr()
	for _, a := range d.Held {
		if d.Network.Prefix.Contains(a.Address) {
			held[int(hostNumber(base, a.Address))] = true
		}
	}
	assignments := make([]api.Assignment, 0, len(placed))
	host := firstHost
	for _, p := range placed {
		for held[host] {
			host++
		}
		if host > lastHost {
			return nil, fmt.Errorf("cluster %q: network %s has no address left for member %s: it holds %d members",
				d.Cluster, d.Network.Prefix, p.Member, MaxMembers)
		}
		assignments = append(assignments, api.Assignment{
			ID: AssignmentID(d.ClusterUID, p.Member, d.Generation), ClusterUID: d.ClusterUID, Cluster: d.Cluster,
			Generation: d.Generation, Group: p.Group, Member: p.Member, Rank: p.Rank, Node: p.Node,
			Slots: p.Slots, CPUs: p.CPUs, NUMANodes: p.NUMANodes, MemoryBytes: p.MemoryBytes, Oversubscribed: p.Oversubscribed,
			Address: offset(base, uint32(host)), MAC: MAC(d.Network.Index, host), Stack: p.Stack, Environment: p.Environment,
		})
		host++
	}
	return assignments, nil
}
