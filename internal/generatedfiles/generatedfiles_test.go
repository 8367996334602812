package generatedfiles

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
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

// The files are written again when a cluster grows. Packages that root has installed meanwhile have accounts, and so may people.
func TestAccountsThatRootAddedStay(t *testing.T) {
	root, layers := t.TempDir(), t.TempDir()
	passwd := filepath.Join(root, "etc/passwd")
	if err := os.MkdirAll(filepath.Join(layers, "0/etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(layers, "0/etc/passwd"), []byte("sshd:x:101:101::/:/bin/false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	place := func(generated string) []string {
		t.Helper()
		f := File{Path: "/etc/passwd", Content: []byte(generated), Mode: 0o644, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
		if err := Place(root, layers, nil, []File{f}); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(passwd)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	const generated = "root:x:0:0::/root:/bin/sh\nhpc:x:1000:1000::/home/hpc:/bin/sh\n"
	place(generated)
	file, err := os.OpenFile(passwd, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString("ada:x:1001:1001::/home/ada:/bin/sh\n"); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"root:x:0:0::/root:/bin/sh", "hpc:x:1000:1000::/home/hpc:/bin/bash", "sshd:x:101:101::/:/bin/false", "ada:x:1001:1001::/home/ada:/bin/sh"}
	if got := place(strings.Replace(generated, "/home/hpc:/bin/sh", "/home/hpc:/bin/bash", 1)); !slices.Equal(got, want) {
		t.Errorf("accounts are %q, want %q", got, want)
	}

	// What is no file has no accounts, and is not followed.
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	if err := errors.Join(os.Remove(passwd), os.WriteFile(elsewhere, []byte("eve:x:1002:1002::/:/bin/sh\n"), 0o644), os.Symlink(elsewhere, passwd)); err != nil {
		t.Fatal(err)
	}
	if got := place(generated); slices.Contains(got, "eve:x:1002:1002::/:/bin/sh") {
		t.Errorf("accounts are %q, some by a link", got)
	}
}
