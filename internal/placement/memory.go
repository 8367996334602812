package placement

import (
	"cmp"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// memoryFree is what is free of each of a node's memory nodes, in the order of its capacity. What a node offers in all may be less than their
// sum; that bound is the row's.
type memoryFree []int64

// memoryOf returns what is free of a node's memory nodes beside what the holders have.
func memoryOf(n *node, to memoryFree) memoryFree {
	to = to[:0]
	for _, m := range n.record.Capacity.NUMANodes {
		to = append(to, m.MemoryBytes)
	}
	for _, h := range n.holders {
		for _, m := range h.assignment.Memory {
			if i := memoryIndex(n, m.NUMANode); i >= 0 && m.PageBytes == 0 {
				to[i] -= m.Bytes
			}
		}
		takeReserve(n, to, h.assignment.Memory, h.assignment.ReserveBytes)
	}
	return to
}

func memoryIndex(n *node, numaNode int) int {
	return slices.IndexFunc(n.record.Capacity.NUMANodes, func(m api.NUMANode) bool { return m.ID == numaNode })
}

// takeReserve takes a member's reserve of the memory node on which most of its memory is.
func takeReserve(n *node, free memoryFree, claims []api.MemoryClaim, bytes int64) {
	if bytes == 0 || len(claims) == 0 {
		return
	}
	most := slices.MaxFunc(claims, func(a, b api.MemoryClaim) int { return cmp.Compare(a.Bytes, b.Bytes) })
	if i := memoryIndex(n, most.NUMANode); i >= 0 {
		free[i] -= bytes
	}
}

// takeMemory takes memory for a member with cores on some of the memory nodes: as much as there is of those, evenly, and the rest of the others,
// the roomiest first. The caller has counted that the node has enough in all. What no memory node has free is taken of the first: then the
// node said of its memory nodes what does not add up.
func takeMemory(n *node, free memoryFree, near []int, bytes int64) []api.MemoryClaim {
	if bytes <= 0 {
		return nil
	}
	first := 0
	if len(near) > 0 {
		first = near[0]
	}
	if len(free) == 1 || len(free) == 0 {
		if len(free) == 1 {
			first = n.record.Capacity.NUMANodes[0].ID
			free[0] -= bytes
		}
		return []api.MemoryClaim{{NUMANode: first, Bytes: bytes}}
	}
	taken := make([]int64, len(free))
	take := func(i int, most int64) {
		amount := max(0, min(most, free[i], bytes))
		free[i], taken[i], bytes = free[i]-amount, taken[i]+amount, bytes-amount
	}
	// The fullest first: what it lacks of its share goes to those with more.
	var own []int
	for _, id := range near {
		if i := memoryIndex(n, id); i >= 0 {
			own = append(own, i)
		}
	}
	slices.SortFunc(own, func(a, b int) int { return cmp.Or(cmp.Compare(free[a], free[b]), cmp.Compare(a, b)) })
	for k, i := range own {
		left := int64(len(own) - k)
		take(i, (bytes+left-1)/left)
	}
	for bytes > 0 {
		roomiest := 0
		for i := range free {
			if free[i] > free[roomiest] {
				roomiest = i
			}
		}
		if free[roomiest] <= 0 {
			if len(own) > 0 {
				roomiest = own[0]
			}
			free[roomiest], taken[roomiest], bytes = free[roomiest]-bytes, taken[roomiest]+bytes, 0
			break
		}
		take(roomiest, bytes)
	}
	var claims []api.MemoryClaim
	for i, amount := range taken {
		if amount > 0 {
			claims = append(claims, api.MemoryClaim{NUMANode: n.record.Capacity.NUMANodes[i].ID, Bytes: amount})
		}
	}
	return claims
}
