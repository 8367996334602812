package measure

import (
	"context"
	"fmt"
	"time"
)

// Runner runs one side once and returns what the program printed.
type Runner func(context.Context) ([]byte, error)

// Pairs is how sides are measured against each other: one after the other, in alternating order.
type Pairs struct {
	// Count is how many rounds there are; 6 or more give an interval (MedianInterval).
	Count int
	// Sides are the names in the order of the first round; Run has a Runner for each.
	Sides []string
	Run   map[string]Runner
	// Parse reads a program's output.
	Parse func(output []byte) ([]Point, error)
	// Carrier, if not nil, reads from the output what carried the messages, for the record.
	Carrier func(output []byte) Carrier
	// Now is the clock of the record.
	Now func() time.Time
	// Patience, if not 0, is how long it may take on a machine that is slow or busy: a round that would end later, at the pace of those
	// before, is not begun, nor any after it. The first always is. Time decides, not what was measured, so this chooses nothing.
	Patience time.Duration
	// Done, if not nil, is told of every round that ended.
	Done func(pair int, runs []Run)
}

// Measure runs all pairs. The first run that fails or is refused ends it: what is missing in one side only would make a choice.
func (p Pairs) Measure(ctx context.Context) ([]Run, error) {
	for _, side := range p.Sides {
		if p.Run[side] == nil {
			return nil, fmt.Errorf("side %q has no command to run", side)
		}
	}
	var runs []Run
	start := p.Now()
	for pair, order := range Schedule(p.Sides, p.Count) {
		if spent := p.Now().Sub(start); p.Patience > 0 && pair > 0 && spent+spent/time.Duration(pair) > p.Patience {
			return runs, nil
		}
		for _, side := range order {
			began := p.Now()
			output, err := p.Run[side](ctx)
			var points []Point
			if err == nil {
				points, err = p.Parse(output)
			}
			if err != nil {
				return runs, fmt.Errorf("%s, pair %d of %d: %w", side, pair+1, p.Count, err)
			}
			run := Run{Side: side, Pair: pair, StartedAt: began, DurationSeconds: p.Now().Sub(began).Seconds(), Points: points}
			if p.Carrier != nil {
				carrier := p.Carrier(output)
				run.CarriedBy = &carrier
			}
			runs = append(runs, run)
		}
		if p.Done != nil {
			p.Done(pair, runs[len(runs)-len(order):])
		}
	}
	return runs, nil
}
