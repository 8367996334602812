package study

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/nearmetal/nearmetal/internal/measure"
)

// machine is this machine as a site: jobs are its processes, and the link is made in it.
type machine struct {
	python    string
	megabytes int
}

func (machine) identity() string { return "" }

func (m machine) validate(matrix Matrix) error {
	var errs []error
	if m.megabytes < 1 || m.megabytes > 10_000 {
		errs = append(errs, fmt.Errorf("a file of %d MB: it must have 1 to 10000", m.megabytes))
	}
	if len(matrix.Members) > 0 {
		errs = append(errs, errors.New("members without a cluster: on this machine, all jobs are processes side by side"))
	}
	return errors.Join(errs...)
}

func (machine) sides() []measure.Side {
	return []measure.Side{
		{Name: copied, Description: "xrdcp copies the whole file, then the job reads the copy"},
		{Name: near, Description: "the file is on the job's own disk", Reference: true},
		{Name: stream, Description: "the job reads from the server by uproot"},
		{Name: cold, Description: "the job reads by an XCache beside it that has nothing yet"},
		{Name: warm, Description: "the job reads by an XCache that has read the same before"},
	}
}

func (machine) summary() string {
	return "A job reads some branches of a file of events, which is on its own disk or on an XRootD server at the other end of a link. Times are from opening the file to " +
		"the result, the copy included where there is one; starting Python is not. Of jobs at once it is the mean. All processes share this machine, and the link is made " +
		"in it: what its conditions cost is shown, and not how fast a network is."
}

func (m machine) conditions() []measure.Condition {
	return slices.Concat([]measure.Condition{
		{Name: "file", Value: strconv.Itoa(m.megabytes) + " MB, seed 1"},
		{Name: "link", Value: "TUN devices in this machine, whose delay was measured before each run"},
	}, versions(m.python))
}

func (m machine) open(ctx context.Context, say func(string, ...any)) (place, error) {
	if err := checkPython(ctx, m.python); err != nil {
		return nil, err
	}
	say("making a file of %d MB, a server far away and a cache", m.megabytes)
	return newWorld(ctx, m.python, m.megabytes)
}

func (machine) energy(context.Context, []measure.Run) (string, error) { return energy(), nil }
