package container_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/volume/ext4"
	"github.com/nearmetal/nearmetal/internal/volume/loopdev"
)

const mib = 1 << 20

// volumeDisk mounts a file system on a block device of its own, as a pool does, and returns its directory and the device's number.
func volumeDisk(t *testing.T, m driver.Member) (dir, device string) {
	t.Helper()
	needs.Program(t, "mke2fs")
	image, owner := filepath.Join(t.TempDir(), "image"), int(m.Assignment.UserIDs.First)
	dir = filepath.Join(t.TempDir(), "volume")
	err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(image, nil, 0o600), os.Truncate(image, 64*mib),
		ext4.Make(t.Context(), image, 64*mib, 100, ext4.Owner{UID: owner, GID: owner}))
	if err != nil {
		t.Fatal(err)
	}
	loop, err := loopdev.Open(image)
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close()
	if err := unix.Mount(loop.Name(), dir, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("the volume is still in use: %v", err)
		}
	})
	number, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(loop.Name()), "dev"))
	if err != nil {
		t.Fatal(err)
	}
	return dir, strings.TrimSpace(string(number))
}

// kernelLimits returns what the kernel holds a member to, reading and writing, by block device.
func (r *rig) kernelLimits(t *testing.T, id string) map[string][2]int64 {
	t.Helper()
	all := map[string][2]int64{}
	if text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/nearmetal", r.cfg.Group(), id, "io.max")); err == nil {
		for line := range strings.Lines(string(text)) {
			var device string
			var read, written int64
			if _, err := fmt.Sscanf(line, "%s rbps=%d wbps=%d riops=max wiops=max", &device, &read, &written); err != nil {
				t.Fatalf("io.max has %q: %v", line, err)
			}
			all[device] = [2]int64{read, written}
		}
		return all
	}
	for i, name := range []string{"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device"} {
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/blkio/nearmetal", r.cfg.Group(), id, name))
		if err != nil {
			needs.Hardware(t, "this host limits no I/O: %v", err)
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			rate, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			both := all[fields[0]]
			both[i] = rate
			all[fields[0]] = both
		}
	}
	return all
}

// written returns how many bytes the kernel let a member write to a block device.
func (r *rig) written(t *testing.T, id, device string) int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/nearmetal", r.cfg.Group(), id, "io.stat"))
	word := " wbytes="
	if err != nil {
		text, err = os.ReadFile(filepath.Join("/sys/fs/cgroup/blkio/nearmetal", r.cfg.Group(), id, "blkio.throttle.io_service_bytes"))
		word = " Write "
	}
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		before, after, ok := strings.Cut(line, word)
		if ok && strings.Fields(before)[0] == device {
			bytes, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return bytes
		}
	}
	return 0
}

func TestAControlGroupHoldsAMemberToItsLimitsOfIO(t *testing.T) {
	needHost(t, "crun")
	needs.Program(t, "dd")
	other := newRig(t, "crun")
	one, oneDevice := volumeDisk(t, other.member(t))
	two, twoDevice := volumeDisk(t, other.member(t))
	r := newRig(t, "crun") // whose members end before the volumes are unmounted
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.LimitIO(t.Context(), m); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("LimitIO of an unknown member: %v, want ErrNotFound", err)
	}
	m.Mounts = []driver.Mount{{Source: one, Path: "/volumes/one"}, {Source: two, Path: "/volumes/two"}}
	m.IOLimits = []driver.IOLimit{{Source: one, BytesPerSecond: 8 * mib}}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	holds := func(what string, want map[string][2]int64) {
		t.Helper()
		if got := r.kernelLimits(t, id); !maps.Equal(got, want) {
			t.Errorf("%s: the kernel has the limits %v, want %v", what, got, want)
		}
	}
	holds("started", map[string][2]int64{oneDevice: {8 * mib, 8 * mib}})
	r.run(t, id, "sh", "-c", "dd if=/dev/zero of=/volumes/one/file bs=1M count=4 oflag=direct 2>&1")
	if got := r.written(t, id, oneDevice); got < 4*mib {
		t.Errorf("the kernel counts %d bytes that the member wrote to the device of its limit, want those of its file", got)
	}
	to := func(what string, want map[string][2]int64, limits ...driver.IOLimit) {
		t.Helper()
		m.IOLimits = limits
		for range 2 { // again, as after a restart of the agent
			if err := r.open(t).LimitIO(t.Context(), m); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			holds(what, want)
		}
	}
	to("changed", map[string][2]int64{oneDevice: {2 * mib, 2 * mib}}, driver.IOLimit{Source: one, BytesPerSecond: 2 * mib})
	to("moved to the other", map[string][2]int64{twoDevice: {3 * mib, 3 * mib}}, driver.IOLimit{Source: two, BytesPerSecond: 3 * mib})
	if err := r.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	to("changed while paused, with two of one file system", map[string][2]int64{oneDevice: {mib, mib}, twoDevice: {5 * mib, 5 * mib}},
		driver.IOLimit{Source: one, BytesPerSecond: 4 * mib}, driver.IOLimit{Source: one, BytesPerSecond: mib}, driver.IOLimit{Source: two, BytesPerSecond: 5 * mib})
	if err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.IOLimits = []driver.IOLimit{{Source: "/proc", BytesPerSecond: mib}, {Source: filepath.Join(r.dir, "absent"), BytesPerSecond: mib}, {Source: two, BytesPerSecond: 6 * mib}}
	err := r.LimitIO(t.Context(), m)
	if err == nil || !strings.Contains(err.Error(), "/proc has no block device") || !strings.Contains(err.Error(), "absent: no such file") {
		t.Errorf("with directories that can't be limited: %v", err)
	}
	holds("beside those that can't be limited", map[string][2]int64{twoDevice: {6 * mib, 6 * mib}})
	to("lifted", map[string][2]int64{})
	if err := r.Stop(t.Context(), id, 0); err != nil {
		t.Fatal(err)
	}
	if err := r.LimitIO(t.Context(), m); err == nil {
		t.Error("the I/O of an exited member was limited")
	}
}

func TestAMemberStartsWithoutALimitThatCantBeSet(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	m.IOLimits = []driver.IOLimit{{Source: "/proc", BytesPerSecond: mib}}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.LimitIO(t.Context(), m); err == nil || !strings.Contains(err.Error(), "limiting the I/O of member") {
		t.Errorf("LimitIO says %v, want why the member is not held to its limit", err)
	}
}
