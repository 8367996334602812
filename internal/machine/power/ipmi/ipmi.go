// Package ipmi is the power switch of machines whose BMC speaks IPMI 2.0 over LAN.
//
// Each call is one session, closed before it returns: BMCs have as few as four, and keep those that are forgotten for a minute. It must never
// try a refused password again, since BMCs lock accounts. Commands and tables cited are those of the IPMI specification, v2.0 revision
// 1.1. Start with Switch.
package ipmi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/power/ipmi/rmcpplus"
)

// Port is the UDP port of RMCP (section 13.1.2).
const Port = "623"

// Switch is one machine's. It keeps the contract of power.Switch.
type Switch struct {
	address     string
	control     string // the address as it was given
	credentials power.Credentials

	passwords *power.Passwords

	mu    sync.Mutex
	suite int // the cipher suite that was agreed on last, 0: none yet
	known *repository
}

// New makes the switch of a machine whose BMC is at HOST or HOST:PORT.
func New(t power.Target) (*Switch, error) {
	address, err := Address(t.Control.Address)
	if err != nil {
		return nil, fmt.Errorf("power of %q: %w", t.Name, err)
	}
	if t.Control.User != t.Credentials.User && t.Credentials.User == "" {
		t.Credentials.User = t.Control.User
	}
	return &Switch{address: address, control: t.Control.Address, credentials: t.Credentials, passwords: power.NewPasswords(t.Credentials)}, nil
}

// Address completes a BMC's address by the port.
func Address(address string) (string, error) {
	if strings.Contains(address, "/") || address == "" {
		return "", fmt.Errorf("%q is not the address of an IPMI BMC; give HOST or HOST:PORT", address)
	}
	if host, port, err := net.SplitHostPort(address); err == nil && host != "" && port != "" {
		return address, nil
	}
	return net.JoinHostPort(strings.Trim(address, "[]"), Port), nil
}

// String keeps the password out of logs: fmt would print it from within.
func (s *Switch) String() string { return "IPMI at " + s.address }

// GoString does so too.
func (s *Switch) GoString() string { return s.String() }

// Kind is api.PowerIPMI.
func (*Switch) Kind() api.PowerKind { return api.PowerIPMI }

// Abilities are all but booting from a URL.
func (*Switch) Abilities() power.Abilities {
	return power.Abilities{Observes: true, ForcesOff: true, SelectsBoot: true}
}

// Functions and commands (appendix G).
const (
	chassis           = 0x00
	getChassisStatus  = 0x01 // section 28.2
	chassisControl    = 0x02 // section 28.3
	setSystemBoot     = 0x08 // section 28.12
	controlPowerDown  = 0x00
	controlPowerUp    = 0x01
	controlSoftOff    = 0x05
	notInPresentState = 0xD5
	invalidCommand    = 0xC1
	fieldInvalid      = 0xCC
)

// Observe reads the chassis status.
func (s *Switch) Observe(ctx context.Context) (api.PowerState, error) {
	state := api.PowerUnknown
	err := s.session(ctx, func(c *rmcpplus.Session) (err error) {
		state, err = read(ctx, c)
		return err
	})
	return state, err
}

// read tells the power's state: bit 0 of the first byte of the chassis status (table 28-3).
func read(ctx context.Context, c *rmcpplus.Session) (api.PowerState, error) {
	status, err := c.Command(ctx, chassis, getChassisStatus)
	switch {
	case err != nil:
		return api.PowerUnknown, fmt.Errorf("read the power: %w", err)
	case len(status) < 3:
		return api.PowerUnknown, fmt.Errorf("read the power: the BMC's answer has %d bytes instead of at least 3", len(status))
	case status[0]&1 != 0:
		return api.PowerOn, nil
	}
	return api.PowerOff, nil
}

// On selects the boot device and powers on, if the machine is off.
func (s *Switch) On(ctx context.Context, boot power.BootDevice) error {
	return s.order(ctx, api.PowerOn, controlPowerUp, func(c *rmcpplus.Session) error {
		if !boot.Network && boot.URI == "" {
			return nil
		}
		return selectNetwork(ctx, c, boot.Firmware)
	})
}

// Off cuts the power.
func (s *Switch) Off(ctx context.Context) error {
	return s.order(ctx, api.PowerOff, controlPowerDown, nil)
}

// Shutdown presses the ACPI power button. A BMC that does not know how can't.
func (s *Switch) Shutdown(ctx context.Context) error {
	err := s.order(ctx, api.PowerOff, controlSoftOff, nil)
	var failed *rmcpplus.Completion
	if errors.As(err, &failed) && (failed.Code == invalidCommand || failed.Code == fieldInvalid) {
		return fmt.Errorf("%w: %w", power.ErrCannot, err)
	}
	return err
}

// order does what leads to a state, unless it is reached already. BMCs differ in what they answer to orders that change nothing.
func (s *Switch) order(ctx context.Context, want api.PowerState, control byte, before func(*rmcpplus.Session) error) error {
	return s.session(ctx, func(c *rmcpplus.Session) error {
		state, err := read(ctx, c)
		if err != nil || state == want {
			return err
		}
		if before != nil {
			if err := before(c); err != nil {
				return err
			}
		}
		_, err = c.Command(ctx, chassis, chassisControl, control)
		var failed *rmcpplus.Completion
		if errors.As(err, &failed) && failed.Code == notInPresentState {
			if state, again := read(ctx, c); again == nil && state == want {
				return nil
			}
		}
		return err
	})
}

// Boot options (table 28-14).
const (
	setInProgress   = 0x00
	acknowledge     = 0x04
	bootFlags       = 0x05
	flagsValid      = 0x80 // for the next boot only
	flagsEFI        = 0x20
	devicePXE       = 0x01 << 2
	bootInfoMask    = 0x01
	bootInfoForBIOS = 0x01
)

// selectNetwork makes the next boot, and no later one, PXE. Machines not known to have a BIOS are asked to boot it by UEFI.
func selectNetwork(ctx context.Context, c *rmcpplus.Session, firmware api.Firmware) error {
	flags := byte(flagsValid)
	if firmware != api.FirmwareBIOS {
		flags |= flagsEFI
	}
	// Not all BMCs know the first two and the last; the flags are what counts.
	_, _ = c.Command(ctx, chassis, setSystemBoot, setInProgress, 1)
	_, _ = c.Command(ctx, chassis, setSystemBoot, acknowledge, bootInfoMask, bootInfoForBIOS)
	_, err := c.Command(ctx, chassis, setSystemBoot, bootFlags, flags, devicePXE, 0, 0, 0)
	_, _ = c.Command(ctx, chassis, setSystemBoot, setInProgress, 0)
	if err != nil {
		return fmt.Errorf("select the network as next boot device: %w", err)
	}
	return nil
}

// session runs do in a session of its own.
func (s *Switch) session(ctx context.Context, do func(*rmcpplus.Session) error) error {
	s.mu.Lock()
	suite := s.suite
	s.mu.Unlock()
	var suites []int
	if suite != 0 {
		suites = []int{suite}
	}
	password := s.passwords.Right()
	c, err := rmcpplus.Dial(ctx, s.address, s.credentials.User, password, suites...)
	if other := s.passwords.Other(password); errors.Is(err, rmcpplus.ErrCredentials) && other != "" {
		password = other
		c, err = rmcpplus.Dial(ctx, s.address, s.credentials.User, password, suites...)
	}
	if err == nil {
		s.passwords.Took(password)
	}
	s.mu.Lock()
	s.suite = 0
	if err == nil {
		s.suite = c.Suite()
	}
	s.mu.Unlock()
	if err != nil {
		return Explain(s.address, err)
	}
	err = do(c)
	// What was asked was answered; that the session's end was not does not change it.
	_ = c.Close(ctx)
	if err != nil {
		return Explain(s.address, err)
	}
	return nil
}

// Explain makes a session's error one of package power, with the BMC's address.
func Explain(address string, err error) error {
	for from, to := range map[error]error{
		rmcpplus.ErrCredentials: power.ErrCredentials, rmcpplus.ErrBusy: power.ErrBusy, rmcpplus.ErrNoAnswer: power.ErrUnreachable,
	} {
		if errors.Is(err, from) {
			if !strings.Contains(err.Error(), to.Error()) {
				return fmt.Errorf("IPMI at %s: %w: %w", address, to, err)
			}
			return &explained{kind: to, err: fmt.Errorf("IPMI at %s: %w", address, err)}
		}
	}
	return fmt.Errorf("IPMI at %s: %w", address, err)
}

// explained is an error that is also one of package power's, without saying the same twice.
type explained struct{ kind, err error }

func (e *explained) Error() string   { return e.err.Error() }
func (e *explained) Unwrap() []error { return []error{e.kind, e.err} }
