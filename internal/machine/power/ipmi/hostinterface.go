package ipmi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bmcguard"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi/rmcpplus"
)

var _ bmcguard.Guard = (*Switch)(nil)

// Commands of firmware firewall and command discovery (chapter 21, appendix G).
const (
	getNetFnSupport         = 0x09 // section 21.2
	getConfigurableCommands = 0x0C // section 21.5
	setCommandEnables       = 0x60 // section 21.7
	getCommandEnables       = 0x61 // section 21.8

	app             = 0x06
	systemInterface = 0x0F // the channel of KCS and its like (table 6-1)
	// secondHalf asks for commands 80h to FFh in the byte that has the function.
	secondHalf = 0x40
	halfBytes  = 16
	// Functions from here on have commands of groups, which other commands list (NetFn 2Ch to 2Fh).
	groupNetFns, afterGroups = 0x2C, 0x30
)

// commands are those of one function on one LUN: half of them.
type commands struct{ netFn, lun, half byte }

func (k commands) request(data ...byte) []byte {
	return append([]byte{systemInterface, k.netFn | k.half*secondHalf, k.lun}, data...)
}

// harmless are commands that may stay enabled: they only read what names the BMC, and some BMCs can't disable them.
var harmless = map[byte][]byte{app: {0x01 /* Get Device ID */, 0x04 /* Get Self Test Results */, 0x08 /* Get Device GUID */, 0x37 /* Get System GUID */}}

// CloseHost implements bmcguard.Guard by disabling all commands on the system interface.
func (s *Switch) CloseHost(ctx context.Context) (state api.HostInterface, reason string, err error) {
	state = api.HostFixed
	err = s.session(ctx, func(c *rmcpplus.Session) error {
		all, why, err := firewalled(ctx, c)
		if err != nil || why != "" {
			reason = why
			return err
		}
		var open []string
		for _, k := range all {
			left, err := disable(ctx, c, k)
			if err != nil {
				return err
			}
			open = append(open, left...)
		}
		if len(open) > 0 {
			const few = 5
			if len(open) > few {
				open = append(open[:few], fmt.Sprintf("%d more", len(open)-few))
			}
			reason = "commands stay enabled: " + strings.Join(open, ", ")
			return nil
		}
		state = api.HostClosed
		return nil
	})
	return state, reason, err
}

// OpenHost implements bmcguard.Guard by enabling all commands that can be.
func (s *Switch) OpenHost(ctx context.Context) error {
	return s.session(ctx, func(c *rmcpplus.Session) error {
		all, why, err := firewalled(ctx, c)
		if why != "" {
			return fmt.Errorf("%s: %w", why, power.ErrCannot)
		}
		if err != nil {
			return err
		}
		for _, k := range all {
			configurable, enabled, err := readEnables(ctx, c, k)
			if err != nil {
				return err
			}
			for i := range enabled {
				enabled[i] |= configurable[i]
			}
			if _, err := c.Command(ctx, app, setCommandEnables, k.request(enabled...)...); err != nil {
				return fmt.Errorf("enable commands of NetFn %02Xh: %w", k.netFn, err)
			}
		}
		return nil
	})
}

// firewalled returns the halves of all functions that the BMC has on the system interface, or why it can't be closed.
func firewalled(ctx context.Context, c *rmcpplus.Session) (all []commands, why string, err error) {
	support, err := c.Command(ctx, app, getNetFnSupport, systemInterface)
	var failed *rmcpplus.Completion
	switch {
	case errors.As(err, &failed) && cannot(failed):
		return nil, fmt.Sprintf("the BMC has no firmware firewall for it (IPMI 2.0, chapter 21): completion code %02Xh", failed.Code), nil
	case err != nil:
		return nil, "", fmt.Errorf("look for the BMC's firmware firewall: %w", err)
	case len(support) < 1+halfBytes:
		return nil, fmt.Sprintf("the BMC tells its functions in %d bytes instead of %d", len(support), 1+halfBytes), nil
	}
	for lun := range byte(4) {
		if support[0]>>(2*lun)&3 == 0 {
			continue
		}
		for pair := range byte(32) {
			if support[1+4*lun+pair/8]>>(pair%8)&1 == 0 {
				continue
			}
			netFn := 2 * pair
			if netFn >= groupNetFns && netFn < afterGroups {
				return nil, fmt.Sprintf("the BMC has commands of groups there (NetFn %02Xh), which are not closed here", netFn), nil
			}
			all = append(all, commands{netFn, lun, 0}, commands{netFn, lun, 1})
		}
	}
	if len(all) == 0 {
		return nil, "the BMC tells of no command there, and answers them", nil
	}
	return all, "", nil
}

// readEnables reads which commands can be disabled and which are enabled, a bit for each.
func readEnables(ctx context.Context, c *rmcpplus.Session, k commands) (configurable, enabled []byte, err error) {
	var answers [2][]byte
	for i, command := range []byte{getConfigurableCommands, getCommandEnables} {
		answer, err := c.Command(ctx, app, command, k.request()...)
		if err == nil && len(answer) < halfBytes {
			err = fmt.Errorf("the BMC's answer has %d bytes instead of %d", len(answer), halfBytes)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read which commands of NetFn %02Xh are enabled: %w", k.netFn, err)
		}
		answers[i] = append([]byte(nil), answer[:halfBytes]...)
	}
	return answers[0], answers[1], nil
}

// disable disables what can be of half a function, and returns what is enabled afterwards and not harmless.
func disable(ctx context.Context, c *rmcpplus.Session, k commands) (left []string, err error) {
	configurable, enabled, err := readEnables(ctx, c, k)
	if err != nil {
		return nil, err
	}
	wanted := make([]byte, halfBytes)
	for i := range wanted {
		wanted[i] = enabled[i] &^ configurable[i]
	}
	if string(wanted) != string(enabled) {
		if _, err := c.Command(ctx, app, setCommandEnables, k.request(wanted...)...); err != nil {
			return nil, fmt.Errorf("disable commands of NetFn %02Xh: %w", k.netFn, err)
		}
		if _, enabled, err = readEnables(ctx, c, k); err != nil {
			return nil, err
		}
	}
	for i := range 8 * halfBytes {
		command := byte(i) + k.half*8*halfBytes
		if enabled[i/8]>>(i%8)&1 == 1 && !slices.Contains(harmless[k.netFn], command) {
			left = append(left, fmt.Sprintf("%02Xh of NetFn %02Xh", command, k.netFn))
		}
	}
	return left, nil
}

// cannot reports whether a completion code says that the BMC has no such command, or not with such data (table 5-2). Others pass.
func cannot(failed *rmcpplus.Completion) bool {
	return slices.Contains([]byte{invalidCommand, 0xC2 /* invalid for this LUN */, 0xC9 /* out of range */, fieldInvalid, 0xD6 /* disabled */}, failed.Code)
}
