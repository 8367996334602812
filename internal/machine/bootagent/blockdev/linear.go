package blockdev

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Device-mapper's ioctls (Linux, include/uapi/linux/dm-ioctl.h): one structure for all, followed by what the call carries.
const (
	dmVersion   = 4
	dmHeadBytes = 312
	dmSpecBytes = 40

	dmDevCreate  = 3
	dmDevRemove  = 4
	dmDevSuspend = 6
	dmTableLoad  = 9

	dmReadOnly = 1 << 0
)

const sectorBytes = 512

// Linear is a device-mapper device that passes all through to another device, which can be exchanged under what is mounted on it.
type Linear struct {
	name  string
	path  string
	bytes int64
}

// NewLinear makes a read-only device over another one from its beginning on, sizeBytes rounded up to whole blocks.
func NewLinear(name, device string, sizeBytes int64) (*Linear, error) {
	l := &Linear{name: name, bytes: (sizeBytes + BlockBytes - 1) / BlockBytes * BlockBytes}
	head, err := dm(dmDevCreate, name, dmReadOnly, nil)
	if err != nil {
		return nil, fmt.Errorf("make the device %s: %w", name, err)
	}
	// The kernel answers with the number it chose; devtmpfs names the node by its minor.
	number := binary.NativeEndian.Uint64(head[40:])
	l.path = fmt.Sprintf("/dev/dm-%d", unix.Minor(number))
	if err := l.Swap(device, 0); err != nil {
		_, removeErr := dm(dmDevRemove, name, 0, nil)
		return nil, errors.Join(err, removeErr)
	}
	return l, nil
}

// Path is the device's path.
func (l *Linear) Path() string { return l.path }

// Swap exchanges what is below for a device from an offset on, which is whole blocks. Reads under way are answered by the old one first; those that come meanwhile wait, none fails.
func (l *Linear) Swap(device string, offset int64) error {
	var stat unix.Stat_t
	if err := unix.Stat(device, &stat); err != nil {
		return fmt.Errorf("put %s over %s: %w", l.name, device, err)
	}
	table := linearTable(l.bytes, offset, unix.Major(stat.Rdev), unix.Minor(stat.Rdev))
	if _, err := dm(dmTableLoad, l.name, dmReadOnly, table); err != nil {
		return fmt.Errorf("put %s over %s: load the table: %w", l.name, device, err)
	}
	// Resuming a device with a new table suspends it first, which waits for what is under way.
	if _, err := dm(dmDevSuspend, l.name, 0, nil); err != nil {
		return fmt.Errorf("put %s over %s: %w", l.name, device, err)
	}
	return nil
}

// linearTable is the payload of a table of one linear target: struct dm_target_spec and "MAJOR:MINOR OFFSET".
func linearTable(sizeBytes, offset int64, major, minor uint32) []byte {
	text := fmt.Sprintf("%d:%d %d", major, minor, offset/sectorBytes)
	length := (dmSpecBytes + len(text) + 1 + 7) &^ 7
	b := make([]byte, length)
	binary.NativeEndian.PutUint64(b[8:], uint64(sizeBytes/sectorBytes))
	binary.NativeEndian.PutUint32(b[20:], uint32(length))
	copy(b[24:40], "linear")
	copy(b[dmSpecBytes:], text)
	return b
}

// dm makes one call and returns the structure as the kernel answered it.
func dm(command uintptr, name string, flags uint32, payload []byte) ([]byte, error) {
	control, err := os.OpenFile("/dev/mapper/control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	b := dmRequest(name, flags, payload)
	// _IOWR(0xfd, command, struct dm_ioctl)
	code := uintptr(3)<<30 | uintptr(dmHeadBytes)<<16 | uintptr(0xfd)<<8 | command
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), code, uintptr(unsafe.Pointer(&b[0]))); errno != 0 {
		return nil, errno
	}
	return b, nil
}

// dmRequest is struct dm_ioctl with its payload.
func dmRequest(name string, flags uint32, payload []byte) []byte {
	b := make([]byte, dmHeadBytes+len(payload))
	binary.NativeEndian.PutUint32(b, dmVersion)
	binary.NativeEndian.PutUint32(b[12:], uint32(len(b)))
	binary.NativeEndian.PutUint32(b[16:], dmHeadBytes)
	if len(payload) > 0 {
		binary.NativeEndian.PutUint32(b[20:], 1)
	}
	binary.NativeEndian.PutUint32(b[28:], flags)
	copy(b[48:48+127], name)
	copy(b[dmHeadBytes:], payload)
	return b
}
