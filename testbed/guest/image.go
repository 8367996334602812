package guest

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Release is the Debian release of the guest.
const Release = "bookworm"

// CacheDir is where built images are kept unless said otherwise.
const CacheDir = "/var/cache/nearmetal/guest"

// NodePackages are what a node needs, as in setup/packages.txt.
func NodePackages() []string {
	return []string{"crun", "runc", "openssh-server", "openssh-client", "openmpi-bin", "nftables", "e2fsprogs", "xfsprogs"}
}

// basePackages make the guest boot and run one command.
var basePackages = []string{
	"linux-image-amd64", "kmod", "busybox-static", "iproute2", "procps", "util-linux", "mount", "ca-certificates",
}

//go:embed customize.sh
var customize string

// Image is a built guest: files that QEMU boots directly.
type Image struct {
	Kernel, Initrd string
	// Root is a raw disk with an ext4 file system; machines write to a throw-away copy.
	Root string
}

// EnsureImage returns the image with these Debian packages, building it below cacheDir unless it is there already. Building
// needs root, mmdebstrap, mke2fs and a Debian mirror, and takes about a minute; images are kept by a digest of their recipe.
func EnsureImage(ctx context.Context, cacheDir string, packages []string) (Image, error) {
	packages = append(append([]string{}, basePackages...), packages...)
	digest := sha256.Sum256([]byte(Release + "\n" + strings.Join(packages, "\n") + "\n" + customize))
	dir := filepath.Join(cacheDir, Release+"-"+hex.EncodeToString(digest[:6]))
	image := Image{Kernel: filepath.Join(dir, "vmlinuz"), Initrd: filepath.Join(dir, "initrd"), Root: filepath.Join(dir, "root.img")}

	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return Image{}, fmt.Errorf("make the guest image cache: %w", err)
	}
	unlock, err := lock(filepath.Join(cacheDir, ".lock"))
	if err != nil {
		return Image{}, err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return image, nil
	}
	if os.Geteuid() != 0 {
		return Image{}, errors.New("building the guest image needs root: run this as root once")
	}
	scratch, err := os.MkdirTemp(cacheDir, ".build-")
	if err != nil {
		return Image{}, fmt.Errorf("build the guest image: %w", err)
	}
	defer os.RemoveAll(scratch)
	if err := build(ctx, scratch, packages); err != nil {
		return Image{}, fmt.Errorf("build the guest image: %w", err)
	}
	return image, os.Rename(filepath.Join(scratch, "out"), dir)
}

// build makes the image's files in scratch/out.
func build(ctx context.Context, scratch string, packages []string) error {
	out, hook := filepath.Join(scratch, "out"), filepath.Join(scratch, "customize.sh")
	if err := os.Mkdir(out, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(hook, []byte(customize), 0o755); err != nil {
		return err
	}
	args := []string{
		"--quiet", "--variant=minbase", "--mode=root", "--format=null", "--include=" + strings.Join(packages, ","),
		"--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--customize-hook=OUT='" + out + "' '" + hook + "' \"$1\"",
		Release, "-",
	}
	args = append(args, sources(ctx)...)
	cmd := exec.CommandContext(ctx, "mmdebstrap", args...)
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("mmdebstrap: %w\n%s", err, tail(log.String(), 20))
	}
	return nil
}

// sources returns the machine's own Debian sources of the guest's release as sources.list lines, so that a local mirror is used
// where there is one. None: mmdebstrap's defaults.
func sources(ctx context.Context) []string {
	text, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CODENAME)|deb $(SITE) $(RELEASE) $(COMPONENT)",
		"Created-By: Packages").Output()
	if err != nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		codename, source, _ := strings.Cut(strings.TrimSpace(line), "|")
		if codename == Release || codename == Release+"-updates" || codename == Release+"-security" {
			lines = append(lines, source)
		}
	}
	return lines
}

// lock takes an exclusive lock on a file, waiting for whoever holds it.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock the guest image cache: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the guest image cache: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// tail returns the last n lines of a text.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
