// Package simulated hands out an adapter of a simulated InfiniBand fabric: one whole port, which carries no data.
//
// It is for development, where package ibsim plays the fabric: there the partitions of the port are real, and its owner is one at a time and on disk
// as with a real adapter (package sriov), but there is no network interface, no RDMA device and no virtual function. Members get none, and virtual
// machines get no port. It must never be used beside real adapters. Start with Open.
package simulated

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/durablefile"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Device is the address of the adapter. No machine has one there: it is in the last PCI domain.
const Device = "ffff:00:00.0"

// driverName stands for a driver.
const driverName = "simulated"

// maxReleased bounds the owners that are remembered.
const maxReleased = 64

// Adapter is the adapter. Its methods may be called at once by several goroutines.
type Adapter struct {
	cell, guid string
	path       string

	mu     sync.Mutex
	record record
}

// record is what outlasts the process.
type record struct {
	// Owner holds the port; nil: it is free. Settings are those that it asked for.
	Owner    *fabric.FunctionOwner   `json:"owner,omitempty"`
	Settings fabric.FunctionSettings `json:"settings"`
	// Released are owners that it had, the latest last: their orders may still come, late.
	Released []fabric.FunctionOwner `json:"released,omitempty"`
}

var _ fabric.Functions = (*Adapter)(nil)

// Open returns the adapter whose port has a GUID in a cell, with the owner that it had. It is kept below dir.
func Open(dir, cell, guid string) (*Adapter, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the owner of the simulated adapter can't be kept: %w", err)
	}
	a := &Adapter{cell: cell, guid: guid, path: filepath.Join(dir, "simulated.json")}
	data, err := os.ReadFile(a.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a, nil
	case err != nil:
		return nil, err
	}
	if err := json.Unmarshal(data, &a.record); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; remove it if no member is on the simulated fabric", a.path, err)
	}
	return a, nil
}

// Offer is what members may have of it, and what is to be said of it.
func (a *Adapter) Offer(context.Context) ([]api.Device, []api.Adapter, error) {
	one := map[string]int64{"port": 1}
	device := api.Device{
		ID: Device, Class: api.ClassHCA, NUMANode: -1, Cell: a.cell, GUID: a.guid, Counters: one,
		Ways: map[string]api.DeviceWay{string(api.InterfacePF): {Mode: "whole", Takes: one}},
	}
	shown := api.Adapter{ID: Device, Cell: a.cell, NUMANode: -1, LinkLayer: "InfiniBand", GUID: a.guid, Up: true, Problems: []string{"it is simulated: it carries no data, and members get no interface of it"}}
	return []api.Device{device}, []api.Adapter{shown}, nil
}

// Assign makes the port the owner's.
func (a *Adapter) Assign(_ context.Context, owner fabric.FunctionOwner, f fabric.Function, s fabric.FunctionSettings) (fabric.FunctionState, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.is(f); err != nil {
		return fabric.FunctionState{}, err
	}
	if s.GUID != a.guid {
		return fabric.FunctionState{}, fmt.Errorf("%w: its port has GUID %s, not %s", fabric.ErrFunctionUnfit, a.guid, s.GUID)
	}
	switch was := a.record.Owner; {
	case was != nil && was.Assignment != owner.Assignment:
		return fabric.FunctionState{}, fmt.Errorf("%w: assignment %s has %s", fabric.ErrFunctionHeld, was.Assignment, f)
	case a.released(owner) || was != nil && was.Generation > owner.Generation:
		return fabric.FunctionState{}, fmt.Errorf("%w: assignment %s had %s before", fabric.ErrFunctionOutdated, owner.Assignment, f)
	}
	if err := a.keep(record{Owner: &owner, Settings: s, Released: a.record.Released}); err != nil {
		return fabric.FunctionState{}, err
	}
	return state(), nil
}

// Bind reports that it has a driver. No virtual machine can have it.
func (a *Adapter) Bind(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function, driver string) (fabric.FunctionState, error) {
	if driver != fabric.DriverNative {
		return fabric.FunctionState{}, fmt.Errorf("%w: it is simulated, and only containers can be on it", fabric.ErrFunctionUnfit)
	}
	return a.Look(ctx, owner, f)
}

// Look returns its state, to its owner.
func (a *Adapter) Look(_ context.Context, owner fabric.FunctionOwner, f fabric.Function) (fabric.FunctionState, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.is(f); err != nil {
		return fabric.FunctionState{}, err
	}
	if a.record.Owner == nil || a.record.Owner.Assignment != owner.Assignment {
		return fabric.FunctionState{}, fmt.Errorf("%w: assignment %s does not hold %s", fabric.ErrFunctionOutdated, owner.Assignment, f)
	}
	return state(), nil
}

// Reset has nothing to reset.
func (a *Adapter) Reset(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function) error {
	_, err := a.Look(ctx, owner, f)
	return err
}

// Release makes it nobody's, if it is the owner's. Its partitions are the fabric's, which proves by itself that they are gone.
func (a *Adapter) Release(_ context.Context, owner fabric.FunctionOwner, f fabric.Function) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.is(f); err != nil {
		return err
	}
	next := a.record
	if next.Owner != nil && next.Owner.Assignment == owner.Assignment {
		next.Owner, next.Settings = nil, fabric.FunctionSettings{}
	} else if a.released(owner) {
		return nil
	}
	next.Released = append(slices.Clone(next.Released), owner)
	next.Released = next.Released[max(0, len(next.Released)-maxReleased):]
	return a.keep(next)
}

// Readmit forgets that an assignment gave it back.
func (a *Adapter) Readmit(_ context.Context, assignment string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.released(fabric.FunctionOwner{Assignment: assignment}) {
		return nil
	}
	next := a.record
	next.Released = slices.DeleteFunc(slices.Clone(next.Released), func(o fabric.FunctionOwner) bool { return o.Assignment == assignment })
	return a.keep(next)
}

// Held returns the port while it is an assignment's.
func (a *Adapter) Held(assignment string) []fabric.Function {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.record.Owner == nil || a.record.Owner.Assignment != assignment {
		return nil
	}
	return []fabric.Function{{Kind: api.PortPF, Device: Device, GUID: a.guid}}
}

// released reports whether an owner gave it back before.
func (a *Adapter) released(owner fabric.FunctionOwner) bool {
	return slices.ContainsFunc(a.record.Released, func(o fabric.FunctionOwner) bool { return o.Assignment == owner.Assignment })
}

func (a *Adapter) is(f fabric.Function) error {
	if f.Device != Device || f.Kind != api.PortPF || f.Part != "" {
		return fmt.Errorf("%w: the node has the whole port of simulated adapter %s only, not %s", fabric.ErrNoFunction, Device, f)
	}
	return nil
}

func state() fabric.FunctionState {
	return fabric.FunctionState{PCI: Device, Driver: driverName, Simulated: true}
}

// keep makes a record the adapter's once it is on disk.
func (a *Adapter) keep(r record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := durablefile.Write(a.path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("the owner of the simulated adapter can't be kept: %w", err)
	}
	a.record = r
	return nil
}
