package fake

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/bmcguard"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

var _ bmcguard.Guard = (*machineSwitch)(nil)

// bmc is what a machine's BMC is besides its power.
type bmc struct {
	closed   bool
	accounts []api.BMCAccount
	password string // that was set; empty: it is Behaviour.Password
}

// HostClosed reports whether the host interface is closed: root of the machine does not reach its BMC.
func (m *Machine) HostClosed() bool {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	return m.bmc.closed
}

// Accounts are the users of the BMC.
func (m *Machine) Accounts() []api.BMCAccount {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	return slices.Clone(m.bmc.accounts)
}

// AddAccount adds a user as root of the machine would, by the host interface; false: that is closed.
func (m *Machine) AddAccount(a api.BMCAccount) bool {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	if !m.bmc.closed {
		m.bmc.accounts = append(m.bmc.accounts, a)
	}
	return !m.bmc.closed
}

// Password is the one that the BMC takes, empty for any.
func (m *Machine) Password() string {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	return m.password()
}

// password is what the BMC takes, under the site's lock.
func (m *Machine) password() string { return cmp.Or(m.bmc.password, m.behaviour.Password) }

// RemoveAccount removes users of a name, as an operator does.
func (m *Machine) RemoveAccount(name string) {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	m.bmc.accounts = slices.DeleteFunc(m.bmc.accounts, func(a api.BMCAccount) bool { return a.Name == name })
}

// ResetBMC makes the BMC what it was when the machine was new.
func (m *Machine) ResetBMC() {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	m.bmc = bmc{}
}

// CloseHost closes it, unless the machine is scripted to keep it open (Behaviour.HostFixed).
func (s *machineSwitch) CloseHost(ctx context.Context) (state api.HostInterface, reason string, err error) {
	state, reason = api.HostFixed, "the fake BMC is scripted so"
	err = s.session(ctx, "close host", s.order(func(b *Behaviour) func() {
		if !b.HostFixed {
			s.m.bmc.closed, state, reason = true, api.HostClosed, ""
		}
		return nil
	}))
	return state, reason, err
}

// OpenHost opens it.
func (s *machineSwitch) OpenHost(ctx context.Context) error {
	return s.session(ctx, "open host", s.order(func(*Behaviour) func() { s.m.bmc.closed = false; return nil }))
}

// Look reads the users.
func (s *machineSwitch) Look(ctx context.Context) (*api.BMCBaseline, error) {
	out := &api.BMCBaseline{Kind: s.target.Control.Kind, Address: s.target.Control.Address}
	err := s.session(ctx, "look", func(b *Behaviour) (func(), error) {
		if b.Abilities != nil && !b.Abilities.Observes {
			return nil, power.ErrCannot
		}
		out.Accounts = slices.Clone(s.m.bmc.accounts)
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Restore makes the users those of the baseline.
func (s *machineSwitch) Restore(ctx context.Context, baseline *api.BMCBaseline) error {
	return s.session(ctx, "restore", s.order(func(*Behaviour) func() { s.m.bmc.accounts = slices.Clone(baseline.Accounts); return nil }))
}

// SetPassword changes the password that the BMC takes, and logs in with it.
func (s *machineSwitch) SetPassword(ctx context.Context, password string) error {
	err := s.session(ctx, "set password", s.order(func(*Behaviour) func() { s.m.bmc.password = password; return nil }))
	if err != nil {
		return err
	}
	s.passwords.Took(password)
	if err := s.session(ctx, "prove password", func(*Behaviour) (func(), error) { return nil, nil }); err != nil {
		return fmt.Errorf("prove the password: %w", err)
	}
	return nil
}
