package drivertest

import (
	"context"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
)

// partOf makes a part of a member out of a fixture's member: it has a device and no port, and runs nothing.
func partOf(t *testing.T, f Fixture) driver.Member {
	m := f.Member(t)
	a := &m.Assignment
	a.Of, a.ID, a.Rank = a.ID, a.ID+"-d0", -1
	a.Slots, a.CPUs, a.NUMANodes, a.Memory, a.Ports = nil, nil, nil, nil, nil
	a.Devices = []api.DeviceClaim{{Class: "gpu", Device: "gpu0", Way: "whole"}}
	m.Networks = nil
	return m
}

// carrier returns the driver's ability to carry any part. A driver without it must refuse a part that it is given, as a member or as a part.
func carrier(t *testing.T, ctx context.Context, f Fixture) (driver.PartCarrier, bool) {
	t.Helper()
	c, ok := f.Driver.(driver.PartCarrier)
	if ok && f.ServersOnly {
		m := partOf(t, f)
		if c.StartPart(ctx, m) == nil {
			t.Error("a driver that carries servers of remote GPUs alone started another part")
		}
		must(t, "Clean", f.Driver.Clean(ctx, m.Assignment.ID))
		ok = false
	}
	if !ok {
		m := partOf(t, f)
		if f.Driver.Start(ctx, m) == nil {
			t.Error("a driver that can't carry parts started one")
		}
		must(t, "Clean", f.Driver.Clean(ctx, m.Assignment.ID))
	}
	return c, ok
}

func partRuns(t *testing.T, ctx context.Context, f Fixture) {
	c, ok := carrier(t, ctx, f)
	if !ok {
		return
	}
	m := partOf(t, f)
	id := m.Assignment.ID
	for range 2 {
		must(t, "StartPart", c.StartPart(ctx, m))
		wantState(t, ctx, f.Driver, id, "StartPart", driver.StateRunning)
	}
	for range 2 {
		must(t, "Stop", f.Driver.Stop(ctx, id, 0))
		must(t, "Clean", f.Driver.Clean(ctx, id))
		wantState(t, ctx, f.Driver, id, "Clean", driver.StateAbsent)
	}
	if c.StartPart(ctx, f.Member(t)) == nil {
		t.Error("StartPart started a member")
	}
}

func partReopen(t *testing.T, ctx context.Context, f Fixture) {
	c, ok := carrier(t, ctx, f)
	if !ok {
		return
	}
	m := partOf(t, f)
	must(t, "StartPart", c.StartPart(ctx, m))
	second := f.Reopen(t)
	o := find(t, ctx, second, m.Assignment.ID)
	if o.State != driver.StateRunning || o.Member == nil || o.Member.Assignment.Of != m.Assignment.Of {
		t.Errorf("a new driver sees %+v, want the part running with what it was started with", o)
	}
	must(t, "Clean", second.Clean(ctx, m.Assignment.ID))
	wantState(t, ctx, second, m.Assignment.ID, "Clean by a new driver", driver.StateAbsent)
}
