// Package provisioner is the site-side executor: it carries out what is decided about machines that have no agent, by their power
// switches, and tells what it sees.
//
// It is level-triggered: Desired is everything that should be so, for all machines, and the provisioner converges on it, one order at a
// time for each BMC, each with a deadline, retried with backoff, and fenced by (term, generation). It must never decide whether a machine should be on, and it never
// takes "unknown" for "off". Start with Desired and Run.
package provisioner

import (
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// Desired is what should be so, as decided by the leader of Term.
type Desired struct {
	Term     int64
	Machines []Machine
}

// Machine is what should be so of one machine.
type Machine struct {
	Name       string
	UID        string
	Generation int64
	Target     power.Target
	Order      Order
	// Boot is what it boots from when the order is Wake.
	Boot power.BootDevice
	// WasDone: the record says that this generation's order was carried out already, under an earlier leader. It is reported as done and not
	// carried out again: a new leader must not cut the power of a machine that boots. Switches that can't observe are told again, which costs nothing.
	WasDone bool
	// Heard: the machine called in since this generation was decided. It implies WasDone, and ends the repetition of magic packets.
	Heard bool
	// Watch: it is expected to go off by itself. It is looked at more often until it is off: somebody waits.
	Watch bool
	// Guard is what is desired of its BMC itself.
	Guard Guard
}

// Order is what a machine's power should come to. An order is carried out once for a (term, generation): a machine that goes off later
// is reported, not switched on again.
type Order string

// The orders.
const (
	Leave    Order = "leave"    // only observe
	Wake     Order = "wake"     // on; one that is on already is cycled first unless it was woken in this generation; looked at often from then on
	Shutdown Order = "shutdown" // ask its system to end
	Cut      Order = "cut"      // power off at once, verified by reading back
)

// Observed is what is known of one machine's power.
type Observed struct {
	UID   string
	State api.PowerState
	// Generation is of the newest order carried out, Order which.
	Generation int64
	Order      Order
	// Done: the order of Generation is carried out. For Wake: the switch said on, or, where it can't tell, the packet was sent.
	Done   bool
	DoneAt time.Time
	// Problem is why the order could not be carried out so far, or the state not read; Final: trying again is of no use (credentials, ErrCannot).
	Problem    string
	Final      bool
	Attempts   int
	ObservedAt time.Time
	Abilities  power.Abilities
	// Guarded is what is known of its BMC itself.
	Guarded Guarded
}
