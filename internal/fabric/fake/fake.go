// Package fake is a fabric in memory for tests of what stands above it: it behaves like a real one (fabrictest is run against
// both), touches nothing, and can be told to fail. It must never be used outside of tests.
package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Fabric is a fabric in memory. The zero value is ready for use.
type Fabric struct {
	mu       sync.Mutex
	networks []fabric.Network
	attached map[string]driver.Port
	fail     map[string]error
}

var _ fabric.Fabric = (*Fabric)(nil)

// Fail makes every later call of the named method (Apply, Audit, Probe, Attach, Detach) return err; nil ends that.
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

// Attached returns the ports that are attached, by member ID.
func (f *Fabric) Attached() map[string]driver.Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	ports := make(map[string]driver.Port, len(f.attached))
	for id, port := range f.attached {
		ports[id] = port
	}
	return ports
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
	f.networks = slices.Clone(networks)
	for id, port := range f.attached {
		if fabric.FindPort(networks, port) != nil {
			delete(f.attached, id)
		}
	}
	return nil
}

// Audit finds no drift: nothing but this process changes its memory.
func (f *Fabric) Audit(ctx context.Context) ([]fabric.Drift, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return nil, errors.Join(ctx.Err(), f.fail["Audit"])
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

// Attach remembers the port.
func (f *Fabric) Attach(ctx context.Context, port driver.Port) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.fail["Attach"]); err != nil {
		return err
	}
	if err := fabric.FindPort(f.networks, port); err != nil {
		return fmt.Errorf("attaching %s: %w", port.ID, err)
	}
	if f.attached == nil {
		f.attached = map[string]driver.Port{}
	}
	f.attached[port.ID] = port
	return nil
}

// Detach forgets the port.
func (f *Fabric) Detach(ctx context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := errors.Join(ctx.Err(), f.fail["Detach"]); err != nil {
		return err
	}
	delete(f.attached, id)
	return nil
}
