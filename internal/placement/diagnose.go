package placement

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// refuse finds out what binds: which single thing, were it otherwise, would make the request fit. It asks from the least change to the
// greatest: wait for nodes that are not heard of, wait for other clusters to end, get quarantined resources back, get nodes back. When
// nothing of that helps, it is never possible on this site, and what makes it so is named.
func refuse(v *View, r Request, f *failure) *Refusal {
	refusal, d := classify(v, r, f)
	d.describe(refusal)
	return refusal
}

// classify is refuse without the words.
func classify(v *View, r Request, f *failure) (*Refusal, *diagnosis) {
	d := &diagnosis{v: v, r: r, group: f.group, used: f.used, level: everything}
	fits := func(l level) bool { _, failed := planAll(v, r.Groups, conditions{level: l}); return failed == nil }
	c := ConstraintTogether
	never := false
	if gi, empty := d.nothingSuits(); empty != "" {
		d.group, c, never = gi, empty, d.r.Groups[gi].VolumePlace.Unplaced == ""
	} else if gi, ok := d.impossibleAlone(); ok {
		d.group, d.used, c, never = gi, nil, d.whyNever(gi), true
	} else {
		d.level = freeNow
		switch {
		case fits(freeOrUnknown):
			c = ConstraintDown
		case fits(emptied):
			c = d.coresOrMemory()
		case fits(unquarantined):
			c = ConstraintQuarantine
		case fits(everything):
			c = ConstraintDown
		default:
			never = d.impossibleInSum()
		}
	}
	refusal := &Refusal{
		Cluster: r.Cluster, Group: r.Groups[d.group].Name, Constraint: c, Never: never, Need: r.Groups[d.group],
		Undecided: c == ConstraintDown && fits(freeOrUnknown),
	}
	return refusal, d
}

// diagnosis looks into one refusal.
type diagnosis struct {
	v *View
	r Request
	// group is the number of the group to speak of, used what other groups of the request have been given before it.
	group int
	used  *uses
	// level is at which it is told what would fit.
	level level
}

func (d *diagnosis) need() api.Group { return d.r.Groups[d.group] }

// nothingSuits returns the first group that no node of the inventory suits, whatever is free, and the constraint that
// leaves none.
func (d *diagnosis) nothingSuits() (int, Constraint) {
	for gi, g := range d.r.Groups {
		var s suits
		for _, id := range d.v.order {
			d.v.suits(id, g, &s)
		}
		switch {
		case s.nodes == 0:
			return gi, ConstraintNodes
		case s.volume == 0:
			return gi, ConstraintVolume
		case s.labels == 0:
			return gi, ConstraintLabels
		case s.stack == 0:
			return gi, ConstraintStack
		case s.model == 0:
			return gi, ConstraintCPUModel
		case s.environment == 0:
			return gi, ConstraintEnvironment
		case s.mtu == 0:
			return gi, ConstraintMTU
		case s.fabric == 0:
			return gi, ConstraintFabric
		case s.disks == 0:
			return gi, ConstraintLocalDisks
		case s.programs == 0:
			return gi, ConstraintGPUPrograms
		}
	}
	return 0, ""
}

// suits counts how far nodes get: each count is of nodes that pass that constraint and all before it.
type suits struct{ nodes, volume, labels, stack, model, environment, mtu, fabric, disks, programs int }

// suits counts one node, and tells the first constraint it does not pass ("" for none).
func (v *View) suits(id int32, g api.Group, s *suits) Constraint {
	if v.nodes[id].availability == Absent {
		return ConstraintNodes
	}
	r := &v.rows[id]
	s.nodes++
	if g.VolumePlace != (api.VolumePlace{}) && !v.hasVolumes(id, g.VolumePlace) {
		return ConstraintVolume
	}
	s.volume++
	if !selects(g.NodeSelector, v.labels.values[r.labels]) {
		return ConstraintLabels
	}
	s.labels++
	if !v.platforms.values[r.platform].hasStack(g.Stack) {
		return ConstraintStack
	}
	s.stack++
	if !v.platforms.values[r.platform].hasModel(g.CPUModel) {
		return ConstraintCPUModel
	}
	s.model++
	if !v.platforms.values[r.platform].hasEnvironment(g.Environment, g.Stack) {
		return ConstraintEnvironment
	}
	s.environment++
	if !v.platforms.values[r.platform].carries(g.PortMTU) {
		return ConstraintMTU
	}
	s.mtu++
	if !v.platforms.values[r.platform].connects(g.Interconnect) {
		return ConstraintFabric
	}
	s.fabric++
	if !v.platforms.values[r.platform].hasDisks(g.LocalDisks) {
		return ConstraintLocalDisks
	}
	s.disks++
	if !v.platforms.values[r.platform].callsServers(&g) {
		return ConstraintGPUPrograms
	}
	s.programs++
	return ""
}

// impossibleAlone returns the first group that would not even fit alone, with every node up and nothing held.
func (d *diagnosis) impossibleAlone() (int, bool) {
	for gi, g := range d.r.Groups {
		if d.count(g, gi, conditions{level: everything}, nil) < g.Size {
			return gi, true
		}
	}
	return 0, false
}

// impossibleInSum reports whether all groups together ask for more than all nodes of the inventory have.
func (d *diagnosis) impossibleInSum() bool { return !resource.OfGroups(d.r.Groups).Fits(d.v.total()) }

// whyNever names the constraint that makes a group impossible: the first that, if dropped, would let it fit on the empty site.
func (d *diagnosis) whyNever(gi int) Constraint {
	for _, c := range []Constraint{ConstraintVolume, ConstraintGPUPrograms, ConstraintLocalDisks, ConstraintFabric, ConstraintMTU, ConstraintEnvironment, ConstraintCPUModel, ConstraintStack, ConstraintLabels, ConstraintMemory, ConstraintDisk, ConstraintHugePages, ConstraintUplink} {
		if d.count(d.r.Groups[gi], gi, conditions{level: everything, ignore: c, group: gi}, nil) >= d.need().Size {
			return c
		}
	}
	return ConstraintCores
}

// coresOrMemory names what is short now.
func (d *diagnosis) coresOrMemory() Constraint {
	for _, c := range []Constraint{ConstraintMemory, ConstraintDisk, ConstraintHugePages, ConstraintUplink} {
		if d.count(d.need(), d.group, conditions{ignore: c, group: d.group}, d.used) >= d.need().Size {
			return c
		}
	}
	return ConstraintCores
}

// count is how many members of the group fit under the conditions.
func (d *diagnosis) count(g api.Group, gi int, c conditions, used *uses) int {
	f := d.v.finder(g, gi, c, used)
	n := 0
	for _, id := range d.v.order {
		members, _, _ := f.room(id)
		n += int(members)
	}
	return n
}

// gap is a size of what is available on a node.
type gap struct {
	cores  int32
	memory int64
	// most is how many members it has room for by all else.
	most int32
}

// largest returns the largest shape, smaller in cores (or memory), of which the whole group would fit at the level; false when there
// is none. One scan gathers the gaps; the search goes over those.
func (d *diagnosis) largest(byMemory bool) (api.Shape, bool) {
	g := d.need()
	probe := g
	probe.Cores, probe.Memory = 1, min(g.Memory, 1)
	gaps := map[gap]int{}
	find := d.v.finder(probe, d.group, conditions{level: d.level}, d.used)
	for _, id := range d.v.order {
		if members, _, _ := find.room(id); members > 0 {
			cores, memory, _ := d.v.available(id, d.level)
			if Whole(g.Stack) {
				cores, memory = d.v.cold[id].cores, d.v.cold[id].memory
			}
			u := d.used.of(id)
			gaps[gap{cores - u.cores, memory - u.memory, find.roomBesides(id)}]++
		}
	}
	fits := func(s api.Shape) bool {
		n := 0
		for f, nodes := range gaps {
			members := min(int(f.cores)/s.Cores, int(f.most))
			if Whole(g.Stack) {
				members = min(members, 1)
			}
			if s.Memory > 0 {
				smaller := g
				smaller.Shape = s
				if need := resource.OnNode(&smaller)[resource.Memory]; need > 0 {
					members = min(members, int(f.memory/need))
				}
			}
			n += members * nodes
		}
		return n >= g.Size
	}
	shape, step, most := g.Shape, api.Bytes(1), g.Cores-1
	if byMemory {
		// Memory is told in steps of 64 MiB, or of a sixteenth of what was asked for when that is little.
		step = max(1, min(64<<20, g.Memory/16))
		most = int((g.Memory - 1) / step)
	}
	found := 0
	for low, high := 1, most; low <= high; {
		mid := (low + high) / 2
		if byMemory {
			shape.Memory = api.Bytes(mid) * step
		} else {
			shape.Cores = mid
		}
		if fits(shape) {
			found, low = mid, mid+1
		} else {
			high = mid - 1
		}
	}
	if byMemory {
		shape.Memory = api.Bytes(found) * step
	} else {
		shape.Cores = found
	}
	return shape, found > 0
}

// fitting lists where members of the group fit at the level, with how many.
func (d *diagnosis) fitting() (nodes []string, members []int) {
	f := d.v.finder(d.need(), d.group, conditions{level: d.level}, d.used)
	for _, id := range d.v.order {
		if m, _, _ := f.room(id); m > 0 {
			nodes, members = append(nodes, d.v.nodes[id].record.Name), append(members, int(m))
		}
	}
	return nodes, members
}

// unavailable lists the nodes that suit the group but get no new members, by why.
func (d *diagnosis) unavailable() map[Availability][]string {
	var found map[Availability][]string
	for _, id := range d.v.order {
		n := d.v.nodes[id]
		availability, stack := n.availability, d.need().Stack
		switch {
		case d.v.suits(id, d.need(), &suits{}) != "":
			continue
		case !stateOf(availability).open(stack):
		case Whole(stack) && !d.v.wholeAt(id, freeNow):
			availability = Schedulable
		case d.v.rows[id].reachesWindow(d.need().Ends):
			availability = Maintenance
		default:
			continue
		}
		if found == nil {
			found = map[Availability][]string{}
		}
		found[availability] = append(found[availability], n.record.Name)
	}
	return found
}

// failing lists the nodes that pass every constraint before c but not c.
func (d *diagnosis) failing(c Constraint) []*node {
	var found []*node
	for _, id := range d.v.order {
		if d.v.suits(id, d.need(), &suits{}) == c {
			found = append(found, d.v.nodes[id])
		}
	}
	return found
}

// offered lists the values that pick returns for the nodes of the inventory, each once, sorted.
func (d *diagnosis) offered(pick func(*node) []string) []string {
	seen := map[string]bool{}
	var all []string
	for _, id := range d.v.order {
		n := d.v.nodes[id]
		if n.availability == Absent {
			continue
		}
		for _, s := range pick(n) {
			if !seen[s] {
				seen[s] = true
				all = append(all, s)
			}
		}
	}
	slices.Sort(all)
	return all
}
