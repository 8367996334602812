// Package manual is the power switch of a machine whose button a person presses.
//
// It can do nothing and know nothing; it says what is to be done, in words. It must never claim that something happened. Start with New.
package manual

import (
	"context"
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// Switch tells people what to press. It keeps the contract of power.Switch.
type Switch struct{ name string }

// New makes the switch of a machine.
func New(t power.Target) (*Switch, error) {
	if t.Control.Address != "" {
		return nil, fmt.Errorf("power of %q: kind manual takes no address; omit %q", t.Name, t.Control.Address)
	}
	return &Switch{name: t.Name}, nil
}

// Kind is api.PowerManual.
func (*Switch) Kind() api.PowerKind { return api.PowerManual }

// Abilities are none.
func (*Switch) Abilities() power.Abilities { return power.Abilities{} }

// Observe can't know.
func (*Switch) Observe(ctx context.Context) (api.PowerState, error) {
	return api.PowerUnknown, ctx.Err()
}

// On asks a person.
func (s *Switch) On(ctx context.Context, boot power.BootDevice) error {
	if boot.Network || boot.URI != "" {
		return s.ask(ctx, "power %q on, or off and on if it is running, and let it boot from the network")
	}
	return s.ask(ctx, "press the power button of %q")
}

// Off asks a person.
func (s *Switch) Off(ctx context.Context) error {
	return s.ask(ctx, "hold the power button of %q until it is off")
}

// Shutdown asks a person.
func (s *Switch) Shutdown(ctx context.Context) error {
	return s.ask(ctx, "press the power button of %q briefly, once")
}

func (s *Switch) ask(ctx context.Context, text string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return &power.ByHandError{Do: fmt.Sprintf(text, s.name)}
}
