package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/gpu/passthrough"
)

// A member's GPUs are PCI devices of its machine (VFIO), from its start to its end. Nothing of their state can be read out, so a machine with a GPU is
// neither saved nor moved, and has no snapshots. Unlike functions of adapters they have no root ports that are kept for them: libvirt makes what they need.

// GPUs gives whole GPUs to machines, and what programs in them call the servers of remote ones by.
type GPUs interface {
	// Take makes the GPUs an assignment's, with nothing in them. It is idempotent. The error names a GPU that the machine can't have.
	Take(ctx context.Context, owner string, claims []api.DeviceClaim) ([]passthrough.Group, error)
	// Give takes back all GPUs of an assignment, whose machine is no more. Nil means that it has none.
	Give(ctx context.Context, owner string) error
	// FrontEnds returns what a member needs whose programs call the server of a remote GPU.
	FrontEnds() (*gpu.Edits, error)
}

// gpuAlias begins the aliases of the PCI functions of GPUs.
const gpuAlias = aliasPrefix + "gpu"

// portsForGPUs is how many root ports libvirt may make for a GPU: it has up to four functions, its own, audio, USB and a serial bus.
const portsForGPUs = 4

// gpusOf returns what an assignment holds of GPUs.
func gpusOf(a *api.Assignment) []api.DeviceClaim {
	return slices.DeleteFunc(slices.Clone(a.Devices), func(c api.DeviceClaim) bool { return c.Class != api.ClassGPU })
}

// checkGPUs refuses parts of GPUs that machines don't get.
func checkGPUs(a *api.Assignment) error {
	for _, c := range gpusOf(a) {
		if c.Way != api.WayPassthrough {
			return fmt.Errorf("it holds %q of GPU %s, and virtual machines get whole GPUs by pass-through only", c.Way, c.Device)
		}
	}
	return nil
}

// takeGPUs makes the GPUs of a member its own, and lets its QEMU open them.
func (d *Driver) takeGPUs(ctx context.Context, m driver.Member) ([]hostDevice, error) {
	a := &m.Assignment
	claims := gpusOf(a)
	if len(claims) == 0 {
		return nil, nil
	}
	if d.cfg.GPUs == nil {
		return nil, errors.New("this node gives no GPUs to virtual machines")
	}
	groups, err := d.cfg.GPUs.Take(ctx, a.ID, claims)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("vm.after-gpus")
	var devices []hostDevice
	for _, g := range groups {
		for _, pci := range g.Functions {
			device, err := newHostDevice(pci)
			if err != nil {
				return nil, err
			}
			device.GPU = len(devices) + 1
			devices = append(devices, device)
		}
		if err := d.openGPU(g, a.UserIDs.First); err != nil {
			return nil, err
		}
	}
	return devices, nil
}

// openGPU lets the cluster's user, who QEMU is, open the IOMMU group of a GPU.
func (d *Driver) openGPU(g passthrough.Group, user uint32) error {
	if err := openToAll(filepath.Join(vfioDir, "vfio")); err != nil {
		return err
	}
	return os.Chown(filepath.Join(vfioDir, g.IOMMU), int(user), int(user))
}

// giveGPUs takes back the GPUs of a member, whose machine has ended.
func (d *Driver) giveGPUs(ctx context.Context, id string) error {
	if d.cfg.GPUs == nil {
		return nil
	}
	if err := d.cfg.GPUs.Give(ctx, id); err != nil {
		return fmt.Errorf("taking back its GPUs: %w", err)
	}
	return nil
}

// gpusStay returns why a member with GPUs stays as it is; nil for one without.
func gpusStay(m driver.Member, v verb) error {
	switch {
	case len(gpusOf(&m.Assignment)) > 0:
		return fmt.Errorf("it can't be %s: it has a GPU, whose state nothing can read; delete the member, or end its work and create it elsewhere", v)
	case m.GPUServer != nil:
		return fmt.Errorf("it can't be %s: it has a remote GPU, whose server keeps what its programs have there; delete the member, or end its work and create it elsewhere", v)
	default:
		return nil
	}
}
