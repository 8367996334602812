package drivertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// reboot boots a member again, asks twice, and lets a new driver ask as well: the member boots once for each name of a boot. A driver may lack the
// ability.
func reboot(t *testing.T, ctx context.Context, f Fixture) {
	rebooter, ok := f.Driver.(driver.Rebooter)
	if !ok {
		return
	}
	m := f.Member(t)
	if err := rebooter.Reboot(ctx, m, 0); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Reboot of an unknown member: %v, want ErrNotFound", err)
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	id := m.Assignment.ID
	first := find(t, ctx, f.Driver, id).PID
	m.Boot = "second"
	must(t, "Update", f.Driver.Update(ctx, m))
	must(t, "Reboot", rebooter.Reboot(ctx, m, 30*time.Second))
	second := find(t, ctx, f.Driver, id)
	if second.State != driver.StateRunning || second.PID == first || second.Member == nil || second.Member.Boot != "second" {
		t.Fatalf("after Reboot it is %s with PID %d, and had PID %d; its record is %+v", second.State, second.PID, first, second.Member)
	}
	must(t, "second Reboot", rebooter.Reboot(ctx, m, 0))
	reopened, ok := f.Reopen(t).(driver.Rebooter)
	if !ok {
		t.Fatal("a new driver lacks the ability to reboot")
	}
	must(t, "Reboot by a new driver", reopened.Reboot(ctx, m, 0))
	if again := find(t, ctx, f.Driver, id); again.PID != second.PID {
		t.Errorf("a boot that runs already was ended: PID %d became %d", second.PID, again.PID)
	}
	must(t, "Stop", f.Driver.Stop(ctx, id, 0))
	m.Boot = "third"
	must(t, "Reboot of an exited member", reopened.Reboot(ctx, m, 0))
	wantState(t, ctx, f.Driver, id, "Reboot of an exited member", driver.StateRunning)
}
