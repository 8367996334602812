package provisioner

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

func TestWhatAnOrderNeedsNext(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	justTold, longAgo := now.Add(-time.Second), now.Add(-patience)
	for name, tc := range map[string]struct {
		p             progress
		off, on, none action // by the state that was read; none: unknown
	}{
		"woken":                       {progress{order: Wake}, tellOn, tellOff, look},
		"told to come on just now":    {progress{order: Wake, told: true, lastTold: justTold}, look, finish, look},
		"told to come on, and deaf":   {progress{order: Wake, told: true, lastTold: longAgo}, tellOn, finish, look},
		"told to go off before it is": {progress{order: Wake, lastTold: justTold}, tellOn, look, look},
		"cut":                         {progress{order: Cut}, finish, tellOff, tellOff},
		"told to be cut just now":     {progress{order: Cut, told: true, lastTold: justTold}, finish, look, look},
		"cut while it comes on":       {progress{order: Cut, woken: justTold}, look, tellOff, tellOff},
		"cut, and it never came on":   {progress{order: Cut, woken: longAgo}, finish, tellOff, tellOff},
		"its button to be pressed":    {progress{order: Shutdown}, finish, tellPress, tellPress},
		"its button pressed":          {progress{order: Shutdown, told: true, lastTold: longAgo}, finish, finish, finish},
		"left alone":                  {progress{order: Leave}, rest, rest, rest},
		"woken once, and off again":   {progress{order: Wake, told: true, lastTold: longAgo, done: true}, rest, rest, rest},
		"cut once, and on again":      {progress{order: Cut, told: true, lastTold: longAgo, done: true}, rest, rest, rest},
		"refused for good":            {progress{order: Wake, final: true}, rest, rest, rest},
	} {
		for state, want := range map[api.PowerState]action{api.PowerOff: tc.off, api.PowerOn: tc.on, api.PowerUnknown: tc.none} {
			if got := next(tc.p, state, now); got != want {
				t.Errorf("%s, power %s: %s, want %s", name, state, got, want)
			}
		}
	}
}

// confused is a switch that names a state together with an error.
type confused struct{ power.Switch }

func (confused) Observe(context.Context) (api.PowerState, error) {
	return api.PowerOff, errors.New("the answer broke off")
}

func TestWhatASwitchSaysWithAnErrorIsNotBelieved(t *testing.T) {
	t.Parallel()
	w := &worker{p: &Provisioner{o: Options{Now: time.Now}}, power: confused{}}
	if state, err := w.look(t.Context()); state != api.PowerUnknown || err == nil || w.observed.State != api.PowerUnknown {
		t.Errorf("got %s, %v, noted %s; want unknown", state, err, w.observed.State)
	}
}
