package cleaning

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
	"github.com/nearmetal/nearmetal/internal/machine/inspection"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// Disks may still be spinning up, or be found one after the other, when their driver is there.
const (
	disksAppear = 90 * time.Second
	disksSettle = 3 * time.Second
	lookPause   = 200 * time.Millisecond
)

// New returns the running machine. expected are the disks that inspection found.
func New(expected []api.Disk) *Machine {
	return &Machine{
		Look: func(ctx context.Context) ([]plan.Disk, []plan.Controller) {
			tree := sysfs.At("/")
			awaitDisks(ctx, tree, expected)
			return look(tree, askDevice), controllers(tree)
		},
		Open: open, Firmware: "/sys/firmware/efi/efivars", TPM: openTPM, Expected: expected,
	}
}

// awaitDisks waits until the disks that inspection found are there and no others come, or long enough.
func awaitDisks(ctx context.Context, tree sysfs.Tree, expected []api.Disk) {
	ctx, cancel := context.WithTimeout(ctx, disksAppear)
	defer cancel()
	poll := time.NewTicker(lookPause) // nothing tells that no further disk comes
	defer poll.Stop()
	var names []string
	since := time.Now()
	for {
		if now := tree.Names("sys/block"); !slices.Equal(names, now) {
			names, since = now, time.Now()
		}
		if time.Since(since) >= disksSettle && len(missing(expected, look(tree, nil))) == 0 {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
}

// look finds all block devices. ask asks a disk what no file tells; nil: nothing is asked.
func look(tree sysfs.Tree, ask func(tree sysfs.Tree, d *plan.Disk) error) []plan.Disk {
	var disks []plan.Disk
	ids := map[string]string{}
	for _, name := range tree.Names("sys/block") {
		d := lookAt(tree, name)
		if id := pathID(tree, d); id != "" {
			if first, ok := ids[id]; ok {
				d.SameAs = first
			} else {
				ids[id] = name
			}
		}
		if ask != nil && !d.Virtual && !d.Path && d.SameAs == "" && d.Bytes > 0 && !d.Removable && !d.NotADisk {
			if err := ask(tree, &d); err != nil {
				d.Problem = err.Error()
			}
		}
		disks = append(disks, d)
	}
	return disks
}

// lookAt reads what files tell of a block device.
func lookAt(tree sysfs.Tree, name string) plan.Disk {
	const unit = 512 // of /sys/block/NAME/size, whatever the disk's own blocks are
	dir := "sys/block/" + name
	sectors, _ := tree.Int(dir + "/size")
	block, _ := tree.Int(dir + "/queue/logical_block_size")
	discard, _ := tree.Int(dir + "/queue/discard_max_bytes")
	kind := tree.Text(dir + "/device/type")
	real := tree.Real(dir + "/device")
	d := plan.Disk{
		Name: name, Model: tree.Text(dir + "/device/model"), Serial: inspection.DiskSerial(tree, dir), Bytes: sectors * unit, BlockBytes: int(block),
		Transport: inspection.Transport(name, real), Virtual: !tree.Exists(dir + "/device"),
		Path: tree.Text(dir+"/hidden") == "1", Removable: tree.Text(dir+"/removable") == "1", ReadOnly: tree.Text(dir+"/ro") == "1",
		NotADisk: kind == "4" || kind == "5", // SCSI peripheral device types of optical media (SPC-5, table 148)
		Zoned:    strings.HasPrefix(tree.Text(dir+"/queue/zoned"), "host-managed"), FirmwarePart: strings.HasPrefix(name, "mmcblk") && strings.Contains(name, "boot"),
		Discards: discard > 0, DiscardsMayBeSecure: discard > 0 && strings.HasPrefix(name, "mmcblk"),
	}
	d.Holders = tree.Names(dir + "/holders")
	for _, part := range tree.Names(dir) {
		if strings.HasPrefix(part, name) {
			d.Holders = append(d.Holders, tree.Names(dir+"/"+part+"/holders")...)
		}
	}
	return d
}

// pathID is the same for two paths to one disk; "" for a disk that has one path. Only SAS disks have two here. Makers have given one name to many disks,
// so name, serial number and size must all be the same: a disk that is taken for another would not be erased.
func pathID(tree sysfs.Tree, d plan.Disk) string {
	name := tree.Text("sys/block/" + d.Name + "/device/wwid")
	if d.Transport != "sas" || name == "" || d.Serial == "" {
		return ""
	}
	return fmt.Sprintf("%s %s %d", name, d.Serial, d.Bytes)
}

// askDevice asks a disk what it can do.
func askDevice(tree sysfs.Tree, d *plan.Disk) error {
	switch {
	case d.Transport == "nvme":
		return askNVMe(tree, d)
	case d.Transport == "sata":
		file, err := os.OpenFile("/dev/"+d.Name, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer file.Close()
		d.ATA, err = ataOf(int(file.Fd())).look()
		return err
	}
	return nil
}

func askNVMe(tree sysfs.Tree, d *plan.Disk) error {
	controller, err := controllerOf(tree, d.Name)
	if err != nil {
		return err
	}
	remote := tree.Text("sys/class/nvme/"+controller+"/transport") != "pcie"
	d.NVMe = &plan.NVMe{Controller: controller, Remote: remote}
	if remote {
		return nil
	}
	file, err := os.OpenFile("/dev/"+controller, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	namespace, ok := tree.Int("sys/block/" + d.Name + "/nsid")
	if !ok {
		return fmt.Errorf("the kernel does not say which namespace %s is", d.Name)
	}
	n, err := lookNVMe(int(file.Fd()), uint32(namespace))
	if err != nil {
		return err
	}
	n.Controller = controller
	d.NVMe = n
	return nil
}

// controllerOf is the controller of an NVMe disk, nvme0 say. A disk that could have several hangs on a subsystem, whose first controller counts.
func controllerOf(tree sysfs.Tree, disk string) (string, error) {
	real := tree.Real("sys/block/" + disk + "/device")
	name := path.Base(real)
	if tree.Exists("sys/class/nvme/" + name) {
		return name, nil
	}
	for _, entry := range tree.Names(real) {
		if tree.Exists("sys/class/nvme/" + entry) {
			return entry, nil
		}
	}
	return "", fmt.Errorf("no controller of %s is found below %s", disk, real)
}

// controllers finds the storage controllers whose disks can't be seen: those on PCI that no driver serves, of class 01 (PCI Code and ID Assignment
// Specification 1.11, section 1.2), and NVMe controllers without a namespace.
func controllers(tree sysfs.Tree) (all []plan.Controller) {
	for _, device := range tree.Names("sys/bus/pci/devices") {
		dir := "sys/bus/pci/devices/" + device
		if strings.HasPrefix(tree.Text(dir+"/class"), "0x01") && !tree.Exists(dir+"/driver") {
			all = append(all, plan.Controller{Name: device, Problem: fmt.Sprintf(
				"no driver serves this storage controller (%s:%s), so its disks can't be seen: add its driver to the environment inspect",
				strings.TrimPrefix(tree.Text(dir+"/vendor"), "0x"), strings.TrimPrefix(tree.Text(dir+"/device"), "0x"),
			)})
		}
	}
	served := map[string]bool{}
	for _, disk := range tree.Names("sys/block") {
		if name, err := controllerOf(tree, disk); err == nil {
			served[name] = true
		}
	}
	for _, name := range tree.Names("sys/class/nvme") {
		if tree.Text("sys/class/nvme/"+name+"/transport") == "pcie" && !served[name] {
			all = append(all, plan.Controller{Name: name, Problem: "the controller shows no namespace: it has failed, or a tenant has detached or deleted them; attach or create one, or take the disk out"})
		}
	}
	return all
}

// openTPM opens the TPM without the kernel's resource manager, which does not let it be cleared. A TPM that firmware describes and no driver serves is
// an error: what is in it can't be cleared.
func openTPM() (io.ReadWriteCloser, error) {
	const family2 = "2"
	tree := sysfs.At("/")
	if !tree.Exists("sys/class/tpm/tpm0") {
		if found, _ := filepath.Glob("/sys/bus/acpi/devices/MSFT0101:*"); len(found) > 0 {
			return nil, errors.New("the firmware describes a TPM, and no driver serves it")
		}
		return nil, nil
	}
	if version := tree.Text("sys/class/tpm/tpm0/tpm_version_major"); version != family2 {
		return nil, fmt.Errorf("it is a TPM %s, which only firmware can clear: clear it in the firmware's setup, then release the machine", version)
	}
	file, err := os.OpenFile("/dev/tpm0", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("/dev/tpm0 is missing")
	}
	if err != nil {
		return nil, err
	}
	return file, nil
}
