package energy

import (
	"maps"
	"math/bits"
	"slices"
)

// Use is what CPUs did over an interval, in microseconds of CPU time: with nanoseconds, sums over the members of a large node would not fit.
type Use struct {
	// Capacity is the length of the interval times the number of CPUs, Busy what they worked, for whomever.
	Capacity, Busy int64
	// Members are the parts of Busy that are members', by assignment ID.
	Members map[string]int64
}

// Parts are what a counter's difference is divided into, in microjoules.
type Parts struct {
	Members            map[string]int64
	Idle, Unattributed int64
}

// Split divides energy by CPU time: each member gets the part of the capacity that it worked, idle time gets what no CPU worked, and the rest
// is unattributed. The parts add up to the energy exactly, and none is negative. Clocks of CPU time differ a little: where members worked
// more than the interval has room for, all parts shrink alike. Energy that is negative is no energy, and has no parts.
func Split(microjoules int64, u Use) Parts {
	parts := Parts{Members: make(map[string]int64, len(u.Members))}
	if microjoules <= 0 {
		return parts
	}
	members := int64(0)
	for _, worked := range u.Members {
		members += max(worked, 0)
	}
	busy := max(u.Busy, members, 0)
	capacity := max(u.Capacity, busy)
	left := microjoules
	if capacity > 0 {
		for _, id := range slices.Sorted(maps.Keys(u.Members)) {
			part := portion(microjoules, max(u.Members[id], 0), capacity)
			parts.Members[id] = part
			left -= part
		}
		parts.Idle = portion(microjoules, capacity-busy, capacity)
		left -= parts.Idle
	}
	parts.Unattributed = left
	return parts
}

// portion returns amount * part / whole, rounded down, for 0 <= part <= whole and whole > 0. The product may need 128 bits.
func portion(amount, part, whole int64) int64 {
	high, low := bits.Mul64(uint64(amount), uint64(part))
	quotient, _ := bits.Div64(high, low, uint64(whole)) // no overflow: amount < 2^63 and part <= whole
	return int64(quotient)
}

// evenly divides an amount among n: the first ones get what does not divide.
func evenly(amount int64, n int) []int64 {
	all := make([]int64, n)
	for i := range all {
		all[i] = amount / int64(n)
		if int64(i) < amount%int64(n) {
			all[i]++
		}
	}
	return all
}
