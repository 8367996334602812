// Package imagemount mounts the files of built environments.
//
// Start with Mount.
package imagemount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
)

// Mount mounts the file of a root or a layer at a directory, read-only, and makes the directory. EROFS takes files since Linux 6.12; else it is a loop
// device, which is returned and goes with its last mount. Members see the source of their mounts, so it is a descriptor: it tells nothing of where the
// host keeps its files.
func Mount(layer environment.Layer, at string) (loop string, err error) {
	if err := os.MkdirAll(at, 0o711); err != nil {
		return "", err
	}
	file, err := os.Open(layer.Path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	source := fmt.Sprintf("/proc/self/fd/%d", file.Fd())
	kind := string(layer.Format)
	flags := uintptr(unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV)
	err = unix.ENOTBLK
	if layer.Format == image.EROFS {
		err = unix.Mount(source, at, kind, flags, "")
	}
	if errors.Is(err, unix.ENODEV) { // no such file system in the kernel, perhaps a module
		_ = exec.Command("modprobe", kind).Run()
		err = unix.Mount(source, at, kind, flags, "")
	}
	if errors.Is(err, unix.ENOTBLK) || errors.Is(err, unix.EINVAL) {
		loop, err = mountLoop(file, at, kind, flags)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("the kernel can't mount %s as %s: %w", layer.Path, kind, err), os.Remove(at))
	}
	return loop, nil
}

// mountLoop mounts a file by way of a loop device, which the kernel takes away after its last mount (loop(4), LO_FLAGS_AUTOCLEAR).
func mountLoop(backing *os.File, at, kind string, flags uintptr) (string, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		_ = exec.Command("modprobe", "loop").Run()
		control, err = os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	}
	if err != nil {
		return "", fmt.Errorf("there are no loop devices; run: modprobe loop (%w)", err)
	}
	defer control.Close()
	for range 100 {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return "", fmt.Errorf("finding a free loop device: %w", err)
		}
		path := "/dev/loop" + strconv.Itoa(number)
		device, err := os.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			return "", err
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd())}
		config.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
		if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
			_ = device.Close()
			if errors.Is(err, unix.EBUSY) {
				continue // another took it first
			}
			return "", fmt.Errorf("setting up %s: %w", path, err)
		}
		err = unix.Mount(path, at, kind, flags, "")
		return path, errors.Join(err, device.Close())
	}
	return "", errors.New("other programs took every free loop device")
}
