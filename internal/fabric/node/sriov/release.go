package sriov

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Release makes the function free: without a driver, reset, and with its defaults.
func (m *Manager) Release(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function) error {
	if _, err := f.Index(); err != nil {
		return err
	}
	// Without a look at the adapter: what is not the caller's does not concern it, also where the adapter is gone or quarantined.
	if r := m.ledger.get(f); !r.heldBy(owner) {
		return m.remember(ctx, owner, f)
	}
	o, err := m.begin(ctx, f)
	if errors.Is(err, fabric.ErrNoFunction) {
		return m.gone(owner, f)
	}
	if err != nil {
		return err
	}
	defer o.end()
	r := &o.record
	if !r.heldBy(owner) { // another call was faster
		return nil
	}
	if owner.Generation < r.Owner.Generation {
		return fmt.Errorf("%w: generation %d of assignment %s, after generation %d", fabric.ErrFunctionOutdated, owner.Generation, owner.Assignment, r.Owner.Generation)
	}
	r.Owner.Generation, r.Releasing, r.Clean = owner.Generation, true, false
	if err := m.ledger.put(*r); err != nil {
		return err
	}
	if err := o.cleanse(ctx); err != nil {
		r.Problem = err.Error()
		return errors.Join(err, m.ledger.put(*r))
	}
	return m.ledger.put(r.release(o.pci() != ""))
}

// gone frees a function whose adapter is not in the node any more.
func (m *Manager) gone(owner fabric.FunctionOwner, f fabric.Function) error {
	r := m.ledger.get(f)
	if !r.heldBy(owner) {
		return nil
	}
	return m.ledger.put(r.release(false))
}

// remember writes down that an owner that does not hold the function has released it: its assign may still come, late.
func (m *Manager) remember(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function) error {
	unlock, err := m.lock(ctx, f.Device)
	if err != nil {
		return err
	}
	defer unlock()
	r := m.ledger.get(f)
	if r.heldBy(owner) || r.hasReleased(owner) {
		return nil
	}
	return m.ledger.put(r.released(owner))
}

// Readmit forgets that an assignment has released functions.
func (m *Manager) Readmit(ctx context.Context, assignment string) error {
	for _, r := range m.ledger.all() {
		if !r.isOutdated(assignment) {
			continue
		}
		if err := m.readmit(ctx, r.function(), assignment); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) readmit(ctx context.Context, f fabric.Function, assignment string) error {
	unlock, err := m.lock(ctx, f.Device)
	if err != nil {
		return err
	}
	defer unlock()
	r := m.ledger.get(f)
	r.Released = slices.DeleteFunc(r.Released, func(old fabric.FunctionOwner) bool { return old.Assignment == assignment })
	return m.ledger.put(r)
}

// cleanse takes from the function all that an owner may have left: its driver, its state, its settings.
func (o *operation) cleanse(ctx context.Context) error {
	if o.pci() != "" {
		if err := o.unbind(ctx); err != nil {
			return err
		}
		if err := o.override(""); err != nil {
			return err
		}
		if err := o.reset(); err != nil {
			return err
		}
	}
	if o.index < 0 {
		return o.restore(ctx)
	}
	if err := o.defaults(ctx); err != nil {
		return err
	}
	if o.pci() == "" {
		return nil
	}
	if now, err := o.driver(o.pci()); err != nil || now != "" {
		return errors.Join(err, fmt.Errorf("%s was taken by driver %s while it was released", o.f, now))
	}
	return nil
}

// restore gives a whole port back to the node, with the virtual functions that it had.
func (o *operation) restore(ctx context.Context) error {
	if err := o.bind(ctx, fabric.DriverNative); err != nil {
		return err
	}
	if err := o.appeared(ctx); err != nil {
		return err
	}
	if err := o.up(); err != nil {
		return err
	}
	if err := o.noProbe(); err != nil {
		return err
	}
	now, err := o.number(pciDevices + o.pf + "/sriov_numvfs")
	if err != nil || now == o.record.VFs {
		return err
	}
	return o.setCount(ctx, now, o.record.VFs)
}

// reset makes the function forget what it was told, by itself (PCI Express Base Specification 5.0, 6.6.2): all other ways reset others with it.
func (o *operation) reset() error {
	dir := pciDevices + o.pci()
	methods, err := o.read(dir + "/reset_method")
	switch {
	case notThere(err): // Linux before 5.15: only what can be reset by some way has the file reset
	case err != nil:
		return err
	case !slices.Contains(strings.Fields(methods), "flr"):
		return fmt.Errorf("%w: %s (%s) can't be reset by itself: the kernel knows the ways %q", fabric.ErrFunctionUnfit, o.f, o.pci(), methods)
	case methods != "flr":
		// Else the kernel would try the others, which reset the bus, where the first one fails.
		if err := o.write(dir+"/reset_method", "flr"); err != nil {
			return err
		}
		if text, err := o.read(dir + "/reset_method"); err != nil || text != "flr" {
			return errors.Join(err, &UnsettledError{What: dir + "/reset_method", Want: "flr", Got: text})
		}
	}
	if err := o.write(dir+"/reset", "1"); err != nil {
		if notThere(err) {
			return fmt.Errorf("%w: the kernel can't reset %s (%s)", fabric.ErrFunctionUnfit, o.f, o.pci())
		}
		return fmt.Errorf("%s can't be reset: %w", o.f, err)
	}
	return nil
}

// Reset resets the owner's function, and gives it its settings again.
func (m *Manager) Reset(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function) error {
	o, err := m.held(ctx, owner, f)
	if err != nil {
		return err
	}
	defer o.end()
	if now, err := o.driver(o.pci()); err != nil {
		return err
	} else if now == fabric.DriverVFIO {
		group, err := o.link(pciDevices + o.pci() + "/iommu_group")
		if err != nil {
			return err
		}
		if used, err := o.groupInUse(group); err != nil || used {
			return errors.Join(err, fmt.Errorf("%s can't be reset: a machine still has it (IOMMU group %s)", o.f, group))
		}
	}
	if err := o.reset(); err != nil {
		return err
	}
	return o.settings(ctx, o.record.Settings)
}
