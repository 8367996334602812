package bootagent

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestDevicesThatLoadAModuleWhenOpenedAreMadeFromTheImagesList(t *testing.T) {
	needs.Root(t, "makes device nodes")
	dir := t.TempDir()
	dev, list := filepath.Join(dir, "dev"), filepath.Join(dir, "modules.devname")
	const text = "# Device nodes to trigger on-demand module loading.\ntun net/tun c10:200\nsome disk b7:3\nevil ../outside c10:200\nbroken\n"
	if err := os.WriteFile(list, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a device that is there already stays
		if err := makeStaticNodes(dev, list); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]struct {
		mode   uint32
		device uint64
	}{"net/tun": {unix.S_IFCHR | 0o600, unix.Mkdev(10, 200)}, "disk": {unix.S_IFBLK | 0o600, unix.Mkdev(7, 3)}} {
		var got unix.Stat_t
		if err := unix.Stat(filepath.Join(dev, name), &got); err != nil || got.Mode != want.mode || got.Rdev != want.device {
			t.Errorf("%s has mode %o and number %d (%v), want %o and %d", name, got.Mode, got.Rdev, err, want.mode, want.device)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "outside")); err == nil {
		t.Error("a device was made outside of the directory")
	}
	if err := makeStaticNodes(dev, filepath.Join(dir, "none")); err != nil {
		t.Errorf("an image without a list: %v", err)
	}
}
