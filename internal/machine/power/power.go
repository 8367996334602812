// Package power is the contract of machines' power switches, and the gate that every order goes through.
//
// A Switch is one machine's: wol, ipmi, redfish, manual and fake implement it, and powertest is the suite that all of them pass.
// Switches are told what to do and never decide; an answer that is not certain is api.PowerUnknown, which is never taken for off.
// Nothing here may log a password. Start with Switch, then Gate.
package power

import (
	"context"
	"errors"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Switch controls one machine's power. Its methods return before their context's deadline, leave no session open at the BMC, and may be
// called again after any error: asking for what is so already succeeds and changes nothing.
type Switch interface {
	// Kind is how it is controlled.
	Kind() api.PowerKind
	// Observe tells the power's state. An error comes with PowerUnknown; a switch that can't know (Wake-on-LAN) says PowerUnknown without.
	Observe(ctx context.Context) (api.PowerState, error)
	// On powers the machine on; boot is what it shall boot from next, for those that can be told (CanSelectBoot).
	On(ctx context.Context, boot BootDevice) error
	// Off cuts the power at once. ErrCannot for those that can't: Wake-on-LAN, manual.
	Off(ctx context.Context) error
	// Shutdown asks the machine's system to end by itself (ACPI button). ErrCannot for those that can't.
	Shutdown(ctx context.Context) error
	// Abilities are fixed for a kind, but for boot devices, which a BMC may refuse.
	Abilities() Abilities
}

// Abilities are what a kind of switch can do.
type Abilities struct {
	// Observes: the state is known without the machine's help. Without, only the machine calling in tells that it is on.
	Observes bool
	// ForcesOff: power can be cut.
	ForcesOff bool
	// SelectsBoot: the next boot device can be chosen.
	SelectsBoot bool
	// HTTPBoot: the firmware can be pointed at a URL (Redfish UefiHttpBootUri).
	HTTPBoot bool
}

// BootDevice is what a machine boots from next.
type BootDevice struct {
	// Network asks for PXE; false leaves the machine's own order.
	Network bool
	// URI asks for UEFI HTTP boot from there, where the switch can; else Network.
	URI string
	// Firmware is what the machine is known to have, "" for not known.
	Firmware api.Firmware
}

// Errors that callers tell apart; all others are worth another try.
var (
	// ErrCannot: this kind of switch can't do that.
	ErrCannot = errors.New("this kind of power control can't do that")
	// ErrCredentials: the BMC refused user or password. Trying again only locks the account.
	ErrCredentials = errors.New("the BMC refused the user or the password")
	// ErrUnreachable: nothing answered at the BMC's address.
	ErrUnreachable = errors.New("the BMC does not answer")
	// ErrBusy: the BMC has no session left.
	ErrBusy = errors.New("the BMC has no free session")
	// ErrStale: a newer term or generation has given orders since (Gate).
	ErrStale = errors.New("a newer order has replaced this one")
	// ErrYielded: an order of power went first (Gate.Poll).
	ErrYielded = errors.New("an order of power went first")
)

// ByHandError is what a switch without a wire to the machine returns: a person has to do it, and nobody can tell when they have. The order
// counts as given; the text is for the person.
type ByHandError struct{ Do string }

func (e *ByHandError) Error() string { return e.Do }

// Is makes it an ErrCannot, for those who only ask that.
func (e *ByHandError) Is(target error) bool { return target == ErrCannot }

// Fence orders what is asked of one machine: a pair is older than another when its term is, or, in one term, its generation.
type Fence struct {
	// Term is the leader's, Generation the machine record's.
	Term, Generation int64
}

// Older tells whether f comes before g.
func (f Fence) Older(g Fence) bool {
	return f.Term < g.Term || f.Term == g.Term && f.Generation < g.Generation
}

// Credentials are what a BMC wants to know. They have no String that tells them.
type Credentials struct {
	User, Password string
	// Next is a password that is being set: it counts where Password is refused. Empty: there is none.
	Next string
}

// String keeps secrets out of logs.
func (Credentials) String() string { return "(credentials)" }

// GoString keeps secrets out of logs.
func (Credentials) GoString() string { return "(credentials)" }

// MarshalText keeps secrets out of logs and of everything else that is written as text or JSON.
func (Credentials) MarshalText() ([]byte, error) { return []byte("(credentials)"), nil }

// Target is everything a kind needs to make a Switch.
type Target struct {
	Name        string // of the machine, for messages
	Control     api.PowerControl
	Credentials Credentials
	MACs        []string
}

// Opener makes the Switch of a target, without asking the BMC anything; an error tells what is wrong with the target itself.
type Opener func(Target) (Switch, error)

// Deadlines of single operations of a switch, of six to ten requests, for which slow BMCs need seconds each. A BMC that needs longer is
// unreachable; one that leaves a single request unanswered is so earlier.
const (
	ObserveDeadline = 30 * time.Second
	OrderDeadline   = time.Minute
	// PollDeadline is for reading everything that a BMC measures: some hundred requests.
	PollDeadline = 2 * time.Minute
)
