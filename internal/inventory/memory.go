package inventory

import (
	"math/bits"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// ShareMemory returns the nodes with the machine's total divided among them, in proportion to the sizes they report. The two
// can differ: sysfs of some virtual machines reports a quarter of the MemTotal in /proc/meminfo, which is what can be used.
// A total of 0 is unknown and leaves the sizes as they are. Nodes that all report 0 get equal shares.
func ShareMemory(total int64, nodes []api.NUMANode) []api.NUMANode {
	out := slices.Clone(nodes)
	weights := make([]uint64, len(nodes))
	var all uint64
	for i, n := range nodes {
		weights[i] = uint64(max(0, n.MemoryBytes))
		all += weights[i]
	}
	if total <= 0 || len(nodes) == 0 {
		return out
	}
	if all == 0 {
		for i := range weights {
			weights[i] = 1
		}
		all = uint64(len(nodes))
	}
	// A share is the difference of two rounded running sums, so the shares add up to the total exactly.
	var upTo, given uint64
	for i, weight := range weights {
		upTo += weight
		high, low := bits.Mul64(uint64(total), upTo)
		sum, _ := bits.Div64(high, low, all)
		out[i].MemoryBytes = int64(sum - given)
		given = sum
	}
	return out
}
