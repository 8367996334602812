// Package ext4 makes, resizes and reads ext4 file systems in files and on block devices, by the programs of e2fsprogs.
//
// A file system of its own bounds what is in it, in bytes and in files, on every kernel. Nothing here may be done to a file system that is mounted,
// but for GrowMounted, Freeze and Thaw. Start with Make.
package ext4

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// programs are those that this package runs; Debian has them in e2fsprogs.
var programs = []string{"mkfs.ext4", "e2fsck", "resize2fs", "tune2fs", "debugfs"}

const (
	blockBytes = 4096
	// inodeBytes is the size of an inode on the disk, reservedInodes the number of those that no file has.
	inodeBytes     = 256
	reservedInodes = 10
	// Inodes come in groups of blocks, which all have as many. Small groups let the number of files follow the size.
	leastGroupBlocks, mostGroupBlocks = 2048, 32768
	groupsWanted                      = 16
)

// ErrTooSmall reports that a file system holds more than it should shrink to.
var ErrTooSmall = errors.New("the file system holds more than that")

// errSaid reports that debugfs printed something, which is an error unless its command prints.
var errSaid = errors.New("it failed")

// Owner owns the root directory of a new file system.
type Owner struct{ UID, GID int }

// Problems are why file systems can't be made on this host.
func Problems() (problems []string) {
	for _, name := range programs {
		if _, err := program(name); err != nil {
			return []string{name + " is not installed; run: apt-get install e2fsprogs"}
		}
	}
	return nil
}

// groupBlocks is how many blocks a group has in a file system of this size.
func groupBlocks(sizeBytes int64) int64 {
	blocks := sizeBytes / blockBytes / groupsWanted / 8 * 8 // a group's bitmap has whole bytes
	return min(max(blocks, leastGroupBlocks), mostGroupBlocks)
}

// Make makes a file system for so many files in a file or on a device that reads as zeros, and may be larger than it. Its root directory is empty, with mode 0775.
func Make(ctx context.Context, path string, sizeBytes, files int64, owner Owner) error {
	args := []string{
		"-q", "-F", "-b", strconv.Itoa(blockBytes), "-I", strconv.Itoa(inodeBytes), "-g", strconv.FormatInt(groupBlocks(sizeBytes), 10),
		"-N", strconv.FormatInt(files+reservedInodes, 10), "-m", "0", "-e", "remount-ro",
		// The identity can be changed later without writing to all the file system.
		"-O", "metadata_csum,metadata_csum_seed,64bit",
		"-E", fmt.Sprintf("nodiscard,assume_storage_prezeroed=1,root_owner=%d:%d", owner.UID, owner.GID), path, blocksText(sizeBytes),
	}
	if output, err := run(ctx, "", "mkfs.ext4", args...); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return errors.Join(edit(ctx, path, "sif <2> mode 040775"), dropLostAndFound(ctx, path))
}

// dropLostAndFound removes the directory that mkfs.ext4 and e2fsck make. Files that a check finds have it made again.
func dropLostAndFound(ctx context.Context, path string) error {
	return edit(ctx, path, "rmdir lost+found")
}

// edit changes a file system's structures by one command of debugfs, which reports errors in words only.
func edit(ctx context.Context, path, command string) error {
	output, err := run(ctx, command+"\n", "debugfs", "-w", "-f", "-", path)
	said := ""
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" && line != "debugfs: "+command && !strings.HasPrefix(line, "debugfs 1.") {
			said += " " + line
		}
	}
	if err == nil && said != "" {
		err = errSaid
	}
	if err != nil {
		return fmt.Errorf("debugfs %s: %w:%s", command, err, said)
	}
	return nil
}

// Rename gives a file system an identity of its own, after its blocks were copied.
func Rename(ctx context.Context, path string) error {
	if err := check(ctx, "-p", "-E", "journal_only", path); err != nil {
		return err
	}
	if output, err := run(ctx, "", "tune2fs", "-U", "random", path); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

// CanGrowMounted reports whether this process may do so. A container's root may not.
func CanGrowMounted() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// blocksText is a size as the programs take it.
func blocksText(sizeBytes int64) string { return strconv.FormatInt(sizeBytes/blockBytes, 10) }

// GrowMounted makes a mounted file system larger, up to the size of its block device. Its kernel keeps it whole over a crash.
func GrowMounted(ctx context.Context, device string, sizeBytes int64) error {
	if output, err := run(ctx, "", "resize2fs", device, blocksText(sizeBytes)); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

// Resize makes a file system smaller or larger, and its file; a device must be large enough. When it fails, or a crash ends it, what is in the file is
// lost: it must be a copy.
func Resize(ctx context.Context, path string, sizeBytes int64) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	file := info.Mode().IsRegular()
	if file && sizeBytes > info.Size() {
		if err := os.Truncate(path, sizeBytes); err != nil {
			return err
		}
	}
	if err := check(ctx, "-f", "-p", path); err != nil {
		return err
	}
	// With -f, because the estimate by which resize2fs refuses is far too large where groups are small. The result is checked.
	output, err := run(ctx, "", "resize2fs", "-f", path, blocksText(sizeBytes))
	if err != nil && strings.Contains(output, "No space left on device while trying to resize") {
		return fmt.Errorf("%w: %s", ErrTooSmall, output)
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	// The check has made an empty one; what it has found is in one that isn't empty, and stays.
	_ = dropLostAndFound(ctx, path)
	if err := check(ctx, "-f", "-n", path); err != nil || !file {
		return err
	}
	return os.Truncate(path, sizeBytes)
}

// check runs e2fsck, which may mend what it finds.
func check(ctx context.Context, args ...string) error {
	output, err := run(ctx, "", "e2fsck", args...)
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // 1: it has mended everything
		return fmt.Errorf("%w: %s", err, output)
	}
	return nil
}

// The calls that keep a file system still, <linux/fs.h>.
const (
	fiFreeze = 0xc0045877
	fiThaw   = 0xc0045878
)

// Freeze writes all of a mounted file system to its device, and makes writers wait until Thaw.
func Freeze(dir string) error { return still(dir, fiFreeze) }

// Thaw lets writers go on. A file system that is not frozen stays as it is.
func Thaw(dir string) error {
	if err := still(dir, fiThaw); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

func still(dir string, call uint) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetInt(fd, call, 0); err != nil {
		return fmt.Errorf("freezing or thawing %s: %w", dir, err)
	}
	return nil
}

// program finds a system program; a user's PATH lacks their directories.
func program(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// run runs a program and returns what it printed.
func run(ctx context.Context, input, name string, args ...string) (string, error) {
	path, err := program(name)
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "E2FSCK_TIME=", "MKE2FS_SKIP_PROGRESS=1")
	cmd.Stdin = strings.NewReader(input)
	output, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", name, errors.Join(context.Cause(ctx), err))
	}
	return strings.TrimSpace(string(output)), err
}
