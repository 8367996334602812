package device

// bound is, of one counter, what the groups from one on take at least and where they may take it from. It refuses at once what a search would try in every
// arrangement: together the parts need more than is free, although each has room by itself.
type bound struct {
	// least is what a part takes at least, by group; 0 where some device serves the group without the counter.
	least []int64
	// from are the slots that may serve, by the first group that is left.
	from [][]source
}

// source is a slot with the greatest common divisor of the amounts that are taken from it: what is free beyond a multiple of it can't be used.
type source struct {
	slot int
	unit int64
}

// makeBounds makes a bound for each counter that can run out.
func (s *search) makeBounds() {
	at := map[string]int{}
	for slot := range s.tree.slots {
		counter := s.tree.slots[slot].counter
		if _, known := at[counter]; !known && !s.endless[slot] {
			at[counter] = len(s.bounds)
			s.bounds = append(s.bounds, bound{least: make([]int64, len(s.groups)), from: make([][]source, len(s.groups))})
		}
	}
	unit := make([]int64, len(s.tree.slots))
	for g := len(s.groups) - 1; g >= 0; g-- {
		served := make([]int, len(s.bounds))
		devices := 0
		for id, needs := range s.groups[g].needs {
			if !s.fits(&s.groups[g], id) {
				continue
			}
			devices++
			for _, n := range needs {
				b, ok := at[s.tree.slots[n.slot].counter]
				if !ok {
					continue
				}
				unit[n.slot] = divisor(unit[n.slot], n.amount)
				if served[b]++; served[b] == 1 || n.amount < s.bounds[b].least[g] {
					s.bounds[b].least[g] = n.amount
				}
			}
		}
		for b := range served {
			if served[b] < devices {
				s.bounds[b].least[g] = 0
			}
		}
		for slot, u := range unit {
			if u > 0 {
				b := at[s.tree.slots[slot].counter]
				s.bounds[b].from[g] = append(s.bounds[b].from[g], source{slot, u})
			}
		}
	}
}

// enough reports whether what is free of each counter is enough for the parts left of a group and of all groups behind it, were it in one place.
func (s *search) enough(g, left int) bool {
	for b := range s.bounds {
		missing := s.bounds[b].least[g] * int64(left)
		for later := g + 1; later < len(s.groups); later++ {
			missing += s.bounds[b].least[later] * int64(s.groups[later].count)
		}
		for _, from := range s.bounds[b].from[g] {
			if missing <= 0 {
				break
			}
			missing -= s.free[from.slot] / from.unit * from.unit
		}
		if missing > 0 {
			return false
		}
	}
	return true
}

// divisor is the greatest common divisor; that of 0 and n is n.
func divisor(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
