package blockdev

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// AttachLoop makes a free loop device of a file, read-only, and returns its path; the file's size must be whole blocks.
func AttachLoop(file *os.File) (string, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("make a loop device: %w", err)
	}
	defer control.Close()
	number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return "", fmt.Errorf("make a loop device: %w", err)
	}
	path := fmt.Sprintf("/dev/loop%d", number)
	device, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return "", fmt.Errorf("make a loop device: %w", err)
	}
	defer device.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Size: BlockBytes, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY}}
	if err := unix.IoctlLoopConfigure(int(device.Fd()), &config); err != nil {
		return "", fmt.Errorf("make %s of %s: %w", path, file.Name(), err)
	}
	return path, nil
}
