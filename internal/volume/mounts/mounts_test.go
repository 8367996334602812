package mounts

import (
	"slices"
	"strings"
	"testing"
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
