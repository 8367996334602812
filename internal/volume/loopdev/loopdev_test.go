package loopdev

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func file(t *testing.T, bytes int64) string {
	t.Helper()
	needs.Root(t, "makes loop devices")
	path := filepath.Join(t.TempDir(), "image")
	if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, bytes)); err != nil {
		t.Fatal(err)
	}
	return path
}

func open(t *testing.T, path string) *os.File {
	t.Helper()
	device, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = device.Close() })
	return device
}

func TestAFileHasOneDevice(t *testing.T) {
	path := file(t, 1<<20)
	one := open(t, path)
	// A file of the same name elsewhere has another; the name alone says nothing.
	if other := open(t, file(t, 1<<20)); other.Name() == one.Name() {
		t.Errorf("two files have %s", one.Name())
	}
	renamed := filepath.Join(filepath.Dir(path), "renamed")
	if err := os.Rename(path, renamed); err != nil {
		t.Fatal(err)
	}
	two := open(t, renamed)
	if two.Name() != one.Name() {
		t.Errorf("one file has %s and %s", one.Name(), two.Name())
	}
	if all, err := Backed(filepath.Dir(path) + "/"); err != nil || len(all) != 1 || all[0] != one.Name() {
		t.Errorf("the devices are %q, %v", all, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Await(ctx, renamed); !errors.Is(err, ErrBusy) {
		t.Errorf("waiting for a device in use: %v", err)
	}
	if err := errors.Join(one.Close(), two.Close(), Await(t.Context(), renamed)); err != nil {
		t.Error(err)
	}
	if err := os.Remove(renamed); err != nil {
		t.Fatal(err)
	}
	if err := Await(t.Context(), renamed); err != nil {
		t.Errorf("waiting for the device of no file: %v", err)
	}
	if _, err := Open(renamed); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opening the device of no file: %v", err)
	}
}

func TestADeviceGrowsWithItsFile(t *testing.T) {
	path := file(t, 1<<20)
	device := open(t, path)
	if err := os.Truncate(path, 3<<20); err != nil {
		t.Fatal(err)
	}
	if err := Grow(device); err != nil {
		t.Fatal(err)
	}
	if end, err := device.Seek(0, unix.SEEK_END); err != nil || end != 3<<20 {
		t.Errorf("it has %d bytes, %v", end, err)
	}
}
