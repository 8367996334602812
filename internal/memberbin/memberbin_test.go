package memberbin

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
)

func TestInstallWritesAnExecutableThatHoldsTheBinary(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "yet", "there")
	path, err := install(dir, Name, []byte("program"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if data, _ := os.ReadFile(path); string(data) != "program" || info.Mode() != 0o755 {
		t.Errorf("got %q with mode %v, want %q with mode 0755", data, info.Mode(), "program")
	}
}

func TestInstallLeavesTheSameBinaryAloneAndReplacesAnother(t *testing.T) {
	for _, c := range []struct {
		name     string
		disturb  func(path string) error
		replaced bool
	}{
		{"the same binary", func(string) error { return nil }, false},
		{"another binary of the same size", func(path string) error { return os.WriteFile(path, []byte("PROGRAM"), 0o755) }, true},
		{"a binary that can't be executed", func(path string) error { return os.Chmod(path, 0o644) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path, err := install(dir, Name, []byte("program"))
			if err != nil {
				t.Fatal(err)
			}
			if err := c.disturb(path); err != nil {
				t.Fatal(err)
			}
			before, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := install(dir, Name, []byte("program")); err != nil {
				t.Fatal(err)
			}
			after, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if replaced := !os.SameFile(before, after); replaced != c.replaced {
				t.Errorf("replaced = %v, want %v", replaced, c.replaced)
			}
			if data, _ := os.ReadFile(path); string(data) != "program" || after.Mode() != 0o755 {
				t.Errorf("got %q with mode %v, want %q with mode 0755", data, after.Mode(), "program")
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("the directory holds %v, want the binary only", entries)
			}
		})
	}
}

func TestAMissingBinaryIsNamedWithWhatToDo(t *testing.T) {
	if _, err := file(fstest.MapFS{}, Name); err != ErrMissing {
		t.Errorf("got %v, want %v", err, ErrMissing)
	}
}
