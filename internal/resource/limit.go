package resource

import (
	"maps"
	"slices"
)

// Limit bounds amounts unit by unit. 0 is no limit.
type Limit Amounts

// Exceeded lists the units whose limit would be passed by add beside what is used. A unit of which nothing is added does not count,
// even when more of it is used than the limit allows: that request does not make it worse.
func (l Limit) Exceeded(used, add Amounts) []Unit {
	var over []Unit
	sum := used.Vector.Plus(add.Vector)
	for c, limit := range l.Vector {
		if limit > 0 && add.Vector[c] > 0 && sum[c] > limit {
			over = append(over, Unit{class: Class(c)})
		}
	}
	if len(l.Devices) == 0 || len(add.Devices) == 0 {
		return over
	}
	for _, counter := range slices.Sorted(maps.Keys(l.Devices)) {
		if n := add.Devices[counter]; n > 0 && sumOf(used.Devices[counter], n) > l.Devices[counter] {
			over = append(over, Unit{counter: counter})
		}
	}
	return over
}
