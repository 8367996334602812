package placement

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/pool"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// A remote GPU is a part of a GPU's memory on any node, which a server there hands out. All that one member gets by one request is on one node: its
// programs call one server. Of nodes with enough, the nearest is chosen: the member's own, then those under its leaf switch, in its pod, and then all
// others; of equally near ones, that whose GPU has the most memory free.

// remoteGPU reports whether a request is for remote GPUs.
func remoteGPU(r api.DeviceRequest) bool { return r.Class == api.ClassGPU && r.Way == api.WayRemote }

// taken is what a part takes.
func taken(takes map[string]int64, times int64) map[string]int64 {
	if times == 1 {
		return takes
	}
	all := make(map[string]int64, len(takes))
	for counter, n := range takes {
		all[counter] = n * times
	}
	return all
}

// chooseAny chooses a whole GPU of the member's own node where one is free, since nothing lies between that and its programs, and else remote GPUs. It
// reports whether there are enough.
func (c *chooser) chooseAny(m *member, request int, r api.DeviceRequest) bool {
	whole := r.By(api.WholeWay(c.groups[m.group].Stack))
	serving, why := c.serving(m.home, whole), "its node has no such GPU"
	if tree := c.tree(m.home); tree != nil && len(serving) > 0 {
		why = "no such GPU of its node is free as a whole"
		if parts, ok := tree.Fit([]device.Request{{Way: whole.Way, Count: whole.Count, Suits: among(serving)}}); ok {
			for _, p := range parts[0] {
				if !c.take(m, request, whole, m.home, p.Device) {
					return false
				}
			}
			c.why(m, request, "a whole GPU of the member's own node: nothing lies between")
			for i := range m.parts[request] {
				m.parts[request][i].claim.Cost = 1
			}
			return true
		}
	}
	if !c.s.view.hasGPUPrograms(m.home) || !c.chooseServer(m, request, r.By(api.WayRemote)) {
		return false
	}
	c.why(m, request, why+"; by a server on "+m.parts[request][0].claim.Why)
	return true
}

// why notes with the claims of a request of a member why these were chosen.
func (c *chooser) why(m *member, request int, why string) {
	for i := range m.parts[request] {
		m.parts[request][i].claim.Why = why
	}
}

// offer is a server that would serve a member, and what is said of it.
type offer struct {
	server
	near []*server
	// better is how many nearer ones have too little free; busy: there are nearer ones with enough, whose GPUs more members share.
	better int
	busy   bool
	// way is what lies between, cost what kernels take by that, in times of what they take on a local GPU.
	way  serverWay
	cost float64
}

// chooseServer chooses the GPUs of one node for a request of a member: those by which kernels take the least, as far as that is known. Of equal ones, the
// nearest has precedence, then that with the most memory free. It reports whether there are enough.
func (c *chooser) chooseServer(m *member, request int, r api.DeviceRequest) bool {
	all, better := c.serversFor(r), 0
	trips := c.shortestTrips()
	var best *offer
	for distance := range distances {
		if best != nil && best.cost <= leastCost(distance, trips[distance]) {
			continue // a farther one may have a shorter round trip
		}
		near := all.at(&c.s.view, m.home, distance)
		found := c.best(near, m, distance, r)
		switch {
		case found == nil:
			better += len(near)
			if distance != sameNode && slices.ContainsFunc(near, func(s *server) bool { return s.node == m.home }) {
				better-- // it was asked first
			}
		case best == nil || found.cost < best.cost:
			found.near, found.better, found.busy = near, better, best != nil
			best = found
		}
	}
	if best == nil || !c.takeServer(m, request, r, best.node) {
		return false
	}
	c.explainServer(m, request, *best)
	return true
}

// best returns the best server of those at a distance that have enough, nil for none.
func (c *chooser) best(near []*server, m *member, distance int, r api.DeviceRequest) (best *offer) {
	v, home := &c.s.view, m.home
	rate, surveyed := v.linkRate(home)
	tcp := c.running || !sharesMemory(c.groups[m.group].Stack)
	for _, s := range near {
		if c.count(s, r); !s.enough || distance != sameNode && s.node == home {
			continue
		}
		way := serverWay{distance: distance, rate: min(rate, s.rate), tcp: tcp, share: s.share}
		if trip, ok := v.trip(s.node, home); ok {
			way.trip = trip.Seconds
		}
		if cost := way.cost(); best == nil || cost < best.cost || cost == best.cost && s.left > best.left {
			best = &offer{server: *s, way: way, cost: cost}
			best.surveyed = surveyed && s.surveyed
		}
	}
	return best
}

// sharesMemory reports whether members on a stack share memory with a server on their node that is there when they start. A virtual machine's memory is its own.
func sharesMemory(stack api.Stack) bool { return stack == api.StackContainer }

// whereText says where a node is from another, by their distance.
var whereText = [...]string{sameNode: "the member's own node", sameLeaf: "a node under the same leaf switch", samePod: "a node in the same pod", elsewhere: "another node"}

// explainServer notes with the claims of a member why they are on that node, and what that costs.
func (c *chooser) explainServer(m *member, request int, chosen offer) {
	why, better := whereText[c.s.view.distance(m.home, chosen.node)], chosen.better
	equal := 0
	for _, o := range chosen.near {
		switch {
		case o.node == chosen.node || o.node == m.home:
		case o.left > chosen.left && !o.enough:
			better++
		default:
			equal++
		}
	}
	if better > 0 {
		why += fmt.Sprintf("; %s had too little free", plural(better, "better node"))
	}
	if equal > 0 {
		why += fmt.Sprintf("; of %d equally near ones, with the most memory free", equal+1)
	}
	if chosen.busy {
		why += "; GPUs of nearer nodes are shared by more members"
	}
	c.why(m, request, why)
	for i := range m.parts[request] {
		m.parts[request][i].claim.Cost = chosen.cost
		m.parts[request][i].claim.Figures = c.s.view.figures(&chosen, m.home)
	}
}

// shortestTrips are those of the view, found once for a fit.
func (c *chooser) shortestTrips() [distances]float64 {
	if c.trips == nil {
		trips := c.s.view.shortestTrips()
		c.trips = &trips
	}
	return *c.trips
}

// FitServer chooses the remote GPUs of a member of a group that is on a node already, and calls a server there by TCP: the two share no memory. The text says what is missing; nothing is chosen then.
func (s *Sketch) FitServer(node string, g api.Group) (chosen []DevicesOn, missing string) {
	id, known := s.view.ids[node]
	if !known {
		return nil, fmt.Sprintf("the site has no node %s", node)
	}
	c := emptyChooser(s, []api.Group{g})
	c.running = true
	m := &member{home: id, parts: make([][]partOn, len(g.Devices))}
	for i, r := range g.Devices {
		if r.MayBeServed() && !c.chooseServer(m, i, r.By(api.WayRemote)) {
			return nil, c.missing(0, r.By(api.WayRemote))
		}
	}
	return c.byNode(m), ""
}

// mayServe reports whether a node has GPUs that serve a request, and nobody has it whole. Servers go where members may go: to no node that is drained, or
// that will be in maintenance before they end. They are containers, whatever their members are.
func (c *chooser) mayServe(id int32, r api.DeviceRequest) bool {
	row := &c.s.view.rows[id]
	carries := c.s.view.platforms.values[row.platform].hasStack(api.StackContainer)
	return row.state == rowSchedulable && !row.reachesWindow(c.groups[0].Ends) && carries && !c.whole[id] && !c.s.hasWhole(id) && len(c.serving(id, r)) > 0
}

// takeServer takes as many GPUs of a node as a request asks for, each once. Where they are too few, nothing is taken.
func (c *chooser) takeServer(m *member, request int, r api.DeviceRequest, id int32) bool {
	tree := c.tree(id)
	var free []*api.Device
	for _, d := range c.serving(id, r) {
		if tree.Room(device.Part{Device: d.ID, Way: r.Way, Times: r.Times()}) > 0 {
			free = append(free, d)
		}
	}
	if len(free) < r.Count {
		return false
	}
	slices.SortStableFunc(free, func(a, b *api.Device) int {
		room := func(d *api.Device) int { return tree.Room(device.Part{Device: d.ID, Way: r.Way}) }
		return cmp.Compare(room(b), room(a))
	})
	for _, d := range free[:r.Count] {
		if !c.take(m, request, r, id, d.ID) {
			return false
		}
	}
	var claims []api.DeviceClaim
	for _, p := range m.parts[request] {
		claims = append(claims, p.claim)
	}
	c.taken[id] += api.ServerMemoryBytes(claims)
	c.changed(id)
	return true
}

// serverMemory is what the server of some devices takes of its node's memory, near to those devices; nil for devices that no server hands out.
func (c *chooser) serverMemory(id int32, claims []api.DeviceClaim) []api.MemoryClaim {
	served := slices.DeleteFunc(slices.Clone(claims), func(d api.DeviceClaim) bool { return d.Class != api.ClassGPU || d.Way != api.WayRemote })
	if len(served) == 0 {
		return nil
	}
	n := c.s.view.nodes[id]
	var near []int
	for _, d := range served {
		if rec := recordOf(n, d.Device); rec != nil && numaNodeOf(n, rec) >= 0 && !slices.Contains(near, numaNodeOf(n, rec)) {
			near = append(near, numaNodeOf(n, rec))
		}
	}
	return takeMemory(n, memoryOf(n, nil), near, api.ServerMemoryBytes(served))
}

// The distances of nodes from each other.
const (
	sameNode = iota
	sameLeaf
	samePod
	elsewhere
	distances
)

// distance is how far two nodes are from each other, by the fabric in which they are nearest.
func (v *View) distance(a, b int32) int {
	if a == b {
		return sameNode
	}
	return v.apart(v.rows[a].leaves, v.rows[b].leaves)
}

// apart is how far two nodes are from each other that are under these leaf switches.
func (v *View) apart(a, b [fabrics]int32) int {
	nearest := elsewhere
	for f := range fabrics {
		of, to := a[f], b[f]
		switch {
		case of < 0 || to < 0:
		case v.leaves.values[of].name == v.leaves.values[to].name:
			nearest = min(nearest, sameLeaf)
		case v.leaves.values[of].pod == v.leaves.values[to].pod:
			nearest = min(nearest, samePod)
		}
	}
	return nearest
}

// ServeGPUs gives each server of GPUs among new assignments a port on the cluster's own network, by which its member reaches it. Nobody has its address in
// held or in fresh.
func ServeGPUs(own *api.Network, held, fresh []api.Assignment) error {
	hosts := freeHosts(own, held, fresh)
	for i := range fresh {
		a := &fresh[i]
		if !a.ServesGPU() {
			continue
		}
		host, ok := hosts.Take(a.ID)
		if !ok {
			return fmt.Errorf("network %s (%s) has no free address for the server of the GPU of member %s: it has room for %d members", own.Name, own.Prefix, a.Member, Room(own))
		}
		a.Ports = []api.PortClaim{{Network: own.UID, Kind: api.PortVeth, Address: pool.Offset(own.Prefix.Addr(), uint32(host)), MAC: MAC(own.Index, host)}}
	}
	return nil
}
