package sysfs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNamesAreInTheOrderOfTheirNumbers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	want := []string{"eth0", "eth2", "eth10", "mlx5_0", "nvme0n1", "nvme0n2", "nvme1n1", "nvme10n1"}
	for _, name := range []string{"nvme10n1", "eth10", "eth2", "nvme1n1", "eth0", "nvme0n2", "mlx5_0", "nvme0n1"} {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := At(root).Names("."); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWhatIsNotThereIsEmpty(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	tree := At(root)
	if err := os.WriteFile(filepath.Join(root, "speed"), []byte("nonsense\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if n, ok := tree.Int("speed"); ok {
		t.Errorf("a file without a number told %d", n)
	}
	if got := tree.Text("away") + tree.Link("away") + tree.Real("away"); got != "" || tree.Names("away") != nil {
		t.Errorf("a file that is not there told %q", got)
	}
}

func TestAPathInTheTreeIsSeenFromItsRoot(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "devices/pci0/0000:01:00.0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("devices/pci0/0000:01:00.0", filepath.Join(root, "device")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc", filepath.Join(root, "outside")); err != nil {
		t.Fatal(err)
	}
	tree := At(root)
	if got, want := tree.Real("device"), "/devices/pci0/0000:01:00.0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := tree.Real("outside"); got != "" {
		t.Errorf("a link out of the tree led to %q", got)
	}
	if got, want := tree.Link("device"), "0000:01:00.0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
