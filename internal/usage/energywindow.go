package usage

import (
	"iter"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// EnergyPast is the energy of projects by hour, so that only the newest records are read again.
type EnergyPast struct {
	hours map[time.Time]map[string]api.EnergyAmount
}

// Read takes the records of an hour and later ones in place of what it had of these.
func (p *EnergyPast) Read(since time.Time, records iter.Seq2[*api.EnergyRecord, error]) error {
	next := map[time.Time]map[string]api.EnergyAmount{}
	for hour, sums := range p.hours {
		if hour.Before(since) {
			next[hour] = sums
		}
	}
	for r, err := range records {
		if err != nil {
			return err
		}
		hour := r.Hour.UTC()
		if hour.Before(since) {
			continue
		}
		if next[hour] == nil {
			next[hour] = map[string]api.EnergyAmount{}
		}
		for i := range r.Shares {
			s := &r.Shares[i]
			project := orDefault(s.Project)
			next[hour][project] = next[hour][project].Plus(s.EnergyAmount)
		}
	}
	p.hours = next
	return nil
}

// Joules is what each project used in api.EnergyWindow before a time, to the hour, and forgets what was before.
func (p *EnergyPast) Joules(now time.Time) map[string]int64 {
	begin := now.Add(-api.EnergyWindow)
	sums := map[string]api.EnergyAmount{}
	for hour, projects := range p.hours {
		if !hour.Add(time.Hour).After(begin) {
			delete(p.hours, hour)
			continue
		}
		for project, energy := range projects {
			sums[project] = sums[project].Plus(energy)
		}
	}
	joules := make(map[string]int64, len(sums))
	for project, energy := range sums {
		j := energy.Joules()
		joules[project] = int64(j.MeasuredJoules + j.ModelledJoules)
	}
	return joules
}
