package ethernet

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// memory is a switch that keeps what it is told, and may be silent, or deaf for changes.
type memory struct {
	mu     sync.Mutex
	epoch  lifecycle.Epoch
	ports  map[string]State
	silent error
	deaf   bool
}

func (m *memory) Apply(_ context.Context, epoch lifecycle.Epoch, ports map[string]State) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.silent != nil {
		return m.silent
	}
	if err := m.epoch.Accept(epoch); err != nil {
		return errors.Join(site.ErrStale, err)
	}
	if m.deaf {
		return errors.New("it takes no changes")
	}
	m.epoch, m.ports = epoch, ports
	return nil
}

func (m *memory) Read(context.Context, []string) (Reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Reading{Epoch: m.epoch, Ports: m.ports}, m.silent
}

func twoSwitches(t *testing.T) (s *Site, leaf1, leaf2 *memory) {
	t.Helper()
	settings, err := Parse([]byte(good), "/d")
	if err != nil {
		t.Fatal(err)
	}
	leaf1, leaf2 = &memory{}, &memory{}
	if s, err = New(settings, map[string]Switch{"leaf1": leaf1, "leaf2": leaf2}); err != nil {
		t.Fatal(err)
	}
	return s, leaf1, leaf2
}

func applied(t *testing.T, s *Site, revision int64, networks ...site.Network) site.Observation {
	t.Helper()
	if err := s.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: revision}, networks); err != nil {
		t.Fatal(err)
	}
	seen, err := s.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

var both = site.Network{Number: 100, Ports: []site.Port{{At: "leaf1/swp1"}, {At: "leaf2/swp1"}}}

func TestASilentSwitchKeepsNoOtherFromItsNetworks(t *testing.T) {
	s, _, leaf2 := twoSwitches(t)
	applied(t, s, 1, both)
	leaf2.silent = errors.New("no route to host")
	seen := applied(t, s, 2)
	second := lifecycle.Epoch{Term: 1, Revision: 2}
	if err := seen.Clean(second, 100, "leaf1/swp1"); err != nil {
		t.Errorf("the port of the switch that answers: %v", err)
	}
	if err := seen.Clean(second, 100, "leaf2/swp1"); err == nil || !strings.Contains(err.Error(), "switch leaf2 can't be read: no route to host") {
		t.Errorf("the port of the silent switch: %v", err)
	}
	if alarms := s.Alarms(); len(alarms) != 1 || alarms[0].Key() != "switch_silent leaf2" || !strings.Contains(alarms[0].Message, "no route to host") {
		t.Errorf("alarms: %+v", alarms)
	}
	// It answers again, and still has what it had: it was not told.
	leaf2.silent = nil
	seen, err := s.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := seen.Clean(second, 100, "leaf2/swp1"); err == nil || !strings.Contains(err.Error(), "its switch has not applied the newest desired state") {
		t.Errorf("the port of a switch that was not told: %v", err)
	}
	seen = applied(t, s, 2)
	if err := seen.Clean(second, 100, "leaf2/swp1"); err != nil || len(s.Alarms()) != 0 {
		t.Errorf("after it was told: %v, alarms %v", err, s.Alarms())
	}
}

func TestAPortIsNotCleanBecauseItsSwitchWasNotTold(t *testing.T) {
	s, _, leaf2 := twoSwitches(t)
	applied(t, s, 1)
	leaf2.deaf = true
	seen := applied(t, s, 2)
	if err := seen.Clean(lifecycle.Epoch{Term: 1, Revision: 2}, 100, "leaf2/swp1"); err == nil {
		t.Error("an order of an earlier time may still be on its way to it")
	}
	if err := seen.Clean(lifecycle.Epoch{Term: 1, Revision: 2}, 100, "leaf1/swp1"); err != nil {
		t.Error(err)
	}
}

func TestNothingIsChangedWhereOneSwitchKnowsALaterLeader(t *testing.T) {
	s, leaf1, leaf2 := twoSwitches(t)
	applied(t, s, 1, both)
	leaf2.epoch = lifecycle.Epoch{Term: 2, Revision: 1}
	err := s.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 9}, nil)
	if !errors.Is(err, site.ErrStale) || leaf1.ports["swp1"].VLAN != 100 {
		t.Errorf("got %v, and the other switch has %+v", err, leaf1.ports)
	}
}

func TestWhereNoSwitchAnswersNothingWasRead(t *testing.T) {
	s, leaf1, leaf2 := twoSwitches(t)
	leaf1.silent, leaf2.silent = errors.New("off"), errors.New("off")
	_, err := s.Observe(t.Context())
	if err == nil || s.Apply(t.Context(), lifecycle.Epoch{Term: 1, Revision: 1}, nil) == nil || len(s.Alarms()) != 2 {
		t.Errorf("got %v, alarms %v", err, s.Alarms())
	}
}

func TestEachSwitchNeedsAControl(t *testing.T) {
	settings, err := Parse([]byte(good), "/d")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(settings, map[string]Switch{"leaf1": &memory{}}); err == nil || !strings.Contains(err.Error(), "switch leaf2 has no control") {
		t.Errorf("got %v", err)
	}
}
