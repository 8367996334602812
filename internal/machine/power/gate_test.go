package power_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/internal/machine/power"
)

func fence(term, generation int64) power.Fence {
	return power.Fence{Term: term, Generation: generation}
}

// pass waits for pretended time.
func pass(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestAnOlderOrderIsRefusedHoweverLateItArrives(t *testing.T) {
	t.Parallel()
	g := power.NewGate(power.GateOptions{})
	key := power.Key{UID: "u", Address: "bmc"}
	carriedOut := ""
	order := func(f power.Fence) error {
		return g.Order(t.Context(), key, f, time.Second, func(context.Context) error {
			carriedOut += fmt.Sprintf(" %d.%d", f.Term, f.Generation)
			return nil
		})
	}
	for _, step := range []struct {
		fence power.Fence
		stale bool
	}{
		{fence(2, 5), false}, {fence(2, 5), false}, {fence(2, 4), true}, {fence(1, 9), true}, {fence(3, 1), false}, {fence(2, 6), true}, {fence(3, 2), false},
	} {
		if err := order(step.fence); errors.Is(err, power.ErrStale) != step.stale {
			t.Errorf("%+v: got %v, want stale %v", step.fence, err, step.stale)
		}
	}
	if want := " 2.5 2.5 3.1 3.2"; carriedOut != want {
		t.Errorf("carried out%s, want%s", carriedOut, want)
	}
	if err := g.Order(t.Context(), power.Key{UID: "other", Address: "bmc"}, fence(1, 1), time.Second, func(context.Context) error { return nil }); err != nil {
		t.Errorf("another machine behind the same BMC: %v", err)
	}
}

func TestANewerOrderCallsOffTheOlderOneAndWaitsForItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := power.NewGate(power.GateOptions{})
		key := power.Key{UID: "u", Address: "bmc"}
		var mu sync.Mutex
		var events []string
		event := func(e string) { mu.Lock(); events = append(events, e); mu.Unlock() }
		older := make(chan error, 1)
		go func() {
			older <- g.Order(t.Context(), key, fence(1, 1), time.Hour, func(ctx context.Context) error {
				event("older begins")
				err := pass(ctx, 30*time.Minute)
				<-time.After(time.Second) // closing its session
				event("older ends")
				return err
			})
		}()
		synctest.Wait()
		waiting := make(chan error, 1)
		go func() {
			waiting <- g.Order(t.Context(), key, fence(1, 1), time.Hour, func(context.Context) error { event("never"); return nil })
		}()
		synctest.Wait()
		if err := g.Order(t.Context(), key, fence(1, 2), time.Hour, func(context.Context) error { event("newer"); return nil }); err != nil {
			t.Error(err)
		}
		for name, c := range map[string]chan error{"carried out": older, "waiting": waiting} {
			if err := <-c; !errors.Is(err, power.ErrStale) {
				t.Errorf("the older order that was %s: %v", name, err)
			}
		}
		if got := fmt.Sprint(events); got != "[older begins older ends newer]" {
			t.Errorf("got %s", got)
		}
	})
}

func TestOneOperationAtATimeForEachBMCAndFewOverAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := power.NewGate(power.GateOptions{Orders: 10, Observations: 4})
		var mu sync.Mutex
		at, most := map[string]int{}, map[string]int{}
		op := func(names ...string) func(context.Context) error {
			return func(ctx context.Context) error {
				count := func(d int) {
					mu.Lock()
					defer mu.Unlock()
					for _, name := range names {
						at[name] += d
						most[name] = max(most[name], at[name])
					}
				}
				count(1)
				defer count(-1)
				return pass(ctx, time.Second)
			}
		}
		var all sync.WaitGroup
		began := time.Now()
		for i := range 200 {
			bmc := fmt.Sprintf("bmc%d", i%50)
			key := power.Key{UID: fmt.Sprint(i), Address: bmc}
			all.Go(func() {
				if err := g.Order(t.Context(), key, fence(1, 1), time.Minute, op(bmc, "orders")); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if err := g.Observe(t.Context(), key, time.Minute, op(bmc, "observations")); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for name, n := range most {
			if want := map[string]int{"orders": 10, "observations": 4}[name]; n > max(want, 1) {
				t.Errorf("%s: %d at once", name, n)
			}
		}
		if most["orders"] != 10 || most["observations"] != 4 {
			t.Errorf("got %d orders and %d observations at once, want as many as may", most["orders"], most["observations"])
		}
		if took := time.Since(began); took > 60*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

func TestAnOperationEndsAtItsDeadlineCountedFromItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := power.NewGate(power.GateOptions{})
		key := power.Key{UID: "u", Address: "bmc"}
		forever := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := g.Observe(t.Context(), key, 10*time.Second, forever); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != 30*time.Second {
			t.Errorf("three of ten seconds took %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := g.Observe(ctx, key, time.Second, func(context.Context) error { t.Error("it ran"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestBackoffGrowsWithinBoundsAndSpreads(t *testing.T) {
	t.Parallel()
	b := power.Backoff{First: time.Second, Longest: 30 * time.Second}
	for failed, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 5: 16 * time.Second, 6: 30 * time.Second, 1000: 30 * time.Second} {
		if low, high := b.Delay(failed, 0), b.Delay(failed, 0.999); low != want/2 || high < want*9/10 || high > want {
			t.Errorf("after %d: from %s to %s, want half of %s to that", failed, low, high, want)
		}
	}
}

func TestAPollGivesWayToAnOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := power.NewGate(power.GateOptions{})
		poller, other := power.Key{UID: "u", Address: "bmc"}, power.Key{UID: "v", Address: "bmc"}
		polled := make(chan error, 1)
		go func() {
			polled <- g.Poll(t.Context(), poller, time.Hour, func(ctx context.Context) error { return pass(ctx, 30*time.Minute) })
		}()
		synctest.Wait()
		start := time.Now()
		// The order is of another machine behind the same BMC.
		err := g.Order(t.Context(), other, fence(1, 1), time.Hour, func(context.Context) error {
			if waited := time.Since(start); waited > 0 {
				t.Errorf("the order waited %s for a poll", waited)
			}
			if err := g.Poll(t.Context(), poller, time.Hour, func(context.Context) error { return nil }); !errors.Is(err, power.ErrYielded) {
				t.Errorf("a poll amid an order: got %v, want ErrYielded", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := <-polled; !errors.Is(err, power.ErrYielded) {
			t.Errorf("the poll ended with %v, want ErrYielded", err)
		}
		if err := g.Poll(t.Context(), poller, time.Hour, func(context.Context) error { return nil }); err != nil {
			t.Errorf("a poll after the order: %v", err)
		}
	})
}
