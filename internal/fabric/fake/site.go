package fake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Tables are what a fabric's switches and subnet managers have in memory. They outlive the executors that change them. The zero value
// is ready for use.
type Tables struct {
	mu     sync.Mutex
	ports  map[entry]bool // to whether the membership is limited
	stuck  map[string]bool
	blind  map[string]string
	manual bool
	full   map[string]int // how many networks a place has room for; without one, any number
	own    map[int]bool   // networks of the operator's
	alarms []site.Alarm
	open   bool // no key protects it
	newest lifecycle.Epoch
	// queued are desired states that the fabric has accepted and that are not in force, oldest first.
	queued []order
}

// entry is one place in one network.
type entry struct {
	network int
	at      string
}

// order is a desired state on its way.
type order struct {
	epoch    lifecycle.Epoch
	executor *Site
	want     map[entry]bool
}

// Delay keeps desired states from coming into force until Settle.
func (t *Tables) Delay() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.manual = true
}

// Settle brings all desired states into force, and later ones at once.
func (t *Tables) Settle() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.manual = false
	t.settle()
}

// Step brings the oldest desired state into force that is not.
func (t *Tables) Step() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queued) > 0 {
		rest := t.queued[1:]
		t.queued = t.queued[:1]
		t.settle()
		t.queued = rest
	}
}

// Networks are all ports that are in networks, also at places that can't be read.
func (t *Tables) Networks() []site.Network {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.networks(func(string) bool { return true })
}

// Plant puts a network on a place, as somebody else would.
func (t *Tables) Plant(network int, at string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.set(entry{network, at}, false)
}

// Stick makes a place keep what networks it has; with false it lets go of them at the next Apply.
func (t *Tables) Stick(at string, on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stuck == nil {
		t.stuck = map[string]bool{}
	}
	t.stuck[at] = on
}

// Blind makes a place unreadable for this reason; "" ends that.
func (t *Tables) Blind(at, why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.blind == nil {
		t.blind = map[string]string{}
	}
	t.blind[at] = why
	if why == "" {
		delete(t.blind, at)
	}
}

// Bound limits how many networks a place has room for.
func (t *Tables) Bound(at string, networks int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.full == nil {
		t.full = map[string]int{}
	}
	t.full[at] = networks
}

// Own makes a network the operator's: nobody else can have its number.
func (t *Tables) Own(network int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.own == nil {
		t.own = map[int]bool{}
	}
	t.own[network] = true
}

// Alarm makes these the fabric's alarms.
func (t *Tables) Alarm(alarms ...site.Alarm) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.alarms = alarms
}

// Unguard takes the keys away that protect the fabric.
func (t *Tables) Unguard() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.open = true
}

// check is what Check and Apply refuse; the lock is held.
func (t *Tables) check(networks []site.Network) error {
	if err := site.Validate(networks); err != nil {
		return err
	}
	at := map[string]int{}
	for _, n := range networks {
		if t.own[n.Number] {
			return &site.Refusal{Number: n.Number, Err: fmt.Errorf("network %d is the operator's", n.Number)}
		}
		for _, p := range n.Ports {
			at[p.At]++
			if room, bounded := t.full[p.At]; bounded && at[p.At] > room {
				return &site.Refusal{Err: fmt.Errorf("port %s has room for %d networks", p.At, room)}
			}
		}
	}
	return nil
}

func (t *Tables) set(e entry, limited bool) {
	if t.ports == nil {
		t.ports = map[entry]bool{}
	}
	t.ports[e] = limited
}

// settle carries out all that is queued, in order. An order with a place that keeps what it should lose does not come into force.
func (t *Tables) settle() {
	for _, o := range t.queued {
		whole := true
		for e := range t.ports {
			switch _, wanted := o.want[e]; {
			case wanted:
			case t.stuck[e.at]:
				whole = false
			default:
				delete(t.ports, e)
			}
		}
		for e, limited := range o.want {
			t.set(e, limited)
		}
		if whole {
			o.executor.inForce = o.epoch
		}
	}
	t.queued = nil
}

// Site is an executor on Tables. It implements site.Site.
type Site struct {
	tables *Tables
	fail   map[string]error
	// inForce is the newest desired state of this executor's that is wholly in force.
	inForce lifecycle.Epoch
}

var (
	_ site.Site     = (*Site)(nil)
	_ site.Checker  = (*Site)(nil)
	_ site.Governed = (*Site)(nil)
	_ site.Guarded  = (*Site)(nil)
)

// NewSite makes an executor; several may be made, one after the other, as a server is restarted.
func NewSite(tables *Tables) *Site { return &Site{tables: tables, fail: map[string]error{}} }

// Fail makes every later call of the named method (Apply, Observe, Check) return err; nil ends that.
func (s *Site) Fail(method string, err error) {
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	s.fail[method] = err
}

// Switches is an executor as on the switches of an Ethernet. It implements site.Switching.
type Switches struct {
	*Site
	// Managed are the ports; a true one is a provisioning port.
	Managed map[string]bool
}

var _ site.Switching = Switches{}

// Places implements site.Switching.
func (s Switches) Places() map[string]bool { return maps.Clone(s.Managed) }

// IsolatedNumber is that of the network of isolated provisioning ports.
const IsolatedNumber = 4096

// Isolated implements site.Switching.
func (s Switches) Isolated() int { return IsolatedNumber }

// Apply tells the fabric.
func (s *Site) Apply(ctx context.Context, epoch lifecycle.Epoch, networks []site.Network) error {
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := errors.Join(ctx.Err(), s.fail["Apply"]); err != nil {
		return err
	}
	if err := t.check(networks); err != nil {
		return err
	}
	if err := t.newest.Accept(epoch); err != nil {
		return fmt.Errorf("%w: %w", site.ErrStale, err)
	}
	t.newest = epoch
	want := map[entry]bool{}
	for _, n := range networks {
		for _, p := range n.Ports {
			want[entry{n.Number, p.At}] = p.Limited
		}
	}
	t.queued = append(t.queued, order{epoch, s, want})
	if !t.manual {
		t.settle()
	}
	return nil
}

// Managers implements site.Governed: there is none.
func (s *Site) Managers() []api.SubnetManager { return nil }

// Alarms implements site.Governed.
func (s *Site) Alarms() []site.Alarm {
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	return slices.Clone(s.tables.alarms)
}

// Guarded implements site.Guarded.
func (s *Site) Guarded() bool {
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	return !s.tables.open
}

// Check implements site.Checker.
func (s *Site) Check(networks []site.Network) error {
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := s.fail["Check"]; err != nil {
		return err
	}
	return t.check(networks)
}

// Observe reads the tables.
func (s *Site) Observe(ctx context.Context) (site.Observation, error) {
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := errors.Join(ctx.Err(), s.fail["Observe"]); err != nil {
		return site.Observation{}, err
	}
	seen := site.Observation{Epoch: s.inForce, Unknown: maps.Clone(t.blind)}
	seen.Networks = t.networks(func(at string) bool {
		_, blind := t.blind[at]
		return !blind
	})
	return seen, nil
}

// networks are the ports of the places that can be seen; the lock is held.
func (t *Tables) networks(seen func(at string) bool) []site.Network {
	byNumber := map[int][]site.Port{}
	for e, limited := range t.ports {
		if seen(e.at) {
			byNumber[e.network] = append(byNumber[e.network], site.Port{At: e.at, Limited: limited})
		}
	}
	var all []site.Network
	for _, number := range slices.Sorted(maps.Keys(byNumber)) {
		ports := byNumber[number]
		slices.SortFunc(ports, func(a, b site.Port) int { return cmp.Compare(a.At, b.At) })
		all = append(all, site.Network{Number: number, Ports: ports})
	}
	return all
}
