package vm_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/testbed/debiantree"
	"github.com/nearmetal/nearmetal/testbed/foreignimage"
)

// sizedAs returns the member with other slots, memory and disk.
func sizedAs(m driver.Member, number int64, slots int, memory, disk int64) driver.Member {
	cpus := make([]int, slots)
	taken := make([]int, slots)
	for n := range slots {
		cpus[n], taken[n] = n%2, n
	}
	m.Assignment = m.Assignment.Sized(api.Size{
		Number: number, Slots: taken, CPUs: cpus, NUMANodes: []int{0}, Memory: []api.MemoryClaim{{Bytes: memory}}, DiskBytes: disk,
	})
	return m
}

// TestAMachineHasItsNewSizeOnceItHasRebooted grows a machine from one processor and 384 MiB to two and 512 MiB, and shrinks it again.
func TestAMachineHasItsNewSizeOnceItHasRebooted(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := sizedAs(r.member(t), 0, 1, 384<<20, 0)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	check := func(what, processors string, mib int) {
		t.Helper()
		online := strings.TrimSpace(r.tell(t, id, order{Read: "/sys/devices/system/cpu/online"}).Text)
		if has := guestMiB(t, r, id); online != processors || has < mib*3/4 || has > mib {
			t.Errorf("%s: the guest has processors %s and %d MiB, want %s and about %d", what, online, has, processors, mib)
		}
	}
	check("before", "0", 384)
	larger := sizedAs(m, 1, 2, 512<<20, 0)
	if err := r.Resize(t.Context(), larger); !errors.Is(err, driver.ErrNeedsReboot) {
		t.Fatalf("resizing it while it runs: %v, want %v", err, driver.ErrNeedsReboot)
	}
	check("before its reboot", "0", 384)
	larger.Boot = "second"
	if err := r.Reboot(t.Context(), larger, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	check("after its reboot", "0-1", 512)
	dir, limit, _ := groupOf(t, r, id)
	if got := readNumber(t, filepath.Join(dir, limit)); got < 512<<20 {
		t.Errorf("its control group is limited to %d MiB, less than the guest's memory", got>>20)
	}
	smaller := sizedAs(m, 2, 1, 384<<20, 0)
	smaller.Boot = "third"
	if err := r.Reboot(t.Context(), smaller, 0); err != nil {
		t.Fatal(err)
	}
	check("after it was shrunk", "0", 384)
	if got := readNumber(t, filepath.Join(dir, limit)); got >= 512<<20 {
		t.Errorf("its control group is still limited to %d MiB", got>>20)
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// guestMiB is the memory that a guest's kernel manages.
func guestMiB(t *testing.T, r *rig, id string) int {
	t.Helper()
	for line := range strings.Lines(r.tell(t, id, order{Read: "/proc/meminfo"}).Text) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "MemTotal:" {
			kib, err := strconv.Atoi(fields[1])
			if err != nil {
				t.Fatal(err)
			}
			return kib >> 10
		}
	}
	t.Fatal("the guest does not say how much memory it has")
	return 0
}

// fileLimit is how large a process may make files (proc(5), limits): the soft limit, as anybody may read it.
func fileLimit(t *testing.T, pid string) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/limits")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Max file size"); ok {
			limit, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				t.Fatalf("it may write files of any size: %s", line)
			}
			return limit
		}
	}
	t.Fatalf("no limit of files in: %s", text)
	return 0
}

// TestAPrivateDiskGrowsWhileItsMachineRunsAndWhenItBoots grows the disk of a guest of another system twice.
func TestAPrivateDiskGrowsWhileItsMachineRunsAndWhenItBoots(t *testing.T) {
	needForeign(t)
	disk := foreignimage.Bare(t, debiantree.Ensure(t).Path("vmlinuz"))
	r := foreign(t, disk.Path, api.ForeignDisk{
		OS: api.SystemOther, Firmware: api.FirmwareBIOS, Size: api.Bytes(disk.Bytes), Probe: api.Probe{Console: foreignimage.BareText},
	})
	size := disk.Bytes
	m := sizedAs(r.member(t), 0, 1, 384<<20, size)
	id := m.Assignment.ID
	if err := r.Driver.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	check := func(what string, want int64) {
		t.Helper()
		// QEMU writes the header of a disk that grows before it answers.
		if has, err := vm.OverlaySize(filepath.Join(r.cfg.StateDir, "vms", id, "disk.qcow2")); err != nil || has != want {
			t.Errorf("%s: its disk has %d bytes (%v), want %d", what, has, err, want)
		}
		if limit := fileLimit(t, pidOf(t, r, id)); limit < want || limit > 2*want {
			t.Errorf("%s: QEMU may write files of %d bytes, and the disk has %d", what, limit, want)
		}
	}
	check("at first", size)
	pid := pidOf(t, r, id)
	larger := sizedAs(m, 1, 1, 384<<20, size+64<<20)
	larger.Assignment.Slots, larger.Assignment.CPUs = m.Assignment.Slots, m.Assignment.CPUs
	if err := r.Resize(t.Context(), larger); err != nil {
		t.Fatal(err)
	}
	check("grown while it runs", size+64<<20)
	found, err := r.Observe(t.Context())
	i := slices.IndexFunc(found, func(o driver.Observation) bool { return o.ID == id })
	if err != nil || i < 0 || found[i].Member.Assignment.SizeNumber != 1 || found[i].Member.Assignment.DiskBytes != size+64<<20 {
		t.Errorf("its record does not name its new size: %+v, %v", found, err)
	}
	if now := pidOf(t, r, id); now != pid {
		t.Errorf("another machine runs: PID %s, and it was %s", now, pid)
	}
	larger = sizedAs(m, 2, 2, 512<<20, size+128<<20)
	larger.Boot = "second"
	if err := r.Driver.Reboot(t.Context(), larger, 0); err != nil {
		t.Fatal(err)
	}
	check("grown with its reboot", size+128<<20)
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Errorf("it does not boot from the larger disk: %v", err)
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
