package agent

import (
	"context"
	"time"
)

// looks are the looks at one kind of thing on this node. They are owned by loop.
type looks struct {
	// looking: a look is under way. stale: something changed meanwhile. looked: one has succeeded.
	looking, stale, looked bool
	// problem is why the last look failed, "" if it did not. lookAt is when to try again.
	problem string
	lookAt  time.Time
}

// look finds out what is there, once at a time. A look that failed is not repeated before its pause is over, unless something changed: now is zero then.
func look[T any](ctx context.Context, a *Agent, l *looks, now time.Time, what string, observe func(context.Context) ([]T, error), saw func([]T)) {
	switch {
	case l.looking:
		l.stale = l.stale || now.IsZero()
		return
	case now.Before(l.lookAt) && !now.IsZero():
		a.wakeAt(l.lookAt)
		return
	}
	l.looking, l.stale = true, false
	a.work.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, lookDeadline)
		defer cancel()
		found, err := observe(bounded)
		a.post(ctx, func() {
			l.looking = false
			if err != nil {
				a.cfg.Log.WarnContext(ctx, "a look at what is on this node failed", "at", what, "error", err)
				l.problem, l.lookAt = what+" can't be inspected: "+err.Error(), a.cfg.Clock.Now().Add(lookPause)
				return
			}
			l.looked, l.problem = true, ""
			saw(found)
			if l.stale {
				look(ctx, a, l, time.Time{}, what, observe, saw)
			}
		})
	})
}
