package inventory

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// CheckInRAM returns why what is written below a directory may outlast the machine's power, and nil when it does not: its file system must keep
// files in memory, or be an overlay of one that does, and no memory may be swapped to a disk. Whether an overlay's upper layer is in memory
// can't be seen once the root was switched: who made it must say so. swaps is the text of /proc/swaps (proc_pid_swaps(5)).
func CheckInRAM(dir string, swaps []byte) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	switch fs.Type {
	case unix.TMPFS_MAGIC, unix.RAMFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC:
	default:
		return fmt.Errorf("%s is on a file system of type %#x, which is neither tmpfs nor an overlay of one", dir, fs.Type)
	}
	lines := bufio.NewScanner(bytes.NewReader(swaps))
	lines.Scan() // the heading
	for lines.Scan() {
		if device, _, _ := strings.Cut(lines.Text(), " "); device != "" && !strings.HasPrefix(device, "/dev/zram") {
			return fmt.Errorf("memory is swapped to %s", device)
		}
	}
	return nil
}
