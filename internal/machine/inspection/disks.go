package inspection

import (
	"context"
	"path"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// sectorBytes is the unit of /sys/block/NAME/size, whatever the disk's own sectors are.
const sectorBytes = 512

// scsiDisk is the SCSI peripheral device type of disks (SPC-5, table 148).
const scsiDisk = "0"

// readDisks reads the disks: block devices with a device behind them. Partitions are not in /sys/block, and loop, RAM, device-mapper, md
// and network block devices have no device.
func readDisks(_ context.Context, s source) (func(*api.Hardware), []string) {
	disks := []api.Disk{}
	for _, name := range s.tree.Names("sys/block") {
		dir := "sys/block/" + name
		sectors, _ := s.tree.Int(dir + "/size")
		kind := s.tree.Text(dir + "/device/type")
		switch {
		case !s.tree.Exists(dir + "/device"), sectors == 0:
			continue // not a disk, or a reader without a medium
		case s.tree.Text(dir+"/hidden") == "1", s.tree.Text(dir+"/removable") == "1":
			continue // one path to a disk that is there as a whole too; a stick or a CD
		case kind != "" && kind != scsiDisk && !strings.HasPrefix(name, "mmcblk"):
			continue
		}
		real := s.devicePath(dir + "/device")
		disks = append(disks, api.Disk{
			Name:       name,
			Model:      s.tree.Text(dir + "/device/model"),
			Serial:     DiskSerial(s.tree, dir),
			SizeBytes:  sectors * sectorBytes,
			Rotational: s.tree.Text(dir+"/queue/rotational") == "1",
			Transport:  Transport(name, real),
			NUMANode:   s.numaNode(real),
		})
	}
	return func(hw *api.Hardware) { hw.Disks = disks }, nil
}

// devicePath is where a device really is. An NVMe disk that could have several controllers hangs on a subsystem, which is in no place;
// its first controller is.
func (s source) devicePath(device string) string {
	real := s.tree.Real(device)
	if !strings.Contains(real, "/virtual/nvme-subsystem/") {
		return real
	}
	for _, name := range s.tree.Names(real) {
		if controller := s.tree.Real(path.Join(real, name)); strings.HasPrefix(name, "nvme") && !strings.HasPrefix(controller, real) {
			return controller
		}
	}
	return real
}

// DiskSerial is the serial number. Old SCSI disks, as SATA ones look to the kernel, have it in a page of vital product data only
// (SPC-5, section 7.7.22: four bytes of header).
func DiskSerial(tree sysfs.Tree, dir string) string {
	for _, name := range []string{"/device/serial", "/serial"} {
		if serial := tree.Text(dir + name); serial != "" {
			return serial
		}
	}
	page, err := tree.Bytes(dir + "/device/vpd_pg80")
	if err != nil || len(page) <= 4 {
		return ""
	}
	return strings.Trim(strings.ToValidUTF8(string(page[4:]), ""), "\x00 \n")
}

// Transport is how a disk is attached, by the devices it hangs on.
func Transport(name, real string) string {
	switch {
	case strings.HasPrefix(name, "nvme"):
		return "nvme"
	case strings.HasPrefix(name, "mmcblk"):
		return "mmc"
	case strings.Contains(real, "/virtio"):
		return "virtio"
	case strings.Contains(real, "/usb"):
		return "usb"
	case strings.Contains(real, "/end_device-"):
		return "sas"
	case strings.Contains(real, "/ata"):
		return "sata"
	case strings.Contains(real, "/session"):
		return "iscsi"
	case strings.Contains(real, "/rport-"):
		return "fc"
	case strings.Contains(real, "/host"):
		return "scsi"
	}
	return ""
}
