package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// prober is a driver whose member answers its probe, or does not, when the test says so.
type prober struct {
	slowWaiter
	answer chan error
}

func (p *prober) AwaitReady(context.Context, string) error { return <-p.answer }

func TestAMemberWithoutAnAgentIsReadyWhenItsProbeSucceedsAndUnhealthyWhenItDoesNot(t *testing.T) {
	for answer, want := range map[error]struct {
		ready     bool
		unhealthy string
	}{
		nil:                           {true, ""},
		errors.New("nobody answered"): {true, "nobody answered"},
	} {
		a := newTestAgent(t)
		d := &prober{slowWaiter{ended: make(chan struct{})}, make(chan error, 1)}
		m := &memberState{id: "a", driver: d, state: driver.StateRunning}
		a.members["a"] = m
		a.watch(t.Context(), m)
		d.answer <- answer
		(<-a.events)()
		if m.ready != want.ready || m.unhealthy != want.unhealthy {
			t.Errorf("after %v it is ready: %v, unhealthy: %q", answer, m.ready, m.unhealthy)
		}
		close(d.ended)
		(<-a.events)()
	}
}

func TestTheProbeOfAnEarlierInstanceSaysNothingOfTheMemberThatRuns(t *testing.T) {
	a := newTestAgent(t)
	d := &prober{slowWaiter{ended: make(chan struct{})}, make(chan error, 1)}
	m := &memberState{id: "a", driver: d, state: driver.StateRunning}
	a.members["a"] = m
	a.awaitReady(t.Context(), m)
	m.instance = 1 // cleaned and made anew
	d.answer <- nil
	(<-a.events)()
	if m.ready {
		t.Error("a member is ready by the probe of one before it")
	}
}
