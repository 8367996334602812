package cleaning

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/cleaning/plan"
)

// Requests of block devices (linux/fs.h).
const (
	blkDiscard       = 0x1277
	blkSecureDiscard = 0x127d
	blkZeroOut       = 0x127f
	blkRereadTable   = 0x125f
)

// chunkBytes is how much of a disk is erased by one call: it takes seconds on the slowest, so that progress is seen.
const chunkBytes = 128 << 20

// writeBytes is how much is written by one call where zeroes are written.
const writeBytes = 16 << 20

// alignedBuffer returns memory that can be read into past the kernel's caches (open(2), O_DIRECT): it begins at a page.
func alignedBuffer(size int64) []byte {
	const page = 4096
	buffer := make([]byte, size+page)
	offset := (page - int(uintptr(unsafe.Pointer(&buffer[0]))%page)) % page
	return buffer[offset : offset+int(size)]
}

// blockDevice is a disk of the running machine.
type blockDevice struct {
	*os.File
	disk plan.Disk
}

// open opens a disk past the kernel's caches. O_EXCL refuses one that is mounted or held by another device (open(2)).
func open(disk plan.Disk) (Device, error) {
	file, err := os.OpenFile("/dev/"+disk.Name, os.O_RDWR|os.O_EXCL|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	if a := disk.ATA; a != nil && a.Security {
		if err := ataOf(int(file.Fd())).letIn(); err != nil {
			return nil, errors.Join(err, file.Close())
		}
	}
	return &blockDevice{file, disk}, nil
}

// Close also lets the kernel forget the partitions that were there.
func (d *blockDevice) Close() error {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, d.Fd(), blkRereadTable, 0) // nothing here uses a partition
	return d.File.Close()
}

// Erase implements Device.
func (d *blockDevice) Erase(ctx context.Context, method plan.Method, told Told) error {
	fd := int(d.Fd())
	switch method {
	case plan.SecureDiscard:
		return d.inChunks(ctx, told, func(at, bytes int64) error { return eraseRange(fd, blkSecureDiscard, at, bytes) })
	case plan.Discard:
		return d.inChunks(ctx, told, func(at, bytes int64) error { return eraseRange(fd, blkDiscard, at, bytes) })
	case plan.ZeroOut:
		return d.inChunks(ctx, told, func(at, bytes int64) error { return eraseRange(fd, blkZeroOut, at, bytes) })
	case plan.WriteZeroes:
		buffer := alignedBuffer(writeBytes)
		return d.inChunks(ctx, told, func(at, bytes int64) error {
			for end := at + bytes; at < end; at += writeBytes {
				if _, err := d.WriteAt(buffer[:min(writeBytes, end-at)], at); err != nil {
					return err
				}
			}
			return nil
		})
	case plan.ATAEnhanced, plan.ATAErase:
		takes, enhanced := d.disk.ATA.Erase, method == plan.ATAEnhanced
		if enhanced {
			takes = d.disk.ATA.EnhancedErase
		}
		limit := longMS * time.Millisecond
		if takes > 0 {
			limit = 2*takes + stalled
		}
		told.Expect(limit)
		return ataOf(fd).erase(enhanced, takes)
	default:
		return d.eraseNVMe(ctx, method, told)
	}
}

func (d *blockDevice) eraseNVMe(ctx context.Context, method plan.Method, told Told) error {
	n := d.disk.NVMe
	if n == nil {
		return fmt.Errorf("%q needs an NVMe disk", method)
	}
	controller, err := os.OpenFile("/dev/"+n.Controller, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = controller.Close() }()
	fd := int(controller.Fd())
	wait := func(pause time.Duration) error {
		select {
		case <-time.After(pause):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	switch method {
	case plan.SanitizeCrypto:
		err = sanitizeNVMe(fd, sanitizeCryptoErase, wait, told.Expect)
	case plan.SanitizeBlock:
		err = sanitizeNVMe(fd, sanitizeBlockErase, wait, told.Expect)
	case plan.FormatCrypto:
		told.Expect(longMS * time.Millisecond)
		err = formatNVMe(fd, n.Namespace, formatCrypto)
	case plan.FormatErase:
		told.Expect(longMS * time.Millisecond)
		err = formatNVMe(fd, n.Namespace, formatUserData)
	default:
		err = fmt.Errorf("%q is unknown", method)
	}
	if err != nil {
		return err
	}
	return rescanNVMe(n.Controller)
}

func (d *blockDevice) inChunks(ctx context.Context, told Told, erase func(at, bytes int64) error) error {
	for at := int64(0); at < d.disk.Bytes; at += chunkBytes {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		bytes := min(chunkBytes, d.disk.Bytes-at)
		if err := erase(at, bytes); err != nil {
			return fmt.Errorf("at byte %d: %w", at, err)
		}
		told.Bytes(bytes)
	}
	return nil
}

// eraseRange calls one of the requests that take a range of bytes.
func eraseRange(fd int, request uintptr, at, bytes int64) error {
	area := [2]uint64{uint64(at), uint64(bytes)}
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&area)))
		switch {
		case errno == 0:
			return nil
		case errors.Is(errno, unix.EINTR):
			continue
		default:
			return errno
		}
	}
}
