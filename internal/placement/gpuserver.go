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

// serverOn is a node that may serve a member, how far it is, and how much of its GPUs would be left.
type serverOn struct {
	id       int32
	distance int
	left     int64
}

// chooseServer chooses the GPUs of one node for a request of a member. It reports whether there are enough.
func (c *chooser) chooseServer(m *member, request int) bool {
	r := c.groups[m.group].Devices[request]
	var on []serverOn
	for _, id := range c.s.view.order {
		if c.mayServe(id, r) {
			on = append(on, serverOn{id: id, distance: c.s.view.distance(m.home, id), left: c.memoryLeft(id, r)})
		}
	}
	slices.SortStableFunc(on, func(a, b serverOn) int {
		return cmp.Or(cmp.Compare(a.distance, b.distance), cmp.Compare(b.left, a.left))
	})
	return slices.ContainsFunc(on, func(s serverOn) bool {
		if !c.takeServer(m, request, s.id) {
			return false
		}
		c.explainServer(m, request, s, on)
		return true
	})
}

// whereText says where a node is from another, by their distance.
var whereText = [...]string{sameNode: "the member's own node", sameLeaf: "a node under the same leaf switch", samePod: "a node in the same pod", elsewhere: "another node"}

// explainServer notes with the claims of a member why they are on that node.
func (c *chooser) explainServer(m *member, request int, chosen serverOn, on []serverOn) {
	why := whereText[chosen.distance]
	nearer, equal := 0, 0
	for _, o := range on {
		switch {
		case o.distance < chosen.distance || o.distance == chosen.distance && o.left > chosen.left:
			nearer++
		case o.distance == chosen.distance && o.id != chosen.id:
			equal++
		}
	}
	if nearer > 0 {
		why += fmt.Sprintf("; %s had too little free", plural(nearer, "better node"))
	}
	if equal > 0 {
		why += fmt.Sprintf("; of %d equally near ones, with the most memory free", equal+1)
	}
	for i := range m.parts[request] {
		m.parts[request][i].claim.Why = why
	}
}

// FitServer chooses the remote GPUs of a member of a group that is on a node already. The text says what is missing; nothing is chosen then.
func (s *Sketch) FitServer(node string, g api.Group) (chosen []DevicesOn, missing string) {
	id, known := s.view.ids[node]
	if !known {
		return nil, fmt.Sprintf("the site has no node %s", node)
	}
	c := &chooser{s: s, groups: []api.Group{g}, at: map[int32][]*member{}, trees: map[int32]*partsFree{}, whole: map[int32]bool{}}
	m := &member{home: id, parts: make([][]partOn, len(g.Devices))}
	for i, r := range g.Devices {
		if remoteGPU(r) && !c.chooseServer(m, i) {
			return nil, c.missing(0, r)
		}
	}
	return m.byNode(s.view.nodes), ""
}

// mayServe reports whether a node has GPUs that serve a request, and nobody has it whole.
func (c *chooser) mayServe(id int32, r api.DeviceRequest) bool {
	return c.s.view.rows[id].state == rowSchedulable && !c.whole[id] && !c.s.hasWhole(id) && len(c.serving(id, r)) > 0 && c.tree(id) != nil
}

// memoryLeft is how much memory is free of the GPU of a node that has the most, in MiB.
func (c *chooser) memoryLeft(id int32, r api.DeviceRequest) (most int64) {
	for _, d := range c.serving(id, r) {
		most = max(most, int64(c.tree(id).Room(device.Part{Device: d.ID, Way: r.Way})))
	}
	return most
}

// takeServer takes as many GPUs of a node as a request asks for, each once. Where they are too few, nothing is taken.
func (c *chooser) takeServer(m *member, request int, id int32) bool {
	r, tree := c.groups[m.group].Devices[request], c.tree(id)
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
		if !c.take(m, request, id, d.ID) {
			return false
		}
	}
	return true
}

// The distances of nodes from each other.
const (
	sameNode = iota
	sameLeaf
	samePod
	elsewhere
)

// distance is how far two nodes are from each other, by the fabric in which they are nearest.
func (v *View) distance(a, b int32) int {
	if a == b {
		return sameNode
	}
	nearest := elsewhere
	for f := range fabrics {
		of, to := v.rows[a].leaves[f], v.rows[b].leaves[f]
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
