package provisioner

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// progress is how far the order of one generation has come.
type progress struct {
	fence power.Fence
	order Order
	// told: the switch accepted, or may have accepted, what the order ends with: on, off, or the button pressed. lastTold is when it accepted
	// that, or the cut on the way to on, last.
	told     bool
	lastTold time.Time
	// woken is when it was last told to come on, by this order or one before, and was not read as on since.
	woken time.Time
	// last is what it was told last, times how often in a row.
	last     action
	times    int
	packets  int // magic packets sent
	done     bool
	doneAt   time.Time
	problem  string
	final    bool
	attempts int
	failed   int // tries that failed in a row
}

// action is what to do with a switch next.
type action string

const (
	rest      action = "rest"     // nothing, until something changes or it is time to look again
	look      action = "look"     // observe again soon
	tellOn    action = "on"       // and look whether it is
	tellOff   action = "off"      // and look whether it is
	tellPress action = "shutdown" // once
	finish    action = "finish"   // the order is carried out
)

// patience is how long a BMC that accepted an order may report the old state before it is told again.
const patience = 20 * time.Second

// next tells what an order needs, now that the state was read. The state is one that was read after everything the switch was told: a
// machine that is on was made so by this order only if it was off since the order was given, and then told. Unknown is neither on nor
// off: a wake then waits, a cut cuts.
func next(p progress, state api.PowerState, now time.Time) action {
	if p.done || p.final {
		return rest
	}
	waits := !p.lastTold.IsZero() && now.Sub(p.lastTold) < patience
	switch p.order {
	case Wake:
		switch {
		case state == api.PowerOn && p.told:
			return finish
		case state == api.PowerUnknown || waits && p.told == (state == api.PowerOff):
			return look // it is on its way, or nobody knows
		case state == api.PowerOff:
			return tellOn
		default:
			return tellOff
		}
	case Cut:
		switch {
		case state == api.PowerOff && p.rises(now):
			return look
		case state == api.PowerOff:
			return finish
		case waits:
			return look
		default:
			return tellOff
		}
	case Shutdown:
		if state == api.PowerOff || p.told {
			return finish
		}
		return tellPress
	default:
		return rest
	}
}

// rises tells whether the power may still follow an order to come on. Then off means nothing: a machine that was taken for off would come on
// afterwards, and stay on.
func (p progress) rises(now time.Time) bool {
	return !p.woken.IsZero() && now.Sub(p.woken) < patience
}

// blind is next for a switch that can't observe: each order is given once, but packets that wake are repeated until the machine is heard of.
func blind(p progress, heard bool, now time.Time) action {
	switch {
	case p.final || p.order == Leave:
		return rest
	case p.done && (p.order != Wake || heard || p.packets == 0 || p.packets >= wakePackets):
		return rest
	case p.done && now.Sub(p.lastTold) < wakeEvery:
		return look
	}
	switch p.order {
	case Wake:
		return tellOn
	case Shutdown:
		return tellPress
	default:
		return tellOff
	}
}

// How often a machine that can't be observed is woken, unless it is heard of.
const (
	wakePackets = 5
	wakeEvery   = 10 * time.Second
)

// stuck tells of a BMC that accepts an order again and again, and nothing follows.
func (p progress) stuck(state api.PowerState) string {
	if p.done || p.times < 2 {
		return ""
	}
	return fmt.Sprintf("the BMC accepted the order %q %d times but still reports power %s; check that the machine obeys its BMC", p.last, p.times, state)
}

// lookDelay is how long to wait before looking again after having told something: soon at first, since most obey at once.
func lookDelay(since time.Duration) time.Duration {
	return min(max(since/2, 100*time.Millisecond), 2*time.Second)
}
