package provisioner

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bmcguard"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// Guard is what is desired of a machine's BMC itself.
type Guard struct {
	// Duty is what is to be done once, Number its number; zero: nothing.
	Duty   api.BMCDutyKind
	Number int64
	// Baseline is who may get in; nil: nobody knows. It must not be changed.
	Baseline *api.BMCBaseline
	// Watch: what differs from Baseline is looked at again and again. Closed: the host interface was closed, so that is done less often, and it is closed
	// again if it is not, as after a reset of the BMC.
	Watch, Closed bool
}

// Guarded is what is known of a machine's BMC itself.
type Guarded struct {
	// Number is of the duty that Done, Problem and Final are about. Problem is why it is not done so far, Final that trying again is of no use.
	Number  int64
	Done    bool
	Problem string
	Final   bool
	// Host is the host interface as the duty left it, HostReason why it is not closed.
	Host       api.HostInterface
	HostReason string
	// Baseline is who could get in at the end of the duty; nil: the BMC does not tell, for the reason Unwatched. It must not be changed.
	Baseline  *api.BMCBaseline
	Unwatched string
	// Restored is what the duty set right; empty: there was nothing.
	Restored string
	// Rotated: the password that was to be set is in force, and proved to be. Unrotated is why the BMC can't change it.
	Rotated   bool
	Unrotated string
	// Drift is what the last look, at WatchedAt, found to differ from the baseline; empty: nothing.
	Drift     string
	WatchedAt time.Time
}

// Pauses between two looks at a BMC that a tenant may reach, and at one whose host interface is closed.
const (
	watchEvery  = time.Minute
	closedEvery = 10 * time.Minute
)

// pause is the one between two looks.
func (g Guard) pause() time.Duration {
	if g.Closed {
		return closedEvery
	}
	return watchEvery
}

// guardDeadline is for one try at a duty: a look at the users of a BMC takes some hundred requests, and a duty three of them.
const guardDeadline = 3 * power.PollDeadline

// takeGuard makes what is desired of the BMC the current one.
func (w *worker) takeGuard(g Guard) {
	if w.guarded.Number != g.Number {
		w.guarded = Guarded{Number: g.Number}
		w.guardAt, w.guardFailed = time.Time{}, 0
	}
}

// guardDue reports whether the BMC itself is to be worked on, or looked at, now.
func (w *worker) guardDue() bool {
	g := w.current.machine.Guard
	if w.p.o.Now().Before(w.guardAt) {
		return false
	}
	return w.hasDuty() || g.Watch && !w.refused
}

// hasDuty reports whether a duty is to be done and is not.
func (w *worker) hasDuty() bool {
	g := w.current.machine.Guard
	return g.Duty != "" && !w.guarded.Done && !w.guarded.Final
}

// guardWait is how long the next step may wait, for the BMC's sake.
func (w *worker) guardWait(delay time.Duration) time.Duration {
	if g := w.current.machine.Guard; !w.hasDuty() && !g.Watch {
		return delay
	}
	return max(0, min(delay, w.guardAt.Sub(w.p.o.Now())))
}

// actGuard does the duty, or looks.
func (w *worker) actGuard(ctx context.Context) time.Duration {
	guard, able := w.power.(bmcguard.Guard)
	if !w.hasDuty() {
		w.guardAt = w.p.o.Now().Add(w.current.machine.Guard.pause())
		if able {
			w.watch(ctx, guard)
		}
		return 0
	}
	done := Guarded{Number: w.guarded.Number, Done: true}
	if !able {
		done.Host, done.HostReason = api.HostFixed, "its power control does not reach it"
		done.Unwatched, done.Unrotated = done.HostReason, done.HostReason
		w.guarded = done
		return 0
	}
	err := w.p.o.Gate.Order(ctx, w.key(), w.progress.fence, guardDeadline, func(ctx context.Context) error { return w.duty(ctx, guard, &done) })
	switch {
	case err == nil:
		w.guarded, w.guardAt = done, w.p.o.Now().Add(watchEvery) // the first look comes soon in any case
		return 0
	case ctx.Err() != nil, errors.Is(err, power.ErrStale):
		return 0
	}
	w.guarded.Problem = err.Error()
	w.guarded.Final = errors.Is(err, bmcguard.ErrUnrestored) || errors.Is(err, power.ErrCredentials)
	w.guardFailed++
	w.guardAt = w.p.o.Now().Add(w.p.o.Backoff.Delay(w.guardFailed, w.p.o.Jitter()))
	w.p.o.Log.Debug("work on a BMC failed", "machine", w.current.machine.Name, "duty", w.current.machine.Guard.Duty, "failed", w.guardFailed, "error", err)
	return 0
}

// duty does what is desired once. Each part of it is read back or proved.
func (w *worker) duty(ctx context.Context, guard bmcguard.Guard, done *Guarded) (err error) {
	g := w.current.machine.Guard
	if done.Host, done.HostReason, err = guard.CloseHost(ctx); err != nil {
		return fmt.Errorf("close the host interface: %w", err)
	}
	if g.Duty == api.BMCRenew && bmcguard.Same(g.Baseline, w.current.machine.Target.Control) {
		if done.Restored, err = restore(ctx, guard, g.Baseline); err != nil {
			return err
		}
	}
	if next := w.current.machine.Target.Credentials.Next; g.Duty == api.BMCRenew && next != "" {
		err := guard.SetPassword(ctx, next)
		switch {
		case errors.Is(err, power.ErrCannot):
			done.Unrotated = err.Error()
		case err != nil:
			return fmt.Errorf("change the password: %w", err)
		default:
			done.Rotated = true
		}
	}
	done.Baseline, err = guard.Look(ctx)
	switch {
	case errors.Is(err, power.ErrCannot):
		done.Unwatched = err.Error()
	case err != nil:
		return fmt.Errorf("read who can get in: %w", err)
	default:
		done.Baseline.At = w.p.o.Now().UTC()
	}
	return nil
}

// restore makes the BMC's users and settings those of the baseline, and returns what was to be set right.
func restore(ctx context.Context, guard bmcguard.Guard, baseline *api.BMCBaseline) (string, error) {
	is, err := guard.Look(ctx)
	if err != nil {
		return "", fmt.Errorf("read who can get in: %w", err)
	}
	different := bmcguard.Differences(baseline, is)
	if len(different) == 0 {
		return "", nil
	}
	if err := guard.Restore(ctx, baseline); err != nil {
		return "", err
	}
	if is, err = guard.Look(ctx); err != nil {
		return "", fmt.Errorf("read who can get in: %w", err)
	}
	if left := bmcguard.Differences(baseline, is); len(left) > 0 {
		return "", bmcguard.Unrestored(left)
	}
	return bmcguard.Text(different), nil
}

// watch looks whether a tenant has changed anything. It gives way to orders of power.
func (w *worker) watch(ctx context.Context, guard bmcguard.Guard) {
	g := w.current.machine.Guard
	drift := ""
	err := w.p.o.Gate.Poll(ctx, w.key(), power.PollDeadline, func(ctx context.Context) error {
		if !bmcguard.Same(g.Baseline, w.current.machine.Target.Control) {
			return nil
		}
		if g.Closed {
			state, reason, err := guard.CloseHost(ctx)
			if err != nil {
				return err
			}
			if state != api.HostClosed {
				drift = "the host interface is open again: " + reason
			}
		}
		is, err := guard.Look(ctx)
		if err != nil {
			return err
		}
		if text := bmcguard.Text(bmcguard.Differences(g.Baseline, is)); text != "" {
			drift = strings.Join(append(compact(drift), text), "; ")
		}
		return nil
	})
	switch {
	case err == nil:
		w.guarded.Drift, w.guarded.WatchedAt = drift, w.p.o.Now()
	case errors.Is(err, power.ErrCredentials):
		w.guarded.Drift, w.guarded.WatchedAt = "the BMC refuses the site's user or password", w.p.o.Now()
		w.refused = true
	case errors.Is(err, power.ErrYielded):
		w.guardAt = w.p.o.Now().Add(watchEvery / 6)
	}
}

// compact is a text as a list, empty for none.
func compact(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}
