package sriov

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// SetCount gives an adapter n virtual functions, none of which the kernel hands to a driver by itself. It changes nothing where there are n. Another
// number takes the present ones away first, as the kernel wants it, so it is refused while one is in use. Adapters forget the number at a reboot.
func (m *Manager) SetCount(ctx context.Context, pf string, n int) error {
	unlock, err := m.lock(ctx, pf)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.quarantined(pf); err != nil {
		return err
	}
	b := m.on(pf)
	total, err := b.number(pciDevices + pf + "/sriov_totalvfs")
	switch {
	case notThere(err):
		return fmt.Errorf("%w: adapter %s has no SR-IOV: enable it in the firmware of the machine and of the adapter", fabric.ErrFunctionUnfit, pf)
	case err != nil:
		return err
	case n < 0 || n > total:
		return fmt.Errorf("%w: adapter %s has at most %d virtual functions, not %d; its firmware sets that limit", fabric.ErrFunctionUnfit, pf, total, n)
	}
	present, err := b.number(pciDevices + pf + "/sriov_numvfs")
	if err != nil {
		return err
	}
	if present == n {
		_, tidied := m.tidy(ctx, pf, n)
		return errors.Join(b.noProbe(), tidied)
	}
	if err := m.unused(b, pf, present); err != nil {
		return err
	}
	if err := b.noProbe(); err != nil {
		return err
	}
	if err := b.setCount(ctx, present, n); err != nil {
		return err
	}
	_, err = m.tidy(ctx, pf, n)
	return err
}

// unused reports who uses one of an adapter's functions.
func (m *Manager) unused(b bounded, pf string, present int) error {
	for _, r := range m.ledger.of(pf) {
		if present > 0 || r.Part == "" {
			return fmt.Errorf("%w: assignment %s has %s, so the number of virtual functions can't change", fabric.ErrFunctionHeld, r.Owner.Assignment, r.function())
		}
	}
	for index := range present {
		vf, there, err := b.function(pf, index)
		if err != nil || !there {
			return err
		}
		if err := b.foreign(vf.FunctionState); err != nil {
			return fmt.Errorf("%w: the number of virtual functions of adapter %s can't change", err, pf)
		}
	}
	return nil
}

// noProbe keeps the kernel from giving new functions to drivers, which would make interfaces that the node's own services configure.
func (b bounded) noProbe() error {
	file := pciDevices + b.pf + "/sriov_drivers_autoprobe"
	text, err := b.read(file)
	if notThere(err) || err == nil && text == "0" { // Linux before 4.12 has none
		return nil
	}
	if err != nil {
		return err
	}
	if err := b.write(file, "0"); err != nil {
		return err
	}
	if text, err = b.read(file); err == nil && text != "0" {
		return &UnsettledError{What: file, Want: "0", Got: text}
	}
	return err
}

func (b bounded) setCount(ctx context.Context, present, n int) error {
	file := pciDevices + b.pf + "/sriov_numvfs"
	var steps []int
	if present > 0 {
		steps = append(steps, 0)
	}
	if n > 0 {
		steps = append(steps, n)
	}
	for _, count := range steps {
		err := b.write(file, strconv.Itoa(count))
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOSYS):
			return fmt.Errorf("%w: the driver of adapter %s takes the number of virtual functions only when it is loaded: %s",
				fabric.ErrFunctionUnfit, b.pf, b.atLoad(n))
		case errors.Is(err, unix.EBUSY):
			return fmt.Errorf("%w: the kernel says that virtual functions of adapter %s are in use, by a machine or another program: %w", fabric.ErrFunctionHeld, b.pf, err)
		case err != nil:
			return fmt.Errorf("the number of virtual functions of adapter %s can't be set to %d: %w", b.pf, count, err)
		}
		if err := b.m.settle(ctx, "the number of virtual functions of adapter "+b.pf, strconv.Itoa(count), b.count); err != nil {
			return err
		}
	}
	return nil
}

// count is the number of an adapter's virtual functions, once all of them are there.
func (b bounded) count() (string, error) {
	text, err := b.read(pciDevices + b.pf + "/sriov_numvfs")
	if err != nil {
		return "", err
	}
	links, err := b.glob(pciDevices + b.pf + "/virtfn*")
	if err != nil {
		return "", err
	}
	if strconv.Itoa(len(links)) != text {
		return fmt.Sprintf("%s, of which %d are there", text, len(links)), nil
	}
	return text, nil
}

// atLoad says how to give a driver the number where sysfs can't.
func (b bounded) atLoad(n int) string {
	if driver, _ := b.driver(b.pf); driver == driverMLX4 {
		return fmt.Sprintf("put 'options mlx4_core num_vfs=%d probe_vf=0' into /etc/modprobe.d/nearmetal-sriov.conf (nearmetal node prepare --virtual-functions %s=%d writes it), then reboot", n, b.pf, n)
	}
	return "see its documentation for a module option"
}

// foreign reports who uses a function that has no owner: a program that has its IOMMU group open, or the node itself.
func (b bounded) foreign(s fabric.FunctionState) error {
	switch {
	case s.Driver == fabric.DriverVFIO:
		used, err := b.groupInUse(s.IOMMUGroup)
		if err != nil {
			return err
		}
		if used {
			return fmt.Errorf("%w: %s is used by a program that is not Nearmetal's, which has IOMMU group %s open", fabric.ErrFunctionHeld, s.PCI, s.IOMMUGroup)
		}
	case s.Interface != "":
		flags, err := b.read(pciDevices + s.PCI + "/net/" + s.Interface + "/flags")
		if err == nil && isUp(flags) {
			return fmt.Errorf("%w: interface %s of %s is up, so the node uses it; set it down to give it to members", fabric.ErrFunctionHeld, s.Interface, s.PCI)
		}
	}
	return nil
}

func (b bounded) groupInUse(group string) (used bool, err error) {
	err = b.m.call(b.pf, "opening IOMMU group "+group, func() (err error) {
		used, err = b.m.cfg.Host.GroupInUse(group)
		return err
	})
	return used, err
}

// isUp reads an interface's flags: IFF_UP of linux/if.h.
func isUp(flags string) bool {
	n, err := strconv.ParseUint(strings.TrimSpace(flags), 0, 32)
	return err == nil && n&unix.IFF_UP != 0
}

// notThere reports whether an error says that a file is missing.
func notThere(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOTDIR)
}

// Up sets the network interface of an adapter up: without that, its virtual functions have no link.
func (m *Manager) Up(ctx context.Context, pf string) error {
	unlock, err := m.lock(ctx, pf)
	if err != nil {
		return err
	}
	defer unlock()
	if err := m.quarantined(pf); err != nil {
		return err
	}
	return m.on(pf).up()
}

func (b bounded) up() error {
	name, err := b.netdev(b.pf)
	if err != nil || name == "" {
		return err
	}
	flags, err := b.read(pciDevices + b.pf + "/net/" + name + "/flags")
	if err == nil && isUp(flags) {
		return nil
	}
	err = b.m.call(b.pf, "setting "+name+" up", func() error { return b.m.cfg.Host.SetUp(name) })
	if err != nil {
		return fmt.Errorf("interface %s of adapter %s can't be set up: %w", name, b.pf, err)
	}
	return nil
}

// Find returns the PCI address of an adapter, given that or the present name of its network interface.
func (m *Manager) Find(adapter string) (string, error) {
	pci := adapter
	if !IsAddress(adapter) {
		if strings.ContainsAny(adapter, "/*?[") {
			return "", fmt.Errorf("%q is neither a PCI address such as 0000:3b:00.0 nor a network interface", adapter)
		}
		var err error
		if pci, err = m.cfg.Host.Readlink("/sys/class/net/" + adapter + "/device"); err != nil || !IsAddress(pci) {
			return "", fmt.Errorf("%w: there is no network interface %s of a PCI adapter ('ip link' lists the interfaces)", fabric.ErrNoFunction, adapter)
		}
	}
	if found, err := m.cfg.Host.Glob(pciDevices + pci); err != nil || len(found) == 0 {
		return "", errors.Join(err, fmt.Errorf("%w: there is no PCI device %s ('lspci -D' lists them)", fabric.ErrNoFunction, pci))
	}
	return pci, nil
}

// Addressed reports whether the node itself uses the network interface of an adapter.
func (m *Manager) Addressed(a Adapter) (bool, error) {
	o := &operation{bounded: m.on(a.PCI)}
	return o.addressed(a.Interface)
}
