package usage

import (
	"iter"
	"time"
)

// Decayed is how much a project used, in core-seconds, the older the less it counts; ByUser the same of each of its users.
type Decayed struct {
	Total  float64
	ByUser map[string]float64
}

// Decay adds up the use of each project up to now, where a core-second of t ago counts 2^(-t/HalfLife): the decay of Slurm's fair share
// (https://slurm.schedmd.com/priority_multifactor.html, PriorityDecayHalfLife), which applies it in steps; here it is the integral, so that
// the result depends on the use only, and not on when it is looked at. It is what has ended and what is held now. What the site held for
// cleaning is nobody's use.
func Decay(now time.Time, ended []*Past, open iter.Seq[Open]) map[string]Decayed {
	all := map[string]Decayed{}
	add := func(project, user string, seconds float64) {
		if seconds == 0 {
			return
		}
		d := all[project]
		if d.ByUser == nil {
			d.ByUser = map[string]float64{}
		}
		d.Total += seconds
		d.ByUser[user] += seconds
		all[project] = d
	}
	for _, p := range ended {
		add(p.Project, p.User, p.at(now))
	}
	// Most of what is open began together with what came before it: the members of a cluster.
	core := stint{from: now, to: now, cores: 1}
	var perCore float64
	for o := range open {
		from := o.Assignment.HeldSince()
		if o.ReleasedAt != nil || !from.Before(now) {
			continue // its allocated time was written down with its release
		}
		if from != core.from {
			core.from = from
			perCore = core.decayed(now)
		}
		add(orDefault(o.Project), o.User, float64(len(o.Assignment.Slots))*perCore)
	}
	return all
}
