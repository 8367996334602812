package sriov

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Drift is a difference between what an owner's function should be and what it was.
type Drift struct {
	Function fabric.Function
	Owner    fabric.FunctionOwner
	// Want and Got say what differs.
	Want, Got string
}

// Audit compares the functions that have owners with what their adapters report, and gives those that drifted their settings again: adapters forget
// them when their firmware recovers, and subnet managers move partition keys. It returns what it found, also where it could not be put right. A function
// that is gone stays its owner's until it is released.
func (m *Manager) Audit(ctx context.Context) ([]Drift, error) {
	var found []Drift
	var errs []error
	for _, h := range m.Holdings() {
		if h.Releasing || h.Function.Part == "" || m.quarantined(h.Function.Device) != nil {
			continue
		}
		drift, err := m.audit(ctx, h)
		if drift != nil {
			found = append(found, *drift)
		}
		errs = append(errs, err)
	}
	for _, pf := range m.ledger.adapters() {
		drift, err := m.auditFree(ctx, pf)
		found, errs = append(found, drift...), append(errs, err)
	}
	return found, errors.Join(errs...)
}

// auditFree audits the functions of an adapter that have no owner.
func (m *Manager) auditFree(ctx context.Context, pf string) ([]Drift, error) {
	unlock, err := m.lock(ctx, pf)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if m.quarantined(pf) != nil {
		return nil, nil
	}
	present, err := m.on(pf).number(pciDevices + pf + "/sriov_numvfs")
	if err != nil {
		if notThere(err) {
			return nil, nil
		}
		return nil, err
	}
	return m.tidy(ctx, pf, present)
}

// tidy takes from the functions of a locked adapter that have no owner what makes them somebody: mlx5 gives new functions the GUIDs that earlier ones
// of the same index had. It leaves alone what the node or other programs use.
func (m *Manager) tidy(ctx context.Context, pf string, present int) (found []Drift, err error) {
	var errs []error
	for index := range present {
		f := fabric.Function{Kind: api.PortVF, Device: pf, Part: fabric.Part(index)}
		r := m.ledger.get(f)
		if r.Owner != nil {
			continue
		}
		o := &operation{bounded: m.on(pf), f: f, index: index, record: r}
		if err := o.open(); err != nil || o.vf == nil {
			errs = append(errs, err)
			continue
		}
		if o.foreign(o.vf.FunctionState) != nil || o.adapter.Layer != InfiniBand {
			continue
		}
		was, err := o.identity()
		if err != nil || was == "" {
			errs = append(errs, err)
			continue
		}
		found = append(found, Drift{Function: f, Want: "no GUID", Got: "GUID " + was})
		errs = append(errs, o.defaults(ctx))
	}
	return found, errors.Join(errs...)
}

// identity returns the GUID that an InfiniBand function has, "" for none.
func (o *operation) identity() (string, error) {
	if o.adapter.Driver == driverMLX4 {
		gid, err := o.read(o.iov(fmt.Sprintf("ports/1/gids/%d", o.slave())))
		return guidOf(gid), err
	}
	r, err := o.reported()
	return r.GUID, err
}

func (m *Manager) audit(ctx context.Context, h Holding) (*Drift, error) {
	drift := &Drift{Function: h.Function, Owner: h.Owner, Want: "present", Got: "gone"}
	o, err := m.held(ctx, h.Owner, h.Function)
	switch {
	case errors.Is(err, fabric.ErrNoFunction):
		return drift, nil
	case errors.Is(err, fabric.ErrFunctionOutdated), errors.Is(err, fabric.ErrFunctionHeld):
		return nil, nil // it was released since
	case err != nil:
		return nil, err
	}
	defer o.end()
	drift.Want, drift.Got, err = o.difference(o.record.Settings)
	if err != nil || drift.Want == drift.Got {
		return nil, err
	}
	return drift, o.settings(ctx, o.record.Settings)
}

// difference returns the settings that should be and those that are, in words.
func (o *operation) difference(s fabric.FunctionSettings) (want, got string, err error) {
	if o.adapter.Layer == InfiniBand && o.adapter.Driver == driverMLX4 {
		return o.aliasDifference(s)
	}
	now, err := o.reported()
	if err != nil {
		return "", "", err
	}
	settings, wanted := o.wanted(s)
	var wants, gots []string
	for _, setting := range settings {
		if !same(now, wanted, setting, false) {
			wants = append(wants, fmt.Sprintf("%s %s", setting, orNone(wanted.text(setting))))
			gots = append(gots, fmt.Sprintf("%s %s", setting, orNone(now.text(setting))))
		}
	}
	return strings.Join(wants, ", "), strings.Join(gots, ", "), nil
}

func (o *operation) aliasDifference(s fabric.FunctionSettings) (want, got string, err error) {
	gid, err := o.read(o.iov(fmt.Sprintf("ports/1/gids/%d", o.slave())))
	if err != nil {
		return "", "", err
	}
	keys, err := o.mapped()
	if err != nil {
		return "", "", err
	}
	var wanted []int
	if s.PKey != 0 {
		key := s.PKey
		if !s.Limited {
			key |= fullMember
		}
		wanted = []int{key}
	}
	if guidOf(gid) == s.GUID && slices.Equal(keys, wanted) {
		return "", "", nil
	}
	return fmt.Sprintf("GUID %s, partition keys %#04x", orNone(s.GUID), wanted), fmt.Sprintf("GUID %s, partition keys %#04x", orNone(guidOf(gid)), keys), nil
}
