package decision

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/placement"
)

// Assign makes the assignments of a need that has got its places: the n-th place of a group is the n-th wanted member's.
func Assign(need lifecycle.Need, placed []placement.Placed, d placement.Decision) ([]api.Assignment, error) {
	if len(placed) != len(need.Members) {
		return nil, fmt.Errorf("cluster %q: %d members need a place, but %d are placed", d.Cluster, len(need.Members), len(placed))
	}
	wanted := map[string][]lifecycle.WantedMember{}
	for _, m := range need.Members {
		wanted[m.Group] = append(wanted[m.Group], m)
	}
	named := make([]placement.Placed, len(placed))
	whose := make([]lifecycle.WantedMember, len(placed))
	for i, p := range placed {
		rest := wanted[p.Group]
		if len(rest) == 0 {
			return nil, fmt.Errorf("cluster %q: a place in group %q has no member", d.Cluster, p.Group)
		}
		whose[i], wanted[p.Group] = rest[0], rest[1:]
		p.Member, p.Rank = whose[i].Member, whose[i].Rank
		named[i] = p
	}
	from := map[string]*api.Assignment{}
	for i := range d.Held {
		from[d.Held[i].ID] = &d.Held[i]
	}
	for i := range named {
		if p := from[whose[i].From]; whose[i].From != "" && p != nil {
			named[i].Keeps = p.Ports
		}
	}
	assignments, err := placement.Assign(named, d)
	if err != nil {
		return nil, err
	}
	for i := range assignments {
		a, m := &assignments[i], whose[i]
		a.Replaces, a.Attempt, a.Spare = m.Replaces, m.Attempt, m.Spare
		if m.From == "" {
			continue
		}
		p := from[m.From]
		if p == nil {
			return nil, fmt.Errorf("cluster %q: member %s is to go on from %s, which is not held", d.Cluster, m.Member, m.From)
		}
		a.From, a.Of, a.EnvironmentDigest, a.Live = m.From, m.From, p.EnvironmentDigest, m.Live
	}
	assignments = append(assignments, addDevices(assignments, named)...)
	if len(d.Networks) > 0 {
		if err := placement.ServeGPUs(&d.Networks[0], d.Held, assignments); err != nil {
			return nil, fmt.Errorf("cluster %q: %w", d.Cluster, err)
		}
	}
	return assignments, nil
}

// serverStack is the stack of servers of remote GPUs: each is a container, whatever its member is.
const serverStack = api.StackContainer

// addDevices gives members the devices of their own nodes, and returns a part for each other node on which they have some. Remote GPUs are parts on any node.
func addDevices(members []api.Assignment, placed []placement.Placed) []api.Assignment {
	var parts []api.Assignment
	for i := range members {
		m, n := &members[i], 0
		for _, on := range placed[i].Devices {
			served, own := split(on.Claims)
			if on.Node == m.Node && len(own) > 0 {
				m.Devices, own = own, nil
				m.RAMBoot = 0 // what is left in a device outlives the machine's memory
			}
			for k, claims := range [][]api.DeviceClaim{own, served} {
				if len(claims) == 0 {
					continue
				}
				var memory []api.MemoryClaim
				stack := m.Stack
				if k == 1 {
					memory = on.Memory
					stack = serverStack
				}
				parts = append(parts, api.Assignment{
					ID: fmt.Sprintf("%s-d%d", m.ID, n), Of: m.ID, ClusterUID: m.ClusterUID, Cluster: m.Cluster, Generation: m.Generation,
					Group: m.Group, Member: m.Member, Rank: lifecycle.NoRank, Node: on.Node, CleanBy: api.ByAgents(on.Node),
					Devices: claims, Memory: memory, UserIDs: m.UserIDs, Stack: stack, TakenAt: m.TakenAt,
				})
				n++
			}
		}
	}
	return parts
}

// AssignServer makes the servers of the GPUs that were chosen for a member which has its place.
func AssignServer(m *api.Assignment, chosen []placement.DevicesOn, own *api.Network, d placement.Decision) ([]api.Assignment, error) {
	var servers []api.Assignment
	for n, on := range chosen {
		servers = append(servers, api.Assignment{
			ID: fmt.Sprintf("%s-s%d-%d", m.ID, d.Generation, n), Of: m.ID, ClusterUID: m.ClusterUID, Cluster: m.Cluster, Generation: d.Generation,
			Group: m.Group, Member: m.Member, Rank: lifecycle.NoRank, Node: on.Node, CleanBy: api.ByAgents(on.Node),
			Devices: on.Claims, Memory: on.Memory, UserIDs: m.UserIDs, Stack: serverStack, TakenAt: d.TakenAt,
		})
	}
	return servers, placement.ServeGPUs(own, d.Held, servers)
}

// split returns the claims of remote GPUs, and all others.
func split(claims []api.DeviceClaim) (served, own []api.DeviceClaim) {
	for _, c := range claims {
		if c.Class == api.ClassGPU && c.Way == api.WayRemote {
			served = append(served, c)
		} else {
			own = append(own, c)
		}
	}
	return served, own
}
