package placement

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// A plan counts how many members of each group go to each node. It goes over compact rows, 32 bytes a node, twice, or three times where the
// switches matter, so that 100,000 nodes cost a millisecond or two, whatever is asked for and however the site is fragmented, and no index has
// to be kept right beside the rows. See BenchmarkPlace and BenchmarkPlaceOnTree.

// level says what counts as available: what is free now, or what would be if something were given back. A refusal asks
// level by level what would have to change.
type level uint8

const (
	freeNow       level = iota // schedulable nodes, what is free
	freeOrUnknown              // and what is free on nodes that are not heard of
	freeSoon                   // and whole machines that come free by themselves: they are returning, or all that is held there is being released
	emptied                    // schedulable nodes, as if only what is quarantined were held
	unquarantined              // schedulable nodes, as if nothing were held
	everything                 // all nodes of the inventory, as if nothing were held
)

// conditions say under which assumptions a plan is made; the zero value is the truth.
type conditions struct {
	level level
	// ignore drops one kind of constraint from group number group.
	ignore Constraint
	group  int
	// devices: members go only where their nodes have the devices that they need of their own.
	devices bool
}

type nodeCount struct {
	id      int32
	members int32
}

// failure tells which group could not be planned, and what the groups before it had been given.
type failure struct {
	group int
	// fits is how many of its members would fit.
	fits int
	used *uses
}

// use is what a plan has taken from a node so far.
type use struct {
	cores  int32
	memory int64
	// besides is what few groups take.
	besides resource.Vector
}

// uses is what a plan has taken so far, by node. Few nodes are touched; the bits tell which at little cost. A nil *uses is empty.
type uses struct {
	touched bitset
	byNode  map[int32]use
	// devices are those that members need of their own nodes.
	devices map[int32][]api.DeviceRequest
}

func (u *uses) of(id int32) use {
	if u == nil || !u.touched.has(int(id)) {
		return use{}
	}
	return u.byNode[id]
}

func (u *uses) add(v *View, nodes []nodeCount, g api.Group) {
	for _, n := range nodes {
		had, takes := u.byNode[n.id], v.use(n, g)
		u.byNode[n.id] = use{cores: had.cores + takes.cores, memory: had.memory + takes.memory, besides: had.besides.Plus(takes.besides)}
		u.touched.set(int(n.id))
		if own := ownDevices(&g); len(own) > 0 {
			if u.devices == nil {
				u.devices = map[int32][]api.DeviceRequest{}
			}
			for _, r := range own {
				r.Count *= int(n.members)
				u.devices[n.id] = append(u.devices[n.id], r)
			}
		}
	}
}

// use is what members of a group take of a node.
func (v *View) use(n nodeCount, g api.Group) use {
	if Whole(g.Stack) {
		return use{cores: v.cold[n.id].cores, memory: v.cold[n.id].memory}
	}
	return use{
		cores: n.members * int32(g.Cores), memory: int64(n.members) * resource.OnNode(&g)[resource.Memory], besides: besidesOf(&g).Times(int(n.members)),
	}
}

func (u *uses) empty() bool { return u == nil || len(u.byNode) == 0 }

// planAll plans all groups. A plan is greedy, so the order matters: large members first, since placed late they find only gaps. When that
// fails, two more orders are tried: by memory, and the groups first that have the fewest nodes to choose from.
func planAll(v *View, groups []api.Group, c conditions) ([][]nodeCount, *failure) {
	order := make([]int, len(groups))
	for i := range order {
		order[i] = i
	}
	byCores := func(a, b int) int { return cmp.Compare(groups[b].Cores, groups[a].Cores) }
	byMemory := func(a, b int) int { return cmp.Compare(groups[b].Memory, groups[a].Memory) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Or(byCores(a, b), byMemory(a, b)) })
	counts, failed := planInOrder(v, groups, order, c)
	if failed == nil || len(groups) == 1 {
		return counts, failed
	}
	slices.SortStableFunc(order, byMemory)
	if counts, failedAgain := planInOrder(v, groups, order, c); failedAgain == nil {
		return counts, nil
	}
	choices := make([]int, len(groups))
	for i, g := range groups {
		choices[i] = v.finder(g, i, c, nil).nodes()
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(choices[a], choices[b]) })
	if counts, failedAgain := planInOrder(v, groups, order, c); failedAgain == nil {
		return counts, nil
	}
	return nil, failed
}

// planWithDevices plans groups on nodes with the devices that members need of their own nodes, and where that fails, on any nodes: then it is devices
// that are missing, and not room.
func planWithDevices(v *View, groups []api.Group) ([][]nodeCount, *failure) {
	// Members that may have any GPU go where all of them get whole ones, and else where they can call servers.
	for _, remote := range []bool{false, true} {
		by := groupsBy(groups, remote)
		if by == nil {
			break
		}
		if counts, failed := planAll(v, by, conditions{level: freeNow, devices: wantOwnDevices(by)}); failed == nil {
			return counts, nil
		}
	}
	if wantOwnDevices(groups) {
		if counts, failed := planAll(v, groups, conditions{level: freeNow, devices: true}); failed == nil {
			return counts, nil
		}
	}
	return planAll(v, groups, conditions{level: freeNow})
}

func planInOrder(v *View, groups []api.Group, order []int, c conditions) ([][]nodeCount, *failure) {
	counts := make([][]nodeCount, len(groups))
	var used *uses
	if len(groups) > 1 {
		used = &uses{touched: newBitset(len(v.rows)), byNode: map[int32]use{}}
	}
	for _, gi := range order {
		g := groups[gi]
		found, fits := planGroup(v, g, gi, c, used)
		if found == nil {
			return nil, &failure{group: gi, fits: fits, used: used}
		}
		counts[gi] = found
		if used != nil {
			used.add(v, found, g)
		}
	}
	return counts, nil
}

// planGroup returns how many members go where, in rank order, or nil and how many would fit. It goes over the nodes and keeps nothing of
// them in between: first counting them by how many members they hold, then choosing. Where leaf switches are known, it chooses those first:
// as few as can be.
func planGroup(v *View, g api.Group, index int, c conditions, used *uses) ([]nodeCount, int) {
	f := v.finder(g, index, c, used)
	if all := f.allAtVolumes(g.Size); all != nil {
		return all, g.Size
	}
	if all := f.allWithData(g.DataPlace, g.Size); all != nil {
		return all, g.Size
	}
	return f.plan(g.Size)
}

// plan says how many members of a size go where, in rank order, or nil and how many would fit.
func (f *finder) plan(size int) ([]nodeCount, int) {
	v := f.v
	f.tree = v.treeOfLeaves(f.fabric, f.used)
	// room counts the nodes of each kind by how many members they hold.
	var room [kinds][]int
	for k := range room {
		room[k] = make([]int, len(f.quotient))
	}
	var total [kinds]int
	for _, id := range v.order {
		members, _, k := f.room(id)
		if members == 0 {
			continue
		}
		room[k][members]++
		total[k] += int(members)
		if f.tree != nil {
			f.tree.add(k, f.leafOf(id), members)
		}
	}
	sum, left := 0, size
	for _, n := range total {
		sum += n
	}
	if sum < size {
		return nil, sum
	}
	var chosen [kinds]choice
	for k := range chosen {
		n := min(left, total[k])
		chosen[k] = f.chooseOf(k, room[k], n)
		left -= n
	}
	return f.inRankOrder(f.choose(&chosen)), sum
}

// A node's kind: nodes of lesser kinds are used first.
const (
	// sharedCPUs is added for a node on which members may share CPUs, faultyLink for one that its fabric reaches by a bad link only.
	sharedCPUs = 1
	faultyLink = 2
	kinds      = 4
)

// finder tells, node by node, how many members of a group it can hold.
type finder struct {
	v                 *View
	level             level
	used              *uses
	platforms, labels []bool
	cores             int32
	memory            int64
	// besides is what a member takes besides; wants says that it is anything.
	besides resource.Vector
	wants   bool
	// whole: a member takes a whole node.
	whole bool
	// volumes are where members have their volumes.
	volumes volumeNodes
	// only are the nodes that count, as long as members share no CPUs there and no link is bad; nil: all do.
	only bitset
	// ends is when members are gone at the latest; zero: they have no limit.
	ends time.Time
	// devices are those that each member needs of its own node.
	devices []api.DeviceRequest
	// quotient[n] is how many members n cores hold: divisions by one divisor, done once.
	quotient []int32
	// fabric is the one whose leaf switches count. tree is nil where they make no difference.
	fabric int
	tree   *tree
}

func (v *View) finder(g api.Group, index int, c conditions, used *uses) *finder {
	ignore := c.ignore
	if index != c.group {
		ignore = ""
	}
	f := &finder{
		v: v, level: c.level, used: used, ends: g.Ends, cores: int32(min(g.Cores, math.MaxInt32)), memory: resource.OnNode(&g)[resource.Memory], whole: Whole(g.Stack),
	}
	f.besides = withoutClasses(besidesOf(&g), ignore)
	f.wants = f.besides != resource.Vector{}
	if c.devices {
		f.devices = ownDevices(&g)
	}
	f.platforms = v.platforms.matching(func(p platform) bool {
		return (ignore == ConstraintStack || p.hasStack(g.Stack)) && (ignore == ConstraintCPUModel || p.hasModel(g.CPUModel)) &&
			(ignore == ConstraintStack || ignore == ConstraintEnvironment || p.hasEnvironment(g.Environment, g.Stack)) &&
			(ignore == ConstraintMTU || p.carries(g.PortMTU)) && (ignore == ConstraintFabric || p.connects(g.Interconnect)) &&
			(ignore == ConstraintLocalDisks || p.hasDisks(g.LocalDisks)) && (ignore == ConstraintGPUPrograms || p.callsServers(&g))
	})
	if len(g.NodeSelector) > 0 && ignore != ConstraintLabels {
		f.labels = v.labels.matching(func(l map[string]string) bool { return selects(g.NodeSelector, l) })
	}
	if ignore == ConstraintMemory {
		f.memory = 0
	}
	f.quotient = make([]int32, v.mostCores+1)
	for n := range f.quotient {
		f.quotient[n] = int32(n) / f.cores
	}
	f.fabric = v.fabricOf(&g)
	if ignore != ConstraintVolume {
		f.volumes = v.volumeNodes(g.VolumePlace)
	}
	return f
}

// room is how many members a node can hold, how many cores those would leave, and the node's kind.
func (f *finder) room(id int32) (members, spare int32, kind int) {
	r := &f.v.rows[id]
	if f.volumes.wanted && !f.volumes.has(id, r) {
		return 0, 0, 0
	}
	if f.only != nil && (!f.only.has(int(id)) || r.over || f.faulty(r) != 0) {
		return 0, 0, 0
	}
	if r.window != 0 && f.level != everything && r.reachesWindow(f.ends) {
		return 0, 0, 0
	}
	freeCores, freeMemory := r.freeCores, r.freeMemory
	if f.whole {
		return f.wholeRoom(id)
	}
	if f.level == freeNow {
		if freeCores < f.cores || r.state != rowSchedulable {
			return 0, 0, 0
		}
	} else {
		var ok bool
		if freeCores, freeMemory, ok = f.v.available(id, f.level); !ok {
			return 0, 0, 0
		}
	}
	if !f.suits(r) {
		return 0, 0, 0
	}
	if f.used != nil {
		u := f.used.of(id)
		freeCores, freeMemory = freeCores-u.cores, freeMemory-u.memory
	}
	members = f.quotient[max(freeCores, 0)]
	if f.memory > 0 && int64(members)*f.memory > freeMemory {
		members = int32(max(0, freeMemory/f.memory))
	}
	if f.wants {
		members = min(members, f.roomBesides(id))
	}
	if len(f.devices) > 0 && members > 0 {
		members = f.roomDevices(id, members)
	}
	if r.over {
		kind = sharedCPUs
	}
	return members, freeCores - members*f.cores, kind + f.faulty(r)
}

// wholeRoom is room for members that take whole nodes: 1 on one that is large enough, and on which nothing is held.
func (f *finder) wholeRoom(id int32) (members, spare int32, kind int) {
	r, c := &f.v.rows[id], &f.v.cold[id]
	if !f.v.wholeAt(id, f.level) || !f.suits(r) || c.cores < f.cores || c.memory < f.memory || f.used.of(id) != (use{}) {
		return 0, 0, 0
	}
	return 1, c.cores - f.cores, f.faulty(r) // nobody shares its CPUs, however often they are offered
}

// wholeAt reports whether a node could be given away whole at a level.
func (v *View) wholeAt(id int32, l level) bool {
	r, c, n := &v.rows[id], &v.cold[id], v.nodes[id]
	switch l {
	case freeNow:
		return r.state <= rowAsleep && r.empty(c)
	case freeOrUnknown:
		return r.state <= rowUnknown && r.empty(c)
	case freeSoon:
		return (r.state <= rowAsleep || r.state == rowReturning) && (r.empty(c) || n.isReleased())
	case emptied:
		return r.state <= rowAsleep && !slices.ContainsFunc(n.holders, func(h *holding) bool { return h.quarantined })
	case unquarantined:
		return r.state <= rowAsleep
	default:
		return n.availability != Absent
	}
}

// isReleased reports whether something is held on a node, and all of it is being released.
func (n *node) isReleased() bool {
	return len(n.holders) > 0 && !slices.ContainsFunc(n.holders, func(h *holding) bool { return !h.releasing || h.quarantined })
}

// empty reports whether nothing is held on a node.
func (r *row) empty(c *coldRow) bool {
	return !r.hidden && r.freeCores == c.cores && r.freeMemory == c.memory
}

// suits reports whether a node with cores, which has a platform, offers what the group runs on and carries its labels.
func (f *finder) suits(r *row) bool {
	return f.platforms[r.platform] && (f.labels == nil || f.labels[r.labels])
}

// nodes is how many nodes can hold a member.
func (f *finder) nodes() int {
	n := 0
	for _, id := range f.v.order {
		if members, _, _ := f.room(id); members > 0 {
			n++
		}
	}
	return n
}

// choice says, for nodes of one kind, which take members: whole[k] of those with room for k are filled, and one more, with
// room for lastRoom, takes the last members.
type choice struct {
	whole          []int
	lastRoom, last int
	// leaves say what is used of each leaf switch; nil: they make no difference. Nodes of a leaf that is used in part are chosen by what is above.
	leaves []leafUse
}

// choose picks the nodes, in natural order: the first ones that are preferred, except that the last members go to the node where
// they leave the fewest cores.
func (f *finder) choose(choices *[kinds]choice) []nodeCount {
	type position struct {
		at    int // in chosen, before which the node belongs
		id    int32
		spare int32
	}
	var chosen []nodeCount
	var last [kinds]position
	for k := range last {
		last[k].id = -1
	}
	for _, id := range f.preferred() {
		members, spare, over := f.room(id)
		if members == 0 {
			continue
		}
		c := &choices[over]
		if c.leaves != nil {
			switch c.leaves[f.leafOf(id)] {
			case leafUnused:
				continue
			case leafWhole:
				chosen = append(chosen, nodeCount{id: id, members: members})
				continue
			}
		}
		switch {
		case c.whole[members] > 0:
			c.whole[members]--
			chosen = append(chosen, nodeCount{id: id, members: members})
		case c.last > 0 && int(members) == c.lastRoom && (last[over].id < 0 || spare < last[over].spare):
			last[over] = position{at: len(chosen), id: id, spare: spare}
		}
	}
	// The latest one first, so that it does not move the others' places.
	order := []int{0, 1, 2, 3}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(cmp.Compare(last[b].at, last[a].at), cmp.Compare(a, b)) })
	for _, k := range order {
		if p := last[k]; p.id >= 0 {
			chosen = slices.Insert(chosen, p.at, nodeCount{id: p.id, members: int32(choices[k].last)})
		}
	}
	if f.whole {
		slices.SortFunc(chosen, func(a, b nodeCount) int { return cmp.Compare(f.v.nodes[a.id].key, f.v.nodes[b.id].key) })
	}
	return chosen
}

// split decides, given how many nodes have room for k members (room[k]), which take n: as few as can be. The roomiest are filled
// as long as no single node holds the rest; that goes where it fits most tightly. There is room for n in all.
func split(room []int, n int) choice {
	c := choice{whole: make([]int, len(room))}
	for largest := len(room) - 1; n > 0; {
		for k := n; k < len(room); k++ {
			if room[k] > c.whole[k] {
				c.lastRoom, c.last = k, n
				return c
			}
		}
		for largest > 0 && room[largest] == c.whole[largest] {
			largest--
		}
		// Every node left has less room than n: fill as many of the roomiest as leave something for the next round.
		fill := min(room[largest]-c.whole[largest], (n-1)/largest)
		c.whole[largest] += fill
		n -= fill * largest
	}
	return c
}

// available returns what counts as available on a node at a level.
func (v *View) available(id int32, l level) (cores int32, memory int64, ok bool) {
	r, c := &v.rows[id], &v.cold[id]
	switch l {
	case freeNow, freeSoon:
		return r.freeCores, r.freeMemory, r.state == rowSchedulable
	case freeOrUnknown:
		return r.freeCores, r.freeMemory, r.state == rowSchedulable || r.state == rowUnknown
	case emptied:
		return c.cores - c.quarantinedCores, c.memory - c.quarantinedMemory, r.state == rowSchedulable
	case unquarantined:
		return c.cores, c.memory, r.state == rowSchedulable
	default:
		return c.cores, c.memory, v.nodes[id].availability != Absent
	}
}
