package lvmthin

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The device mapper's calls, <linux/dm-ioctl.h>: the places of what is read and written of struct dm_ioctl, and of struct dm_target_spec.
const (
	headBytes     = 312
	atDataSize    = 12
	atDataStart   = 16
	atTargets     = 20
	atOpenCount   = 24
	atName        = 48
	mostNameBytes = 127
	specBytes     = 40
	sectorBytes   = 512
)

const mapperDir = "/dev/mapper"

// mapperName is the name of a logical volume's device in the kernel.
func mapperName(group, name string) string {
	double := func(text string) string { return strings.ReplaceAll(text, "-", "--") }
	return double(group) + "-" + double(name)
}

// openMapper opens what answers the device mapper's calls, and loads the module that has it.
func openMapper() (*os.File, error) {
	control, err := os.OpenFile(filepath.Join(mapperDir, "control"), os.O_RDWR, 0)
	if err != nil {
		_ = exec.Command("modprobe", "dm-thin-pool").Run()
		control, err = os.OpenFile(filepath.Join(mapperDir, "control"), os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("the kernel has no device mapper; run: modprobe dm-thin-pool, or keep volumes in the state directory, without --volume-pool-lvm (%w)", err)
	}
	return control, nil
}

// ask sends one call about a device to the kernel. It returns nil when there is no such device.
func ask(call uintptr, name string) ([]byte, error) {
	if len(name) > mostNameBytes {
		return nil, fmt.Errorf("%s is too long for the name of a device", name)
	}
	control, err := openMapper()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	block := make([]byte, 16<<10)
	binary.NativeEndian.PutUint32(block, 4) // the version of the calls
	binary.NativeEndian.PutUint32(block[atDataSize:], uint32(len(block)))
	binary.NativeEndian.PutUint32(block[atDataStart:], headBytes)
	copy(block[atName:], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), call, uintptr(unsafe.Pointer(&block[0])))
	switch {
	case errors.Is(errno, unix.ENXIO):
		return nil, nil
	case errno != 0:
		return nil, fmt.Errorf("asking the device mapper for %s: %w", name, errno)
	}
	return block, nil
}

// opened returns how many users a device has: mounts in any namespace, and programs. there is false where it has no device.
func opened(name string) (count int, there bool, err error) {
	block, err := ask(unix.DM_DEV_STATUS, name)
	if err != nil || block == nil {
		return 0, false, err
	}
	return int(binary.NativeEndian.Uint32(block[atOpenCount:])), true, nil
}

// mapped returns for how many bytes a thin volume has blocks, shared ones included. It needs its device.
func mapped(name string) (int64, error) {
	block, err := ask(unix.DM_TABLE_STATUS, name)
	if err == nil && block == nil {
		err = fmt.Errorf("%s has no device", name)
	}
	if err != nil {
		return 0, err
	}
	sectors, err := mappedSectors(block)
	if err != nil {
		return 0, fmt.Errorf("the device mapper's answer for %s: %w", name, err)
	}
	return sectors * sectorBytes, nil
}

// mappedSectors reads the status of a device with one target, which must be of type thin.
func mappedSectors(block []byte) (sectors int64, err error) {
	start := int(binary.NativeEndian.Uint32(block[atDataStart:]))
	if targets := binary.NativeEndian.Uint32(block[atTargets:]); targets != 1 || start+specBytes >= len(block) {
		return 0, fmt.Errorf("it has %d targets, where a thin volume has 1", targets)
	}
	kind, _, _ := bytes.Cut(block[start+24:start+specBytes], []byte{0})
	text, _, _ := bytes.Cut(block[start+specBytes:], []byte{0})
	if string(kind) != "thin" {
		return 0, fmt.Errorf("it is of type %q and not thin", kind)
	}
	if _, err := fmt.Sscan(string(text), &sectors); err != nil {
		return 0, fmt.Errorf("its state is %q", text)
	}
	return sectors, nil
}
