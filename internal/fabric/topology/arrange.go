package topology

import (
	"cmp"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// arrange finds the level, the rail and the pod of each switch from the links.
func arrange(t *api.FabricTopology) {
	index := make(map[string]int, len(t.Switches))
	for i := range t.Switches {
		index[t.Switches[i].ID] = i
	}
	neighbors := make([][]int, len(t.Switches))
	level := make([]int, len(t.Switches))
	for i := range level {
		level[i] = -1
	}
	var queue []int
	for _, l := range t.Links {
		from, isSwitch := index[l.From.ID]
		to, both := index[l.To.ID]
		switch {
		case isSwitch && both:
			neighbors[from], neighbors[to] = append(neighbors[from], to), append(neighbors[to], from)
		case isSwitch && l.To.Host && level[from] < 0:
			level[from] = 0
			queue = append(queue, from)
		}
	}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, n := range neighbors[queue[0]] {
			if level[n] < 0 {
				level[n] = level[queue[0]] + 1
				queue = append(queue, n)
			}
		}
	}
	top := 0
	for i := range level {
		level[i] = max(level[i], 0) // no host is reachable from it
		top = max(top, level[i])
	}
	rail := components(neighbors, func(int) bool { return true })
	pod := components(neighbors, func(i int) bool { return level[i] < top })
	for i := range t.Switches {
		s := &t.Switches[i]
		s.Level, s.Rail, s.Pod = level[i], rail[i], ""
	}
	if top >= 2 {
		namePods(t, pod)
	}
}

// namePods calls each pod like its first leaf.
func namePods(t *api.FabricTopology, pod []int) {
	names := map[int]string{}
	for i, s := range t.Switches {
		if p := pod[i]; p >= 0 && s.Level == 0 && (names[p] == "" || s.Name < names[p]) {
			names[p] = s.Name
		}
	}
	for i := range t.Switches {
		if pod[i] >= 0 {
			t.Switches[i].Pod = names[pod[i]]
		}
	}
}

// components numbers, from 0 and in order of their first switches, the sets of switches that are connected through switches that count.
// -1 is a switch that does not count.
func components(neighbors [][]int, counts func(i int) bool) []int {
	of := make([]int, len(neighbors))
	for i := range of {
		of[i] = -1
	}
	next := 0
	for start := range neighbors {
		if of[start] >= 0 || !counts(start) {
			continue
		}
		of[start] = next
		for queue := []int{start}; len(queue) > 0; queue = queue[1:] {
			for _, n := range neighbors[queue[0]] {
				if of[n] < 0 && counts(n) {
					of[n] = next
					queue = append(queue, n)
				}
			}
		}
		next++
	}
	return of
}

// switchOf returns the index of the switches by ID.
func switchOf(t *api.FabricTopology, id string) (api.FabricSwitch, bool) {
	i, ok := slices.BinarySearchFunc(t.Switches, id, func(s api.FabricSwitch, id string) int { return cmp.Compare(s.ID, id) })
	if !ok {
		return api.FabricSwitch{}, false
	}
	return t.Switches[i], true
}
