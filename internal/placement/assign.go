package placement

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pool"
)

// Decision is what turns placed members into assignments.
type Decision struct {
	ClusterUID, Cluster string
	// Generation is the cluster generation this decision makes true.
	Generation int64
	// Networks are the cluster's, its own first, and those of its project that it joins. Further are those on which the members of a group
	// have ports besides, by group.
	Networks []api.Network
	Further  map[string][]api.GroupNetwork
	// Own is what the ports of members on the cluster's own network are, by group; "" is made by their nodes.
	Own map[string]api.GroupNetwork
	// Fixed are the addresses that the member of a group has to get, by group and network. Reserved are those that members of other groups or
	// clusters have to get, by the UID of the network: nobody else does.
	Fixed    map[string]map[string]netip.Addr
	Reserved map[string][]netip.Addr
	UserIDs  api.IDRange
	// Held are the cluster's assignments that are not confirmed clean, quarantined ones and spares among them: their addresses are not
	// given to another member.
	Held []api.Assignment
	// Beside are the assignments of other clusters that hold addresses on networks which this one joins.
	Beside []api.Assignment
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
	hosts := map[string]*pool.Pool[int]{}
	for i := range d.Networks {
		hosts[d.Networks[i].UID] = freeHosts(&d.Networks[i], d.Held, d.Beside)
	}
	names, err := nameAll(placed, d)
	if err != nil {
		return nil, err
	}
	if err := d.takeFixed(placed, names, hosts); err != nil {
		return nil, err
	}
	assignments := make([]api.Assignment, 0, len(placed))
	for i, p := range placed {
		name := names[i]
		id := AssignmentID(d.ClusterUID, name.Member, d.Generation)
		ports, err := d.ports(&placed[i], id, hosts)
		if err != nil {
			return nil, fmt.Errorf("cluster %q: member %s: %w", d.Cluster, name.Member, err)
		}
		hcas := d.hcas(&p, name.Spare)
		assignments = append(assignments, api.Assignment{
			ID: id, ClusterUID: d.ClusterUID, Cluster: d.Cluster,
			Generation: d.Generation, Group: p.Group, Member: name.Member, Rank: name.Rank, Node: p.Node, CleanBy: cleanBy(&p, ports, hcas), HCAs: hcas, RAMBoot: p.RAMBoot, Whole: p.Whole,
			Slots: p.Slots, CPUs: p.CPUs, NUMANodes: p.NUMANodes, Memory: p.Memory, ReserveBytes: p.ReserveBytes, DiskBytes: p.DiskBytes, Oversubscribed: p.Oversubscribed,
			SharesMemory: p.SharesMemory, Display: p.Display, CPUModel: p.CPUModel, UserIDs: d.UserIDs, Ports: ports, Stack: p.Stack, Environment: p.Environment,
			TakenAt: d.TakenAt, Replaces: name.Replaces, Attempt: name.Attempt, Spare: name.Spare, Data: p.Data,
		})
	}
	return assignments, nil
}

// freeHosts are the host numbers of a network that no assignment has.
func freeHosts(n *api.Network, held ...[]api.Assignment) *pool.Pool[int] {
	base := n.Prefix.Addr()
	hosts := pool.New(firstHost, firstHost+Room(n)-1)
	for _, list := range held {
		for i := range list {
			for _, port := range list[i].Ports {
				if port.Network == n.UID && n.Prefix.Contains(port.Address) {
					hosts.Hold(int(pool.Host(base, port.Address)), list[i].ID)
				}
			}
			for _, claim := range list[i].Volumes {
				if n.ClusterUID == list[i].ClusterUID && n.Prefix.Contains(claim.Server) {
					hosts.Hold(int(pool.Host(base, claim.Server)), serverOf(claim.Node))
				}
			}
		}
	}
	return hosts
}

// takeFixed takes the fixed addresses of the placed, and keeps the others' from them.
func (d *Decision) takeFixed(placed []Placed, names []MemberName, hosts map[string]*pool.Pool[int]) error {
	const reserved = "fixed"
	for i, p := range placed {
		for j := range d.Networks {
			n := &d.Networks[j]
			a, fixed := d.Fixed[p.Group][n.OwnName()]
			if !fixed || p.Keeps != nil {
				continue
			}
			host := int(pool.Host(n.Prefix.Addr(), a))
			if err := CheckHost(n, a); err != nil {
				return fmt.Errorf("cluster %q: member %s: %w", d.Cluster, names[i].Member, err)
			}
			if !hosts[n.UID].Hold(host, AssignmentID(d.ClusterUID, names[i].Member, d.Generation)) {
				return fmt.Errorf("cluster %q: member %s: address %s of network %s is taken", d.Cluster, names[i].Member, a, n.Name)
			}
		}
	}
	for i := range d.Networks {
		n := &d.Networks[i]
		for _, a := range d.Reserved[n.UID] {
			hosts[n.UID].Hold(int(pool.Host(n.Prefix.Addr(), a)), reserved)
		}
	}
	return nil
}

// CheckHost refuses an address that no member of a network can have.
func CheckHost(n *api.Network, a netip.Addr) error {
	switch {
	case !n.Prefix.Contains(a):
		return fmt.Errorf("address %s is not in subnet %s of network %s", a, n.Prefix, n.Name)
	case int(pool.Host(n.Prefix.Addr(), a)) < firstHost:
		return fmt.Errorf("address %s of network %s is reserved: members' addresses begin with %s", a, n.Name, pool.Offset(n.Prefix.Addr(), firstHost))
	case int(pool.Host(n.Prefix.Addr(), a)) >= firstHost+Room(n):
		return fmt.Errorf("address %s of network %s is reserved: it is the subnet's broadcast address", a, n.Name)
	}
	return nil
}

// hcas are the InfiniBand ports of a whole machine, all of which are its member's: nothing on the machine could keep the member's users from one.
func (d *Decision) hcas(p *Placed, spare bool) []api.HCAClaim {
	if !p.Whole || spare || len(d.Networks) == 0 {
		return nil
	}
	var all []api.HCAClaim
	for _, o := range p.Ports {
		if o.Technology == api.FabricInfiniBand {
			all = append(all, api.HCAClaim{Network: d.Networks[0].UID, Fabric: o.Fabric, At: o.At})
		}
	}
	return all
}

// cleanBy are who carries the member, and each fabric that a port is on.
func cleanBy(placed *Placed, ports []api.PortClaim, hcas []api.HCAClaim) []api.Prover {
	provers := api.ByAgents(placed.Node)
	if placed.By != "" {
		provers = []api.Prover{{By: placed.By, At: placed.Node}}
	}
	add := func(fabric string) {
		if by := (api.Prover{By: api.ExecutorFabric, At: fabric}); fabric != "" && !slices.Contains(provers, by) {
			provers = append(provers, by)
		}
	}
	for _, p := range ports {
		add(p.Fabric)
	}
	for _, h := range hcas {
		add(h.Fabric)
	}
	return provers
}

// ports are a member's ends of the cluster's own network and of those that its group names. One that gets a whole node has the node's own: the
// first network is on the first port and so on, and those that are left are on the last.
func (d *Decision) ports(p *Placed, id string, hosts map[string]*pool.Pool[int]) ([]api.PortClaim, error) {
	further := d.Further[p.Group]
	group := api.Group{Interface: d.Own[p.Group].Interface, Networks: further}
	functions, err := functionsOf(p, &group)
	if err != nil {
		return nil, err
	}
	if p.Keeps != nil {
		return d.kept(p, further, functions)
	}
	ports := make([]api.PortClaim, 0, 1+len(further))
	for i := range d.Networks {
		n := &d.Networks[i]
		named := slices.IndexFunc(further, func(f api.GroupNetwork) bool { return f.Name == n.OwnName() })
		if n.OwnName() != "" && named < 0 {
			continue
		}
		host, ok := 0, true
		if a, fixed := d.Fixed[p.Group][n.OwnName()]; fixed {
			host = int(pool.Host(n.Prefix.Addr(), a))
		} else {
			host, ok = hosts[n.UID].Take(id)
		}
		if !ok {
			return nil, fmt.Errorf("network %s (%s) has no free address: it has room for %d members", n.Name, n.Prefix, Room(n))
		}
		port := api.PortClaim{Network: n.UID, Kind: api.PortVeth, Address: pool.Offset(n.Prefix.Addr(), uint32(host)), MAC: MAC(n.Index, host)}
		if named >= 0 {
			port.SecurityGroups, port.Quality = slices.Clone(further[named].SecurityGroups), further[named].Quality
		}
		switch {
		case p.Whole:
			port.Kind = api.PortPF
		case p.Stack == api.StackVM:
			port.Kind = api.PortTAP
		}
		if claim, on := functions[n.OwnName()]; on {
			on := d.Own[p.Group]
			if named >= 0 {
				on = further[named]
			}
			if err := setFunction(&port, n, on, claim, host); err != nil {
				return nil, err
			}
		}
		if err := ownPort(&port, n, p, len(ports), ports); err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	if len(ports) != 1+len(further) {
		return nil, fmt.Errorf("group %q names networks %v, but the cluster has %d of them", p.Group, further, len(ports)-1)
	}
	return ports, nil
}

// ownPort lets a port of a member with a whole node be on one of the node's own. Before are those that it has already. On a switch, a port is in one
// network alone. On InfiniBand, networks beyond the last port share that one. A network of tunnels is on no port of a switch: no tenant's kernel is a
// tunnel's end.
func ownPort(port *api.PortClaim, n *api.Network, p *Placed, number int, before []api.PortClaim) error {
	if !p.Whole {
		return nil
	}
	switched := n.Technology == api.TechnologyVLAN
	var own []api.NodePort
	for _, o := range p.Ports {
		if (o.Technology == api.FabricEthernet) == switched && o.Technology != api.FabricInfiniBand {
			own = append(own, o)
		}
	}
	if !switched && len(own) > 0 {
		on := own[min(number, len(own)-1)]
		port.Device, port.Fabric, port.At = on.Name, on.Fabric, on.At
		return nil
	}
	for _, o := range own {
		if !slices.ContainsFunc(before, func(b api.PortClaim) bool { return b.Fabric == o.Fabric && b.At == o.At }) {
			port.Device, port.Fabric, port.At = o.Name, o.Fabric, o.At
			port.MAC = cmp.Or(o.MAC, port.MAC) // other members of the network know it by that
			return nil
		}
	}
	if switched {
		return fmt.Errorf("network %s is on a VLAN, and node %s has no further port on a switch that the site manages", n.Name, p.Node)
	}
	return nil
}

// kept are the ports of a member that goes on: what they are to the networks stays. Those on functions of adapters are on what was chosen on its new node.
func (d *Decision) kept(p *Placed, further []api.GroupNetwork, functions map[string]api.DeviceClaim) ([]api.PortClaim, error) {
	ports := slices.Clone(p.Keeps)
	for i := range ports {
		port := &ports[i]
		if !port.OnFunction(p.Whole) {
			continue
		}
		at := slices.IndexFunc(d.Networks, func(n api.Network) bool { return n.UID == port.Network })
		if at < 0 {
			return nil, fmt.Errorf("port %d is on network %s, which is none of the cluster's", i, port.Network)
		}
		n := &d.Networks[at]
		named := slices.IndexFunc(further, func(f api.GroupNetwork) bool { return f.Name == n.OwnName() })
		on := d.Own[p.Group]
		if named >= 0 {
			on = further[named]
		}
		claim, chosen := functions[n.OwnName()]
		if !chosen {
			return nil, fmt.Errorf("no function was chosen for its port on network %s", n.Name)
		}
		if err := setFunction(port, n, on, claim, int(pool.Host(n.Prefix.Addr(), port.Address))); err != nil {
			return nil, err
		}
	}
	return ports, nil
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
