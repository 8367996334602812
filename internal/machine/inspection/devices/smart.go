package devices

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/sgio"
)

// Wear is what a disk says of itself.
type Wear struct {
	// Known is false for disks that say nothing, such as virtual ones.
	Known bool
	// Failing tells why it predicts its failure or has failed in part; "" when it is well.
	Failing string
	// UsedPercent is how much of its life an NVMe disk has used, by its maker's estimate; it can pass 100.
	UsedPercent int
	// MediaErrors is how many errors of its medium an NVMe disk has counted.
	MediaErrors int64
}

// nvmeAdmin is NVME_IOCTL_ADMIN_CMD, _IOWR('N', 0x41, struct nvme_admin_cmd) of linux/nvme_ioctl.h.
const nvmeAdmin = 0xc0484e41

type nvmeCommand struct {
	Opcode, Flags       byte
	_                   uint16
	Namespace           uint32
	_                   [8]byte
	Metadata, Data      uint64
	MetadataLen, Length uint32
	CDW                 [6]uint32 // command dwords 10 to 15
	TimeoutMS, Result   uint32
}

// The reasons in the critical warning byte of the SMART / Health Information log (NVMe Base Specification 2.0, section 5.16.1.3), by bit.
var nvmeWarnings = []string{
	"its spare blocks are nearly used up", "its temperature is out of range", "its reliability is degraded by errors of its medium",
	"it has become read-only", "the backup of its volatile memory has failed", "its persistent memory has gone read-only",
}

// NVMeWear reads the health log (log page 2) of the disk NAME.
func (Machine) NVMeWear(name string) (Wear, error) {
	file, err := os.Open("/dev/" + name)
	if err != nil {
		return Wear{}, err
	}
	defer file.Close()
	log := make([]byte, 512)
	var pin runtime.Pinner // the command holds the buffer's address as a number
	pin.Pin(&log[0])
	defer pin.Unpin()
	command := &nvmeCommand{
		Opcode: 0x02, Namespace: 0xffffffff, Data: uint64(uintptr(unsafe.Pointer(&log[0]))), Length: uint32(len(log)), TimeoutMS: 5000,
	}
	command.CDW[0] = 0x02 | (uint32(len(log))/4-1)<<16
	err = ioctl(int(file.Fd()), nvmeAdmin, unsafe.Pointer(command))
	if absent(err) {
		return Wear{}, nil
	}
	if err != nil {
		return Wear{}, fmt.Errorf("read the health log of %s: %w", name, err)
	}
	// Media and Data Integrity Errors are bytes 160 to 175, far fewer than 2^63.
	wear := Wear{Known: true, UsedPercent: int(log[5]), MediaErrors: int64(binary.LittleEndian.Uint64(log[160:]) & (1<<63 - 1))}
	var reasons []string
	for bit, reason := range nvmeWarnings {
		if log[0]&(1<<bit) != 0 {
			reasons = append(reasons, reason)
		}
	}
	wear.Failing = strings.Join(reasons, ", ")
	return wear, nil
}

// ATAWear asks a SATA disk for its SMART status: command 0xb0 with feature 0xda (ACS-3, section 7.48.9), sent by ATA PASS-THROUGH(16)
// with the registers returned in the sense data (SAT-3, section 12.2). Disks behind RAID controllers that hide them say nothing.
func (Machine) ATAWear(name string) (Wear, error) {
	file, err := os.OpenFile("/dev/"+name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return Wear{}, err
	}
	defer file.Close()
	command := [16]byte{0: 0x85, 1: 3 << 1, 2: 0x20, 4: 0xda, 10: 0x4f, 12: 0xc2, 14: 0xb0} // non-data, CK_COND, the signature C2 4F
	sense := make([]byte, 32)
	header := &sgio.Header{
		InterfaceID: 'S', Direction: -1, CommandLen: byte(len(command)), SenseMax: byte(len(sense)),
		Command: unsafe.Pointer(&command[0]), Sense: unsafe.Pointer(&sense[0]), TimeoutMS: 5000,
	}
	err = ioctl(int(file.Fd()), sgio.Request, unsafe.Pointer(header))
	runtime.KeepAlive(&command)
	runtime.KeepAlive(sense)
	if absent(err) {
		return Wear{}, nil
	}
	if err != nil {
		return Wear{}, fmt.Errorf("ask %s for its SMART status: %w", name, err)
	}
	return ataStatus(sense), nil
}

// ataStatus reads the ATA Status Return descriptor (SAT-3, section 12.2.2.7): the disk turns the signature into 2C F4 when a threshold is
// exceeded.
func ataStatus(sense []byte) Wear {
	if len(sense) < 22 || sense[0]&0x7f != 0x72 || sense[8] != 0x09 || sense[9] != 0x0c {
		return Wear{}
	}
	switch binary.BigEndian.Uint16([]byte{sense[17], sense[19]}) { // LBA 15:8 and 23:16
	case 0x4fc2:
		return Wear{Known: true}
	case 0xf42c:
		return Wear{Known: true, Failing: "its SMART status predicts its failure"}
	}
	return Wear{}
}
