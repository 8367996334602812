package study

import (
	"context"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// place is where the jobs of a study of remote data run, and what makes the conditions that they run under.
type place interface {
	// measure runs the jobs of a setting once, in the way of a side. All that a round measures has the same conditions.
	measure(ctx context.Context, side string, at setting, round int) (measure.Point, error)
	// close takes away all that the place has made.
	close()
}

// site describes places of one kind, before anything is made there.
type site interface {
	// identity tells runs of this place apart from those of others.
	identity() string
	// validate returns what of a matrix the place can't do.
	validate(Matrix) error
	// sides are the ways of reading, the baseline first.
	sides() []measure.Side
	// summary and conditions are for the reader of a report.
	summary() string
	conditions() []measure.Condition
	// open makes what jobs need.
	open(ctx context.Context, say func(string, ...any)) (place, error)
	// energy adds what is known of the energy of points, and says what is not.
	energy(ctx context.Context, runs []measure.Run) (string, error)
}
