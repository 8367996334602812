package bootagent

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

// The machine's disks that are block volumes. No host looks at what is on them, so the machine makes and mounts their file systems itself.

// What a disk is empty by: nothing but zeros in its first and its last bytes, in which file systems, partition tables and databases have their heads.
const (
	emptyHead, emptyTail = 16 << 20, 1 << 20
)

// content is what is on a disk.
type content int

const (
	contentEmpty content = iota
	contentExt4
	contentOther
)

// takeDisks makes the block volumes available under their names and at their paths.
func (g *guest) takeDisks(ctx context.Context, disks []guestlink.Disk) error {
	ctx, cancel := context.WithTimeout(ctx, diskPatience)
	defer cancel()
	for _, d := range disks {
		device, err := guestDisk(ctx, guestlink.DiskSerial(d.Name))
		if err == nil {
			err = linkDisk(d.Name, device)
		}
		if err == nil {
			err = g.takeDisk(d, device)
		}
		if err != nil {
			return fmt.Errorf("the block volume %s: %w", d.Name, err)
		}
	}
	return nil
}

// linkDisk leads the name by which programs know a disk to its device. There is no udev that would.
func linkDisk(name, device string) error {
	link := guestlink.DiskLink(name)
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return err
	}
	if err := os.Symlink(device, link); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// takeDisk mounts the file system of a disk, which it makes where there is nothing.
func (g *guest) takeDisk(d guestlink.Disk, device string) error {
	has, err := contentOf(device)
	if err != nil {
		return err
	}
	switch {
	case has == contentOther:
		g.agent.log.Warn("a block volume has no ext4, and is not mounted", "volume", d.Name, "device", device)
		return nil
	case has == contentEmpty && d.ReadOnly:
		g.agent.log.Warn("a block volume is empty and read-only, and is not mounted", "volume", d.Name, "device", device)
		return nil
	}
	if err := g.agent.modules.loadAll([]string{"ext4"}); err != nil {
		return err
	}
	if has == contentEmpty {
		if err := g.format(d, device); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return err
	}
	flags, options := uintptr(unix.MS_NOSUID|unix.MS_NODEV), "errors=remount-ro"
	if d.ReadOnly {
		flags, options = flags|unix.MS_RDONLY, "noload"
	}
	if err := unix.Mount(device, d.Path, "ext4", flags, options); err != nil {
		return fmt.Errorf("mount %s at %s: %w", device, d.Path, err)
	}
	if d.ReadOnly {
		return nil
	}
	if has == contentEmpty {
		return errors.Join(os.Chown(d.Path, int(d.UID), int(d.GID)), os.Chmod(d.Path, 0o775))
	}
	return growFileSystem(device, d.Path)
}

// contentOf looks at what is on a disk.
func contentOf(device string) (content, error) {
	disk, err := os.Open(device)
	if err != nil {
		return contentOther, err
	}
	defer func() { _ = disk.Close() }()
	size, err := disk.Seek(0, io.SeekEnd)
	if err != nil {
		return contentOther, err
	}
	head, tail := make([]byte, min(size, emptyHead)), make([]byte, min(size, emptyTail))
	if _, err := disk.ReadAt(head, 0); err != nil {
		return contentOther, err
	}
	if _, err := disk.ReadAt(tail, size-int64(len(tail))); err != nil {
		return contentOther, err
	}
	if _, ok := readSuperblock(head); ok {
		return contentExt4, nil
	}
	for _, part := range [][]byte{head, tail} {
		if len(bytes.TrimLeft(part, "\x00")) > 0 {
			return contentOther, nil
		}
	}
	return contentEmpty, nil
}

// superblock is what matters here of ext4's, which is 1024 bytes into the device (Linux, Documentation/filesystems/ext4/super.rst).
type superblock struct{ blocks, blockBytes int64 }

const superblockAt = 1024

func readSuperblock(head []byte) (superblock, bool) {
	if len(head) < superblockAt+0x154 {
		return superblock{}, false
	}
	s := head[superblockAt:]
	blocks := int64(binary.LittleEndian.Uint32(s[0x4:])) | int64(binary.LittleEndian.Uint32(s[0x150:]))<<32
	return superblock{blocks, 1024 << min(binary.LittleEndian.Uint32(s[0x18:]), 6)}, binary.LittleEndian.Uint16(s[0x38:]) == 0xef53
}

// format makes a file system on an empty disk.
func (g *guest) format(d guestlink.Disk, device string) error {
	const mkfs = "/sbin/mkfs.ext4"
	console, err := os.OpenFile("/dev/console", os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = console.Close() }()
	status, err := g.agent.init.command(process{
		name: "mkfs.ext4", args: []string{mkfs, "-q", "-F", "-E", "nodiscard", "-m", "0", device}, files: []*os.File{nil, console, console},
	})
	if err == nil && status != 0 {
		err = fmt.Errorf("%v", describe(status))
	}
	if err != nil {
		return fmt.Errorf("making its file system: %s %s: %w", mkfs, device, err)
	}
	g.agent.log.Info("a block volume got a file system", "volume", d.Name, "device", device)
	return nil
}

// resizeFS is EXT4_IOC_RESIZE_FS (Linux, include/uapi/linux/ext4.h).
const resizeFS = 0x40086610

// growFileSystem makes a mounted file system as large as its device, which may have grown.
func growFileSystem(device, at string) error {
	disk, err := os.Open(device)
	if err != nil {
		return err
	}
	defer func() { _ = disk.Close() }()
	size, err := disk.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	head := make([]byte, min(size, 4096))
	if _, err := disk.ReadAt(head, 0); err != nil {
		return err
	}
	has, ok := readSuperblock(head)
	wanted := uint64(size / has.blockBytes)
	if !ok || uint64(has.blocks) >= wanted {
		return nil
	}
	root, err := os.Open(at)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if _, _, number := unix.Syscall(unix.SYS_IOCTL, root.Fd(), resizeFS, uintptr(unsafe.Pointer(&wanted))); number != 0 {
		return fmt.Errorf("growing its file system from %d to %d blocks: %w", has.blocks, wanted, number)
	}
	return nil
}
