package bootagent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/machine/guestlink"
)

func TestOnlyAGuestsCommandLineMakesAGuest(t *testing.T) {
	for line, want := range map[string]struct {
		formats []image.RootFormat
		guest   bool
	}{
		"console=ttyS0 nearmetal.guest=erofs,squashfs panic=-1":  {[]image.RootFormat{image.EROFS, image.SquashFS}, true},
		"nearmetal.server=h:1 nearmetal.guests=erofs":            {nil, false},
		"BOOT_IMAGE=/vmlinuz root=/dev/vda1 x=nearmetal.guest=e": {nil, false},
	} {
		formats, isGuest := guestFormats(line)
		if !cmp.Equal(formats, want.formats) || isGuest != want.guest {
			t.Errorf("%q: got %v, %v", line, formats, isGuest)
		}
	}
	for _, bad := range [][]image.RootFormat{nil, {"ext4"}, {image.EROFS, ""}, make([]image.RootFormat, guestlink.MaxRoots+1)} {
		if allFormats(bad) {
			t.Errorf("%v are taken for file systems of roots", bad)
		}
	}
	if !allFormats([]image.RootFormat{image.EROFS, image.SquashFS}) {
		t.Error("EROFS and SquashFS are refused")
	}
}

func TestASetupsFilesReplaceThoseOfTheOneBefore(t *testing.T) {
	root := t.TempDir()
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	file := func(path, text string) guestlink.File {
		return guestlink.File{Path: path, Content: []byte(text), Mode: 0o640, UID: uid, GID: gid}
	}
	// What an image has in a file's place goes, a link too.
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/run/elsewhere", filepath.Join(root, "etc/hosts")); err != nil {
		t.Fatal(err)
	}
	first := []guestlink.File{file("/etc/hosts", "a"), file("/etc/deep/down", "b")}
	if err := placeFiles(root, nil, first); err != nil {
		t.Fatal(err)
	}
	if err := placeFiles(root, first, []guestlink.File{file("/etc/hosts", "c")}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(filepath.Join(root, "etc/hosts"))
	if err != nil || info.Mode() != 0o640 {
		t.Fatalf("hosts has mode %v (%v), want a file of mode 0640", info.Mode(), err)
	}
	if text, _ := os.ReadFile(filepath.Join(root, "etc/hosts")); string(text) != "c" {
		t.Errorf("hosts has %q", text)
	}
	if _, err := os.Lstat(filepath.Join(root, "etc/deep/down")); !os.IsNotExist(err) {
		t.Errorf("a file that is no longer asked for: %v", err)
	}
	for _, path := range []string{"etc/hosts", "/etc/../hosts", ""} {
		if err := placeFiles(root, nil, []guestlink.File{file(path, "")}); err == nil || !strings.Contains(err.Error(), "absolute and clean") {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func TestTheTopmostLayersFileIsTheImages(t *testing.T) {
	layers := t.TempDir()
	for name, text := range map[string]string{"0/etc/passwd": "lower", "1/etc/passwd": "upper", "0/etc/group": "only"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(layers, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(layers, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"/etc/passwd": "upper", "/etc/group": "only", "/etc/shadow": ""} {
		if got := imageFile(layers, name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
