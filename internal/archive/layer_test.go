package archive_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// overlay mounts an overlay of two directories of a file system in memory, and returns where it is and its upper directory.
func overlay(t *testing.T, lower string) (merged, upper string) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
		needs.Missing(t, "no file system in memory can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"upper", "work", "merged"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	merged, upper = filepath.Join(dir, "merged"), filepath.Join(dir, "upper")
	if err := unix.Mount("overlay", merged, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+filepath.Join(dir, "work")); err != nil {
		needs.Missing(t, "no overlay can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(merged, 0); err != nil {
			t.Error(err)
		}
	})
	return merged, upper
}

// names lists what is below a directory.
func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		all = append(all, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func packLayer(t *testing.T, upper string, omit func(string, bool) bool) ([]byte, error) {
	t.Helper()
	var out bytes.Buffer
	_, err := archive.Pack(t.Context(), archive.Source{Dir: openDir(t, upper), VolumeBytes: volumeBytes, Scratch: t.TempDir(), Layer: true, Omit: omit}, &out)
	return out.Bytes(), err
}

func TestAnArchiveOfALayerHasWhatTheOverlayChanged(t *testing.T) {
	needs.Root(t, "mounts overlays")
	lower := t.TempDir()
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"kept", "gone", "gone2", "old/one", "old/two", "changed"} {
		write(filepath.Join(lower, name), name)
	}
	merged, upper := overlay(t, lower)
	in := func(name string) string { return filepath.Join(merged, name) }
	write(in("changed"), "new")
	write(in("left/out"), "x")
	write(in("left/in"), "y")
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} // version 2, cap_net_bind_service, effective (linux/capability.h)
	if err := errors.Join(os.Remove(in("gone")), os.Remove(in("gone2")), os.RemoveAll(in("old")), os.Mkdir(in("old"), 0o755),
		unix.Setxattr(in("changed"), "security.capability", capability, 0)); err != nil {
		t.Fatal(err)
	}
	write(in("old/three"), "three")
	data, err := packLayer(t, upper, func(path string, dir bool) bool { return path == "left/out" && !dir })
	if err != nil {
		t.Fatal(err)
	}
	layer := t.TempDir()
	if _, err := archive.Unpack(t.Context(), bytes.NewReader(data), archive.Target{Dir: openDir(t, layer), VolumeBytes: volumeBytes, Layer: true}); err != nil {
		t.Fatal(err)
	}
	again := t.TempDir()
	if err := unix.Mount("overlay", again, "overlay", unix.MS_RDONLY, "lowerdir="+layer+":"+lower); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(again, 0) })
	if got, want := names(t, again), []string{".", "changed", "kept", "left", "left/in", "old", "old/three"}; !slices.Equal(got, want) {
		t.Errorf("over the same lower layer there are %v, want %v", got, want)
	}
	value := make([]byte, 64)
	if n, err := unix.Getxattr(filepath.Join(again, "changed"), "security.capability", value); err != nil || !bytes.Equal(value[:n], capability) {
		t.Errorf("the file's capability is %x, %v", value[:max(n, 0)], err)
	}
	// What is a volume's archive has none of that.
	if _, err := unpack(t, t.TempDir(), data); !errors.Is(err, archive.ErrRefused) {
		t.Errorf("a volume made of a layer's archive: %v", err)
	}
}

func TestALayerWhoseContentIsBelowIsNotPacked(t *testing.T) {
	needs.Root(t, "sets attributes of overlayfs")
	for _, name := range []string{"trusted.overlay.metacopy", "trusted.overlay.redirect"} {
		dir := t.TempDir()
		path := filepath.Join(dir, "file")
		if err := errors.Join(os.WriteFile(path, nil, 0o644), unix.Setxattr(path, name, []byte("/elsewhere"), 0)); err != nil {
			t.Fatal(err)
		}
		if _, err := packLayer(t, dir, nil); !errors.Is(err, archive.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestALayerHasNoDevicesButWhiteouts(t *testing.T) {
	needs.Root(t, "makes files of other users")
	root := &tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}
	for name, h := range map[string]*tar.Header{
		"a character device": {Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3},
		"its major alone":    {Typeflag: tar.TypeChar, Name: "null", Devmajor: 1},
		"its minor alone":    {Typeflag: tar.TypeChar, Name: "null", Devminor: 3},
		"a block device":     {Typeflag: tar.TypeBlock, Name: "disk"},
		"another redirect":   {Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.redirect": "/etc"}},
		"an odd opaque":      {Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "z"}},
	} {
		data := hostile(t, []*tar.Header{root, h})
		_, err := archive.Unpack(t.Context(), bytes.NewReader(data), archive.Target{Dir: openDir(t, t.TempDir()), VolumeBytes: volumeBytes, Layer: true})
		if !errors.Is(err, archive.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnArchiveIsReadWithoutMakingAnything(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte("one"), 0o644), os.WriteFile(filepath.Join(dir, "b"), []byte("two"), 0o644)); err != nil {
		t.Fatal(err)
	}
	data, want := pack(t, dir)
	read := map[string]string{}
	trailer, err := archive.Walk(t.Context(), bytes.NewReader(data), func(h *tar.Header, content io.Reader) error {
		text, err := io.ReadAll(content)
		read[h.Name] = string(text)
		return err
	})
	if err != nil || trailer.SHA256 != want.SHA256 || read["a"] != "one" || read["b"] != "two" || len(read) != 3 {
		t.Errorf("read %v, %+v, %v", read, trailer, err)
	}
	if _, err := archive.Walk(t.Context(), bytes.NewReader(data[:len(data)-100]), func(*tar.Header, io.Reader) error { return nil }); !errors.Is(err, archive.ErrDamaged) {
		t.Errorf("one that is cut: %v", err)
	}
	out := hostile(t, []*tar.Header{{Typeflag: tar.TypeReg, Name: "../out"}})
	if _, err := archive.Walk(t.Context(), bytes.NewReader(out), func(*tar.Header, io.Reader) error { return nil }); !errors.Is(err, archive.ErrRefused) {
		t.Errorf("one that leads out: %v", err)
	}
	mine := errors.New("mine")
	if _, err := archive.Walk(t.Context(), bytes.NewReader(data), func(*tar.Header, io.Reader) error { return mine }); !errors.Is(err, mine) || !strings.HasPrefix(err.Error(), ".") {
		t.Errorf("an error of who reads: %v", err)
	}
}
