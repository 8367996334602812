package container_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
)

// expired is a deadline that has passed.
var expired = time.Unix(1, 0)

// waiting is a driver whose Start waits for the test member's connection, so that a signal sent next meets its handler.
type waiting struct {
	driver.Driver
	rig *rig
}

func (w waiting) Start(ctx context.Context, m driver.Member) error {
	return w.rig.startBy(ctx, w.Driver, m)
}

func testContract(t *testing.T, runtime string) {
	drivertest.Run(t, func(t *testing.T) drivertest.Fixture {
		r := newRig(t, runtime)
		return drivertest.Fixture{
			Driver: r,
			Ports:  r.ports,
			Reopen: func(t *testing.T) driver.Driver { return waiting{Driver: r.open(t), rig: r} },
			Member: func(t *testing.T) driver.Member { return r.member(t) },
			Stubborn: func(m *driver.Member) {
				m.Files = append(slices.Clone(m.Files), driver.File{Path: "/etc/nearmetal/stubborn", Mode: 0o644})
			},
			End:  func(t *testing.T, o driver.Observation, code int) { r.tell(t, o.ID, order{Exit: &code}) },
			Left: r.left,
		}
	})
}

func TestContainersOnCrunMeetTheDriverContract(t *testing.T) { testContract(t, "crun") }

func TestContainersOnRuncMeetTheDriverContract(t *testing.T) { testContract(t, "runc") }

func TestTwoInstallationsOnOneMachineDoNotTakeEachOthersMembersForDebris(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	other := newRig(t, "crun")
	other.cfg.Node = r.cfg.Node
	observations, err := other.open(t).Observe(t.Context())
	if err != nil || len(observations) > 0 {
		t.Errorf("a second installation with a node of the same name sees %+v (%v)", observations, err)
	}
}
