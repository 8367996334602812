// Package debiantree makes a Debian system that emulated machines boot in tests: kernel, its modules, and a root that nobody customized.
//
// It is made once and kept; a test that boots it sees what a recipe's image would be, without a build. Start with Ensure.
package debiantree

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// cache keeps trees, by a digest of how they were made.
const cache = "/var/cache/nearmetal/boot"

// customize removes what no test needs from the tree $1 and makes its EROFS, $OUT/root.erofs, and the sums of its files, $OUT/sums.
const customize = `set -eu
root=$1
version=$(ls "$root/lib/modules")
cp "$root/boot/vmlinuz-$version" "$OUT/vmlinuz"
mkdir -p "$OUT/tree/lib/modules"
cp -a "$root/lib/modules/$version" "$OUT/tree/lib/modules/"
for dir in sound drivers/gpu drivers/media drivers/net/wireless drivers/usb drivers/iio drivers/staging drivers/infiniband; do
	rm -rf "$root/lib/modules/$version/kernel/$dir"
done
chroot "$root" depmod "$version"
rm -rf "$root"/var/cache/apt "$root"/var/lib/apt/lists/* "$root"/boot/* "$root"/etc/ssh/ssh_host_*
# mmdebstrap has proc, sys and dev mounted in the root: one file system only, or all of the host's comes along.
cp -a --one-file-system "$root" "$OUT/copy"
rm -rf "$OUT/copy/dev"
mkdir "$OUT/copy/dev"
(cd "$OUT/copy" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) >"$OUT/sums"
mkfs.erofs -zlz4hc,9 -T0 --all-root -x-1 "$OUT/root.erofs" "$OUT/copy" >/dev/null
rm -rf "$OUT/copy"
`

const packages = "linux-image-amd64,openssh-server,iproute2,procps,kmod"

// Tree is a Debian system to boot: kernel, all modules of the kernel, root and the sums of the root's files.
type Tree struct{ dir string }

// Path returns the path of vmlinuz, of tree, which has lib/modules, of root.erofs, or of sums.
func (t Tree) Path(name string) string { return filepath.Join(t.dir, name) }

// Ensure makes the tree unless it is there; that takes about two minutes, mmdebstrap, mkfs.erofs and a Debian mirror.
func Ensure(t testing.TB) Tree {
	t.Helper()
	digest := sha256.Sum256([]byte(packages + customize))
	dir := filepath.Join(cache, "bookworm-"+hex.EncodeToString(digest[:6]))
	if _, err := os.Stat(dir); err == nil { // which is whole, and may be read-only, as in a guest
		return Tree{dir}
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.OpenFile(filepath.Join(cache, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err == nil {
		return Tree{dir}
	}
	scratch, err := os.MkdirTemp(cache, ".build-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(scratch)
	out, hook := filepath.Join(scratch, "out"), filepath.Join(scratch, "customize.sh")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hook, []byte("#!/bin/sh\n"+customize), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--quiet", "--variant=minbase", "--mode=root", "--format=null", "--include=" + packages,
		"--aptopt=APT::Install-Recommends false", "--aptopt=Acquire::Languages none",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--customize-hook=OUT='" + out + "' '" + hook + "' \"$1\"", "bookworm", "-",
	}
	cmd := exec.CommandContext(t.Context(), "mmdebstrap", append(args, sources(t.Context())...)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("mmdebstrap: %v\n%s", err, log.String())
	}
	if err := os.Rename(out, dir); err != nil {
		t.Fatal(err)
	}
	return Tree{dir}
}

// sources are the machine's own sources of the release, so that a local mirror is used where there is one.
func sources(ctx context.Context) []string {
	text, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(CODENAME)|deb $(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages").Output()
	if err != nil {
		return nil
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if codename, source, _ := strings.Cut(strings.TrimSpace(line), "|"); strings.HasPrefix(codename, "bookworm") && !strings.Contains(codename, "backports") {
			lines = append(lines, source)
		}
	}
	return lines
}
