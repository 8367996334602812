// Package fake is a fabric in memory for tests of the packages above it. It behaves like a real fabric (fabrictest runs against both),
// touches nothing, and can be scripted to fail. It must never be used outside of tests.
package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Fabric is a fabric in memory. The zero value is ready for use.
type Fabric struct {
	mu       sync.Mutex
	networks []fabric.Network
	sealing  []fabric.Tunnel
	sealed   []fabric.Tunnel
	attached map[string]Attachment
	fail     map[string]error
	drift    []fabric.Drift
	counters map[string]api.PortCounters
}

// Attachment is a port that is attached.
type Attachment struct {
	Port  fabric.Port
	Place fabric.Place
}

var _ fabric.Fabric = (*Fabric)(nil)

// Fail makes every later call of the named method (Apply, Audit, Probe, Count, Meet, Attach, Detach) return err; nil ends that.
func (f *Fabric) Fail(method string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail == nil {
		f.fail = map[string]error{}
	}
	f.fail[method] = err
}

// Networks returns the networks last applied.
func (f *Fabric) Networks() []fabric.Network {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.networks)
}

// Attached returns what is attached, by port ID.
func (f *Fabric) Attached() map[string]Attachment {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.attached)
}

// Apply remembers the networks and forgets the ports that are not in them.
func (f *Fabric) Apply(ctx context.Context, networks []fabric.Network) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.fail["Apply"]); err != nil {
		return err
	}
	if err := fabric.Validate(networks); err != nil {
		return err
	}
	if err := fabric.ValidateTunnels(f.sealing, networks); err != nil {
		return err
	}
	f.networks, f.sealed, f.drift = slices.Clone(networks), f.sealing, nil
	maps.DeleteFunc(f.attached, func(_ string, a Attachment) bool {
		_, err := fabric.FindPort(networks, a.Port)
		return err != nil
	})
	return nil
}

// Seal remembers the tunnels for the next Apply.
func (f *Fabric) Seal(tunnels []fabric.Tunnel) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sealing = slices.Clone(tunnels)
}

// Sealed returns the tunnels of the last Apply.
func (f *Fabric) Sealed() []fabric.Tunnel {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.sealed)
}

// SetDrift is what Audit finds from now on, until networks are applied.
func (f *Fabric) SetDrift(drift ...fabric.Drift) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drift = drift
}

// Audit finds the drift that was set: nothing but this process changes its memory.
func (f *Fabric) Audit(ctx context.Context) ([]fabric.Drift, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.drift), errors.Join(ctx.Err(), f.fail["Audit"])
}

// Probe finds the ports that are not attached.
func (f *Fabric) Probe(ctx context.Context) (map[string]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	wrong := map[string]string{}
	for _, n := range f.networks {
		for _, p := range n.Ports {
			if _, ok := f.attached[p.ID]; !ok {
				wrong[p.ID] = "its network port is gone"
			}
		}
	}
	return wrong, errors.Join(ctx.Err(), f.fail["Probe"])
}

// SetCounters is what Count returns for a port that is attached.
func (f *Fabric) SetCounters(id string, counters api.PortCounters) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counters == nil {
		f.counters = map[string]api.PortCounters{}
	}
	f.counters[id] = counters
}

// Count returns the counters that were set.
func (f *Fabric) Count(ctx context.Context) (map[string]api.PortCounters, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	counted := map[string]api.PortCounters{}
	for id := range f.attached {
		counted[id] = f.counters[id]
	}
	return counted, errors.Join(ctx.Err(), f.fail["Count"])
}

// Meet hears every peer.
func (f *Fabric) Meet(ctx context.Context, network int, _ uint64) ([]fabric.Meeting, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.fail["Meet"]); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(f.networks, func(n fabric.Network) bool { return n.Index == network })
	if i < 0 {
		return nil, fmt.Errorf("network %d: %w", network, fabric.ErrNoNetwork)
	}
	var heard []fabric.Meeting
	for _, peer := range f.networks[i].Peers() {
		heard = append(heard, fabric.Meeting{Peer: peer, Small: true, Full: true, FullBytes: 1500})
	}
	return heard, nil
}

// Attach remembers the port and its place, of whichever kind it is.
func (f *Fabric) Attach(ctx context.Context, port fabric.Port, place fabric.Place) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.fail["Attach"]); err != nil {
		return err
	}
	if err := place.Validate(); err != nil {
		return fmt.Errorf("attaching %s: %w", port.ID, err)
	}
	if _, err := fabric.FindPort(f.networks, port); err != nil {
		return fmt.Errorf("attaching %s: %w", port.ID, err)
	}
	if f.attached == nil {
		f.attached = map[string]Attachment{}
	}
	f.attached[port.ID] = Attachment{port, place}
	return nil
}

// Detach forgets the port.
func (f *Fabric) Detach(ctx context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.fail["Detach"]); err != nil {
		return err
	}
	for portID := range f.attached {
		if fabric.AssignmentOf(portID) == id {
			delete(f.attached, portID)
		}
	}
	return nil
}
