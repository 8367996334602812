package usage

import (
	"math"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Decayed is how much a project used, in core-seconds, the older the less it counts; ByUser the same of each of its users.
type Decayed struct {
	Total  float64
	ByUser map[string]float64
}

// Decay adds up the use of each project up to in.Now, where a core-second of t ago counts 2^(-t/halfLife): the decay of Slurm's fair share
// (https://slurm.schedmd.com/priority_multifactor.html, PriorityDecayHalfLife), which applies it in steps; here it is the integral, so that
// the result depends on the spans only, and not on when they are looked at. For c cores from a to b, with now at n and half-life h:
//
//	∫ c·2^(-(n-t)/h) dt over [a, b] = c · h/ln 2 · 2^(-(n-b)/h) · (1 - 2^(-(b-a)/h))
//
// Without a half-life nothing decays. What the site held for cleaning is nobody's use.
func Decay(in Input, halfLife time.Duration) map[string]Decayed {
	all := map[string]Decayed{}
	// Spans come in bunches of the same time: the members of a cluster on many nodes.
	var from, end time.Time
	var perCore float64
	in.spans(func(o owner, s api.UsageSpan) {
		to := s.To
		if to.After(in.Now) {
			to = in.Now
		}
		if s.Kind != api.SpanAllocated || !s.From.Before(to) {
			return
		}
		if s.From != from || to != end {
			from, end, perCore = s.From, to, decayed(in.Now.Sub(to), to.Sub(s.From), halfLife)
		}
		seconds := float64(s.Cores) * perCore
		project := all[o.project]
		if project.ByUser == nil {
			project.ByUser = map[string]float64{}
		}
		project.Total += seconds
		project.ByUser[o.user] += seconds
		all[o.project] = project
	})
	return all
}

// decayed is what is left of the seconds of a stretch that ended some time ago.
func decayed(ago, length, halfLife time.Duration) float64 {
	if halfLife <= 0 {
		return length.Seconds()
	}
	rate := math.Ln2 / halfLife.Seconds()
	// Expm1 keeps the precision where the stretch is short against the half-life.
	return math.Exp(-rate*ago.Seconds()) * -math.Expm1(-rate*length.Seconds()) / rate
}
