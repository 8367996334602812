package generatedfiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFilesReplaceThoseOfTheTimeBefore(t *testing.T) {
	root := t.TempDir()
	uid, gid := uint32(os.Getuid()), uint32(os.Getgid())
	file := func(path, text string) File {
		return File{Path: path, Content: []byte(text), Mode: 0o640, UID: uid, GID: gid}
	}
	// What an image has in a file's place goes, a link too.
	if err := os.MkdirAll(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/run/elsewhere", filepath.Join(root, "etc/hosts")); err != nil {
		t.Fatal(err)
	}
	first := []File{file("/etc/hosts", "a"), file("/etc/deep/down", "b")}
	if err := Place(root, "", nil, first); err != nil {
		t.Fatal(err)
	}
	if err := Place(root, "", []string{"/etc/hosts", "/etc/deep/down"}, []File{file("/etc/hosts", "c")}); err != nil {
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
		if err := Place(root, "", nil, []File{file(path, "")}); err == nil || !strings.Contains(err.Error(), "absolute and clean") {
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
