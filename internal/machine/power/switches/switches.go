// Package switches makes the power switch of each kind; a server gives its Opener to the provisioner.
//
// It must hold no logic of its own: which kind does what is the kinds' business. Start with Opener.
package switches

import (
	"fmt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi"
	"github.com/nearmetal/nearmetal/internal/machine/power/manual"
	"github.com/nearmetal/nearmetal/internal/machine/power/redfish"
	"github.com/nearmetal/nearmetal/internal/machine/power/wol"
)

// Options are what switches need to know of the server's machine.
type Options struct {
	// WakeOnLAN is where magic packets go out.
	WakeOnLAN wol.Options
}

// Opener makes switches of all kinds.
func Opener(o Options) power.Opener {
	return func(t power.Target) (power.Switch, error) {
		switch t.Control.Kind {
		case api.PowerWakeOnLAN:
			return opened(wol.New(t, o.WakeOnLAN))
		case api.PowerIPMI:
			return opened(ipmi.New(t))
		case api.PowerRedfish:
			return opened(redfish.New(t))
		case api.PowerManual:
			return opened(manual.New(t))
		}
		return nil, fmt.Errorf("power of %q: unknown kind %q; use wol, ipmi, redfish or manual", t.Name, t.Control.Kind)
	}
}

// opened keeps a nil pointer from becoming a switch that is not nil.
func opened[S power.Switch](s S, err error) (power.Switch, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}
