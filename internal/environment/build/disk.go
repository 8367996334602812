package build

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/environment/diskimage"
	"github.com/nearmetal/nearmetal/internal/image"
)

// A disk image is hostile input. Its head is read by package diskimage, which refuses all that would make QEMU's program open another file. That
// program, which reads the rest, is nobody, without a network, without a way to any file but the two that it is given open, and bounded.

// Bounds of qemu-img, besides those of the build's control group.
const (
	convertMemory = 1 << 30
	convertCPU    = 4 * 3600 // seconds
	nobody        = 65534
)

// disk makes the image of an imported disk: checked, and compressed by the one version of qemu-img and the one set of options that the node has.
func (w *worker) disk(ctx context.Context) error {
	if _, err := exec.LookPath("qemu-img"); err != nil {
		return errors.New("qemu-img is missing on this builder node; run: apt-get install qemu-utils")
	}
	info, err := w.inspectDisk()
	if err != nil {
		return failf("the disk image can't be used: %v", err)
	}
	// What qemu-img makes of a qcow2 image is a plain disk, of which everything else is made: nothing of the file's own structure survives.
	plain := w.Disk
	if info.Format != diskimage.Raw {
		w.say("check the disk image", 5)
		if err := w.qemuImg(ctx, w.Disk, "", 0, "check", "-q", "-f", string(info.Format), inputPath); err != nil {
			return failf("the disk image is damaged or truncated: %v", err)
		}
		w.say("unpack the disk", 10)
		plain = filepath.Join(w.tmp, "disk.raw")
		if err := makeFile(plain, info.DiskBytes); err != nil {
			return err
		}
		if err := w.qemuImg(ctx, w.Disk, plain, info.DiskBytes, "convert", "-n", "--target-is-zero", "-f", string(info.Format), "-O", "raw", inputPath, outputPath); err != nil {
			return failf("the disk image can't be read: %v", err)
		}
	}
	boot, err := w.bootOf(plain, info.DiskBytes)
	if err != nil {
		return err
	}
	w.say("pack", 50)
	file := filepath.Join(w.tmp, "disk.qcow2")
	if err := makeFile(file, 0); err != nil {
		return err
	}
	if err := w.qemuImg(ctx, plain, file, 2*info.DiskBytes+diskMetadata, "convert", "-c", "-m", "1", "-f", "raw", "-O", "qcow2", "-o", "compat=1.1,cluster_size=65536,compression_type=zstd", inputPath, outputPath); err != nil {
		return fmt.Errorf("pack the disk: %w", err)
	}
	w.say("digest", packed)
	if err := w.keepRoot(file, image.QCOW2, info.DiskBytes); err != nil {
		return err
	}
	w.manifest.Disk = &api.ForeignDisk{OS: w.Recipe.Disk.OS, Firmware: boot, Size: api.Bytes(info.DiskBytes), Probe: w.Recipe.Disk.Probe}
	return nil
}

// diskMetadata is more than a qcow2 file of a small disk has beyond the disk.
const diskMetadata = 16 << 20

func (w *worker) inspectDisk() (diskimage.Info, error) {
	f, err := os.Open(w.Disk)
	if err != nil {
		return diskimage.Info{}, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return diskimage.Info{}, err
	}
	return diskimage.Inspect(f, stat.Size())
}

// bootOf finds out how the disk boots, and refuses one that does not, or not as the recipe says.
func (w *worker) bootOf(plain string, size int64) (api.Firmware, error) {
	f, err := os.Open(plain)
	if err != nil {
		return "", err
	}
	defer f.Close()
	boot, err := diskimage.BootOf(f, size)
	if err != nil {
		return "", failf("the disk image can't be used: %v", err)
	}
	switch want := w.Recipe.Disk.Firmware; {
	case want == "":
		return boot.Firmware(), nil
	case boot.Suits(want):
		return want, nil
	case want == api.FirmwareUEFI:
		return "", failf("the disk image can't be booted by UEFI: it has no EFI system partition with a FAT file system; try firmware bios")
	default:
		return "", failf("the disk image can't be booted by BIOS: its first sector has no code; try firmware uefi")
	}
}

// makeFile makes a file of zeroes that takes no room.
func makeFile(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Close())
}

// Where qemu-img finds the files it is given.
const inputPath, outputPath = "/proc/self/fd/3", "/proc/self/fd/4"

// qemuImg runs qemu-img on an open file, and on one to write of at most so many bytes.
func (w *worker) qemuImg(ctx context.Context, input, output string, most int64, args ...string) error {
	in, err := os.Open(input)
	if err != nil {
		return err
	}
	defer in.Close()
	// It opens what it is given once more, by which the kernel asks for its permissions anew.
	if err := in.Chmod(0o444); err != nil {
		return err
	}
	limits := []string{"--as=" + strconv.Itoa(convertMemory), "--cpu=" + strconv.Itoa(convertCPU), "--fsize=" + strconv.FormatInt(most, 10), "--nproc=64", "--core=0", "--nofile=64"}
	cmd := exec.CommandContext(ctx, "prlimit", append(append(limits, "setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "qemu-img"), args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWIPC, Pdeathsig: syscall.SIGKILL,
	}
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.ExtraFiles = []*os.File{in}
	if output != "" {
		out, err := os.OpenFile(output, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer out.Close()
		if err := out.Chown(nobody, nobody); err != nil {
			return err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, out)
	}
	last := &lastLines{log: w.log}
	cmd.Stdout, cmd.Stderr = last, last
	if err := cmd.Run(); err != nil {
		return last.explain(err)
	}
	return nil
}
