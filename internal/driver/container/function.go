package container

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// A port that is a function of an adapter is the function's own network interface, moved into the member's network namespace, and its RDMA device
// with it. Programs reach that by files of /dev/infiniband, which the member has of its own devices only. When the namespace ends, the kernel gives
// both back to the node.

// sysfs is where the kernel shows devices.
const sysfs = "/sys"

// verbsDir is where libibverbs and librdmacm look for devices.
const verbsDir = "/dev/infiniband"

// checkFunctions refuses functions that containers don't get.
func checkFunctions(a *api.Assignment) error {
	for n := range a.Ports {
		if a.Ports[n].Kind == api.PortMACVTAP {
			return fmt.Errorf("its port %d is of kind %s, which only virtual machines have; ask for the interface vf", n, api.PortMACVTAP)
		}
		if a.Ports[n].Standby {
			return fmt.Errorf("its port %d has a standby, which only virtual machines have", n)
		}
	}
	return checkClaims(a)
}

// attachFunctions makes the functions of a member its own, and returns the device files of their RDMA devices.
func (d *Driver) attachFunctions(ctx context.Context, m driver.Member) ([]specs.LinuxDevice, error) {
	var devices []specs.LinuxDevice
	for n := range m.Assignment.Ports {
		port := fabric.PortOf(&m.Assignment, n)
		if !port.OnFunction() {
			continue
		}
		attacher, ok := d.cfg.Attacher.(fabric.FunctionAttacher)
		if !ok {
			return nil, fmt.Errorf("%w: this node hands out no functions of adapters", fabric.ErrPortKind)
		}
		state, err := attacher.AttachFunction(ctx, port, fabric.DriverNative)
		if err != nil {
			return nil, err
		}
		of, err := verbsOf(sysfs, state.RDMA)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", port.Function, err)
		}
		devices = append(devices, of...)
	}
	if len(devices) == 0 {
		return nil, nil
	}
	// Connections are made by one device for all, which keeps to the caller's network namespace.
	manager, err := deviceFile(filepath.Join(sysfs, "class/misc/rdma_cm/dev"), "rdma_cm")
	if errors.Is(err, fs.ErrNotExist) {
		return devices, nil
	}
	return append(devices, manager), err
}

// verbsOf returns the device files by which programs use an RDMA device; none for "".
func verbsOf(sys, rdma string) ([]specs.LinuxDevice, error) {
	if rdma == "" {
		return nil, nil
	}
	found, err := filepath.Glob(filepath.Join(sys, "class/infiniband", rdma, "device/infiniband_verbs/uverbs*/dev"))
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("RDMA device %s has no uverbs device; run: modprobe ib_uverbs", rdma)
	}
	var devices []specs.LinuxDevice
	for _, file := range found {
		device, err := deviceFile(file, filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// deviceFile returns a character device by the file of sysfs that has its numbers (Documentation/ABI/testing/sysfs-dev).
func deviceFile(file, name string) (specs.LinuxDevice, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return specs.LinuxDevice{}, err
	}
	device := specs.LinuxDevice{Path: filepath.Join(verbsDir, name), Type: "c"}
	if _, err := fmt.Sscanf(strings.TrimSpace(string(text)), "%d:%d", &device.Major, &device.Minor); err != nil {
		return device, fmt.Errorf("%s holds %q instead of the numbers of a device", file, text)
	}
	mode := os.FileMode(0o666)
	device.FileMode = &mode
	return device, nil
}

// pciOf returns the PCI address of a function, which stays the same however often its driver changes.
func pciOf(sys string, f fabric.Function) (string, error) {
	index, err := f.Index()
	if err != nil || index < 0 {
		return f.Device, err
	}
	target, err := os.Readlink(filepath.Join(sys, "bus/pci/devices", f.Device, fmt.Sprintf("virtfn%d", index)))
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", fabric.ErrNoFunction, f, err)
	}
	return filepath.Base(target), nil
}
