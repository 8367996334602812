package durablefile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAFileIsReplacedWholeWithItsModeAndNothingBesideIt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record")
	if err := os.WriteFile(path, []byte("a longer one that was there"), 0o644); err != nil {
		t.Fatal(err)
	}
	reader, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	if err := Write(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if info, statErr := os.Stat(path); err != nil || string(data) != "new" || statErr != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("it has %q with mode %v: %v, %v", data, info.Mode(), err, statErr)
	}
	old := make([]byte, 64)
	if n, err := reader.Read(old); err != nil || string(old[:n]) != "a longer one that was there" {
		t.Errorf("a reader of the former file has %q, %v: the file was written to in place", old[:n], err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}

func TestAFailedWriteLeavesTheFormerFileAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record") // a folder can't be replaced by a file
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err == nil {
		t.Error("no error")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 || !entries[0].IsDir() {
		t.Errorf("the folder has %v, %v", entries, err)
	}
	if err := Write(filepath.Join(dir, "none", "record"), nil, 0o600); err == nil {
		t.Error("a file was written to a folder that does not exist")
	}
}

func TestARenamedFileIsAtItsNewPlaceOnly(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(from, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Rename(from, to); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(to); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := os.Stat(from); !os.IsNotExist(err) {
		t.Error(err)
	}
}
