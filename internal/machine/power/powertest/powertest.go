// Package powertest is the conformance suite of power switches, and what they are tried on: BMC software that others wrote, and peers that are
// silent or talk nonsense.
//
// It must never look inside an implementation. Start with Run.
package powertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// Machine is a machine that is off, and how to look at it by other means than its switch.
type Machine struct {
	Open   power.Opener
	Target power.Target
	// State reads the machine's true power; nil: nothing can.
	State func(t *testing.T) api.PowerState
	// NextBoot tells whether the machine boots from the network next; nil: nothing can.
	NextBoot func(t *testing.T) bool
	// Sessions counts what is open at the BMC; nil: nothing can.
	Sessions func(t *testing.T) int
	// Deaf: it takes On and does nothing that State could see, as behind a packet that wakes.
	Deaf bool
	// Buttonless: its system does not hear the power button, as firmware does not.
	Buttonless bool
	// Peer replaces the address by that of a peer of the suite, which is HOST:PORT; nil: the kind has no BMC.
	Peer func(target power.Target, address string) power.Target
	// Datagrams: its BMC speaks UDP. SilentToStrangers: it does not even answer to users it does not know.
	Datagrams, SilentToStrangers bool
}

// Run runs the suite. fresh makes a machine that is off.
func Run(t *testing.T, fresh func(t *testing.T) Machine) {
	t.Helper()
	tests := []struct {
		name string
		test func(t *testing.T, m Machine)
	}{
		{"it goes on and off, and asking again changes nothing", onAndOff},
		{"its system is asked to end", shutdown},
		{"the next boot is from the network", network},
		{"a context that has ended ends every call", cancelled},
		{"a wrong password is reported as such, and changes nothing", wrongPassword},
		{"nothing, silence and nonsense at its address are errors in time", badPeers},
		{"it may be used at once, and leaves no session", atOnce},
		{"no way of printing it prints the password", printed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, fresh(t)) })
	}
}

func opened(t *testing.T, m Machine, target power.Target) power.Switch {
	t.Helper()
	s, err := m.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	if s.Kind() != target.Control.Kind {
		t.Errorf("it is of kind %s, want %s", s.Kind(), target.Control.Kind)
	}
	return s
}

// limited is a context for one call.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), power.OrderDeadline)
	t.Cleanup(cancel)
	return ctx
}

// want compares what the switch says, and what is true, with what should be.
func (m Machine) want(t *testing.T, s power.Switch, state api.PowerState) {
	t.Helper()
	said := state
	if !s.Abilities().Observes {
		said = api.PowerUnknown
	}
	got, err := s.Observe(limited(t))
	if err != nil || got != said {
		t.Errorf("it says %s, %v; want %s", got, err, said)
	}
	if m.State != nil && !m.Deaf {
		if got := m.State(t); got != state {
			t.Errorf("the machine is %s, want %s", got, state)
		}
	}
}

// given accepts what a switch may answer to an order: nothing, or, if it can't, that.
func given(t *testing.T, what string, able bool, err error) {
	t.Helper()
	if able && err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if !able && !errors.Is(err, power.ErrCannot) {
		t.Errorf("%s: got %v, want that it can't", what, err)
	}
}

func onAndOff(t *testing.T, m Machine) {
	s := opened(t, m, m.Target)
	can := s.Abilities()
	m.want(t, s, api.PowerOff)
	given(t, "off when off", can.ForcesOff, s.Off(limited(t)))
	for range 2 {
		err := s.On(limited(t), power.BootDevice{})
		var byHand *power.ByHandError
		if err != nil && !errors.As(err, &byHand) {
			t.Fatal(err)
		}
	}
	m.want(t, s, api.PowerOn)
	for range 2 {
		given(t, "off", can.ForcesOff, s.Off(limited(t)))
	}
	if can.ForcesOff {
		m.want(t, s, api.PowerOff)
	}
}

func shutdown(t *testing.T, m Machine) {
	s := opened(t, m, m.Target)
	can := s.Abilities()
	given(t, "shutdown when off", can.ForcesOff, s.Shutdown(limited(t)))
	if !can.ForcesOff {
		return
	}
	if err := s.On(limited(t), power.BootDevice{}); err != nil {
		t.Fatal(err)
	}
	given(t, "shutdown", true, s.Shutdown(limited(t)))
	if m.Buttonless {
		m.want(t, s, api.PowerOn)
		return
	}
	m.want(t, s, api.PowerOff)
}

func network(t *testing.T, m Machine) {
	s := opened(t, m, m.Target)
	needs.Ability(t, s.Abilities().SelectsBoot && m.NextBoot != nil, "selection of the boot device, and a peer that shows it")
	if m.NextBoot(t) {
		t.Fatal("it boots from the network before the order to")
	}
	if err := s.On(limited(t), power.BootDevice{Network: true, Firmware: api.FirmwareUEFI}); err != nil {
		t.Fatal(err)
	}
	m.want(t, s, api.PowerOn)
	if !m.NextBoot(t) {
		t.Error("it does not boot from the network")
	}
}

func cancelled(t *testing.T, m Machine) {
	s := opened(t, m, m.Target)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if state, err := s.Observe(ctx); err == nil || state != api.PowerUnknown {
		t.Errorf("observe: got %s, %v", state, err)
	}
	for name, err := range map[string]error{"on": s.On(ctx, power.BootDevice{}), "off": s.Off(ctx), "shutdown": s.Shutdown(ctx)} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if m.State != nil && m.State(t) != api.PowerOff {
		t.Error("it went on")
	}
}

func wrongPassword(t *testing.T, m Machine) {
	needs.Ability(t, m.Target.Credentials.User != "", "authentication by password")
	const wrong = "not-it-7c1d"
	refused := []power.Credentials{{User: m.Target.Credentials.User, Password: wrong}}
	if !m.SilentToStrangers {
		refused = append(refused, power.Credentials{User: "nobody", Password: m.Target.Credentials.Password})
	}
	for _, credentials := range refused {
		target := m.Target
		target.Credentials = credentials
		s := opened(t, m, target)
		state, err := s.Observe(limited(t))
		if !errors.Is(err, power.ErrCredentials) || state != api.PowerUnknown {
			t.Errorf("user %q: got %s, %v", credentials.User, state, err)
		}
		if err != nil && (strings.Contains(err.Error(), wrong) || strings.Contains(err.Error(), m.Target.Credentials.Password)) {
			t.Errorf("the error contains a password: %v", err)
		}
		if err := s.On(limited(t), power.BootDevice{}); !errors.Is(err, power.ErrCredentials) {
			t.Errorf("on: got %v", err)
		}
	}
	m.want(t, opened(t, m, m.Target), api.PowerOff)
}

func badPeers(t *testing.T, m Machine) {
	needs.Ability(t, m.Peer != nil, "a BMC")
	for name, address := range badAddresses(t, m.Datagrams) {
		s := opened(t, m, m.Peer(m.Target, address))
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		state, err := s.Observe(ctx)
		if err == nil || state != api.PowerUnknown {
			t.Errorf("%s: got %s, %v", name, state, err)
		}
		if !strings.HasPrefix(name, "nonsense") && !errors.Is(err, power.ErrUnreachable) {
			t.Errorf("%s: got %v", name, err)
		}
		if err := s.On(ctx, power.BootDevice{}); err == nil {
			t.Errorf("%s: on succeeded", name)
		}
		cancel()
	}
}

func atOnce(t *testing.T, m Machine) {
	s := opened(t, m, m.Target)
	needs.Ability(t, s.Abilities().Observes, "sessions")
	gate := power.NewGate(power.GateOptions{})
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			err := gate.Observe(t.Context(), power.KeyOf("uid", m.Target), power.OrderDeadline, func(ctx context.Context) error {
				_, err := s.Observe(ctx)
				if m.Sessions != nil {
					if n := m.Sessions(t); n != 0 {
						t.Errorf("%d sessions are open after an operation", n)
					}
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	for range 10 { // without the gate too
		all.Go(func() {
			if _, err := s.Observe(limited(t)); err != nil && !errors.Is(err, power.ErrBusy) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if m.Sessions != nil {
		if n := m.Sessions(t); n != 0 {
			t.Errorf("%d sessions are open at the end", n)
		}
	}
}

func printed(t *testing.T, m Machine) {
	const secret = "s3cret-94af"
	target := m.Target
	target.Credentials.Password = secret
	s := opened(t, m, target)
	text, err := json.Marshal(target)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{
		fmt.Sprintf("%v %+v %#v %s %q", target, target, target, target, target), fmt.Sprintf("%v %+v %#v %s %q", s, s, s, s, s), string(text),
	} {
		if strings.Contains(form, secret) {
			t.Errorf("printed with the password: %s", form)
		}
	}
}
