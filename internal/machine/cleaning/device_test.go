package cleaning

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/boot"
	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/inspectiontest"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume/loopdev"
)

// loopDisk is a file full of a tenant's data as a block device of the running kernel.
func loopDisk(t *testing.T, size int) (file string, disk plan.Disk) {
	t.Helper()
	needs.Root(t, "makes a loop device")
	file = filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, append(filled(size/8*8), make([]byte, size%8)...), 0o600); err != nil {
		t.Fatal(err)
	}
	device, err := loopdev.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = device.Close() })
	return file, plan.Disk{Name: filepath.Base(device.Name()), Bytes: int64(size), BlockBytes: 512}
}

// The kernel's own block devices, by each method that needs no hardware of its own.
func TestABlockDeviceOfTheKernelIsErased(t *testing.T) {
	for _, c := range []struct {
		method plan.Method
		broken []plan.Method
	}{{plan.ZeroOut, nil}, {plan.WriteZeroes, []plan.Method{plan.ZeroOut}}} {
		const size = 3<<20 + 4096
		file, disk := loopDisk(t, size)
		m := machineOf(t, nil, disk)
		m.Open = func(d plan.Disk) (Device, error) {
			device, err := open(d)
			return brokenDevice{device, c.broken}, err
		}
		s := stepOf(t, clean(t, m, boot.CleanOrder{}), disk.Name)
		if s.State != api.CleanDone || s.Method != string(c.method) || s.Bytes != 2*size {
			t.Errorf("%s: step %+v", c.method, s)
		}
		content, err := os.ReadFile(file)
		if left := bytes.Trim(content, "\x00"); err != nil || len(content) != size || len(left) != 0 {
			t.Errorf("%s: %d of %d bytes of the file are not zeroes, %v", c.method, len(left), len(content), err)
		}
	}
}

// brokenDevice can't do some methods.
type brokenDevice struct {
	Device
	broken []plan.Method
}

func (d brokenDevice) Erase(ctx context.Context, m plan.Method, told Told) error {
	if slices.Contains(d.broken, m) {
		return errors.New("not supported")
	}
	return d.Device.Erase(ctx, m, told)
}

// What is read back must be of the disk, not of the kernel's memory, and nobody else may use the disk meanwhile.
func TestADiskIsOpenedPastTheCachesAndForNobodyElse(t *testing.T) {
	_, disk := loopDisk(t, 1<<20)
	device, err := open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	flags, err := unix.FcntlInt(device.(*blockDevice).Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_DIRECT == 0 {
		t.Errorf("flags %#x, %v", flags, err)
	}
	if second, err := open(disk); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a disk that is in use can be opened: %v", err)
		_ = second.Close()
	}
	if err := device.Erase(t.Context(), plan.FormatErase, Told{}); err == nil || !strings.Contains(err.Error(), "needs an NVMe disk") {
		t.Errorf("a method of other disks: %v", err)
	}
}

// machineTree is a machine's block devices in sysfs, written by hand.
func machineTree(t *testing.T) sysfs.Tree {
	t.Helper()
	tree := inspectiontest.Tree{}
	device := func(name, at string, more ...string) {
		tree["sys/devices/"+at+"/model"] = "model of " + name + "\n"
		tree["sys/block/"+name+"/device"] = inspectiontest.LinkTo + "../../devices/" + at
		tree["sys/block/"+name+"/size"] = "2048\n"
		for i := 0; i+1 < len(more); i += 2 {
			tree["sys/block/"+name+"/"+more[i]] = more[i+1] + "\n"
		}
	}
	device("sda", "pci0000:00/ata1/host0/target0/0:0:0:0", "queue/logical_block_size", "4096", "queue/discard_max_bytes", "1048576")
	device("sdb", "pci0000:00/end_device-1/0", "sdb1/holders/md0/x", "")
	device("sdc", "pci0000:00/end_device-2/0", "queue/zoned", "host-managed")
	device("sdd", "pci0000:00/end_device-3/0")
	for at, ids := range map[string][2]string{
		"ata1/host0/target0/0:0:0:0": {"naa.2", "A"}, "end_device-1/0": {"naa.2", "A"}, "end_device-2/0": {"naa.2", "A"}, "end_device-3/0": {"naa.2", "B"},
	} {
		tree["sys/devices/pci0000:00/"+at+"/wwid"], tree["sys/devices/pci0000:00/"+at+"/serial"] = ids[0]+"\n", ids[1]+"\n"
	}
	device("nvme0n1", "pci0000:00/nvme/nvme0")
	for name, transport := range map[string]string{"nvme0": "pcie", "nvme1": "pcie", "nvme2": "tcp"} {
		tree["sys/class/nvme/"+name+"/transport"] = transport + "\n"
	}
	device("vda", "pci0000:00/virtio1", "ro", "1")
	device("mmcblk0", "pci0000:00/mmc0/mmc0:0001", "queue/discard_max_bytes", "1048576")
	device("mmcblk0boot0", "pci0000:00/mmc0/mmc0:0001/boot", "ro", "1")
	tree["sys/devices/pci0000:00/mmc0/mmc0:0001/type"] = "MMC\n"
	device("sr0", "pci0000:00/ata2/host1/target1/1:0:0:0", "removable", "1")
	tree["sys/devices/pci0000:00/ata2/host1/target1/1:0:0:0/type"] = "5\n"
	tree["sys/block/loop0/size"] = "0\n"
	tree["sys/bus/pci/devices/0000:00:01.0/class"] = "0x010601\n"
	tree["sys/bus/pci/devices/0000:00:01.0/driver/x"] = ""
	tree["sys/bus/pci/devices/0000:00:02.0/class"] = "0x010400\n"
	tree["sys/bus/pci/devices/0000:00:02.0/vendor"] = "0x1000\n"
	tree["sys/bus/pci/devices/0000:00:02.0/device"] = "0x005d\n"
	tree["sys/bus/pci/devices/0000:00:03.0/class"] = "0x020000\n"
	return sysfs.At(tree.Unpack(t))
}

func TestEveryBlockDeviceIsSeen(t *testing.T) {
	t.Parallel()
	tree := machineTree(t)
	var asked []string
	disks := look(tree, func(_ sysfs.Tree, d *plan.Disk) error {
		asked = append(asked, d.Name)
		if d.Name == "sda" {
			return io.ErrUnexpectedEOF
		}
		return nil
	})
	by := map[string]plan.Disk{}
	for _, d := range disks {
		by[d.Name] = d
	}
	slices.Sort(asked)
	if want := []string{"mmcblk0", "mmcblk0boot0", "nvme0n1", "sda", "sdb", "sdd", "vda"}; !slices.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	for what, ok := range map[string]bool{
		"sda is a SATA disk of 1 MiB with blocks of 4 KiB that discards": by["sda"].Transport == "sata" && by["sda"].Bytes == 1<<20 && by["sda"].BlockBytes == 4096 && by["sda"].Discards,
		"what sda did not answer is known":                               by["sda"].Problem != "",
		"a partition of sdb is held":                                     slices.Equal(by["sdb"].Holders, []string{"md0"}),
		"sdc is another path to sdb":                                     by["sdc"].SameAs == "sdb" && by["sdc"].Zoned,
		"sda and sdd are other disks of the same name":                   by["sda"].SameAs == "" && by["sdd"].SameAs == "",
		"mmcblk0boot0 may hold firmware":                                 by["mmcblk0boot0"].FirmwarePart && !by["mmcblk0"].FirmwarePart,
		"vda is read-only":                                               by["vda"].ReadOnly && by["vda"].Transport == "virtio",
		"mmcblk0 may discard securely":                                   by["mmcblk0"].DiscardsMayBeSecure && !by["mmcblk0"].NotADisk,
		"sr0 is no disk":                                                 by["sr0"].NotADisk && by["sr0"].Removable,
		"loop0 has no device":                                            by["loop0"].Virtual && len(disks) == 10,
	} {
		if !ok {
			t.Errorf("not so: %s\n%+v", what, by)
		}
	}
	got := controllers(tree)
	if len(got) != 2 || got[0].Name != "0000:00:02.0" || !strings.Contains(got[0].Problem, "1000:005d") || got[1].Name != "nvme1" || !strings.Contains(got[1].Problem, "no namespace") {
		t.Errorf("controllers whose disks can't be seen: %+v", got)
	}
}
