// Package fake is a site of pretended machines with scriptable power switches, for tests and simulations of a thousand.
//
// Its only clock is package time's, so it runs under testing/synctest. It passes powertest. Start with Site.
package fake

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
)

// Behaviour scripts a machine's BMC. The zero value answers at once, truly, and obeys at once.
type Behaviour struct {
	// Answer is how long the BMC takes to answer anything; Silent: it never does.
	Answer time.Duration
	Silent bool
	// OnAfter and OffAfter are how long the power takes to follow an order that was accepted.
	OnAfter, OffAfter time.Duration
	// Says is what it answers when asked for the state, whatever is true; "" is the truth.
	Says api.PowerState
	// FailObserves and FailOrders are how many of these fail with Err before one works; Err is by default one that says so.
	FailObserves, FailOrders int
	Err                      error
	// Deaf accepts orders and does nothing. LoseAnswers obeys and then fails, as when the answer was lost: so many times.
	Deaf        bool
	LoseAnswers int
	// User and Password are what it wants to be told; empty: any. After LockAfter wrong passwords it refuses the right one too.
	User, Password string
	LockAfter      int
	// HostFixed: the host interface of the BMC can't be closed.
	HostFixed bool
	// Ignores the polite shutdown.
	Ignores bool
	// Abilities replaces what it can do, if not nil: one that neither observes nor forces off is like Wake-on-LAN.
	Abilities *power.Abilities
}

// Site is a set of machines, and their power.Opener.
type Site struct {
	// Sessions is how many operations may be under way at once at one address; more get power.ErrBusy. 0: any number.
	Sessions int

	mu       sync.Mutex
	machines map[string]*Machine
	open     map[string]int // sessions by address
	most     map[string]int
}

// NewSite makes an empty site.
func NewSite() *Site {
	return &Site{machines: map[string]*Machine{}, open: map[string]int{}, most: map[string]int{}}
}

// Machine is a pretended machine.
type Machine struct {
	// OnPowered, if set, is called with each change of the power, from the goroutine that made it.
	OnPowered func(api.PowerState)

	site      *Site
	name      string
	behaviour Behaviour
	state     api.PowerState
	next      power.BootDevice // what it boots from when it goes on
	orders    int              // that changed what the power shall come to; it follows the newest
	pending   api.PowerState   // what it shall come to, "" for what it is
	boots     []power.BootDevice
	calls     []string
	wrong     int // wrong passwords
	bmc       bmc
}

// Add adds a machine that is off.
func (s *Site) Add(name string, b Behaviour) *Machine {
	m := &Machine{site: s, name: name, behaviour: b, state: api.PowerOff}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.machines[name] = m
	return m
}

// Machine is a machine of the site, nil when there is none.
func (s *Site) Machine(name string) *Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machines[name]
}

// MostSessions is how many operations were under way at once at an address.
func (s *Site) MostSessions(address string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most[address]
}

// OpenSessions is how many operations are under way at all addresses.
func (s *Site) OpenSessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, open := range s.open {
		n += open
	}
	return n
}

// State is the machine's true power.
func (m *Machine) State() api.PowerState {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	return m.state
}

// Set changes the power as if somebody had pressed the button; it boots from whatever it likes then.
func (m *Machine) Set(state api.PowerState) { m.power(state) }

// SetBehaviour replaces the script.
func (m *Machine) SetBehaviour(b Behaviour) {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	m.behaviour = b
}

// Boots are the boot devices of the times it was powered on, in their order.
func (m *Machine) Boots() []power.BootDevice {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	return append([]power.BootDevice(nil), m.boots...)
}

// Calls are what its BMC was asked: observe, on, off, shutdown.
func (m *Machine) Calls() []string {
	m.site.mu.Lock()
	defer m.site.mu.Unlock()
	return append([]string(nil), m.calls...)
}

func (m *Machine) power(state api.PowerState) {
	m.site.mu.Lock()
	changed := m.state != state
	m.state, m.pending = state, ""
	if changed && state == api.PowerOn {
		m.boots = append(m.boots, m.next)
		m.next = power.BootDevice{}
	}
	told := m.OnPowered
	m.site.mu.Unlock()
	if changed && told != nil {
		told(state)
	}
}

// errScripted is the default of Behaviour.Err.
var errScripted = errors.New("the fake BMC is scripted to fail")

// Open is a power.Opener.
func (s *Site) Open(t power.Target) (power.Switch, error) {
	m := s.Machine(t.Name)
	if m == nil {
		return nil, fmt.Errorf("there is no fake machine %q", t.Name)
	}
	return &machineSwitch{m: m, target: t, passwords: power.NewPasswords(t.Credentials)}, nil
}

// machineSwitch is the switch of one machine.
type machineSwitch struct {
	m         *Machine
	target    power.Target
	passwords *power.Passwords
}

// String keeps the password out of logs, as every switch does.
func (s *machineSwitch) String() string { return "fake power of " + s.m.name }

// GoString does so too.
func (s *machineSwitch) GoString() string { return s.String() }

func (s *machineSwitch) Kind() api.PowerKind { return s.target.Control.Kind }

func (s *machineSwitch) Abilities() power.Abilities {
	s.m.site.mu.Lock()
	defer s.m.site.mu.Unlock()
	if a := s.m.behaviour.Abilities; a != nil {
		return *a
	}
	return power.Abilities{Observes: true, ForcesOff: true, SelectsBoot: true}
}

func (s *machineSwitch) Observe(ctx context.Context) (api.PowerState, error) {
	state := api.PowerUnknown
	err := s.session(ctx, "observe", func(b *Behaviour) (func(), error) {
		if b.FailObserves > 0 {
			b.FailObserves--
			return nil, b.err()
		}
		state = s.m.state
		if b.Says != "" {
			state = b.Says
		}
		if b.Abilities != nil && !b.Abilities.Observes {
			state = api.PowerUnknown
		}
		return nil, nil
	})
	if err != nil {
		return api.PowerUnknown, err
	}
	return state, nil
}

func (s *machineSwitch) On(ctx context.Context, boot power.BootDevice) error {
	return s.session(ctx, "on", s.order(func(b *Behaviour) func() {
		if s.m.state == api.PowerOn {
			return nil
		}
		s.m.next = boot
		return s.m.after(b.OnAfter, api.PowerOn)
	}))
}

func (s *machineSwitch) Off(ctx context.Context) error {
	if !s.Abilities().ForcesOff {
		return power.ErrCannot
	}
	return s.session(ctx, "off", s.order(func(b *Behaviour) func() { return s.m.after(b.OffAfter, api.PowerOff) }))
}

func (s *machineSwitch) Shutdown(ctx context.Context) error {
	if !s.Abilities().ForcesOff {
		return power.ErrCannot
	}
	return s.session(ctx, "shutdown", s.order(func(b *Behaviour) func() {
		if b.Ignores {
			return nil
		}
		return s.m.after(b.OffAfter, api.PowerOff)
	}))
}

// order wraps what an order does into what may go wrong with it.
func (s *machineSwitch) order(obey func(*Behaviour) func()) func(*Behaviour) (func(), error) {
	return func(b *Behaviour) (func(), error) {
		if b.FailOrders > 0 {
			b.FailOrders--
			return nil, b.err()
		}
		if b.Deaf {
			return nil, nil
		}
		act := obey(b)
		if b.LoseAnswers > 0 {
			b.LoseAnswers--
			return act, power.ErrUnreachable
		}
		return act, nil
	}
}

// after is what makes the power follow, unless another order was accepted meanwhile.
func (m *Machine) after(d time.Duration, state api.PowerState) func() {
	if m.pending == state {
		return nil // it is on its way
	}
	m.orders++
	mine := m.orders
	m.pending = state
	if d == 0 {
		return func() { m.power(state) }
	}
	return func() {
		time.AfterFunc(d, func() {
			m.site.mu.Lock()
			newest := m.orders == mine
			m.site.mu.Unlock()
			if newest {
				m.power(state)
			}
		})
	}
}

func (b *Behaviour) err() error {
	if b.Err != nil {
		return b.Err
	}
	return errScripted
}

// session is one operation at the BMC: within its limits, as slow as it is, ended with the context. do runs under the site's lock; what it
// returns runs after it.
func (s *machineSwitch) session(ctx context.Context, call string, do func(*Behaviour) (func(), error)) error {
	site, m := s.m.site, s.m
	site.mu.Lock()
	m.calls = append(m.calls, call)
	address := s.target.Control.Address
	if site.Sessions > 0 && site.open[address] >= site.Sessions {
		site.mu.Unlock()
		return power.ErrBusy
	}
	site.open[address]++
	site.most[address] = max(site.most[address], site.open[address])
	answer, silent := m.behaviour.Answer, m.behaviour.Silent
	site.mu.Unlock()
	defer func() {
		site.mu.Lock()
		defer site.mu.Unlock()
		site.open[address]--
	}()
	if err := wait(ctx, answer, silent); err != nil {
		return err
	}
	site.mu.Lock()
	err := s.login()
	var act func()
	if err == nil {
		act, err = do(&m.behaviour)
	}
	site.mu.Unlock()
	if act != nil {
		act()
	}
	return err
}

// login tries the passwords that the switch has.
func (s *machineSwitch) login() error {
	password := s.passwords.Right()
	err := s.m.login(power.Credentials{User: s.target.Credentials.User, Password: password})
	if other := s.passwords.Other(password); err != nil && other != "" {
		password = other
		err = s.m.login(power.Credentials{User: s.target.Credentials.User, Password: password})
	}
	if err == nil {
		s.passwords.Took(password)
	}
	return err
}

// login checks the password and counts wrong ones, as BMCs do that lock users out.
func (m *Machine) login(c power.Credentials) error {
	b := &m.behaviour
	if m.password() == "" {
		return nil
	}
	if b.LockAfter > 0 && m.wrong >= b.LockAfter {
		return power.ErrCredentials
	}
	if c.Password != m.password() || b.User != "" && c.User != b.User {
		m.wrong++
		return power.ErrCredentials
	}
	m.wrong = 0
	return nil
}

// wait waits as long as the BMC takes to answer.
func wait(ctx context.Context, d time.Duration, silent bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if silent {
		<-ctx.Done()
		return fmt.Errorf("%w: %w", power.ErrUnreachable, context.Cause(ctx))
	}
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", power.ErrUnreachable, context.Cause(ctx))
	}
}
