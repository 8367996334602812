package usage

import (
	"math"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// HalfLife is the time after which use counts half in the fair share.
const HalfLife = 7 * 24 * time.Hour

// settledAfter is how far a reader's clock may be behind the end of the newest use and still see exactly what had been used by then.
const settledAfter = time.Hour

// Past is what a user of a project has used, as far as that has ended, as one decayed sum: what each moment of use counts shrinks by the same
// factor, so that a sum kept for one moment tells that of any other, and nothing needs to be added up again.
//
// The moment is the beginning of the half-life, counted from 1970, in which the newest use ended. Going from one to the next divides the sum by a power of
// two, which loses nothing, so neither the order of records nor the times of looking matter beyond the rounding of an addition.
//
// The sum says nothing of the times before its newest use ended, but clocks differ: what ended within the last hour of use stays apart and counts
// up to now only. A reader whose clock is behind by more than that sees what was used an hour before the newest end.
//
// Nothing is ever taken away. A record that is removed is older than 57 half-lives (state.UsageKept) and counts 2^-57 of what it did: all that a
// million cores ever did so long ago comes to 6 microseconds of one core.
//
// A Past is immutable and shared. Its memory is that of the newest one, which alone may be added to.
type Past struct {
	Project, User string

	settled  float64 // core-seconds, as they count at start(halfLife)
	halfLife int64
	newest   time.Time
	late     []stint // what ended after newest - settledAfter, and some of before
	settleAt int     // how many stints are looked through for those that are late no more
}

// stint is cores that were held together.
type stint struct {
	from, to time.Time
	cores    int64
}

// fewStints are not worth looking through.
const fewStints = 8

// Owner returns whose a record is: its project, and the user.
func Owner(r *api.UsageRecord) (project, user string) { return orDefault(r.Project), r.User }

// Plus returns p with what a record says that its owner used.
func (p *Past) Plus(r *api.UsageRecord) *Past {
	next := *p
	first := len(p.late)
	for i := range r.Spans {
		s := &r.Spans[i]
		if s.Kind != api.SpanAllocated || !s.From.Before(s.To) {
			continue
		}
		// The members of a cluster mostly come and go together.
		if last := len(next.late) - 1; last >= first && next.late[last].from.Equal(s.From) && next.late[last].to.Equal(s.To) {
			next.late[last].cores += int64(s.Cores)
			continue
		}
		next.late = append(next.late, stint{s.From, s.To, int64(s.Cores)})
		if s.To.After(next.newest) {
			next.newest = s.To
		}
	}
	if len(next.late) > max(next.settleAt, fewStints) {
		next.settle()
	}
	return &next
}

// settle adds up what is late no more. It is called each time that the stints have become twice as many.
func (p *Past) settle() {
	var late []stint
	for _, s := range p.late {
		if s.to.After(p.horizon()) {
			late = append(late, s)
			continue
		}
		if ended := halfLifeOf(s.to); ended > p.halfLife {
			p.settled = math.Ldexp(p.settled, int(p.halfLife-ended))
			p.halfLife = ended
		}
		p.settled += s.decayed(start(p.halfLife))
	}
	p.late, p.settleAt = late, 2*len(late)
}

// horizon is the earliest time that the past can be told of.
func (p *Past) horizon() time.Time { return p.newest.Add(-settledAfter) }

// at returns the core-seconds as they count at a time; what was used after it does not count.
func (p *Past) at(now time.Time) float64 {
	if now.Before(p.horizon()) {
		now = p.horizon()
	}
	sum := p.settled * math.Exp2(-now.Sub(start(p.halfLife)).Seconds()/HalfLife.Seconds())
	for _, s := range p.late {
		if s.to.After(now) {
			s.to = now
		}
		if s.from.Before(s.to) {
			sum += s.decayed(now)
		}
	}
	return sum
}

// decayed returns the core-seconds of a stint as they count at a time, which may be before its end. For c cores from a to b, with the time at n and half-life h:
//
//	∫ c·2^(-(n-t)/h) dt over [a, b] = c · h/ln 2 · 2^(-(n-b)/h) · (1 - 2^(-(b-a)/h))
func (s stint) decayed(at time.Time) float64 {
	rate := math.Ln2 / HalfLife.Seconds()
	// Expm1 keeps the precision where the stretch is short against the half-life.
	return float64(s.cores) * math.Exp(-rate*at.Sub(s.to).Seconds()) * -math.Expm1(-rate*s.to.Sub(s.from).Seconds()) / rate
}

// halfLifeOf returns which half-life since 1970 a time lies in, start when one begins.
func halfLifeOf(t time.Time) int64 {
	return int64(math.Floor(float64(t.Unix()) / HalfLife.Seconds()))
}

func start(halfLife int64) time.Time {
	return time.Unix(halfLife*int64(HalfLife/time.Second), 0)
}
