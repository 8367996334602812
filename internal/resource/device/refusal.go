package device

import (
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
)

// Mode stands among the counters of a refusal for the mode that devices are in.
const Mode = "mode"

// Refusal says why requests can't be placed.
type Refusal struct {
	// Request is the first that does not fit beside those before it.
	Request int
	// Counters are what binds: were there more of all of them, the request would fit, and of none of them it may be less. It is one where
	// one is enough. Mode is among them when devices are in another mode. None: no device suits.
	Counters []string
	// Suitable are the devices that suit the request, whatever is free of them.
	Suitable []string
	// Undecided: the search was given up, so the request might fit.
	Undecided bool
	// Message says it for people.
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// refuse finds out why the requests don't fit, as the search says that they don't.
func (t *Tree) refuse(requests []Request, s *search) *Refusal {
	first := sort.Search(len(requests)-1, func(n int) bool { return !newSearch(t, requests[:n+1]).run() })
	r := &Refusal{Request: first}
	if first < len(requests)-1 {
		requests = requests[:first+1]
		s = newSearch(t, requests)
		s.run()
	}
	way := requests[first].Way
	what := fmt.Sprintf("%d parts %q", requests[first].Count, way)
	if requests[first].Count == 1 {
		what = fmt.Sprintf("1 part %q", way)
	}
	for id, needs := range s.groupOf(first).needs {
		if needs != nil {
			r.Suitable = append(r.Suitable, t.nodes[id].device.ID)
		}
	}
	on := strings.Join(r.Suitable, ", ")
	switch r.Undecided = s.steps >= maxSteps; {
	case len(r.Suitable) == 0:
		r.Message = fmt.Sprintf("%s: no device of this machine that suits can be handed out as %q", what, way)
	case r.Undecided:
		r.Message = fmt.Sprintf("%s: no arrangement was found on %s in %d steps", what, on, maxSteps)
	default:
		r.Counters = t.binding(requests, s.counters(first))
		r.Message = fmt.Sprintf("%s: too little is free of %s: %s", what, on, s.texts(r.Counters))
	}
	return r
}

// binding returns one counter without which the requests fit, else a set of which each is needed.
func (t *Tree) binding(requests []Request, counters []string) []string {
	for i := range counters {
		if newSearch(t, requests, counters[i]).run() {
			return counters[i : i+1]
		}
	}
	for i := 0; i < len(counters); {
		others := slices.Delete(slices.Clone(counters), i, i+1)
		if newSearch(t, requests, others...).run() {
			counters = others
		} else {
			i++
		}
	}
	return counters
}

// groupOf is the group that a request belongs to.
func (s *search) groupOf(request int) *group {
	at := slices.IndexFunc(s.groups, func(g group) bool { return slices.Contains(g.requests, request) })
	return &s.groups[at]
}

// counters lists what may bind: counters that the request takes, then those of the others, then the mode.
func (s *search) counters(request int) []string {
	of := func(g *group, into map[string]bool) {
		for _, needs := range g.needs {
			for _, n := range needs {
				into[s.tree.slots[n.slot].counter] = true
			}
		}
	}
	own, others := map[string]bool{}, map[string]bool{}
	of(s.groupOf(request), own)
	for i := range s.groups {
		of(&s.groups[i], others)
	}
	all := slices.Sorted(maps.Keys(own))
	for _, counter := range slices.Sorted(maps.Keys(others)) {
		if !own[counter] {
			all = append(all, counter)
		}
	}
	return append(all, Mode)
}

// texts says of each counter how much of it is free.
func (s *search) texts(counters []string) string {
	texts := make([]string, len(counters))
	for i, counter := range counters {
		if texts[i] = "their mode is another"; counter != Mode {
			free, all := s.total(counter)
			texts[i] = fmt.Sprintf("%d of %d %s", free, all, counter)
		}
	}
	return strings.Join(texts, ", ")
}

// total is how much of a counter is free where the requests may take it, and how much there is.
func (s *search) total(counter string) (free, all int64) {
	seen := map[int]bool{}
	for i := range s.groups {
		for _, needs := range s.groups[i].needs {
			for _, n := range needs {
				if slot := s.tree.slots[n.slot]; slot.counter == counter && !seen[n.slot] {
					seen[n.slot] = true
					free, all = free+s.tree.free[n.slot], all+slot.capacity
				}
			}
		}
	}
	return free, all
}
