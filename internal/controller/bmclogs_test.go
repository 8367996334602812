package controller

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi"
	"github.com/nearmetal/nearmetal/internal/machine/power/powertest"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// measures gives the leader a poller of its own, which reads as fast as it can, and makes passes until the events are those wanted.
func (l *led) measures(want ...string) {
	l.t.Helper()
	poller := sensors.New(sensors.Options{
		Open: func(t power.Target) (power.Switch, error) {
			t.Credentials = power.Credentials{User: powertest.User, Password: powertest.Password}
			return ipmi.New(t)
		},
		Gate: power.NewGate(power.GateOptions{}), Every: time.Millisecond,
	})
	l.lead.cfg.Provisioning.Sensors = poller
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Minute)
	done := make(chan struct{})
	go func() { defer close(done); _ = poller.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for looks := 0; ; {
		l.mustPass()
		if got := l.bmcEvents(); slices.Equal(got, want) {
			if looks++; looks == 3 { // and stay so
				return
			}
		}
		select {
		case <-poller.Changed():
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			l.t.Fatalf("got the events %q, want %q", l.bmcEvents(), want)
		}
	}
}

func (l *led) bmcEvents() (texts []string) {
	l.t.Helper()
	events, err := l.repo.Events(l.t.Context(), state.NodeLog("n1"), 0, state.EventsKept)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, e := range events {
		if e.Reason == api.ReasonBMCLog {
			texts = append(texts, e.Message)
		}
	}
	return texts
}

func TestEntriesOfABMCsLogAreEventsOnceEvenUnderAnotherLeader(t *testing.T) {
	ecc := func(number int) string {
		return fmt.Sprintf("sel_add 0x20 0x02 0 0 0 0 0x20 0 4 0x0c 0x%02x 0x6f 0x01 0 0", number)
	}
	sim := powertest.StartSim(t, "sel_enable 0x20 100 0x0a", ecc(1))
	l := newLed(t, memory.New())
	l.provisions()
	l.view(l.repo.CreateMachine(t.Context(), api.MachineIntent{
		Name: "n1", UID: "u1", Spec: api.MachineSpec{MACs: []string{"52:54:00:00:00:01"}, Power: api.PowerControl{Kind: api.PowerIPMI, Address: sim.Address}},
	}))
	for l.mustPass().Machine("n1").LogMark.Log == "" {
		l.measures()
	}
	sim.Tell(t, ecc(2))
	first := "BMC log: critical: memory number 02h: uncorrectable ECC error"
	l.measures(first)
	l.campaign()
	l.provisions()
	l.measures(first)
	sim.Tell(t, ecc(3))
	l.measures(first, "BMC log: critical: memory number 03h: uncorrectable ECC error")
}
