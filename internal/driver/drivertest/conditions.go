package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// conditions gives what a member sends a condition, another one, and none.
func conditions(t *testing.T, ctx context.Context, f Fixture) {
	conditioner, ok := f.Driver.(driver.Conditioner)
	if !ok {
		return
	}
	m := f.Member(t)
	id := m.Assignment.ID
	if err := conditioner.SetCondition(ctx, m); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("SetCondition of an unknown member: %v, want ErrNotFound", err)
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	trip := f.Trip(t, id)
	least := func(what string, delay time.Duration) {
		t.Helper()
		for range 5 {
			if took := trip(); took < delay {
				t.Errorf("%s: a packet took %v, and its delay is %v", what, took, delay)
			}
		}
	}
	below := func(what string, delay time.Duration) { // some day, as the machine may be busy
		t.Helper()
		for trip() >= delay {
			if ctx.Err() != nil {
				t.Fatalf("%s: packets still take %v and longer", what, delay)
			}
		}
	}
	below("before", 30*time.Millisecond)
	to := func(what string, by driver.Conditioner, delay time.Duration) {
		t.Helper()
		m.Condition = nil
		if delay > 0 {
			m.Condition = &api.NetworkCondition{Delay: api.Duration(delay)}
		}
		for range 2 { // again, as after a crash of the agent
			must(t, what, by.SetCondition(ctx, m))
		}
	}
	to("SetCondition", conditioner, 60*time.Millisecond)
	least("set", 60*time.Millisecond)
	to("SetCondition with another one", conditioner, 30*time.Millisecond)
	least("changed", 30*time.Millisecond)
	below("changed", 60*time.Millisecond)
	if pauser, ok := f.Driver.(driver.Pauser); ok {
		must(t, "Pause", pauser.Pause(ctx, id))
		to("SetCondition of a paused member", conditioner, 40*time.Millisecond)
		must(t, "Resume", pauser.Resume(ctx, id))
		least("paused", 40*time.Millisecond)
	}
	to("SetCondition without one", conditioner, 0)
	below("without one", 30*time.Millisecond)

	to("SetCondition once more", conditioner, 30*time.Millisecond)
	must(t, "Stop", f.Driver.Stop(ctx, id, 0))
	if err := conditioner.SetCondition(ctx, m); err == nil {
		t.Error("an exited member was given a condition")
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	trip = f.Trip(t, id)
	below("started again", 30*time.Millisecond)
	after := f.Reopen(t)
	to("SetCondition by a new driver", after.(driver.Conditioner), 30*time.Millisecond)
	least("by a new driver", 30*time.Millisecond)
	must(t, "Clean", after.Clean(ctx, id))
}
