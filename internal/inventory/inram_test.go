package inventory

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOnlyMemoryEndsWithThePower(t *testing.T) {
	const heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatalf("mount a tmpfs, which takes root: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	for _, tt := range []struct{ name, dir, swaps, want string }{
		{"a tmpfs without swap", dir, heading, ""},
		{"a tmpfs with compressed memory as swap", dir, heading + "/dev/zram0      partition\t1048572\t\t0\t\t100\n", ""},
		{"a tmpfs whose pages may go to a disk", dir, heading + "/dev/sda2       partition\t1048572\t\t0\t\t-2\n", "memory is swapped to /dev/sda2"},
		{"a kernel's own file system", "/proc", heading, "neither tmpfs nor an overlay"},
		{"a directory that is not there", dir + "/x", heading, "no such file"},
	} {
		err := CheckInRAM(tt.dir, []byte(tt.swaps))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}
