package build_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/environment/build"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// ociImage is the tree as the first layer of an image, and a second one that changes it.
func ociImage(t *testing.T, tree string, more ...tar.Header) v1.Image {
	t.Helper()
	layer := func(write func(*tar.Writer) error) v1.Layer {
		var data bytes.Buffer
		w := tar.NewWriter(&data)
		if err := errors.Join(write(w), w.Close()); err != nil {
			t.Fatal(err)
		}
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data.Bytes())), nil })
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	below := layer(func(w *tar.Writer) error { return w.AddFS(os.DirFS(tree)) })
	above := layer(func(w *tar.Writer) error {
		var err error
		for _, h := range append([]tar.Header{
			{Name: "etc/.wh.gone", Mode: 0o644},
			{Name: "usr/bin/su", Mode: 0o4755, Uid: 0, Gid: 7, Size: 4},
			{Name: "usr/bin/su2", Typeflag: tar.TypeLink, Linkname: "usr/bin/su"},
			{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
			{Name: "dev/zero", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 5, Mode: 0o666},
			{Name: "home/u", Typeflag: tar.TypeDir, Mode: 0o2750, Uid: 1000, Gid: 1000},
			{Name: "home/u/ping", Mode: 0o755, Size: 4, PAXRecords: map[string]string{"SCHILY.xattr.user.note": "kept"}},
		}, more...) {
			err = errors.Join(err, w.WriteHeader(&h))
			if h.Size > 0 {
				_, e := w.Write([]byte("data"))
				err = errors.Join(err, e)
			}
		}
		return err
	})
	img, err := mutate.AppendLayers(empty.Image, below, above)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestAnImageOfAnotherToolIsABase(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny")
	s.write("tiny/etc/gone", "x", 0o644)
	img := ociImage(t, filepath.Join(s.sources, "tiny"))
	tag, err := name.NewTag("example.org/base:1")
	if err != nil {
		t.Fatal(err)
	}
	if err := tarball.WriteToFile(filepath.Join(s.sources, "docker.tar"), tag, img); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"1", "2"} {
		if err := path.AppendImage(img, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag})); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.AddFS(os.DirFS(dir)), w.Close()); err != nil {
		t.Fatal(err)
	}
	s.write("layout.tar", archive.String(), 0o644)

	docker := s.mustBuild("name: a\nbase: {oci: 'docker.tar@example.org/base:1'}\n")
	oci := s.mustBuild("name: a\nbase: {oci: layout.tar@2}\n")
	if docker.Manifest.Root.Digest != oci.Manifest.Root.Digest {
		t.Errorf("the same image makes root %s and %s", docker.Manifest.Root.Digest, oci.Manifest.Root.Digest)
	}
	root := s.mount(oci.Manifest)
	var one, two syscall.Stat_t
	if err := errors.Join(syscall.Stat(filepath.Join(root, "usr/bin/su"), &one), syscall.Stat(filepath.Join(root, "usr/bin/su2"), &two)); err != nil {
		t.Fatal(err)
	}
	if one.Ino != two.Ino || one.Mode != 0o104755 || one.Gid != 7 {
		t.Errorf("su is %o of group %d, its other name %d and %d", one.Mode, one.Gid, one.Ino, two.Ino)
	}
	if err := syscall.Stat(filepath.Join(root, "home/u"), &one); err != nil || one.Mode != 0o42750 || one.Uid != 1000 {
		t.Errorf("home/u: mode %o of %d, %v", one.Mode, one.Uid, err)
	}
	note := make([]byte, 10)
	if n, err := syscall.Getxattr(filepath.Join(root, "home/u/ping"), "user.note", note); err != nil || string(note[:n]) != "kept" {
		t.Errorf("extended attribute %q, %v", note[:max(n, 0)], err)
	}
	if target, err := os.Readlink(filepath.Join(root, "link")); err != nil || target != "/etc/passwd" {
		t.Errorf("link leads to %q, %v", target, err)
	}
	for _, gone := range []string{"etc/gone", "dev/zero"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", gone, err)
		}
	}
	escaping := ociImage(t, filepath.Join(s.sources, "tiny"), tar.Header{Name: "../../escape", Mode: 0o644, Size: 4})
	if err := tarball.WriteToFile(filepath.Join(s.sources, "escape.tar"), tag, escaping); err != nil {
		t.Fatal(err)
	}
	// One wrong bit, in the middle of the largest part of the archive: a layer.
	damaged := bytes.Clone(archive.Bytes())
	damaged[len(damaged)/2] ^= 1
	s.write("damaged.tar", string(damaged), 0o644)
	for text, want := range map[string]string{
		"damaged.tar@1":                 "damaged.tar",
		"escape.tar":                    `"escape.tar" can't be unpacked: unsafe tar path "../../escape"`,
		"docker.tar@example.org/base:2": "docker.tar", "layout.tar@3": `the archive has no image "3" for x86_64; its tags are: 1, 2`, "layout.tar": "the archive has 2 images; choose one with @TAG",
	} {
		o := s.build(t.Context(), fmt.Sprintf("name: a\nbase: {oci: %q}\n", text), nil)
		var failure *build.Failure
		if !errors.As(o.err, &failure) || !strings.Contains(o.err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, o.err, want)
		}
	}
}

func TestALayerHoldsWhatItChangesOnly(t *testing.T) {
	s := newSite(t)
	s.tinyRoot("tiny", "mkdir", "rm", "chmod")
	s.write("tiny/etc/kept", "kept", 0o644)
	s.write("tiny/etc/gone", "gone", 0o644)
	s.write("tiny/opt/old/file", "old", 0o644)
	base := s.mustBuild("name: lower\nbase: {directory: tiny}\nrequirements: {memory: 1GiB, cpu_flags: [avx2]}\n")
	const text = `
name: upper
base: {environment: lower}
requirements: {memory: 512MiB, cpu_flags: [sse2]}
files: [{path: /opt/lib/libx.so, content: library}]
commands:
  - rm /etc/gone
  - rm -r /opt/old && mkdir /opt/old && echo new > /opt/old/new
  - chmod 600 /etc/kept
  - echo x > /tmp/x
`
	layer := s.mustBuild(text)
	if again := s.mustBuild(text); again.Digest != layer.Digest {
		t.Errorf("the same layer made %s and %s", layer.Digest, again.Digest)
	}
	m := layer.Manifest
	if m.Root.Digest != base.Manifest.Root.Digest || len(m.Layers) != 1 || m.Layers[0].UnpackedBytes > 1000 {
		t.Fatalf("manifest %+v; want the base's root and a small layer", m)
	}
	if m.Requirements.MemoryBytes != 1<<30 || !slices.Equal(m.Requirements.CPUFlags, []string{"avx2", "sse2"}) || !slices.Equal(m.Stacks, []api.Stack{api.StackContainer}) {
		t.Errorf("requirements %+v, stacks %v", m.Requirements, m.Stacks)
	}
	root := s.mount(m)
	if got := read(t, filepath.Join(root, "opt/lib/libx.so")) + read(t, filepath.Join(root, "opt/old/new")) + read(t, filepath.Join(root, "etc/kept")); got != "librarynew\nkept" {
		t.Errorf("files hold %q", got)
	}
	for _, gone := range []string{"etc/gone", "opt/old/file", "tmp/x"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there: %v", gone, err)
		}
	}

	// Two layers over one base are put together without building anything.
	s.mustBuild("name: other\nbase: {environment: lower}\nfiles: [{path: /opt/other, content: other}]\n")
	both := s.mustBuild("name: both\nbase: {environment: lower}\nlayers: [upper, other]\n")
	if len(both.Manifest.Layers) != 2 || len(both.Blobs) != 1 {
		t.Fatalf("manifest %+v, blobs %v; want two layers, and nothing new but the manifest", both.Manifest, both.Blobs)
	}
	root = s.mount(both.Manifest)
	if got := read(t, filepath.Join(root, "opt/lib/libx.so")) + read(t, filepath.Join(root, "opt/other")); got != "libraryother" {
		t.Errorf("files hold %q", got)
	}

	// A layer over an image that is no longer the base's can't be used.
	s.write("tiny/etc/kept", "changed", 0o644)
	s.mustBuild("name: lower\nbase: {directory: tiny}\n")
	o := s.build(t.Context(), "name: both\nbase: {environment: lower}\nlayers: [upper]\n", nil)
	if o.err == nil || !strings.Contains(o.err.Error(), `environment "upper" was built over an earlier image of "lower"`) {
		t.Errorf("an old layer: %v", o.err)
	}
	o = s.build(t.Context(), "name: metal\nbase: {environment: lower}\nstacks: [metal]\n", nil)
	if o.err == nil || !strings.Contains(o.err.Error(), `base environment "lower" does not support it`) {
		t.Errorf("a stack that the base has not: %v", o.err)
	}
}

func TestADebianReleaseIsBuiltTheSameTwice(t *testing.T) {
	needs.Request(t, "NEARMETAL_TESTBED", "make test-testbed")
	s := newSite(t)
	const text = `
name: small
base: {debian: bookworm}
packages: [busybox-static]
exclude: [/usr/share/doc/*, /usr/share/man/*, /usr/share/locale/*]
commands: [busybox uname -n > /etc/built-on]
`
	if o := s.build(t.Context(), text+"kernel: {package: linux-image-typo}\nrequirements: {memory: 1GiB}\n", nil); o.err != nil {
		if !strings.Contains(o.err.Error(), `package "linux-image-typo" is not in Debian bookworm`) {
			needs.Missing(t, "no Debian mirror can be reached: %v", o.err)
		}
		var failure *build.Failure
		if !errors.As(o.err, &failure) {
			t.Errorf("an unknown package is not the recipe's fault: %v", o.err)
		}
	} else {
		t.Error("an unknown package was installed")
	}
	first, again := s.mustBuild(text), s.mustBuild(text)
	if first.Digest != again.Digest {
		t.Errorf("the same recipe made %s and %s", first.Digest, again.Digest)
	}
	root := s.mount(first.Manifest)
	if got := read(t, filepath.Join(root, "etc/built-on")); got != "build\n" {
		t.Errorf("it was built on %q", got)
	}
	if got := read(t, filepath.Join(root, "etc/apt/sources.list")); !strings.HasPrefix(got, "deb http://deb.debian.org/debian bookworm main\n") {
		t.Errorf("sources.list: %q", got)
	}
}
