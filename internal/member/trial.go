package member

import (
	"context"
	"fmt"
	"time"
)

const (
	// lookEvery is how often a trial that is under way is looked at.
	lookEvery = 500 * time.Millisecond
	// frozenGap is the time between two looks that only a member which was frozen meanwhile takes (its clock runs on).
	frozenGap = 3 * time.Second
	// sparingShare is the part of the time that runs of a sparing trial may take, as its inverse, and longestRest bounds the pauses that this makes.
	sparingShare = 100
	longestRest  = time.Minute
)

// trial is something that is tried again and again to find out whether the member can be used.
type trial struct {
	// what begins the sentence that tells of failures, such as `check "gpu"`.
	what string
	// interval is the time from the end of one run to the start of the next.
	interval, timeout time.Duration
	// sparing trials that go well pause for longer if their runs take long: where processors are emulated, a login costs seconds of them.
	sparing bool
	// failures in a row are needed to believe them.
	failures int
	// run returns soon after ctx ends, unless what it started can't be ended; the next run waits for that.
	run func(ctx context.Context) error
	// report gets the reason why the member can't be used, empty when it can.
	report func(reason string)
	now    func() time.Time
}

// loop tries until ctx ends, and returns when nothing of the last run is left.
func (t *trial) loop(ctx context.Context) {
	failed, told := 0, ""
	for ctx.Err() == nil {
		began := t.now()
		t.try(ctx, func(err error) {
			if err == nil {
				failed, told = 0, ""
				t.report("")
				return
			}
			failed++
			if failed >= t.failures && err.Error() != told { // that it goes on failing is no news
				told = err.Error()
				t.report(fmt.Sprintf("%s failed %s: %v", t.what, times(failed), err))
			}
		})
		pause(ctx, t.rest(t.now().Sub(began), failed))
	}
}

// rest is the pause after a run that took so long, failed of which have failed in a row.
func (t *trial) rest(took time.Duration, failed int) time.Duration {
	if !t.sparing || failed > 0 {
		return t.interval
	}
	return max(t.interval, min(sparingShare*took, longestRest))
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// try runs once and passes its verdict, if it has any, to conclude. A run that can't be ended has one more for every timeout that
// passes. A failure of a run during which the member was frozen says nothing: what it waited for may have been there in time.
func (t *trial) try(ctx context.Context, conclude func(error)) {
	running, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- t.run(running) }()
	watch := stopwatch{last: t.now()}
	for overdue := false; ; {
		timer := time.NewTimer(min(lookEvery, t.timeout-watch.used))
		select {
		case err := <-ended:
			timer.Stop()
			watch.look(t.now())
			if err == nil && !overdue || err != nil && !overdue && !watch.frozen && ctx.Err() == nil {
				conclude(err)
			}
			return
		case <-timer.C:
		}
		if watch.look(t.now()); watch.used < t.timeout {
			continue
		}
		end()
		if !watch.frozen && ctx.Err() == nil {
			conclude(fmt.Errorf("no answer within %v", t.timeout))
		}
		watch, overdue = stopwatch{last: watch.last}, true
	}
}

// stopwatch measures how long something takes, without the time for which the member was frozen.
type stopwatch struct {
	last   time.Time
	used   time.Duration
	frozen bool
}

// look has to be called again and again.
func (s *stopwatch) look(now time.Time) {
	passed := now.Sub(s.last)
	s.last = now
	if passed >= frozenGap {
		s.frozen = true
		return
	}
	s.used += passed
}
