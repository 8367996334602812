package drivertest

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// sized returns the member with another size of this number.
func sized(m driver.Member, number, memory int64) driver.Member {
	size := m.Assignment.Held()
	size.Number, size.Memory = number, slices.Clone(size.Memory)
	if len(size.Memory) == 0 {
		size.Memory = []api.MemoryClaim{{}}
	}
	size.Memory[0].Bytes += memory
	m.Assignment = m.Assignment.Sized(size)
	return m
}

// resize gives a member the same size by another name, another size, and the first size again. A driver may lack the ability, or apply all of it to
// a running member.
func resize(t *testing.T, ctx context.Context, f Fixture) {
	resizer, ok := f.Driver.(driver.Resizer)
	if !ok {
		return
	}
	m := sized(f.Member(t), 0, 64<<20)
	id := m.Assignment.ID
	if err := resizer.Resize(ctx, m); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Resize of an unknown member: %v, want ErrNotFound", err)
	}
	must(t, "Start", f.Driver.Start(ctx, m))
	has := func(what string, want driver.Member) {
		t.Helper()
		o := find(t, ctx, f.Driver, id)
		if o.State != driver.StateRunning || o.Member == nil {
			t.Fatalf("%s: it is %s, and its record is %+v", what, o.State, o.Member)
		}
		if size := o.Member.Assignment.Held(); size.Number != want.Assignment.SizeNumber || !size.Same(want.Assignment.Held()) {
			t.Errorf("%s: its record says %+v, want %+v", what, size, want.Assignment.Held())
		}
	}
	same := sized(m, 1, 0)
	must(t, "Resize to the same size", resizer.Resize(ctx, same))
	has("Resize to the same size", same)
	larger := sized(m, 2, 64<<20)
	switch err := resizer.Resize(ctx, larger); {
	case err == nil:
		has("Resize to a larger memory", larger)
		must(t, "Update", f.Driver.Update(ctx, same))
		has("Update of a member that has another size", larger)
		again := sized(m, 3, 0)
		if err := resizer.Resize(ctx, again); errors.Is(err, driver.ErrNeedsReboot) { // the guest did not give the memory back
			again = larger
		} else {
			must(t, "Resize back", err)
		}
		has("Resize back", again)
	case errors.Is(err, driver.ErrNeedsReboot):
		has("Resize that needs a reboot", same)
		must(t, "Update", f.Driver.Update(ctx, larger))
		has("Update of a member that waits for its reboot", same)
		again := sized(m, 3, 0)
		must(t, "Resize back", resizer.Resize(ctx, again))
		has("Resize back", again)
		larger.Boot = "second"
		rebooter, ok := f.Driver.(driver.Rebooter)
		if !ok {
			t.Fatal("a driver that needs a reboot can't reboot")
		}
		must(t, "Reboot", rebooter.Reboot(ctx, larger, 0))
		has("Reboot", larger)
	default:
		t.Errorf("Resize to a larger memory: %v", err)
	}
	must(t, "Stop", f.Driver.Stop(ctx, id, 0))
	if err := resizer.Resize(ctx, same); err == nil {
		t.Error("an exited member was resized")
	}
}
