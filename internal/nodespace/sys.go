package nodespace

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// remountSys mounts a new sysfs on /sys, which shows the network of the thread's namespace, and carries over what was
// mounted below the old one, control groups above all.
func remountSys() error {
	below, err := mountsBelow("/sys")
	if err != nil {
		return err
	}
	trees := map[string]int{}
	defer func() {
		for _, fd := range trees {
			_ = unix.Close(fd)
		}
	}()
	for _, path := range below {
		fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if err != nil {
			return fmt.Errorf("copying the mount %s: %w", path, err)
		}
		trees[path] = fd
	}
	if err := unix.Unmount("/sys", unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmounting the host's /sys: %w", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mounting /sys: %w", err)
	}
	for path, fd := range trees {
		err := unix.MoveMount(fd, "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("moving the mount %s: %w", path, err)
		}
	}
	return nil
}

// mountsBelow lists the mount points below dir that are not below another of them.
func mountsBelow(dir string) ([]string, error) {
	file, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var points []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// proc(5): the fifth field is the mount point, with blanks written as \040.
		fields := strings.Fields(lines.Text())
		if len(fields) < 5 || !strings.HasPrefix(fields[4], dir+"/") || strings.Contains(fields[4], `\`) {
			continue
		}
		nested := false
		for _, p := range points {
			nested = nested || fields[4] == p || strings.HasPrefix(fields[4], p+"/")
		}
		if !nested {
			points = append(points, fields[4])
		}
	}
	return points, nil
}
