package placement

import (
	"github.com/nearmetal/nearmetal/api"
)

// pagesOf returns what is free of each of a node's memory nodes in huge pages, by their size, beside what the holders have.
func pagesOf(n *node) map[int64]memoryFree {
	var free map[int64]memoryFree
	for i, m := range n.record.Capacity.NUMANodes {
		for _, pool := range m.HugePages {
			if free == nil {
				free = map[int64]memoryFree{}
			}
			if free[pool.PageBytes] == nil {
				free[pool.PageBytes] = make(memoryFree, len(n.record.Capacity.NUMANodes))
			}
			free[pool.PageBytes][i] += pool.Bytes
		}
	}
	for _, h := range n.holders {
		for _, m := range h.assignment.Memory {
			if i := memoryIndex(n, m.NUMANode); i >= 0 && free[m.PageBytes] != nil {
				free[m.PageBytes][i] -= m.Bytes
			}
		}
	}
	return free
}

// takePages takes huge pages for a member, as takeMemory does memory: a claim is of whole pages.
func takePages(n *node, free map[int64]memoryFree, near []int, bytes, page int64) []api.MemoryClaim {
	pages := make(memoryFree, len(n.record.Capacity.NUMANodes))
	for i, b := range free[page] {
		pages[i] = b / page
	}
	claims := takeMemory(n, pages, near, bytes/page)
	for i := range claims {
		c := &claims[i]
		c.Bytes, c.PageBytes = c.Bytes*page, page
		if at := memoryIndex(n, c.NUMANode); at >= 0 && free[page] != nil {
			free[page][at] -= c.Bytes
		}
	}
	return claims
}
