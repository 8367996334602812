package ethernet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Switch is one switch, or what stands in for one. Its methods may be called at once by several goroutines and processes.
type Switch interface {
	// Apply makes ports what they are to be, and notes the epoch with the switch, in one step that a later epoch excludes. Ports that are not named are
	// not touched, nor is a port that the switch lacks. It returns site.ErrStale, and changes nothing, after a later epoch.
	Apply(ctx context.Context, epoch lifecycle.Epoch, ports map[string]State) error
	// Read reads the named ports.
	Read(ctx context.Context, ports []string) (Reading, error)
}

// Reading is what a switch says.
type Reading struct {
	// Epoch is the newest that was applied to the switch.
	Epoch lifecycle.Epoch
	// Ports are those that could be read.
	Ports map[string]State
	// Unknown says why a port could not be read, or is nothing that this product makes.
	Unknown map[string]string
}

const (
	// switchTimeout bounds what one switch is waited for, so that a silent one does not use up the others' time.
	switchTimeout = 10 * time.Second
	// silentTimeout is for one that did not answer last: all others wait for it each time.
	silentTimeout = 2 * time.Second
)

// Site is an executor on the switches of one fabric. It implements site.Site.
//
// A switch that does not answer, or that has not applied the newest desired state, keeps no other from being changed and read: its own ports are unknown.
type Site struct {
	settings Settings
	places   map[string]bool
	switches map[string]Switch

	mu      sync.Mutex
	epoch   lifecycle.Epoch // of this executor's newest Apply; zero before
	wanted  map[string]map[string]State
	inForce lifecycle.Epoch
	// silent is why switches did not answer last.
	silent map[string]error
}

var (
	_ site.Site      = (*Site)(nil)
	_ site.Checker   = (*Site)(nil)
	_ site.Governed  = (*Site)(nil)
	_ site.Switching = (*Site)(nil)
)

// New makes an executor. Switches are by name, one for each of the settings. It asks nothing of them.
func New(settings Settings, switches map[string]Switch) (*Site, error) {
	for _, sw := range settings.Switches {
		if switches[sw.Name] == nil {
			return nil, fmt.Errorf("switch %s has no control", sw.Name)
		}
	}
	return &Site{settings: settings, places: settings.Places(), switches: switches, silent: map[string]error{}}, nil
}

// Check implements site.Checker.
func (s *Site) Check(networks []site.Network) error { return s.settings.Check(networks) }

// Isolated implements site.Switching.
func (s *Site) Isolated() int { return Isolated }

// Places implements site.Switching.
func (s *Site) Places() map[string]bool { return s.places }

// Managers implements site.Governed: an Ethernet has none.
func (s *Site) Managers() []api.SubnetManager { return nil }

// Alarms implements site.Governed.
func (s *Site) Alarms() []site.Alarm {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []site.Alarm
	for _, name := range slices.Sorted(maps.Keys(s.silent)) {
		all = append(all, site.Alarm{Kind: site.SwitchSilent, Subject: name, Message: fmt.Sprintf("switch %s can't be managed, its ports stay as they are: %v", name, s.silent[name])})
	}
	return all
}

// each does something with all switches at once, and returns the errors by switch. The lock is held.
func (s *Site) each(ctx context.Context, do func(ctx context.Context, sw *SwitchSettings, control Switch) error) map[string]error {
	var mu sync.Mutex
	var all sync.WaitGroup
	failed := map[string]error{}
	for i := range s.settings.Switches {
		sw := &s.settings.Switches[i]
		wait := switchTimeout
		if s.silent[sw.Name] != nil {
			wait = silentTimeout
		}
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			if err := do(ctx, sw, s.switches[sw.Name]); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed[sw.Name] = err
			}
		})
	}
	all.Wait()
	return failed
}

// read reads all switches at once.
func (s *Site) read(ctx context.Context) (readings map[string]Reading, failed map[string]error, err error) {
	var mu sync.Mutex
	readings = map[string]Reading{}
	failed = s.each(ctx, func(ctx context.Context, sw *SwitchSettings, control Switch) error {
		r, err := control.Read(ctx, slices.Concat(sw.Ports, sw.ProvisioningPorts))
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		readings[sw.Name] = r
		return nil
	})
	return readings, failed, cmp.Or(ctx.Err(), s.noneLeft(failed))
}

// noneLeft is an error when every switch has failed.
func (s *Site) noneLeft(failed map[string]error) error {
	if len(failed) < len(s.settings.Switches) {
		return nil
	}
	var all []error
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		all = append(all, fmt.Errorf("switch %s: %w", name, failed[name]))
	}
	return errors.Join(all...)
}

// Apply tells all switches that answer. Of a switch that knows a later epoch, and of no other either, is anything changed then.
func (s *Site) Apply(ctx context.Context, epoch lifecycle.Epoch, networks []site.Network) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.admit(networks); err != nil {
		return err
	}
	readings, failed, err := s.read(ctx)
	s.silent = failed
	if err != nil {
		return err
	}
	for name, r := range readings {
		if err := r.Epoch.Accept(epoch); err != nil {
			return fmt.Errorf("%w: switch %s: %w", site.ErrStale, name, err)
		}
	}
	s.epoch, s.wanted = epoch, s.settings.desired(networks)
	s.silent = s.each(ctx, func(ctx context.Context, sw *SwitchSettings, control Switch) error {
		if err := failed[sw.Name]; err != nil {
			return err
		}
		return control.Apply(ctx, epoch, s.wanted[sw.Name])
	})
	for name, err := range s.silent {
		if errors.Is(err, site.ErrStale) {
			return fmt.Errorf("switch %s: %w", name, err)
		}
	}
	return cmp.Or(ctx.Err(), s.noneLeft(s.silent))
}

// admit is Check without what a change of the settings may have made impossible since: a port that was taken out of them keeps no other from its network.
func (s *Site) admit(networks []site.Network) error {
	if err := site.Validate(networks); err != nil {
		return err
	}
	var managed []site.Network
	for _, n := range networks {
		ports := slices.DeleteFunc(slices.Clone(n.Ports), func(p site.Port) bool { _, is := s.places[p.At]; return !is })
		n.Ports = ports
		managed = append(managed, n)
	}
	return s.settings.Check(managed)
}

// Observe reads all switches.
func (s *Site) Observe(ctx context.Context) (site.Observation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return site.Observation{}, err
	}
	readings, failed, err := s.read(ctx)
	for name, why := range failed {
		s.silent[name] = why
	}
	if err != nil {
		return site.Observation{}, err
	}
	seen := site.Observation{Unknown: map[string]string{}, Managed: map[string]bool{}}
	by, whole := map[int][]site.Port{}, s.epoch != lifecycle.Epoch{}
	for i := range s.settings.Switches {
		sw := &s.settings.Switches[i]
		r := readings[sw.Name]
		why := s.untold(r)
		if err := failed[sw.Name]; err != nil {
			why = fmt.Sprintf("switch %s can't be read: %v", sw.Name, err)
		}
		whole = whole && (why != "" || r.Epoch == s.epoch)
		for _, port := range slices.Concat(sw.Ports, sw.ProvisioningPorts) {
			at := Place(sw.Name, port)
			seen.Managed[at] = true
			if problem := cmp.Or(why, r.Unknown[port]); problem != "" {
				seen.Unknown[at] = problem
				continue
			}
			is, read := r.Ports[port]
			if !read {
				seen.Unknown[at] = "the switch did not tell of it"
				continue
			}
			whole = whole && is == s.wanted[sw.Name][port]
			if number, limited, in := s.settings.network(sw, port, is); in {
				by[number] = append(by[number], site.Port{At: at, Limited: limited})
			}
		}
	}
	if whole {
		s.inForce = s.epoch
	}
	seen.Epoch, seen.Networks = s.inForce, networksOf(by)
	return seen, nil
}

// untold is why a switch's ports prove nothing yet: it has not taken what this executor has told the others.
func (s *Site) untold(r Reading) string {
	if s.epoch != (lifecycle.Epoch{}) && r.Epoch != s.epoch && r.Epoch.Accept(s.epoch) == nil {
		return "its switch has not applied the newest desired state"
	}
	return ""
}
