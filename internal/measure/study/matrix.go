package study

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
)

// Matrix is what jobs run under. One list may have several values, which are the points of the curve. A list that is empty stands for its default: no
// delay, loss, duplication, limit or other load, and one job.
type Matrix struct {
	// Delays are added to each round trip.
	Delays []time.Duration `json:"delays_ns"`
	// Losses and Duplicates are fractions of the packets of each direction, from 0 to 1.
	Losses     []float64 `json:"losses,omitempty"`
	Duplicates []float64 `json:"duplicates,omitempty"`
	// Rates limit each direction.
	Rates []api.Rate `json:"rates_bits_per_second,omitempty"`
	// Jobs read at the same time.
	Jobs []int `json:"jobs,omitempty"`
	// Loaders load by HTTP over the same link meanwhile.
	Loaders []int `json:"loaders,omitempty"`
	// Members are those of a cluster among which the jobs are divided.
	Members []int `json:"members,omitempty"`
}

// setting is a point of a curve.
type setting struct {
	// x is where the curve has it, in the unit of the axis.
	x               float64
	delay           time.Duration
	loss, duplicate float64
	rate            api.Rate
	jobs, loaders   int
	// members have the jobs; 0: one has.
	members int
}

// The most that a study has at once: jobs share the processors of one machine.
const (
	maxJobs  = 100
	maxDelay = 10 * time.Second
	maxLoss  = 0.5
)

// Validate returns what is wrong with a matrix.
func (m Matrix) Validate() error {
	errs := []error{
		once("delays", m.Delays), once("losses", m.Losses), once("duplications", m.Duplicates), once("rates", m.Rates), once("numbers of jobs", m.Jobs),
		once("numbers of loaders", m.Loaders), once("numbers of members", m.Members),
	}
	for _, d := range m.Delays {
		if d < 0 || d > maxDelay {
			errs = append(errs, fmt.Errorf("a delay of %v: it must be between 0 and %v", d, maxDelay))
		}
	}
	for _, f := range slices.Concat(m.Losses, m.Duplicates) {
		if !(f >= 0 && f <= maxLoss) { // NaN is neither
			errs = append(errs, fmt.Errorf("%g%% of the packets: it must be between 0 and %g%%", 100*f, 100*maxLoss))
		}
	}
	for _, n := range m.Jobs {
		if n < 1 || n > maxJobs {
			errs = append(errs, fmt.Errorf("%d jobs at once: it must be between 1 and %d", n, maxJobs))
		}
	}
	for _, n := range m.Loaders {
		if n < 0 || n > maxJobs {
			errs = append(errs, fmt.Errorf("%d loaders: it must be between 0 and %d", n, maxJobs))
		}
		if n > 0 && len(m.Rates) == 0 {
			errs = append(errs, errors.New("loaders without a rate: they would take the processors from the job, and not the link"))
		}
	}
	for _, n := range m.Members {
		if n < 1 || n > maxJobs {
			errs = append(errs, fmt.Errorf("jobs in %d members: it must be between 1 and %d", n, maxJobs))
		}
		if fewest := slices.Min(append([]int{max(1, at(m.Jobs, 0))}, m.Jobs...)); n > fewest {
			errs = append(errs, fmt.Errorf("%d jobs in %d members: each must have one", fewest, n))
		}
	}
	if several := m.several(); several > 1 {
		errs = append(errs, fmt.Errorf("%d conditions with several values: a curve has one that varies, so run a study for each value of the others", several))
	}
	return errors.Join(errs...)
}

// once returns an error if a value is listed twice.
func once[T comparable](what string, values []T) error {
	for i, v := range values {
		if slices.Contains(values[:i], v) {
			return fmt.Errorf("%s %v: each counts once", what, values)
		}
	}
	return nil
}

// several is how many lists have more than one value.
func (m Matrix) several() int {
	n := 0
	for _, l := range []int{len(m.Delays), len(m.Losses), len(m.Duplicates), len(m.Rates), len(m.Jobs), len(m.Loaders), len(m.Members)} {
		if l > 1 {
			n++
		}
	}
	return n
}

// points are the settings of a valid matrix, along its axis.
func (m Matrix) points() (measure.Axis, []setting) {
	first := setting{
		delay: at(m.Delays, 0), loss: at(m.Losses, 0), duplicate: at(m.Duplicates, 0), rate: at(m.Rates, 0), jobs: max(1, at(m.Jobs, 0)), loaders: at(m.Loaders, 0), members: at(m.Members, 0),
	}
	axis := measure.Axis{Name: "Added round trip", Unit: "ms"}
	vary := func(s *setting, i int) {
		s.delay = at(m.Delays, i)
		s.x = float64(s.delay) / float64(time.Millisecond)
	}
	n := max(1, len(m.Delays))
	switch {
	case len(m.Losses) > 1:
		axis, n = measure.Axis{Name: "Packets lost in each direction", Unit: "%"}, len(m.Losses)
		vary = func(s *setting, i int) { s.loss, s.x = m.Losses[i], 100*m.Losses[i] }
	case len(m.Duplicates) > 1:
		axis, n = measure.Axis{Name: "Packets duplicated in each direction", Unit: "%"}, len(m.Duplicates)
		vary = func(s *setting, i int) { s.duplicate, s.x = m.Duplicates[i], 100*m.Duplicates[i] }
	case len(m.Rates) > 1:
		axis, n = measure.Axis{Name: "Rate of the link", Unit: "Mbit/s"}, len(m.Rates)
		vary = func(s *setting, i int) { s.rate, s.x = m.Rates[i], float64(m.Rates[i])/1e6 }
	case len(m.Jobs) > 1:
		axis, n = measure.Axis{Name: "Jobs at once", Unit: "jobs"}, len(m.Jobs)
		vary = func(s *setting, i int) { s.jobs, s.x = m.Jobs[i], float64(m.Jobs[i]) }
	case len(m.Loaders) > 1:
		axis, n = measure.Axis{Name: "Loaders beside", Unit: "loaders"}, len(m.Loaders)
		vary = func(s *setting, i int) { s.loaders, s.x = m.Loaders[i], float64(m.Loaders[i]) }
	case len(m.Members) > 1:
		axis, n = measure.Axis{Name: "Members that have the jobs", Unit: "members"}, len(m.Members)
		vary = func(s *setting, i int) { s.members, s.x = m.Members[i], float64(m.Members[i]) }
	}
	all := make([]setting, n)
	for i := range all {
		all[i] = first
		vary(&all[i], i)
	}
	return axis, all
}

// at is a value of a list, or the zero value where the list is shorter.
func at[T any](values []T, i int) (v T) {
	if i < len(values) {
		return values[i]
	}
	return v
}

// condition is that of either direction in a round. All sides of a round have the same seed.
func (s setting) condition(round int) condition.Condition {
	return condition.Condition{Delay: s.delay / 2, Loss: s.loss, Duplicate: s.duplicate, BitsPerSecond: int64(s.rate), Seed: uint64(round) + 1}
}

// conditions say what did not vary.
func (m Matrix) conditions() []measure.Condition {
	var all []measure.Condition
	add := func(name string, n int, value string) {
		if n <= 1 {
			all = append(all, measure.Condition{Name: name, Value: value})
		}
	}
	_, points := m.points()
	p := points[0]
	rate := "unlimited"
	if p.rate > 0 {
		rate = p.rate.String() + "/s"
	}
	add("added round trip", len(m.Delays), p.delay.String())
	add("loss", len(m.Losses), fmt.Sprintf("%g%%", 100*p.loss))
	add("duplication", len(m.Duplicates), fmt.Sprintf("%g%%", 100*p.duplicate))
	add("rate", len(m.Rates), rate)
	add("jobs at once", len(m.Jobs), fmt.Sprint(p.jobs))
	add("loaders beside", len(m.Loaders), fmt.Sprint(p.loaders))
	if len(m.Members) > 0 {
		add("members that have the jobs", len(m.Members), fmt.Sprint(p.members))
	}
	return all
}
