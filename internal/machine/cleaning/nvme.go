package cleaning

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
)

// ioctlNVMeAdmin is NVME_IOCTL_ADMIN_CMD, _IOWR('N', 0x41, struct nvme_admin_cmd) of linux/nvme_ioctl.h; ioctlNVMeRescan is NVME_IOCTL_RESCAN.
const (
	ioctlNVMeAdmin  = 0xc0484e41
	ioctlNVMeRescan = 0x4e46
)

// Admin commands and what they name (NVM Express Base Specification 2.0, section 5).
const (
	nvmeGetLogPage = 0x02
	nvmeIdentify   = 0x06
	nvmeFormat     = 0x80
	nvmeSanitize   = 0x84

	identifyNamespace  = 0x00
	identifyController = 0x01
	identifyActive     = 0x02
	identifyAllocated  = 0x10

	logSanitize  = 0x81
	identifySize = 4096

	allNamespaces = 0xffffffff
)

// Actions of Sanitize (section 5.22, figure 303), and the states of its log (section 5.16.1.24).
const (
	sanitizeBlockErase  = 2
	sanitizeCryptoErase = 4

	sanitizeNever         = 0
	sanitizeDone          = 1
	sanitizeGoesOn        = 2
	sanitizeDoneUndeleted = 4
)

// Secure erase settings of Format NVM (section 5.14).
const (
	formatUserData = 1
	formatCrypto   = 2
)

// nvmeCommand is struct nvme_admin_cmd.
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

// nvmeAdmin sends a command and returns its answer of so many bytes. The status that a controller refuses with is the ioctl's positive result.
func nvmeAdmin(fd int, command nvmeCommand, answerBytes int) ([]byte, error) {
	var answer []byte
	var pin runtime.Pinner // the command holds the buffer's address as a number
	defer pin.Unpin()
	if answerBytes > 0 {
		answer = make([]byte, answerBytes)
		pin.Pin(&answer[0])
		command.Data, command.Length = uint64(uintptr(unsafe.Pointer(&answer[0]))), uint32(answerBytes)
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlNVMeAdmin, uintptr(unsafe.Pointer(&command)))
	switch {
	case errno != 0:
		return nil, errno
	case status != 0:
		return nil, nvmeStatus(status)
	}
	return answer, nil
}

// nvmeStatus is a status field of a completion (section 3.3.3.2.1): type and code.
type nvmeStatus uint16

func (s nvmeStatus) Error() string {
	return fmt.Sprintf("the controller refused it: status type %d, code 0x%02x", s>>8&7, uint16(s)&0xff)
}

// lookNVMe asks a controller what it can do. namespace is the disk's.
func lookNVMe(fd int, namespace uint32) (*plan.NVMe, error) {
	controller, err := nvmeAdmin(fd, nvmeCommand{Opcode: nvmeIdentify, CDW: [6]uint32{identifyController}, TimeoutMS: shortMS}, identifySize)
	if err != nil {
		return nil, fmt.Errorf("identify the controller: %w", err)
	}
	n := controllerAbilities(controller)
	n.Namespace = namespace
	if binary.LittleEndian.Uint16(controller[oacsOffset:])&oacsNamespaces == 0 {
		return n, nil // all namespaces are attached
	}
	active, err := nvmeAdmin(fd, nvmeCommand{Opcode: nvmeIdentify, CDW: [6]uint32{identifyActive}, TimeoutMS: shortMS}, identifySize)
	if err != nil {
		return nil, fmt.Errorf("list the attached namespaces: %w", err)
	}
	all, err := nvmeAdmin(fd, nvmeCommand{Opcode: nvmeIdentify, CDW: [6]uint32{identifyAllocated}, TimeoutMS: shortMS}, identifySize)
	if err != nil {
		return nil, fmt.Errorf("list the namespaces: %w", err)
	}
	n.Unattached = unattached(namespaces(active), namespaces(all))
	return n, nil
}

// Fields of Identify Controller (section 5.17.2.1, figure 275), and bits of them.
const (
	oacsOffset, oacsFormat, oacsNamespaces     = 256, 1 << 1, 1 << 3
	sanicapOffset, sanicapCrypto, sanicapBlock = 328, 1 << 0, 1 << 1
	fnaOffset, fnaCrypto                       = 524, 1 << 2
)

// controllerAbilities reads the answer to Identify Controller.
func controllerAbilities(c []byte) *plan.NVMe {
	oacs, sanicap := binary.LittleEndian.Uint16(c[oacsOffset:]), binary.LittleEndian.Uint32(c[sanicapOffset:])
	return &plan.NVMe{
		SanitizeCrypto: sanicap&sanicapCrypto != 0, SanitizeBlock: sanicap&sanicapBlock != 0,
		Format: oacs&oacsFormat != 0, FormatCrypto: oacs&oacsFormat != 0 && c[fnaOffset]&fnaCrypto != 0,
	}
}

// namespaces reads a list of namespaces, which ends with 0 (section 5.17.2.2).
func namespaces(list []byte) (all []uint32) {
	for ; len(list) >= 4; list = list[4:] {
		id := binary.LittleEndian.Uint32(list)
		if id == 0 {
			break
		}
		all = append(all, id)
	}
	return all
}

func unattached(active, all []uint32) (rest []uint32) {
	for _, id := range all {
		if !slices.Contains(active, id) {
			rest = append(rest, id)
		}
	}
	return rest
}

// formatNVMe erases a namespace and keeps its block format.
func formatNVMe(fd int, namespace uint32, setting uint32) error {
	answer, err := nvmeAdmin(fd, nvmeCommand{Opcode: nvmeIdentify, Namespace: namespace, CDW: [6]uint32{identifyNamespace}, TimeoutMS: shortMS}, identifySize)
	if err != nil {
		return fmt.Errorf("identify namespace %d: %w", namespace, err)
	}
	_, err = nvmeAdmin(fd, nvmeCommand{Opcode: nvmeFormat, Namespace: namespace, CDW: [6]uint32{formatSettings(answer, setting)}, TimeoutMS: longMS}, 0)
	if err != nil {
		return fmt.Errorf("format namespace %d: %w", namespace, err)
	}
	return nil
}

// formatSettings is command dword 10 of Format NVM with the namespace's present block format, metadata and protection (figures 188 and 280).
func formatSettings(namespace []byte, setting uint32) uint32 {
	flbas, dps := uint32(namespace[26]), uint32(namespace[29])
	lower, metadata, upper := flbas&0xf, flbas>>4&1, flbas>>5&3
	protection, first := dps&7, dps>>3&1
	return lower | metadata<<4 | protection<<5 | first<<8 | setting<<9 | upper<<12
}

// sanitizeNVMe erases all of the controller's media, and waits until it is done.
func sanitizeNVMe(fd int, action uint32, wait func(time.Duration) error, expect func(time.Duration)) error {
	if _, err := nvmeAdmin(fd, nvmeCommand{Opcode: nvmeSanitize, CDW: [6]uint32{action}, TimeoutMS: longMS}, 0); err != nil {
		return fmt.Errorf("begin to sanitize: %w", err)
	}
	last := uint16(0)
	for since := time.Now(); ; {
		const logBytes = 512
		log, err := nvmeAdmin(fd, nvmeCommand{
			Opcode: nvmeGetLogPage, Namespace: allNamespaces, CDW: [6]uint32{logSanitize | (logBytes/4-1)<<16}, TimeoutMS: shortMS,
		}, logBytes)
		if err != nil {
			return fmt.Errorf("ask how far sanitizing is: %w", err)
		}
		progress, done, err := sanitizeState(log)
		if err != nil || done {
			return err
		}
		if progress != last {
			last, since = progress, time.Now()
		}
		if time.Since(since) > stalled {
			return fmt.Errorf("sanitizing has made no progress for %s, at %d of 65536", stalled, progress)
		}
		expect(stalled)
		if err := wait(sanitizePoll); err != nil {
			return err
		}
	}
}

// sanitizeState reads the Sanitize Status log: its progress of 65536, and whether it has ended well.
func sanitizeState(log []byte) (progress uint16, done bool, err error) {
	progress = binary.LittleEndian.Uint16(log)
	switch state := binary.LittleEndian.Uint16(log[2:]) & 7; state {
	case sanitizeDone, sanitizeDoneUndeleted:
		return progress, true, nil
	case sanitizeGoesOn:
		return progress, false, nil
	case sanitizeNever:
		return progress, false, errors.New("the controller says that it was never sanitized")
	default:
		return progress, false, fmt.Errorf("sanitizing failed: state %d", state)
	}
}

// rescanNVMe lets the kernel look at the namespaces again.
func rescanNVMe(controller string) error {
	file, err := os.OpenFile("/dev/"+controller, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), ioctlNVMeRescan, 0); errno != 0 {
		return errno
	}
	return nil
}
