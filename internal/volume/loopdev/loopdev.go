// Package loopdev makes block devices of files (loop(4)), and finds those that a file has.
//
// A device goes with its last user, which may be a mount in any namespace. A file must never have two devices: each would have a file system of
// its own in memory, and they would destroy each other's. So Open returns the device that a file has already. Start with Open.
package loopdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The pauses and the end of waiting for a device to go. The kernel takes it away a moment after its last user.
const (
	lookEvery = 10 * time.Millisecond
	waitMost  = 5 * time.Second
)

// ErrBusy reports that a file still has a device, because something uses it.
var ErrBusy = errors.New("its loop device is in use")

// Open returns an open device of a file, which has it for as long as it is open or mounted. A file that has one already keeps that one.
func Open(path string) (*os.File, error) {
	if device, err := find(path); err != nil || device != nil {
		return device, err
	}
	backing, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer backing.Close()
	control, err := openControl()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range 100 {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("finding a free loop device: %w", err)
		}
		device, err := configure(fmt.Sprintf("/dev/loop%d", number), backing)
		if !errors.Is(err, unix.EBUSY) {
			return device, err
		}
		// Another program took it first.
	}
	return nil, errors.New("other programs took every free loop device")
}

// openControl opens what hands devices out, and loads the module that has it.
func openControl() (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		_ = exec.Command("modprobe", "loop").Run()
		control, err = os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("there are no loop devices; run: modprobe loop (%w)", err)
	}
	return control, nil
}

// Problems are why this host has no loop devices.
func Problems() []string {
	control, err := openControl()
	if err != nil {
		return []string{err.Error()}
	}
	_ = control.Close()
	return nil
}

// configure makes a free device that of a file, past the host's page cache where its file system can do that.
func configure(path string, backing *os.File) (*os.File, error) {
	device, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	config := unix.LoopConfig{Fd: uint32(backing.Fd())}
	copy(config.Info.File_name[:len(config.Info.File_name)-1], backing.Name())
	for _, flags := range []uint32{unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO, unix.LO_FLAGS_AUTOCLEAR} {
		config.Info.Flags = flags
		if err = unix.IoctlLoopConfigure(int(device.Fd()), &config); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making %s of %s: %w", path, backing.Name(), err), device.Close())
	}
	keepAllocated(filepath.Base(path))
	// Kernels may refuse to mount what is open for writing.
	reader, err := os.Open(path)
	return reader, errors.Join(err, device.Close())
}

// keepAllocated keeps a device from giving room of its file back when blocks are discarded or zeroed. Older kernels lack the second setting.
func keepAllocated(name string) {
	for _, setting := range []string{"discard_max_bytes", "write_zeroes_unmap_max_bytes"} {
		_ = os.WriteFile(filepath.Join("/sys/block", name, "queue", setting), []byte("0"), 0)
	}
}

// Grow makes a device as large as its file has become.
func Grow(device *os.File) error {
	if _, err := unix.IoctlRetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY); err != nil {
		return fmt.Errorf("growing %s: %w", device.Name(), err)
	}
	return nil
}

// find opens the device of a file; nil when it has none.
func find(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("%s has no inode", path)
	}
	configured, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	for _, at := range configured {
		// The name alone is compared: the path is that of the namespace in which the device was made.
		text, err := os.ReadFile(at)
		if err != nil || filepath.Base(strings.TrimSpace(string(text))) != filepath.Base(path) {
			continue
		}
		name := strings.TrimPrefix(strings.TrimSuffix(at, "/loop/backing_file"), "/sys/block/")
		device, err := os.Open("/dev/" + name)
		if err != nil {
			continue // it went just now
		}
		status, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && status.Inode == stat.Ino && status.Device == stat.Dev {
			return device, nil
		}
		_ = device.Close()
	}
	return nil, nil
}

// Backed returns the devices of files whose paths begin so, those of files that were deleted included.
func Backed(prefix string) ([]string, error) {
	configured, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, at := range configured {
		if text, err := os.ReadFile(at); err == nil && strings.HasPrefix(string(text), prefix) {
			all = append(all, "/dev/"+strings.TrimPrefix(strings.TrimSuffix(at, "/loop/backing_file"), "/sys/block/"))
		}
	}
	return all, nil
}

// Await returns when a file has no device any more, or ErrBusy when something keeps it. A file that does not exist has none.
func Await(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, waitMost)
	defer cancel()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		device, err := find(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && device == nil {
			return nil
		}
		if err != nil {
			return err
		}
		name := device.Name()
		if err := device.Close(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %s", path, ErrBusy, name)
		}
	}
}
