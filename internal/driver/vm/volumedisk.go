package vm

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// A block volume is a disk of its machine, which QEMU reads and writes by NBD. What serves it may start anew, and a node that it lies on may be away:
// QEMU connects again and again, and the guest's reads and writes wait. libvirt can say so to QEMU since 9.2 only, which is later than that of Debian 12, so
// QEMU gets these disks by arguments of its own. They are the last, in the order of volumes: a machine that resumes elsewhere finds them in the same slots.

// reconnectSeconds is for how long QEMU holds back what a guest wants of a disk that does not answer, before the guest gets an error: no member is given
// up because of that.
const reconnectSeconds = 10 * 365 * 24 * 60 * 60

// volumeDisk is a block volume as a disk of a machine.
type volumeDisk struct {
	Name, Socket, Serial string
	ReadOnly             bool
	// Virtio: the system has a driver for virtio disks. All have one for NVMe.
	Virtio bool
}

// Arguments are QEMU's for the disk.
func (d volumeDisk) Arguments() ([]string, error) {
	backend, err := json.Marshal(map[string]any{
		"driver": "nbd", "node-name": d.Name, "export": d.Serial, "read-only": d.ReadOnly, "reconnect-delay": reconnectSeconds,
		"server": map[string]string{"type": "unix", "path": d.Socket}, "cache": map[string]bool{"direct": true},
	})
	if err != nil {
		return nil, err
	}
	device := map[string]any{"driver": "nvme", "id": d.Name, "drive": d.Name, "serial": d.Serial}
	if d.Virtio {
		device["driver"], device["iothread"], device["write-cache"] = "virtio-blk-pci", "iothread1", "on"
	}
	frontend, err := json.Marshal(device)
	if err != nil {
		return nil, err
	}
	return []string{"-blockdev", string(backend), "-device", string(frontend)}, nil
}

// volumeDisks are the disks of a member's machine that are block volumes.
func volumeDisks(m driver.Member, v view, virtio bool) (disks []volumeDisk) {
	for n, d := range m.Disks {
		disks = append(disks, volumeDisk{
			Name: fmt.Sprintf("volume-%d", n), Socket: filepath.Join(v.volume(n), filepath.Base(d.Socket)), Serial: guestlink.DiskSerial(d.Name), ReadOnly: d.ReadOnly, Virtio: virtio,
		})
	}
	return disks
}

func (v view) volume(n int) string { return filepath.Join(v.dir, fmt.Sprintf("volume-%d", n)) }

// shownDisks are the directories of the sockets that a member's QEMU connects to.
func shownDisks(m driver.Member, v view) (all []shown) {
	for n, d := range m.Disks {
		all = append(all, shown{path: filepath.Dir(d.Socket), at: v.volume(n), readOnly: true})
	}
	return all
}
