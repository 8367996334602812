package cleaning

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
	"github.com/nearmetal/nearmetal/internal/machine/sgio"
)

// Commands (ACS-3, section 7), all of them on 512 bytes of data or on none.
const (
	ataIdentify        = 0xec
	ataReadNativeMax   = 0x27 // READ NATIVE MAX ADDRESS EXT (ATA8-ACS, section 7.31)
	ataSetPassword     = 0xf1
	ataUnlock          = 0xf2
	ataErasePrepare    = 0xf3
	ataEraseUnit       = 0xf4
	ataDisablePassword = 0xf6

	ataSector = 512
)

// direction is where an ATA command's data go.
type direction int

const (
	noData direction = iota
	dataIn
	dataOut
)

// passThrough is the SCSI command ATA PASS-THROUGH(16) (SAT-3, section 12.2.2).
func passThrough(command byte, to direction) [16]byte {
	const (
		pioIn, pioOut, nonData    = 4 << 1, 5 << 1, 3 << 1
		fromDevice, blocks, count = 1 << 3, 1 << 2, 2 // T_DIR, BYT_BLOK, T_LENGTH by the count
		checkCondition            = 1 << 5
	)
	c := [16]byte{0: 0x85, 14: command}
	switch to {
	case dataIn:
		c[1], c[2], c[6] = pioIn, fromDevice|blocks|count, 1
	case dataOut:
		c[1], c[2], c[6] = pioOut, blocks|count, 1
	default:
		c[1], c[2] = nonData, checkCondition
	}
	return c
}

// extended makes a command one with 48-bit addresses (the bit EXTEND, and LBA mode).
func extended(c [16]byte) [16]byte {
	c[1] |= 1
	c[13] = 1 << 6
	return c
}

// ataDisk sends commands to a disk.
type ataDisk func(command [16]byte, to direction, data []byte, timeoutMS uint32) (sense []byte, err error)

// ataOf is the disk that is open at this descriptor.
func ataOf(fd int) ataDisk {
	return func(command [16]byte, to direction, data []byte, timeoutMS uint32) ([]byte, error) {
		return ataSend(fd, command, to, data, timeoutMS)
	}
}

// ataSend sends a command and returns the registers that come back with commands without data (the ATA Status Return descriptor, SAT-3, section
// 12.2.2.7), as sense data.
func ataSend(fd int, command [16]byte, to direction, data []byte, timeoutMS uint32) (sense []byte, err error) {
	sense = make([]byte, 32)
	directions := map[direction]int32{noData: -1, dataOut: -2, dataIn: -3} // SG_DXFER_*
	header := &sgio.Header{
		InterfaceID: 'S', Direction: directions[to], CommandLen: byte(len(command)), SenseMax: byte(len(sense)), Length: uint32(len(data)),
		Data: unsafe.Pointer(unsafe.SliceData(data)), Command: unsafe.Pointer(&command[0]), Sense: unsafe.Pointer(&sense[0]), TimeoutMS: timeoutMS,
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), sgio.Request, uintptr(unsafe.Pointer(header)))
	runtime.KeepAlive(&command)
	runtime.KeepAlive(data)
	if errno != 0 {
		return nil, errno
	}
	return sense, ataResult(header.HostStatus, header.Driver, header.Status, sense, to)
}

// ataResult tells whether a command succeeded. One that asks for its registers always ends in a check condition that carries them.
func ataResult(host, driver uint16, status byte, sense []byte, to direction) error {
	const driverSense, checkCondition = 0x08, 0x02
	if host != 0 || driver&^driverSense != 0 {
		return fmt.Errorf("the disk did not answer: host status 0x%x, driver status 0x%x", host, driver)
	}
	registers := len(sense) >= 22 && sense[0]&0x7f == 0x72 && sense[8] == 0x09
	switch {
	case registers && sense[21]&1 != 0: // ERR
		return fmt.Errorf("the disk refused it: status 0x%02x, error 0x%02x", sense[21], sense[11])
	case registers:
		return nil
	case status == 0 && to != noData:
		return nil
	case status == 0:
		return nil // a translation that returns no registers
	case status == checkCondition && len(sense) > 2:
		return fmt.Errorf("the disk refused it: sense 0x% x", sense[:min(len(sense), 16)])
	default:
		return fmt.Errorf("the disk refused it: SCSI status 0x%02x", status)
	}
}

// look asks the disk what it can do.
func (send ataDisk) look() (*plan.ATA, error) {
	identity := make([]byte, ataSector)
	if _, err := send(passThrough(ataIdentify, dataIn), dataIn, identity, shortMS); err != nil {
		return nil, fmt.Errorf("identify the disk: %w", err)
	}
	a := ataAbilities(identity)
	if a == nil {
		return nil, errors.New("identify the disk: the answer is empty")
	}
	const hostProtectedArea = 1 << 10 // word 82
	if word(identity, 82)&hostProtectedArea != 0 {
		sense, err := send(extended(passThrough(ataReadNativeMax, noData)), noData, nil, shortMS)
		if err != nil {
			return nil, fmt.Errorf("ask for hidden sectors: %w", err)
		}
		a.Native = nativeSectors(sense)
	}
	return a, nil
}

func word(identity []byte, n int) uint16 { return binary.LittleEndian.Uint16(identity[2*n:]) }

// ataAbilities reads the answer to IDENTIFY DEVICE (ACS-3, section 7.12.7); nil: it is empty.
func ataAbilities(identity []byte) *plan.ATA {
	if word(identity, 0) == 0 && word(identity, 83) == 0 {
		return nil
	}
	security := word(identity, 128)
	sectors := int64(binary.LittleEndian.Uint64(identity[2*100:]))
	if sectors == 0 {
		sectors = int64(binary.LittleEndian.Uint32(identity[2*60:]))
	}
	return &plan.ATA{
		Security: security&1 != 0, Enabled: security&(1<<1) != 0, Locked: security&(1<<2) != 0, Frozen: security&(1<<3) != 0,
		Expired: security&(1<<4) != 0, Enhanced: security&(1<<5) != 0,
		Erase: eraseTime(word(identity, 89)), EnhancedErase: eraseTime(word(identity, 90)), Sectors: sectors,
	}
}

// eraseTime reads word 89 or 90: in units of two minutes, in bits 14:0 where bit 15 is set and in bits 7:0 where it is not.
func eraseTime(word uint16) time.Duration {
	n := word & 0xff
	if word&(1<<15) != 0 {
		n = word & 0x7fff
	}
	return time.Duration(n) * 2 * time.Minute
}

// nativeSectors reads the number of sectors from the registers of READ NATIVE MAX ADDRESS EXT, which has the last address; 0: none came back.
func nativeSectors(sense []byte) int64 {
	if len(sense) < 22 || sense[0]&0x7f != 0x72 || sense[8] != 0x09 {
		return 0
	}
	// Bits 7:0, 15:8 and 23:16 of the address are in bytes 15, 17 and 19, and 31:24, 39:32 and 47:40 before each.
	last := int64(sense[15]) | int64(sense[17])<<8 | int64(sense[19])<<16 | int64(sense[14])<<24 | int64(sense[16])<<32 | int64(sense[18])<<40
	return last + 1
}

// erasePassword is set for as long as an erasure goes on, which ends it: one that a power failure interrupts leaves it set.
const erasePassword = "nearmetal"

// erase erases the disk by SECURITY ERASE UNIT (ACS-3, sections 7.38 to 7.41). A disk that refuses is left without a password.
func (send ataDisk) erase(enhanced bool, takes time.Duration) error {
	data := passwordData(false)
	if _, err := send(passThrough(ataSetPassword, dataOut), dataOut, data, shortMS); err != nil {
		return fmt.Errorf("set a password for the erasure: %w", err)
	}
	_, err := send(passThrough(ataErasePrepare, noData), noData, nil, shortMS)
	if err == nil {
		timeout := uint32(min(2*takes+stalled, longMS*time.Millisecond) / time.Millisecond)
		if takes == 0 {
			timeout = longMS
		}
		_, err = send(passThrough(ataEraseUnit, dataOut), dataOut, passwordData(enhanced), timeout)
	}
	if err == nil {
		return nil
	}
	if _, undo := send(passThrough(ataDisablePassword, dataOut), dataOut, data, shortMS); undo != nil {
		return fmt.Errorf("erase the disk: %w; it is left with the ATA password %q: %w", err, erasePassword, undo)
	}
	return fmt.Errorf("erase the disk: %w", err)
}

// letIn removes the password that a cleaning set which was interrupted. One that somebody else has set keeps the site out, and the next tenant, too.
func (send ataDisk) letIn() error {
	a, err := send.look()
	if err != nil || !a.Enabled {
		return err
	}
	if a.Locked {
		if _, err := send(passThrough(ataUnlock, dataOut), dataOut, passwordData(false), shortMS); err != nil {
			return fmt.Errorf("it is locked by an ATA password that this site does not know, so unlock it or take it out: %w", err)
		}
	}
	if _, err := send(passThrough(ataDisablePassword, dataOut), dataOut, passwordData(false), shortMS); err != nil {
		return fmt.Errorf("it has an ATA password that this site does not know, so remove it or take the disk out: %w", err)
	}
	return nil
}

// passwordData is the data of the security commands: the user's password, and for an erasure whether it is an enhanced one (bit 1 of word 0).
func passwordData(enhanced bool) []byte {
	data := make([]byte, ataSector)
	if enhanced {
		data[0] = 1 << 1
	}
	copy(data[2:], erasePassword)
	return data
}
