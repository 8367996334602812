package metal

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
)

func TestAWholeMachineKeepsALayerThatItsProgramsHaveOpen(t *testing.T) {
	m := newMachine(t)
	d, member := m.driver(), m.member(t)
	if err := d.Start(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	layer := t.TempDir()
	if err := os.WriteFile(filepath.Join(layer, "tool"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(m.root, "layers/foam")
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	with := member
	with.Mounts, with.LayersNumber = []driver.Mount{{Source: layer, Path: "/layers/foam", ReadOnly: true}}, 1
	for range 2 { // again changes nothing
		if err := d.Remount(t.Context(), with); err != nil {
			t.Fatal(err)
		}
	}
	open, err := os.Open(filepath.Join(at, "tool"))
	if err != nil {
		t.Fatalf("the layer is not there: %v", err)
	}
	defer open.Close()
	if err := os.WriteFile(filepath.Join(at, "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write to the layer: %v", err)
	}
	without := member
	without.LayersNumber = 2
	err = d.Remount(t.Context(), without)
	if !errors.Is(err, driver.ErrMountBusy) || !strings.Contains(err.Error(), "(PID ") || !strings.Contains(err.Error(), "files of "+at+" are still open in member m-0") {
		t.Errorf("a removal while files are open: %v", err)
	}
	seen := func() *driver.Member {
		t.Helper()
		found, err := m.driver().Observe(t.Context()) // as an agent that starts again
		if err != nil || len(found) != 1 {
			t.Fatalf("found %+v: %v", found, err)
		}
		return found[0].Member
	}
	if got := seen(); got.LayersNumber != 1 || !slices.Equal(got.Mounts, with.Mounts) {
		t.Errorf("after a removal that failed it has %+v of number %d", got.Mounts, got.LayersNumber)
	}
	if err := open.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Remount(t.Context(), without); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(at); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the layer is left: %v", err)
	}
	if got := seen(); got.LayersNumber != 2 || len(got.Mounts) != 0 {
		t.Errorf("after the removal it has %+v of number %d", got.Mounts, got.LayersNumber)
	}
}
