package sriov

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// natives are the drivers of virtual functions, by that of their adapter, where it is another.
func native(driver string) string {
	switch driver {
	case "igb":
		return "igbvf"
	case "ixgbe":
		return "ixgbevf"
	case "i40e", "ice":
		return "iavf"
	case "fm10k", "bnxt_en", driverMLX4, driverMLX5:
		return driver
	}
	return driver
}

// Bind gives the owner's function to a driver.
func (m *Manager) Bind(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function, driver string) (fabric.FunctionState, error) {
	none := fabric.FunctionState{}
	o, err := m.held(ctx, owner, f)
	if err != nil {
		return none, err
	}
	defer o.end()
	if driver == fabric.DriverNative && o.index >= 0 {
		driver = native(o.adapter.Driver)
	}
	if driver == fabric.DriverVFIO {
		if err := o.machinesCan(); err != nil {
			return none, err
		}
	}
	before, err := o.driver(o.pci())
	if err != nil {
		return none, err
	}
	if err := o.bind(ctx, driver); err != nil {
		return none, err
	}
	// A driver that took a function may have changed what the adapter was told about it.
	if err := o.settings(ctx, o.record.Settings); err != nil {
		return none, err
	}
	// What the driver had before is with the member already, in a network namespace where it can't be seen from here.
	if driver != fabric.DriverVFIO && !serves(before, driver) {
		if err := o.appeared(ctx); err != nil {
			return none, err
		}
		// The next attempt finds it without a driver, and starts it anew.
		if err := o.heard(ctx); err != nil {
			return none, errors.Join(err, o.unbind(ctx))
		}
	}
	return o.look()
}

// held begins an operation on a function that its caller must hold, and that must be there.
func (m *Manager) held(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function) (*operation, error) {
	o, err := m.begin(ctx, f)
	if err != nil {
		return nil, err
	}
	if err := o.record.own(owner); err != nil {
		o.end()
		return nil, err
	}
	if o.pci() == "" {
		o.end()
		return nil, fmt.Errorf("%w: %s was taken from the node while assignment %s has it", fabric.ErrNoFunction, f, owner.Assignment)
	}
	return o, nil
}

// machinesCan reports why the function can't be given to a virtual machine.
func (o *operation) machinesCan() error {
	s, company, err := o.state(o.pci())
	if err != nil {
		return err
	}
	switch {
	case s.IOMMUGroup == "":
		return fmt.Errorf("%w: the node has no IOMMU, so no machine can have %s; enable VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on or amd_iommu=on", fabric.ErrFunctionUnfit, o.f)
	case len(company) > 0:
		return fmt.Errorf("%w: IOMMU group %s of %s (%s) also holds %s, which could be reached from a machine; enable ACS in the firmware, or put the adapter into another slot",
			fabric.ErrFunctionUnfit, s.IOMMUGroup, o.f, s.PCI, strings.Join(company, ", "))
	}
	there, err := o.exists(pciDrivers + fabric.DriverVFIO)
	if err == nil && !there {
		err = fmt.Errorf("%w: the driver vfio-pci is not loaded; run: modprobe vfio-pci", fabric.ErrFunctionUnfit)
	}
	return err
}

// serves reports whether a function that is with one driver need not be given to the wanted one. "" is whichever the kernel chooses.
func serves(now, wanted string) bool {
	return now != "" && (now == wanted || wanted == "" && now != fabric.DriverVFIO)
}

// bind brings the function to a driver; "" is whichever the kernel chooses for a whole port.
func (o *operation) bind(ctx context.Context, driver string) error {
	pci := o.pci()
	now, err := o.driver(pci)
	if err != nil {
		return err
	}
	if serves(now, driver) {
		return nil
	}
	if err := o.unbind(ctx); err != nil {
		return err
	}
	if driver != "" {
		if there, err := o.exists(pciDrivers + driver); err != nil || !there {
			return errors.Join(err, fmt.Errorf("%w: the driver %s is not loaded; run: modprobe %s", fabric.ErrFunctionUnfit, driver, driver))
		}
	}
	if err := o.override(driver); err != nil {
		return err
	}
	if err := o.write("/sys/bus/pci/drivers_probe", pci); err != nil {
		return fmt.Errorf("%s can't be given to driver %s: %w", o.f, driver, err)
	}
	if driver == "" {
		return o.m.settle(ctx, "the driver of "+o.f.String(), "bound", func() (string, error) {
			name, err := o.driver(pci)
			if name != "" {
				name = "bound"
			}
			return name, err
		})
	}
	return o.m.settle(ctx, "the driver of "+o.f.String(), driver, func() (string, error) { return o.driver(pci) })
}

// override sets the only driver that may take the function; "" lets any (Documentation/ABI/testing/sysfs-bus-pci).
func (o *operation) override(driver string) error {
	file := pciDevices + o.pci() + "/driver_override"
	if err := o.write(file, driver+"\n"); err != nil {
		return err
	}
	text, err := o.read(file)
	if err != nil {
		return err
	}
	if text == "(null)" {
		text = ""
	}
	if text != driver {
		return &UnsettledError{What: file, Want: driver, Got: text}
	}
	return nil
}

// unbind takes the function from its driver. vfio-pci would wait for a machine that still runs, and never return, so it is asked first.
func (o *operation) unbind(ctx context.Context) error {
	pci := o.pci()
	now, err := o.driver(pci)
	if err != nil || now == "" {
		return err
	}
	if now == fabric.DriverVFIO {
		group, err := o.link(pciDevices + pci + "/iommu_group")
		if err != nil {
			return err
		}
		used, err := o.groupInUse(group)
		if err != nil {
			return err
		}
		if used {
			return fmt.Errorf("%s can't be taken from vfio-pci: a machine still has it (IOMMU group %s)", o.f, group)
		}
	}
	err = o.write(pciDrivers+now+"/unbind", pci)
	if err != nil && !errors.Is(err, unix.ENODEV) { // somebody else was faster
		return fmt.Errorf("%s can't be taken from driver %s: %w", o.f, now, err)
	}
	return o.m.settle(ctx, "the driver of "+o.f.String(), "", func() (string, error) { return o.driver(pci) })
}

// appeared waits for what a native driver makes of the function: a network interface, and an RDMA device on InfiniBand.
func (o *operation) appeared(ctx context.Context) error {
	return o.m.settle(ctx, "the network interface of "+o.f.String(), "there", func() (string, error) {
		s, err := o.look()
		switch {
		case err != nil:
			return "", err
		case s.Interface == "":
			return "not there", nil
		case o.adapter.Layer == InfiniBand && s.RDMA == "":
			return "there without its RDMA device", nil
		}
		return "there", nil
	})
}

// heard waits until the driver of a virtual function has the address that the adapter was told. A driver asks the adapter for it when it starts; one
// that gets no answer takes an address of its own, and never has a link.
func (o *operation) heard(ctx context.Context) error {
	mac := o.record.Settings.MAC
	if o.index < 0 || mac == "" || o.adapter.Layer == InfiniBand {
		return nil
	}
	return o.m.settle(ctx, "the address of the network interface of "+o.f.String(), mac, func() (string, error) {
		s, err := o.look()
		if err != nil {
			return "", err
		}
		return o.read(pciDevices + s.PCI + "/net/" + s.Interface + "/address")
	})
}

// Look returns where the owner's function is now.
func (m *Manager) Look(ctx context.Context, owner fabric.FunctionOwner, f fabric.Function) (fabric.FunctionState, error) {
	o, err := m.held(ctx, owner, f)
	if err != nil {
		return fabric.FunctionState{}, err
	}
	defer o.end()
	return o.look()
}
