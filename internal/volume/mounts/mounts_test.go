package mounts

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestMountsAreReadFromTheKernelsList(t *testing.T) {
	got, err := parse(strings.NewReader(`22 27 0:21 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
132 27 7:1 / /var/lib/a\040b/roots/u1 rw,nosuid,nodev,relatime - ext4 /dev/loop1 rw
133 27 7:1 / /x/clusters/u1/c1 ro,nosuid,nodev,relatime,idmapped master:3 propagate_from:2 - ext4 /dev/loop1 rw
`))
	want := []Mount{{Path: "/sys"}, {Path: "/var/lib/a b/roots/u1"}, {Path: "/x/clusters/u1/c1", ReadOnly: true, Mapped: true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	if _, err := parse(strings.NewReader("22 27\n")); err == nil {
		t.Error("a line without a path is no error")
	}
}

func TestOnlyMountsBelowAreReturned(t *testing.T) {
	all, err := Below("/proc")
	if err != nil || len(all) == 0 || slices.ContainsFunc(all, func(m Mount) bool { return !strings.HasPrefix(m.Path+"/", "/proc/") }) {
		t.Errorf("got %+v, %v", all, err)
	}
	if all, err := Below("/pro"); err != nil || len(all) > 0 {
		t.Errorf("got %+v, %v", all, err)
	}
}

func TestAMappedMountGivesNoRights(t *testing.T) {
	needs.Root(t, "makes mounts")
	from, at := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", from, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(from, 0); err != nil {
			t.Error(err)
		}
	})
	for _, readOnly := range []bool{false, true} {
		err := Map(from, at, api.IDRange{First: 2_000_000, Count: 65536}, readOnly)
		if errors.Is(err, unix.EINVAL) {
			needs.Hardware(t, "the kernel has no mapped mounts of tmpfs, which came with Linux 6.3")
		}
		if err != nil {
			t.Fatal(err)
		}
		var s unix.Statfs_t
		err = unix.Statfs(at, &s)
		if err != nil || s.Flags&unix.ST_NOSUID == 0 || s.Flags&unix.ST_NODEV == 0 || (s.Flags&unix.ST_RDONLY != 0) != readOnly {
			t.Errorf("with read-only %v it has flags %#x, %v", readOnly, s.Flags, err)
		}
		if first, err := FirstOwner(from, at); err != nil || first != 2_000_000 {
			t.Errorf("its range begins at %d, %v", first, err)
		}
		if all, err := Below(at); err != nil || len(all) != 1 || !all[0].Mapped || all[0].ReadOnly != readOnly {
			t.Errorf("it is listed as %+v, %v", all, err)
		}
		open, err := os.Open(at)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := Unmount(ctx, at); !errors.Is(err, ErrBusy) {
			t.Errorf("unmounting it while it is open: got %v, want ErrBusy", err)
		}
		if err := errors.Join(open.Close(), Unmount(t.Context(), at), Unmount(t.Context(), at)); err != nil {
			t.Fatal(err)
		}
	}
}
