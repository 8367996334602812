package container_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/container"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// heldImages are the images of a test's node.
type heldImages map[string]environment.Image

func (h heldImages) Image(digest string) (environment.Image, error) {
	if img, ok := h[digest]; ok {
		return img, nil
	}
	return environment.Image{}, fmt.Errorf("image %s is not on this node", digest)
}

// smallTree is a root with busybox, what it and this test's program are linked with, and of each kind of entry one.
func smallTree(t testing.TB) string {
	t.Helper()
	tree := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := `set -e
cd "$1"; mkdir -p usr/bin usr/lib64 usr/lib opt/tool srv etc/tool etc/private var/lib/files var/lib/own/deeper var/cache/x var/log data
ln -s usr/bin bin; ln -s usr/lib lib; ln -s usr/lib64 lib64; ln -s ../usr/lib/os-release etc/os-release
for lib in $(ldd /bin/busybox "$2" | grep -o '/[^ ]*\.so[^ ]*' | sort -u); do
	mkdir -p "usr/$(dirname ${lib#/usr})" && cp -L "$lib" "usr/${lib#/usr}"
done
cp /bin/busybox usr/bin/busybox
for name in sh ls stat cat id echo touch; do ln -s busybox usr/bin/$name; done
printf 'root:x:0:0:image:/:/bin/false\nother:x:1000:1000::/:/bin/sh\ndaemon:x:42:43::/:/bin/false\n' >etc/passwd
echo 'NAME="small"' >usr/lib/os-release
echo tool >opt/tool/name; echo setting >etc/tool/setting; echo top >etc/top; echo secret >etc/private/key; chmod 600 etc/private/key
chown 42:43 etc/private/key etc/private; chmod 700 etc/private
echo package >var/lib/files/status; echo datum >data/datum
chown 42:43 var/lib/own; chmod 750 var/lib/own`
	if out, err := exec.Command("sh", "-c", script, "sh", tree, self).CombinedOutput(); err != nil {
		t.Fatalf("making a small root: %v\n%s", err, out)
	}
	return tree
}

// makeImage makes an image file of a tree.
func makeImage(t testing.TB, tree string, format image.RootFormat) environment.Layer {
	t.Helper()
	program := map[image.RootFormat]string{image.EROFS: "mkfs.erofs", image.SquashFS: "mksquashfs"}[format]
	needs.Program(t, program)
	file := filepath.Join(t.TempDir(), "root."+string(format))
	cmd := exec.Command("mkfs.erofs", "--quiet", file, tree)
	if format == image.SquashFS {
		cmd = exec.Command("mksquashfs", tree, file, "-quiet", "-no-progress")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("making an image: %v\n%s", err, out)
	}
	return environment.Layer{Path: file, Format: format}
}

// imageRig is a rig whose members stand on an image of these layers.
type imageRig struct {
	*rig
	digest string
}

func newImageRig(t testing.TB, runtime string, layers ...environment.Layer) *imageRig {
	t.Helper()
	digest := string(image.DigestOf([]byte(t.Name())))
	return &imageRig{newRig(t, runtime, func(cfg *container.Config) {
		cfg.Images = heldImages{digest: {Digest: digest, Layers: layers}}
	}), digest}
}

func (r *imageRig) member(t testing.TB) driver.Member {
	m := r.rig.member(t)
	m.Assignment.Environment, m.Assignment.EnvironmentDigest = "small", r.digest
	return m
}

// mountsOf lists loop devices and mounts that hold a file.
func mountsOf(t testing.TB, file string) []string {
	t.Helper()
	var found []string
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range backing {
		if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == file {
			found = append(found, path)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), file) {
		found = append(found, "a mount of "+file)
	}
	return found
}

func TestAMemberOnAnImageSeesTheImageAndNothingOfTheHost(t *testing.T) {
	for _, format := range []image.RootFormat{image.EROFS, image.SquashFS} {
		t.Run(string(format), func(t *testing.T) {
			needHost(t, "crun")
			if format == image.SquashFS && kernelBefore(t, 6, 2) {
				needs.Hardware(t, "the kernel has no idmapped mounts of SquashFS, which came with Linux 6.2")
			}
			r := newImageRig(t, "crun", makeImage(t, smallTree(t), format))
			m := r.member(t)
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			id := m.Assignment.ID
			run := func(args ...string) string { return strings.TrimSpace(r.run(t, id, args...)) }
			for _, c := range []struct{ want, path string }{
				{`NAME="small"`, "/etc/os-release"},
				{"tool", "/opt/tool/name"},
				{"setting", "/etc/tool/setting"},
				{"top", "/etc/top"},
				{"package", "/var/lib/files/status"},
				{"datum", "/data/datum"},
				{"secret", "/etc/private/key"}, // its root may read it, as on a machine of its own
			} {
				if got := run("cat", c.path); got != c.want {
					t.Errorf("%s holds %q, want %q", c.path, got, c.want)
				}
			}
			for path, want := range map[string]string{
				"/usr": "0:0 755", "/etc/private": "42:43 700", "/var/lib/own": "42:43 750", "/var/lib/own/deeper": "0:0 755", "/usr/bin/busybox": "0:0 755",
			} {
				if got := run("stat", "-c", "%u:%g %a", path); got != want {
					t.Errorf("%s is %s, want %s", path, got, want)
				}
			}
			run("touch", "/var/lib/own/file", "/var/cache/x/file", "/tmp/file", "/home/file-of-image-test")
			for path, want := range map[string]string{
				"/usr/bin/new": "read-only", "/opt/new": "read-only", "/etc/new": "read-only", "/etc/tool/new": "read-only", "/new": "read-only",
				"/var/lib/files/new": "read-only", "/data/new": "read-only",
			} {
				if got := r.tell(t, id, order{Probe: "create", Argument: path}).Err; !regexp.MustCompile(want).MatchString(got) {
					t.Errorf("creating %s: %q, want an error with %q", path, got, want)
				}
			}
			// The host's own programs are nowhere to be seen.
			if a := r.tell(t, id, order{Run: []string{"/usr/bin/perl", "-e", "1"}}); a.Err == "" {
				t.Error("a program of the host runs in a member on an image without it")
			}
			want := "root:x:0:0::/root:/bin/sh\nhpc:x:1000:1000::/home/hpc:/bin/sh\ndaemon:x:42:43::/:/bin/false\n"
			if got := r.run(t, id, "cat", "/etc/passwd"); got != want {
				t.Errorf("its /etc/passwd is %q, want the generated one and the image's own account: %q", got, want)
			}
			if err := r.Update(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if got := r.run(t, id, "cat", "/etc/passwd"); got != want {
				t.Errorf("after an update its /etc/passwd is %q, want %q", got, want)
			}
		})
	}
}

func kernelBefore(t testing.TB, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var a, b int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &a, &b); err != nil {
		t.Fatal(err)
	}
	return a < major || a == major && b < minor
}

func TestLayersLieAboveTheRootOfAnImage(t *testing.T) {
	needHost(t, "crun")
	library := t.TempDir()
	for name, content := range map[string]string{"usr/lib/library/version": "2", "opt/tool/name": "newer tool", "etc/library.conf": "on"} {
		path := filepath.Join(library, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := newImageRig(t, "crun", makeImage(t, smallTree(t), image.EROFS), makeImage(t, library, image.EROFS))
	m := r.member(t)
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/usr/lib/library/version": "2", "/opt/tool/name": "newer tool", "/etc/library.conf": "on", "/etc/top": "top",
	} {
		if got := strings.TrimSpace(r.run(t, m.Assignment.ID, "cat", path)); got != want {
			t.Errorf("%s holds %q, want %q", path, got, want)
		}
	}
	if got := strings.TrimSpace(r.run(t, m.Assignment.ID, "stat", "-c", "%u:%g", "/usr/bin/busybox", "/usr/lib/library/version")); got != "0:0\n0:0" {
		t.Errorf("owners are %q, want root's", got)
	}
}

func TestMembersShareAnImagesMountAndTheLastOneLeavesNone(t *testing.T) {
	needHost(t, "crun")
	layer := makeImage(t, smallTree(t), image.EROFS)
	r := newImageRig(t, "crun", layer)
	first, second := r.member(t), r.member(t)
	second.Assignment.UserIDs.First += 65536 // of another cluster
	if err := os.Chown(filepath.Join(second.ControlDir, "agent.sock"), int(second.Assignment.UserIDs.First), int(second.Assignment.UserIDs.First)); err != nil {
		t.Fatal(err)
	}
	for _, m := range []driver.Member{first, second} {
		if err := r.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	device := func(m driver.Member) string {
		return strings.TrimSpace(r.run(t, m.Assignment.ID, "stat", "-c", "%d %u", "/usr/bin/busybox"))
	}
	if a, b := device(first), device(second); a != b {
		t.Errorf("two members on one image have it from %q and %q (device and owner)", a, b)
	}
	if got := r.MountedImages(); len(got) != 2 {
		t.Errorf("for two clusters the driver has %q mounted, want two views of one image", got)
	}
	// A driver that is opened later starts a member as well, and the files of one that it did not start can be updated.
	later := r.open(t)
	third := r.member(t)
	if err := r.startBy(t.Context(), later, third); err != nil {
		t.Fatal(err)
	}
	first.Files = append(slices.Clone(first.Files), driver.File{Path: "/etc/hosts", Content: []byte("new\n"), Mode: 0o644})
	if err := later.Update(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if got := r.run(t, first.Assignment.ID, "cat", "/etc/hosts"); got != "new\n" {
		t.Errorf("after the update it reads %q", got)
	}
	for _, m := range []driver.Member{first, second, third} {
		if err := later.Clean(t.Context(), m.Assignment.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Observe(t.Context()); err != nil { // by which the first driver learns of it
		t.Fatal(err)
	}
	for _, d := range []*container.Driver{r.Driver, later} {
		if got := d.MountedImages(); len(got) > 0 {
			t.Errorf("with no member left, %q is mounted", got)
		}
	}
	if left := mountsOf(t, layer.Path); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestAMemberWhoseImageIsNotHereIsRefusedWithTheReason(t *testing.T) {
	r := newImageRig(t, "crun")
	m := r.member(t)
	m.Assignment.EnvironmentDigest = "sha256:none"
	if err := r.Driver.Start(t.Context(), m); err == nil || !strings.Contains(err.Error(), "image sha256:none is not on this node") {
		t.Errorf("error %v, want the reason", err)
	}
	r.cfg.Images = nil
	if err := r.open(t).Start(t.Context(), m); err == nil || !strings.Contains(err.Error(), "built environments are disabled") {
		t.Errorf("error %v, want the reason", err)
	}
}

func TestAnImageThatIsDamagedIsRefused(t *testing.T) {
	needHost(t, "crun")
	file := filepath.Join(t.TempDir(), "root")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	r := newImageRig(t, "crun", environment.Layer{Path: file, Format: image.EROFS})
	m := r.member(t)
	if err := r.Driver.Start(t.Context(), m); err == nil || !strings.Contains(err.Error(), "the kernel can't mount "+file+" as erofs") {
		t.Errorf("error %v, want that it can't be mounted", err)
	}
	if left := mountsOf(t, file); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestTheHostIsCheckedForImagesByMountingOne(t *testing.T) {
	r := newRig(t, "crun")
	t.Setenv("TMPDIR", "/nowhere") // what a killed agent left among the host's temporary files would stay there
	probe := filepath.Join(r.cfg.StateDir, "probe")
	if err := os.MkdirAll(filepath.Join(probe, "root", "of a killed agent"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := r.CheckImages(); err != nil {
		t.Errorf("this host can't mount images: %v", err)
	}
	if _, err := os.Stat(probe); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the probe is still there: %v", err)
	}
}
