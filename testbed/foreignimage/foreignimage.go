// Package foreignimage makes disks of other systems that emulated machines boot in tests: a Debian system as clouds have it, with cloud-init, that
// UEFI boots, and one with no agent of any kind, that a BIOS boots.
//
// Each is made once and kept, of Debian packages, and nothing is mounted for it. Start with Cloud and Bare.
package foreignimage

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// Disk is a disk image in the format qcow2.
type Disk struct {
	Path string
	// Bytes is the size of the disk in it.
	Bytes int64
}

// cache keeps images, by a digest of how they were made.
const cache = "/var/cache/nearmetal/boot"

//go:embed cloud.sh
var cloudScript []byte

//go:embed bare.sh
var bareScript []byte

const cloudPackages = "linux-image-cloud-amd64,initramfs-tools,systemd-sysv,udev,dbus,cloud-init,openssh-server,iproute2,iputils-ping,sudo,procps,busybox"

// Cloud makes the Debian system unless it is there; that takes some minutes and a Debian mirror.
func Cloud(t testing.TB) Disk {
	t.Helper()
	dir := ensure(t, "cloud", append([]byte(cloudPackages), cloudScript...), func(scratch, out string) *exec.Cmd {
		hook := filepath.Join(scratch, "cloud.sh")
		if err := os.WriteFile(hook, cloudScript, 0o755); err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), "mmdebstrap",
			"--quiet", "--variant=minbase", "--mode=root", "--format=null", "--include="+cloudPackages,
			"--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none",
			"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
			"--customize-hook='"+hook+"' \"$1\" '"+out+"'", "bookworm", "-")
	}, "mmdebstrap", "mkfs.vfat", "mcopy", "mke2fs", "sfdisk", "objcopy", "qemu-img")
	return Disk{Path: filepath.Join(dir, "cloud.qcow2"), Bytes: 1500 << 20}
}

// Bare makes a disk whose system is a kernel and one program, which prints BareText on the serial console. kernel is the kernel's file.
func Bare(t testing.TB, kernel string) Disk {
	t.Helper()
	dir := ensure(t, "bare", append([]byte(BareText+kernel), bareScript...), func(scratch, out string) *exec.Cmd {
		script := filepath.Join(scratch, "bare.sh")
		if err := os.WriteFile(script, bareScript, 0o755); err != nil {
			t.Fatal(err)
		}
		return exec.CommandContext(t.Context(), script, kernel, out, BareText)
	}, "busybox", "mke2fs", "sfdisk", "grub-mkimage", "qemu-img", "cpio")
	return Disk{Path: filepath.Join(dir, "bare.qcow2"), Bytes: 64 << 20}
}

// BareText is what the system without an agent prints once it is up.
const BareText = "the other system is up"

// ensure makes the files of one image, unless they are there.
func ensure(t testing.TB, name string, made []byte, command func(scratch, out string) *exec.Cmd, programs ...string) string {
	t.Helper()
	digest := sha256.Sum256(made)
	dir := filepath.Join(cache, name+"-"+hex.EncodeToString(digest[:6]))
	if _, err := os.Stat(dir); err == nil { // which is whole, and may be read-only, as in a guest
		return dir
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, ".lock-"+name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	for _, p := range programs {
		needs.Program(t, p)
	}
	scratch, err := os.MkdirTemp(cache, ".build-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(scratch)
	out := filepath.Join(scratch, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := command(scratch, out)
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd.Path, err, log.String())
	}
	if err := os.Rename(out, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
