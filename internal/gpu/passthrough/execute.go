package passthrough

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"
)

const pollPause = 20 * time.Millisecond

// carryOut does what was planned, step by step, and reads each back.
func (m *Manager) carryOut(ctx context.Context, c Card, steps []step) error {
	for _, s := range steps {
		if err := m.do(ctx, c, s); err != nil {
			return fmt.Errorf("%s of %s: %w", s.Do, s.PCI, err)
		}
	}
	return nil
}

func (m *Manager) do(ctx context.Context, c Card, s step) error {
	dir := pciDevices + s.PCI
	switch s.Do {
	case doOverride:
		if err := m.write(s.PCI, dir+"/driver_override", s.Value+"\n"); err != nil {
			return err
		}
		if got := readFunction(m.cfg.Host, s.PCI).Override; got != s.Value {
			return fmt.Errorf("it reads back as %q, not %q", got, s.Value)
		}
		return nil
	case doUnbind:
		if err := m.write(s.PCI, pciDrivers+s.Value+"/unbind", s.PCI); err != nil && !errors.Is(err, unix.ENODEV) { // somebody else was faster
			return err
		}
		return m.settle(ctx, s.PCI, "")
	case doProbe:
		if err := m.write(s.PCI, "/sys/bus/pci/drivers_probe", s.PCI); err != nil {
			return err
		}
		return m.settle(ctx, s.PCI, s.Value)
	case doWays:
		if s.Value == "" {
			return errors.New("the kernel knows no way")
		}
		return m.write(s.PCI, dir+"/reset_method", s.Value)
	case doReset:
		return m.write(s.PCI, dir+"/reset", "1")
	case doClear:
		return m.clear(c)
	}
	return fmt.Errorf("%q is no step", s.Do)
}

// settle waits until a function has a driver, "" for none.
func (m *Manager) settle(ctx context.Context, pci, driver string) error {
	deadline := time.NewTimer(m.cfg.Settle)
	defer deadline.Stop()
	for {
		got := readFunction(m.cfg.Host, pci).Driver
		if got == driver {
			return nil
		}
		again := time.NewTimer(pollPause)
		select {
		case <-again.C:
		case <-deadline.C:
			again.Stop()
			return fmt.Errorf("its driver is %q, not %q", got, driver)
		case <-ctx.Done():
			again.Stop()
			return ctx.Err()
		}
	}
}

// clear overwrites the GPU's windows of memory and reads them back, while no driver has the GPU.
func (m *Manager) clear(c Card) error {
	enable := pciDevices + c.PCI + "/enable"
	if err := m.write(c.PCI, enable, "1"); err != nil {
		return fmt.Errorf("%w: its memory can't be reached: %w", errUnproven, err)
	}
	var cleared int64
	for _, w := range c.Memory {
		name := fmt.Sprintf("%s%s/resource%d", pciDevices, c.PCI, w.Number)
		if exists(m.cfg.Host, name+"_wc") { // writes that are gathered are a hundred times as fast
			name += "_wc"
		}
		err := m.call(c.PCI, "clearing "+name, m.cfg.Clear, func() error { return m.cfg.Host.Memory(name, w.Bytes, clearMemory) })
		switch {
		case errors.Is(err, errNotMemory):
		case err != nil:
			return errors.Join(fmt.Errorf("%w: %s: %w", errUnproven, name, err), m.write(c.PCI, enable, "0"))
		default:
			cleared += w.Bytes
		}
	}
	if err := m.write(c.PCI, enable, "0"); err != nil {
		return err
	}
	return m.proven(c, cleared)
}

// proven reports why what was cleared is no proof that the GPU holds nothing.
func (m *Manager) proven(c Card, cleared int64) error {
	const instead = "if its vendor says that a reset clears it, run the agent with --passthrough-clearing reset"
	if cleared == 0 {
		return fmt.Errorf("%w: none of its windows shows it; %s", errUnproven, instead)
	}
	if r, there := m.ledger.get(c.PCI); there && r.GPU.MemoryBytes > cleared {
		return fmt.Errorf("%w: its windows show %d MiB of %d MiB; enable resizable BARs in the firmware, or %s", errUnproven, cleared>>20, r.GPU.MemoryBytes>>20, instead)
	}
	return nil
}

func (m *Manager) write(pci, name, text string) error {
	return m.call(pci, "writing "+name, m.cfg.Answer, func() error { return m.cfg.Host.WriteFile(name, text) })
}

// call makes one call to the kernel. One that does not return can't be ended: it may still do what it was to do at any time. So nothing more is done
// with its GPU by this agent.
func (m *Manager) call(pci, what string, patience time.Duration, do func() error) error {
	m.hung.mu.Lock()
	earlier := m.hung.steps[pci]
	m.hung.mu.Unlock()
	if earlier != "" {
		return fmt.Errorf("%s did not end; reboot the node", earlier)
	}
	done := make(chan error, 1)
	go func() { done <- do() }()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case err := <-done:
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", what, err)
		}
		return err
	case <-timer.C:
		m.hung.mu.Lock()
		m.hung.steps[pci] = what
		m.hung.mu.Unlock()
		return fmt.Errorf("%s did not end within %v; reboot the node", what, patience)
	}
}
