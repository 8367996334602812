package placement

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
)

// bitset marks the positions of a layout that are taken.
type bitset []uint64

func newBitset(n int) bitset    { return make(bitset, (n+63)/64) }
func (b bitset) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }
func (b bitset) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) freeIn(m bitset) int {
	n := 0
	for w := range b {
		n += bits.OnesCount64(m[w] &^ b[w])
	}
	return n
}

// layout is how a node's core slots lie on CPUs and NUMA nodes. Nodes built alike share one; it is immutable. A position is an index
// into cores, which are sorted by slot number.
type layout struct {
	cores []api.Core
	// numa lists the NUMA nodes in order, each with the positions that lie on it.
	numa []numaMask
	// shared reports that some CPU backs more than one slot.
	shared bool
	// dense reports that slot numbers are the positions.
	dense bool
}

type numaMask struct {
	id   int
	mask bitset
}

func newLayout(cores []api.Core) *layout {
	l := &layout{cores: slices.Clone(cores), dense: true}
	slices.SortFunc(l.cores, func(a, b api.Core) int { return cmp.Compare(a.Slot, b.Slot) })
	l.cores = slices.CompactFunc(l.cores, func(a, b api.Core) bool { return a.Slot == b.Slot })
	masks := map[int]bitset{}
	cpus := map[int]bool{}
	for i, c := range l.cores {
		l.dense = l.dense && c.Slot == i
		l.shared = l.shared || cpus[c.CPU]
		cpus[c.CPU] = true
		if masks[c.NUMANode] == nil {
			masks[c.NUMANode] = newBitset(len(l.cores))
		}
		masks[c.NUMANode].set(i)
	}
	for id, m := range masks {
		l.numa = append(l.numa, numaMask{id: id, mask: m})
	}
	slices.SortFunc(l.numa, func(a, b numaMask) int { return cmp.Compare(a.id, b.id) })
	return l
}

// layoutKey is equal for nodes whose cores are equal.
func layoutKey(cores []api.Core) string {
	key := make([]byte, 0, 6*len(cores))
	for _, c := range cores {
		key = binary.AppendVarint(key, int64(c.Slot))
		key = binary.AppendVarint(key, int64(c.CPU))
		key = binary.AppendVarint(key, int64(c.NUMANode))
	}
	return string(key)
}

// position returns where a slot number stands, or false when the node offers no such slot.
func (l *layout) position(slot int) (int, bool) {
	if l.dense {
		return slot, slot >= 0 && slot < len(l.cores)
	}
	return slices.BinarySearchFunc(l.cores, slot, func(c api.Core, s int) int { return cmp.Compare(c.Slot, s) })
}

// pick takes n free positions, marks them in taken and appends them in order. The caller has counted: n are free.
//
// Exclusive cores lie within one NUMA node when they fit: the one with the least room to spare, so that large gaps stay whole;
// else on as few NUMA nodes as can be. Where CPUs are shared, the least shared CPUs come first and NUMA second.
func (l *layout) pick(to []int, taken bitset, n int) []int {
	from := len(to)
	if l.shared {
		to = l.pickLeastShared(to, taken, n)
	}
	for want := from + n; len(to) < want; {
		m := l.bestNUMA(taken, want-len(to))
		if m == nil {
			break
		}
		to = appendFree(to, taken, m, want-len(to))
	}
	slices.Sort(to[from:])
	return to
}

// bestNUMA returns the mask with the fewest free positions that hold n, else the one with the most free; nil when none is free.
func (l *layout) bestNUMA(taken bitset, n int) bitset {
	var fit, most bitset
	fitFree, mostFree := 0, 0
	for _, m := range l.numa {
		free := taken.freeIn(m.mask)
		if free >= n && (fit == nil || free < fitFree) {
			fit, fitFree = m.mask, free
		}
		if free > mostFree {
			most, mostFree = m.mask, free
		}
	}
	if fit != nil {
		return fit
	}
	return most
}

// appendFree takes up to n free positions of the mask, lowest first.
func appendFree(picked []int, taken, mask bitset, n int) []int {
	for w := range mask {
		for free := mask[w] &^ taken[w]; free != 0 && n > 0; n-- {
			i := w*64 + bits.TrailingZeros64(free)
			free &= free - 1
			taken.set(i)
			picked = append(picked, i)
		}
	}
	return picked
}

// pickLeastShared takes one position after the other: the one whose CPU backs the fewest taken slots, then one on a NUMA node
// already used by this member, then the lowest.
func (l *layout) pickLeastShared(picked []int, taken bitset, n int) []int {
	load := map[int]int{}
	for i, c := range l.cores {
		if taken.has(i) {
			load[c.CPU]++
		}
	}
	used := map[int]bool{}
	for range n {
		best := -1
		for i, c := range l.cores {
			if taken.has(i) {
				continue
			}
			if best < 0 || load[c.CPU] < load[l.cores[best].CPU] ||
				(load[c.CPU] == load[l.cores[best].CPU] && used[c.NUMANode] && !used[l.cores[best].NUMANode]) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		taken.set(best)
		load[l.cores[best].CPU]++
		used[l.cores[best].NUMANode] = true
		picked = append(picked, best)
	}
	return picked
}

// cpus appends the CPUs of positions.
func (l *layout) cpus(to, positions []int) []int {
	for _, p := range positions {
		to = append(to, l.cores[p].CPU)
	}
	return to
}

// numaNodes appends the NUMA nodes that positions lie on, sorted.
func (l *layout) numaNodes(to, positions []int) []int {
	from := len(to)
	for _, p := range positions {
		if !slices.Contains(to[from:], l.cores[p].NUMANode) {
			to = append(to, l.cores[p].NUMANode)
		}
	}
	slices.Sort(to[from:])
	return to
}

// numbers turns positions into slot numbers, in place.
func (l *layout) numbers(positions []int) {
	if l.dense {
		return
	}
	for i, p := range positions {
		positions[i] = l.cores[p].Slot
	}
}

func memberName(group string, index int) string { return group + "-" + strconv.Itoa(index) }
