package energy

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
)

// kindOfNode is what nodes have in common for which one line is drawn.
type kindOfNode struct {
	processor string
	cpus      int
	source    api.EnergySource
}

// fit is a line of power over utilization, by least squares, from sums: it needs no list of points.
type fit struct {
	n, x, y, xx, xy float64
	low, high       float64 // the utilizations that were seen
}

// What a line needs before anything is computed by it: points, and that they are not all of one utilization.
const (
	fewestPoints = 60
	leastSpread  = 0.25
)

func (f *fit) add(utilization, watts float64) {
	if f.n == 0 {
		f.low, f.high = utilization, utilization
	}
	f.low, f.high = min(f.low, utilization), max(f.high, utilization)
	f.n, f.x, f.y = f.n+1, f.x+utilization, f.y+watts
	f.xx, f.xy = f.xx+utilization*utilization, f.xy+utilization*watts
}

// line returns the power when idle, and what full utilization adds; false: too little is known, or the points are on no line that power can have.
func (f *fit) line() (idle, slope float64, ok bool) {
	d := f.n*f.xx - f.x*f.x
	if f.n < fewestPoints || f.high-f.low < leastSpread || d <= 0 {
		return 0, 0, false
	}
	slope = (f.n*f.xy - f.x*f.y) / d
	idle = (f.y - slope*f.x) / f.n
	return idle, slope, idle >= 0 && slope >= 0
}

// calibration is what nodes with readings teach about those without.
type calibration map[kindOfNode]*fit

// learn takes a measured interval. What is itself modelled teaches nothing.
func (c calibration) learn(s *api.EnergySample, i interval) {
	if i.reading.Tag != api.EnergyMeasured || i.reading.Watts == nil || i.use.Capacity <= 0 {
		return
	}
	key := kindOfNode{s.Processor, s.CPUs, i.reading.Source}
	if c[key] == nil {
		c[key] = &fit{}
	}
	c[key].add(utilization(i.use), *i.reading.Watts)
}

func utilization(u Use) float64 {
	return min(float64(u.Busy)/float64(u.Capacity), 1)
}

// line returns the power of nodes like one when idle, and what full utilization adds, by the first source that has taught enough; false: none has.
func (c calibration) line(s *api.EnergySample) (idle, slope float64, ok bool) {
	for _, source := range sources {
		if f := c[kindOfNode{s.Processor, s.CPUs, source}]; f != nil {
			if idle, slope, ok = f.line(); ok {
				return idle, slope, true
			}
		}
	}
	return 0, 0, false
}

// model returns what a node without a reading used, by nodes with the same processors; false: there are none that say enough.
func (c calibration) model(s *api.EnergySample, i interval) (api.EnergyReading, int64, bool) {
	if s.Processor == "" || i.ns <= 0 || i.use.Capacity <= 0 {
		return api.EnergyReading{}, 0, false
	}
	for _, source := range sources {
		f := c[kindOfNode{s.Processor, s.CPUs, source}]
		if f == nil {
			continue
		}
		idle, slope, ok := f.line()
		if !ok {
			continue
		}
		watts := idle + slope*utilization(i.use)
		return api.EnergyReading{
			Source: api.EnergyModel, Tag: api.EnergyModelled, Watts: &watts,
			Scope:  fmt.Sprintf("as %s of like nodes", source),
			Reason: fmt.Sprintf("%.0f W + %.0f W x utilization, from %.0f readings by %s of nodes with the same processors", idle, slope, f.n, source),
		}, int64(watts * float64(i.ns) / 1e3), true
	}
	return api.EnergyReading{}, 0, false
}
