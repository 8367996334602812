package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Nodes under one leaf switch reach each other without crossing another. So a group that does not fit on one node goes under as few leaf
// switches as it can, in as few pods as it can, and next to the groups of its cluster that were planned before it. Nodes are counted by leaf
// switch in the scan that counts them anyway. Where no leaf is known nothing changes.

// The fabrics whose leaf switches a row knows.
const (
	onEthernet = iota
	onInfiniBand
	fabrics
)

// leaf is a leaf switch, and whether the node's link to it has a fault: nodes alike have the same number.
type leaf struct {
	// name is unique on the site: the cell's and the switch's. pod is the number of its pod.
	name   string
	pod    int32
	faulty bool
}

func emptyRow() row {
	return row{state: rowUnavailable, platform: -1, labels: -1, leaves: [fabrics]int32{-1, -1}}
}

// moveLeaves notes where a node is; without places it is nowhere.
func (v *View) moveLeaves(id int32, places []api.NodePlace) {
	var now [fabrics]*api.NodePlace
	for i := range places {
		f := onEthernet
		if places[i].Technology == api.FabricInfiniBand {
			f = onInfiniBand
		}
		if places[i].Switch != "" && now[f] == nil { // of several cells the first one counts
			now[f] = &places[i]
		}
	}
	for f, place := range now {
		at := &v.rows[id].leaves[f]
		if *at >= 0 {
			v.placed[f]--
		}
		if place == nil {
			v.leaves.drop(*at)
			*at = -1
			continue
		}
		l := leaf{name: place.Cell + "\x00" + place.Switch, pod: v.podOf(place.Cell + "\x00" + place.Pod), faulty: place.Fault != ""}
		*at = v.leaves.swap(*at, fmt.Sprintf("%s\x00%d\x00%t", l.name, l.pod, l.faulty), func() leaf { return l })
		v.placed[f]++
	}
}

// podOf numbers pods. A number is never used again: there are few.
func (v *View) podOf(name string) int32 {
	number, ok := v.pods[name]
	if !ok {
		number = int32(len(v.pods))
		v.pods[name] = number
	}
	return number
}

// fabricOf is the fabric whose switches count for a group: the one that it asks for, and else the one that more nodes are placed in.
func (v *View) fabricOf(g *api.Group) int {
	switch {
	case g.Interconnect.Technology == api.FabricEthernet:
		return onEthernet
	case g.Interconnect.Technology == api.FabricInfiniBand || g.Interconnect.RDMA || v.placed[onInfiniBand] >= v.placed[onEthernet]:
		return onInfiniBand
	default:
		return onEthernet
	}
}

// tree is how many members each leaf switch has room for.
type tree struct {
	// room has, by kind of node and number of leaf plus 1, the room of leaves. The first is of nodes whose leaf is not known.
	room [kinds][]int32
	// seen are leaves with room in the order of their first nodes, rank the reverse; -1: it has none.
	seen []int32
	rank []int32
	// near are leaves that groups planned before are under.
	near []bool
	any  bool
}

// treeOfLeaves prepares the count of leaves; nil where no two nodes are under different ones.
func (v *View) treeOfLeaves(fabric int, used *uses) *tree {
	if v.placed[fabric] == 0 || len(v.leaves.values) < 2 && v.placed[fabric] == len(v.order) {
		return nil
	}
	n := len(v.leaves.values) + 1
	t := &tree{rank: make([]int32, n), near: make([]bool, n)}
	for i := range t.rank {
		t.rank[i] = -1
	}
	for k := range t.room {
		t.room[k] = make([]int32, n)
	}
	if used != nil {
		for id := range used.byNode {
			if at := v.rows[id].leaves[fabric]; at >= 0 {
				t.near[at+1], t.any = true, true
			}
		}
	}
	return t
}

// add counts a node.
func (t *tree) add(kind int, at, members int32) {
	if t.rank[at] < 0 {
		t.rank[at] = int32(len(t.seen))
		t.seen = append(t.seen, at)
	}
	t.room[kind][at] += members
}

// leafOf is the number of a node's leaf in a tree.
func (f *finder) leafOf(id int32) int32 { return f.v.rows[id].leaves[f.fabric] + 1 }

// faulty is faultyLink for a node that is to be avoided, and else 0.
func (f *finder) faulty(r *row) int {
	if at := r.leaves[f.fabric]; at >= 0 && f.v.leaves.values[at].faulty {
		return faultyLink
	}
	return 0
}

// leafUse is what a group uses of a leaf switch.
type leafUse uint8

const (
	leafUnused leafUse = iota
	leafWhole          // every node is filled
	leafPart
)

// chooseOf decides which nodes of a kind take n members, given how many have room for how many; there is room for n in all.
func (f *finder) chooseOf(kind int, room []int, n int) choice {
	c := split(room, n)
	if oneNode := slices.Max(c.whole) == 0; f.tree == nil || n == 0 || oneNode && !f.tree.any {
		return c
	}
	uses, part, last := f.chooseLeaves(kind, n)
	if uses == nil {
		return c
	}
	within := make([]int, len(room))
	for _, id := range f.v.order {
		if f.leafOf(id) != part {
			continue
		}
		if members, _, k := f.room(id); members > 0 && k == kind {
			within[members]++
		}
	}
	c = split(within, last)
	c.leaves = uses
	return c
}

// chooseLeaves decides what is used of each leaf for n members: part is the leaf of which last members use a part. It returns nil when
// nodes of unknown leaves are all there is.
func (f *finder) chooseLeaves(kind, n int) (uses []leafUse, part int32, last int) {
	t := f.tree
	var open []int32
	for _, at := range t.seen {
		if at > 0 && t.room[kind][at] > 0 {
			open = append(open, at)
		}
	}
	if len(open) == 0 {
		return nil, 0, 0
	}
	uses = make([]leafUse, len(t.rank))
	for left := n; ; {
		if at, ok := f.tightest(kind, open, left); ok {
			uses[at] = leafPart
			return uses, at, left
		}
		if pod, ok := f.tightestPod(kind, open, left); ok {
			open = pod
		}
		at, ok := f.roomiest(kind, open)
		if !ok { // what is left goes to nodes of unknown leaves
			uses[0] = leafPart
			return uses, 0, left
		}
		uses[at] = leafWhole
		left -= int(t.room[kind][at])
		open = slices.DeleteFunc(slices.Clone(open), func(o int32) bool { return o == at })
	}
}

// tightest is the leaf with the least room that holds n members. Leaves near other groups come first.
func (f *finder) tightest(kind int, open []int32, n int) (int32, bool) {
	best, t := int32(-1), f.tree
	for _, at := range open {
		switch room := int(t.room[kind][at]); {
		case room < n:
		case best < 0, t.near[at] && !t.near[best], t.near[at] == t.near[best] && room < int(t.room[kind][best]):
			best = at
		}
	}
	return best, best >= 0
}

// tightestPod returns the open leaves of the pod with the least room that holds n members, preferring one near other groups; false where
// none does, or there is only one.
func (f *finder) tightestPod(kind int, open []int32, n int) ([]int32, bool) {
	v, t := f.v, f.tree
	room, near := make([]int, len(v.pods)), make([]bool, len(v.pods))
	var order []int32
	for _, at := range open {
		pod := v.leaves.values[at-1].pod
		if room[pod] == 0 {
			order = append(order, pod)
		}
		room[pod], near[pod] = room[pod]+int(t.room[kind][at]), near[pod] || t.near[at]
	}
	if len(order) < 2 {
		return nil, false
	}
	best := int32(-1)
	for _, pod := range order {
		if room[pod] >= n && (best < 0 || near[pod] && !near[best] || near[pod] == near[best] && room[pod] < room[best]) {
			best = pod
		}
	}
	if best < 0 {
		return nil, false
	}
	return slices.DeleteFunc(slices.Clone(open), func(at int32) bool { return v.leaves.values[at-1].pod != best }), true
}

// roomiest is the leaf with the most room, preferring those near other groups; false where there is none.
func (f *finder) roomiest(kind int, open []int32) (int32, bool) {
	best, t := int32(-1), f.tree
	for _, at := range open {
		if best < 0 || t.near[at] && !t.near[best] || t.near[at] == t.near[best] && t.room[kind][at] > t.room[kind][best] {
			best = at
		}
	}
	return best, best >= 0
}

// inRankOrder puts nodes under one switch, and switches of one pod, next to each other; ranks follow this order.
func (f *finder) inRankOrder(chosen []nodeCount) []nodeCount {
	if f.tree == nil {
		return chosen
	}
	first := make([]int32, len(f.v.pods)) // the rank of each pod's first leaf, plus 1
	key := make([]int64, len(f.tree.rank))
	for rank, at := range f.tree.seen {
		if at == 0 {
			key[at] = math.MaxInt64 // unknown leaves come last
			continue
		}
		pod := f.v.leaves.values[at-1].pod
		if first[pod] == 0 {
			first[pod] = int32(rank) + 1
		}
		key[at] = int64(first[pod])<<32 | int64(rank)
	}
	slices.SortStableFunc(chosen, func(a, b nodeCount) int { return cmp.Compare(key[f.leafOf(a.id)], key[f.leafOf(b.id)]) })
	return chosen
}

// WithoutSwitches closes the nodes under the leaf switches of the named nodes, as Without closes those: what should not end with them goes
// to another failure domain.
func (s *Sketch) WithoutSwitches(nodes []string) (restore func(), any bool) {
	domains := map[int32]bool{}
	for _, name := range nodes {
		if id, ok := s.view.ids[name]; ok {
			for _, at := range s.view.rows[id].leaves {
				domains[at] = at >= 0
			}
		}
	}
	var all []string
	for _, id := range s.view.order {
		if slices.ContainsFunc(s.view.rows[id].leaves[:], func(at int32) bool { return domains[at] }) {
			all = append(all, s.view.nodes[id].record.Name)
		}
	}
	if len(all) == 0 {
		return func() {}, false
	}
	return s.Without(append(all, nodes...))
}

// aboutFabric tells of nodes that are in no cell as requested.
func (d *diagnosis) aboutFabric(r *Refusal) []string {
	var texts []string
	for _, n := range d.failing(ConstraintFabric) {
		texts = append(texts, "node "+n.record.Name+" "+fabricProblem(n.record, r.Need.Interconnect))
	}
	what := "with a port in a cell as requested: " + r.Need.Interconnect.String()
	return d.tooFew("no node is there "+what, "too few nodes are there "+what, texts)
}

// fabricProblem returns why a node is in no cell as requested.
func fabricProblem(rec api.NodeRecord, i api.Interconnect) string {
	if len(rec.Places) == 0 {
		return "is in no cell whose topology is known"
	}
	var words []string
	for _, p := range rec.Places {
		rate := "at an unknown rate"
		if p.RateBitsPerSecond > 0 {
			rate = "at " + api.Rate(p.RateBitsPerSecond).String()
		}
		rdma := ""
		if i.RDMA && !p.RDMA {
			rdma = " without RDMA"
		}
		words = append(words, fmt.Sprintf("%s (%s) %s%s", p.Cell, p.Technology, rate, rdma))
	}
	return "is in " + strings.Join(words, ", ")
}
