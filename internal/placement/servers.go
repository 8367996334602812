package placement

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// A site may have thousands of nodes with GPUs, and a cluster thousands of members. So the nodes that may serve a request are gathered once, by the leaf
// switches and pods that they are in, and what is free of a node is counted when a member is as near to it as that, and again when something was taken.

// server is a node that may serve a request, with what is free there.
type server struct {
	node int32
	// rate is that of the node's link, in bits a second; surveyed: a survey told it.
	rate     int64
	surveyed bool
	// left is how much memory is free of the GPU that has the most, in MiB; enough: it has GPUs and memory for one more member.
	left    int64
	enough  bool
	counted bool
	// sharers are how many others have parts of the GPU that is shared by most, of those that the member would get. share is how many times as long as alone
	// programs take on it, because of them.
	sharers int
	share   float64
	// load is how busy that GPU was at loaded, zero: nothing was measured. newest are how many of the sharers did not count for that yet.
	load   float64
	loaded time.Time
	newest int
}

// servers are the nodes that may serve one request.
type servers struct {
	request api.DeviceRequest
	all     []*server
	byNode  map[int32]*server
	// byLeaf and byPod are those in the cells of fabrics.
	byLeaf map[leafOf][]*server
	byPod  map[podOf][]*server
	// near are those at a distance, as far as somebody asked.
	near map[nearKey][]*server
}

type leafOf struct {
	fabric int
	name   string
}

type podOf struct {
	fabric int
	pod    int32
}

// serversFor are the nodes that may serve a request, in natural order.
func (c *chooser) serversFor(r api.DeviceRequest) *servers {
	for _, s := range c.servers {
		if sameDevices(s.request, r) && s.request.Count == r.Count {
			return s
		}
	}
	all, v := &servers{request: r, byNode: map[int32]*server{}, byLeaf: map[leafOf][]*server{}, byPod: map[podOf][]*server{}, near: map[nearKey][]*server{}}, &c.s.view
	for _, id := range v.order {
		if !c.mayServe(id, r) {
			continue
		}
		s := &server{node: id}
		s.rate, s.surveyed = v.linkRate(id)
		all.all, all.byNode[id] = append(all.all, s), s
		for f := range fabrics {
			if n := v.rows[id].leaves[f]; n >= 0 {
				leaf, pod := leafOf{f, v.leaves.values[n].name}, podOf{f, v.leaves.values[n].pod}
				all.byLeaf[leaf], all.byPod[pod] = append(all.byLeaf[leaf], s), append(all.byPod[pod], s)
			}
		}
	}
	c.servers = append(c.servers, all)
	return all
}

// nearKey is what decides how far servers are from a node: its leaf switches.
type nearKey struct {
	leaves   [fabrics]int32
	distance int
}

// at returns the servers at a distance of a node, which may be among its own neighbours in the answer. Nodes under the same switches share it.
func (s *servers) at(v *View, home int32, distance int) []*server {
	if distance == sameNode {
		if own := s.byNode[home]; own != nil {
			return []*server{own}
		}
		return nil
	}
	leaves := v.rows[home].leaves
	key := nearKey{leaves, distance}
	there, known := s.near[key]
	if known {
		return there
	}
	seen := map[int32]bool{}
	for _, o := range s.around(v, leaves, distance) {
		if !seen[o.node] && v.apart(leaves, v.rows[o.node].leaves) == distance {
			there = append(there, o)
		}
		seen[o.node] = true
	}
	s.near[key] = there
	return there
}

// around are servers among which those at a distance are. One that two fabrics lead to is there twice.
func (s *servers) around(v *View, leaves [fabrics]int32, distance int) (from []*server) {
	if distance == elsewhere {
		return s.all
	}
	for f, n := range leaves {
		switch {
		case n < 0:
		case distance == sameLeaf:
			from = append(from, s.byLeaf[leafOf{f, v.leaves.values[n].name}]...)
		default:
			from = append(from, s.byPod[podOf{f, v.leaves.values[n].pod}]...)
		}
	}
	return from
}

// count counts what is free of a server for one more member, unless it is known.
func (c *chooser) count(s *server, r api.DeviceRequest) {
	if s.counted {
		return
	}
	*s = server{node: s.node, rate: s.rate, surveyed: s.surveyed, counted: true, share: 1}
	tree := c.tree(s.node)
	if tree == nil {
		return
	}
	var takes []api.DeviceClaim
	for _, d := range c.serving(s.node, r) {
		s.left = max(s.left, int64(tree.Room(device.Part{Device: d.ID, Way: r.Way})))
		if len(takes) < r.Count && tree.Room(device.Part{Device: d.ID, Way: r.Way, Times: r.Times()}) > 0 {
			c.countSharers(s, d.ID)
			takes = append(takes, api.DeviceClaim{Class: r.Class, Device: d.ID, Way: r.Way, Takes: taken(d.Ways[r.Way].Takes, r.Times())})
		}
	}
	s.enough = len(takes) == r.Count && c.s.view.rows[s.node].freeMemory-c.taken[s.node] >= api.ServerMemoryBytes(takes)
}

// changed has what is free of a node counted again.
func (c *chooser) changed(id int32) {
	for _, all := range c.servers {
		if s := all.byNode[id]; s != nil {
			s.counted = false
		}
	}
}

// countSharers notes of a server how much one of its GPUs is used, where that is the one that is used most.
func (c *chooser) countSharers(s *server, of string) {
	load, measured := c.s.view.load(s.node, of)
	// Those of the fit have not even begun.
	sharers, newest := c.shared[deviceOn{s.node, of}], c.shared[deviceOn{s.node, of}]
	for _, h := range c.s.view.nodes[s.node].holders {
		if n := partsOf(h.assignment.Devices, of); n > 0 {
			sharers += n
			if h.assignment.TakenAt.After(load.At.Add(-loadInterval)) {
				newest += n
			}
		}
	}
	held := partsOf(c.s.view.claims[s.node], of)
	sharers, newest = sharers+held, newest+held
	if share := sharing(load.Busy, measured, sharers, newest); share >= s.share {
		s.share, s.sharers = share, sharers
		s.load, s.loaded, s.newest = 0, time.Time{}, 0
		if measured {
			s.load, s.loaded, s.newest = load.Busy, load.At, newest
		}
	}
}

// partsOf counts the parts of a GPU among claims.
func partsOf(claims []api.DeviceClaim, of string) (n int) {
	for i := range claims {
		if d := &claims[i]; d.Device == of && d.Class == api.ClassGPU && d.Way == api.WayRemote {
			n++
		}
	}
	return n
}

// deviceOn is a device of a node.
type deviceOn struct {
	node   int32
	device string
}
