package provisioner

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// assignment is what is desired of one machine, by whom.
type assignment struct {
	term    int64
	machine Machine
}

func (a assignment) fence() power.Fence {
	return power.Fence{Term: a.term, Generation: a.machine.Generation}
}

// worker is one machine's: it does one thing at a time.
type worker struct {
	p    *Provisioner
	uid  string
	news chan struct{}
	end  context.CancelFunc // of run

	mu       sync.Mutex
	assigned assignment
	given    bool               // there is an assignment
	stop     context.CancelFunc // of what it does now, if that is for an assignment that has changed

	// The following are run's own.
	current  assignment
	opened   api.PowerControl // of power
	power    power.Switch     // nil: not made, or it can't be
	progress progress
	observed Observed
	guarded  Guarded
	// guardAt is when the BMC itself may be worked on or looked at next, guardFailed how many tries failed in a row.
	guardAt     time.Time
	guardFailed int
	refused     bool // user or password: no further try until the target or the order changes
}

// assign replaces what is desired; work on anything else is cancelled. What is desired already wakes nobody: leaders repeat themselves many
// times a second while others boot, and each time would be one more question to each BMC, those that need rest among them.
func (w *worker) assign(a assignment) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.assigned
	if w.given && same(before, a) {
		return
	}
	w.assigned, w.given = a, true
	if w.stop != nil && (before.fence() != a.fence() || before.machine.Order != a.machine.Order || !sameTarget(before.machine.Target, a.machine.Target)) {
		w.stop()
	}
	signal(w.news)
}

// same tells whether two assignments are one.
func same(a, b assignment) bool {
	x, y := a.machine, b.machine
	return a.fence() == b.fence() && x.Name == y.Name && x.Order == y.Order && x.Boot == y.Boot && x.WasDone == y.WasDone && x.Heard == y.Heard &&
		x.Watch == y.Watch && x.Guard == y.Guard && sameTarget(x.Target, y.Target)
}

func sameTarget(a, b power.Target) bool {
	return a.Name == b.Name && a.Control == b.Control && a.Credentials == b.Credentials && slices.Equal(a.MACs, b.MACs)
}

// run works until ctx ends.
func (w *worker) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.news:
		case <-timer.C:
		}
		delay := w.step(ctx)
		if ctx.Err() != nil {
			return
		}
		timer.Reset(delay)
	}
}

// step takes up what is new, does one thing, reports, and tells when to do the next.
func (w *worker) step(ctx context.Context) time.Duration {
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	a := w.assigned
	w.stop = cancel
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		w.stop = nil
		w.mu.Unlock()
	}()
	w.take(a)
	delay := w.guardWait(w.act(work))
	if work.Err() != nil {
		return 0 // what was done is for an assignment that is no more; the next step takes up the new one
	}
	w.report()
	return delay
}

// take makes an assignment the current one. An order that only got a newer term goes on where it is: the decision is the same.
func (w *worker) take(a assignment) {
	same := w.current.machine.Generation == a.machine.Generation && w.current.machine.Order == a.machine.Order
	sameTarget := w.power != nil && sameTarget(w.current.machine.Target, a.machine.Target)
	w.current = a
	if !same {
		w.progress = progress{order: a.machine.Order, woken: w.progress.woken}
		w.refused = false
	}
	w.progress.fence = a.fence()
	w.takeGuard(a.machine.Guard)
	if !sameTarget {
		w.reopen(a.machine.Target)
	}
	if w.power == nil {
		return
	}
	observes := w.power.Abilities().Observes
	// Without observing, giving the order again costs nothing: one more packet, or a person who is still told what to press.
	if (a.machine.Heard || a.machine.WasDone && observes) && !w.progress.done {
		w.finish()
		w.progress.final = false
	}
	if a.machine.Heard && !observes {
		w.progress.problem = "" // whoever had to press a button did
	}
}

// reopen makes the switch of a target that is new or has changed.
func (w *worker) reopen(target power.Target) {
	w.refused = false
	if w.progress.final {
		w.progress.final, w.progress.problem = false, ""
	}
	s, err := w.p.o.Open(target)
	w.power = s
	if w.opened != target.Control {
		w.observed.State = api.PowerUnknown // another password does not make it another machine
	}
	w.opened = target.Control
	if err != nil {
		w.power = nil
		w.progress.problem, w.progress.final = err.Error(), true
	}
}

// act does one thing and tells when to do the next.
func (w *worker) act(ctx context.Context) time.Duration {
	never := 24 * time.Hour
	switch {
	case w.power == nil:
		return never
	case w.guardDue():
		return w.actGuard(ctx)
	case w.refused:
		return never
	case !w.power.Abilities().Observes:
		return w.actBlind(ctx, never)
	case w.resting():
		return w.actObserve(ctx)
	}
	var delay time.Duration
	limit := power.ObserveDeadline + power.OrderDeadline
	err := w.p.o.Gate.Order(ctx, w.key(), w.progress.fence, limit, func(ctx context.Context) error {
		state, err := w.look(ctx)
		if err != nil {
			return err
		}
		todo := next(w.progress, state, w.p.o.Now())
		delay, err = w.do(ctx, todo)
		return err
	})
	return w.after(ctx, err, delay)
}

// resting tells whether there is nothing to carry out.
func (w *worker) resting() bool {
	return w.progress.order == Leave || w.progress.order == "" || w.progress.done || w.progress.final
}

// actObserve reads the power of a machine without anything left to carry out.
func (w *worker) actObserve(ctx context.Context) time.Duration {
	err := w.p.o.Gate.Observe(ctx, w.key(), power.ObserveDeadline, func(ctx context.Context) error {
		state, err := w.look(ctx)
		if err == nil && state == api.PowerUnknown {
			err = errUnknown
		}
		return err
	})
	return w.after(ctx, err, time.Duration((0.75+0.5*w.p.o.Jitter())*float64(w.lookEvery())))
}

// Pauses between looks at a machine that goes off, and at one that boots: more of them would keep a slow BMC from resting for minutes.
const (
	stopLook = 2 * time.Second
	bootLook = 5 * time.Second
)

// lookEvery is the pause between looks. A machine that was asked to go off is looked at more often, since somebody waits; one that was woken
// until it is up, since a boot that has lost its power is to be told soon.
func (w *worker) lookEvery() time.Duration {
	switch {
	case (w.progress.order == Shutdown || w.current.machine.Watch) && w.observed.State != api.PowerOff:
		return min(w.p.o.ObserveEvery, stopLook)
	case w.progress.order == Wake:
		return min(w.p.o.ObserveEvery, bootLook)
	default:
		return w.p.o.ObserveEvery
	}
}

// actBlind carries out an order with a switch that can't observe.
func (w *worker) actBlind(ctx context.Context, never time.Duration) time.Duration {
	todo := blind(w.progress, w.current.machine.Heard, w.p.o.Now())
	if todo == rest {
		return never
	}
	if todo == look {
		return wakeEvery - w.p.o.Now().Sub(w.progress.lastTold)
	}
	err := w.p.o.Gate.Order(ctx, w.key(), w.progress.fence, power.OrderDeadline, func(ctx context.Context) error {
		_, err := w.do(ctx, todo)
		return err
	})
	delay := never
	if err == nil {
		w.progress.packets++
		w.finish()
		delay = wakeEvery
	}
	return w.after(ctx, err, delay)
}

// look reads the power.
func (w *worker) look(ctx context.Context) (api.PowerState, error) {
	ctx, cancel := context.WithTimeout(ctx, power.ObserveDeadline)
	defer cancel()
	state, err := w.power.Observe(ctx)
	if err != nil {
		state = api.PowerUnknown
	}
	w.observed.State, w.observed.ObservedAt = state, w.p.o.Now()
	if state == api.PowerOn {
		w.progress.woken = time.Time{}
	}
	return state, err
}

// do tells the switch, and when to look what came of it.
func (w *worker) do(ctx context.Context, todo action) (time.Duration, error) {
	p := &w.progress
	now := w.p.o.Now()
	switch todo {
	case finish:
		w.finish()
		return 0, nil
	case look:
		if w.observed.State == api.PowerUnknown {
			return 0, errUnknown
		}
		return lookDelay(now.Sub(p.lastTold)), nil
	case rest:
		return w.p.o.ObserveEvery, nil
	}
	p.attempts++
	if p.last != todo {
		p.last, p.times = todo, 0
	}
	// Noted before it is done: an answer that is lost must not make it look as if nothing had been told.
	p.lastTold, p.told = now, todo != tellOff || p.order == Cut
	w.p.o.Log.Debug("power order", "machine", w.current.machine.Name, "order", p.order, "tells", todo, "generation", p.fence.Generation,
		"term", p.fence.Term, "attempt", p.attempts)
	var err error
	switch todo {
	case tellOn:
		p.woken = now
		err = w.power.On(ctx, w.current.machine.Boot)
	case tellOff:
		err = w.power.Off(ctx)
	case tellPress:
		err = w.power.Shutdown(ctx)
	}
	if err == nil {
		p.times++
	} else {
		p.lastTold = time.Time{} // no patience with a BMC that did not accept it
		if todo == tellPress {
			p.told = false // pressed perhaps, perhaps not: once more does no harm
		}
	}
	return 0, err
}

// errUnknown is the problem of a BMC that answers and does not know.
var errUnknown = errors.New("the BMC reports power as neither on nor off; check the machine, or reset its BMC")

func (w *worker) finish() {
	p := &w.progress
	p.problem, p.failed = "", 0
	if !p.done {
		p.done, p.doneAt = true, w.p.o.Now()
	}
}

// after judges an operation's error and tells when to go on.
func (w *worker) after(ctx context.Context, err error, delay time.Duration) time.Duration {
	p := &w.progress
	var byHand *power.ByHandError
	switch {
	case err == nil:
		p.failed = 0
		if !p.final {
			p.problem = p.stuck(w.observed.State)
		}
		return delay
	case ctx.Err() != nil, errors.Is(err, power.ErrStale):
		return time.Second // a newer order is on its way here, or belongs to another leader
	case errors.As(err, &byHand):
		w.finish()
		p.problem = byHand.Do
		return 24 * time.Hour
	case errors.Is(err, power.ErrCredentials):
		p.problem, p.final, w.refused = err.Error(), true, true
		return 24 * time.Hour
	case errors.Is(err, power.ErrCannot):
		p.problem, p.final = err.Error(), true
		return 0
	}
	p.failed++
	p.problem = err.Error()
	w.p.o.Log.Debug("power switch failed", "machine", w.current.machine.Name, "order", p.order, "failed", p.failed, "error", err)
	return w.p.o.Backoff.Delay(p.failed, w.p.o.Jitter())
}

func (w *worker) key() power.Key { return power.KeyOf(w.uid, w.current.machine.Target) }

// report tells the provisioner what is known now.
func (w *worker) report() {
	p := w.progress
	o := w.observed
	o.UID, o.Generation, o.Order = w.uid, p.fence.Generation, p.order
	o.Done, o.DoneAt, o.Problem, o.Final, o.Attempts = p.done, p.doneAt, p.problem, p.final, p.attempts
	if o.State == "" || o.State == api.PowerOff && p.order != Wake && p.rises(w.p.o.Now()) {
		o.State = api.PowerUnknown
	}
	o.Guarded = w.guarded
	if w.power != nil {
		o.Abilities = w.power.Abilities()
	}
	w.p.report(o)
}
