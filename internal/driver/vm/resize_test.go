package vm_test

import (
	"errors"
	"fmt"
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
	"github.com/nearmetal/nearmetal/internal/resource"
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

// awaitSize waits until a guest has these processors online, and a memory within a quarter of so many MiB below.
func awaitSize(t *testing.T, r *rig, id, what, processors string, mib int) {
	t.Helper()
	var online string
	var has int
	for ends := time.Now().Add(time.Minute); time.Now().Before(ends); {
		online = strings.TrimSpace(r.tell(t, id, order{Read: "/sys/devices/system/cpu/online"}).Text)
		if has = guestMiB(t, r, id); online == processors && has > mib*3/4 && has <= mib {
			return
		}
	}
	t.Errorf("%s: the guest has processors %s and %d MiB, want %s and about %d", what, online, has, processors, mib)
}

// TestAMachineGrowsAndShrinksWhileAProgramRunsOnInIt grows a machine from one processor and 384 MiB to two and 640 MiB, and shrinks it again.
func TestAMachineGrowsAndShrinksWhileAProgramRunsOnInIt(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := sizedAs(r.member(t), 0, 1, 384<<20, 0)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	awaitSize(t, r, id, "before", "0", 384)
	boot, process, counted := r.sessions[id].bootID, pidOf(t, r, id), r.progress(t, id)
	resize := func(what string, to driver.Member, processors string, mib int) {
		t.Helper()
		began := time.Now()
		err := r.Resize(t.Context(), to)
		for errors.Is(err, driver.ErrNeedsReboot) && time.Since(began) < patience {
			err = r.Resize(t.Context(), to) // a guest may hold on to a page for a while
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		t.Logf("%s took %s", what, time.Since(began))
		awaitSize(t, r, id, what, processors, mib)
		wantHeld(t, r, to)
	}
	resize("grown", sizedAs(m, 1, 2, 640<<20, 0), "0-1", 640)
	resize("shrunk", sizedAs(m, 2, 1, 384<<20, 0), "0", 384)
	// QEMU can't let go of an emulated processor: the machine can't have the second one again, and its state can't be written.
	if err := r.Save(t.Context(), id); err == nil || !strings.Contains(err.Error(), "reboot the member first") {
		t.Errorf("saving an emulated machine that gave a processor back: %v", err)
	}
	resize("grown again", sizedAs(m, 3, 1, 512<<20, 0), "0", 512)
	if err := r.Resize(t.Context(), sizedAs(m, 4, 2, 512<<20, 0)); !errors.Is(err, driver.ErrNeedsReboot) {
		t.Errorf("giving it a processor again: %v, want %v", err, driver.ErrNeedsReboot)
	}
	awaitSize(t, r, id, "after a resize that needs a reboot", "0", 512)
	if err := r.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := r.Resize(t.Context(), sizedAs(m, 5, 1, 384<<20, 0)); !errors.Is(err, driver.ErrNeedsReboot) {
		t.Errorf("resizing it while it is paused: %v, want %v", err, driver.ErrNeedsReboot)
	}
	if err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if now := r.progress(t, id); now <= counted || r.sessions[id].bootID != boot || pidOf(t, r, id) != process {
		t.Errorf("the program has counted to %d, and to %d before; its machine is process %s, was %s", now, counted, pidOf(t, r, id), process)
	}
	again := sizedAs(m, 6, 2, 512<<20, 0)
	again.Boot = "second"
	if err := r.Reboot(t.Context(), again, 0); err != nil {
		t.Fatal(err)
	}
	awaitSize(t, r, id, "rebooted", "0-1", 512)
	wantHeld(t, r, again)
	resize("shrunk after the reboot", sizedAs(again, 7, 1, 512<<20, 0), "0", 512)
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// wantHeld checks that a running machine has a thread for each of its member's processors, on its CPU, and no more memory than its size says; and
// that its record names the size.
func wantHeld(t *testing.T, r *rig, m driver.Member) {
	t.Helper()
	a := &m.Assignment
	dir, limit, _ := groupOf(t, r, a.ID)
	if got, want := int64(readNumber(t, filepath.Join(dir, limit))), a.MemoryBytes()+resource.MachineReserve(api.Shape{Cores: len(a.Slots), Memory: api.Bytes(a.MemoryBytes())}, false); got != want {
		t.Errorf("its control group is limited to %d MiB, want %d", got>>20, want>>20)
	}
	files, err := filepath.Glob("/proc/" + pidOf(t, r, a.ID) + "/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	processors := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(text), "Name:\tCPU ") {
			continue
		}
		processors++
		var n int
		if _, err := fmt.Sscanf(string(text), "Name:\tCPU %d/", &n); err != nil || n >= len(a.CPUs) {
			t.Errorf("a thread of no processor (%v):\n%s", err, text)
		} else if want := fmt.Sprintf("Cpus_allowed_list:\t%d\n", a.CPUs[n]); !strings.Contains(string(text), want) {
			t.Errorf("want %q of this thread:\n%s", want, text)
		}
	}
	if processors != len(a.Slots) {
		t.Errorf("%d threads run the guest's processors, want %d", processors, len(a.Slots))
	}
	found, err := r.Observe(t.Context())
	i := slices.IndexFunc(found, func(o driver.Observation) bool { return o.ID == a.ID })
	if err != nil || i < 0 || found[i].Member.Assignment.SizeNumber != a.SizeNumber || !found[i].Member.Assignment.Held().Same(a.Held()) {
		t.Errorf("its record does not name its new size: %+v, %v", found, err)
	}
}

// TestAMachineThatWasHotpluggedGoesOnElsewhereWithItsSize: its successor is built in the same chassis, and can grow and shrink as well.
func TestAMachineThatWasHotpluggedGoesOnElsewhereWithItsSize(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := sizedAs(r.member(t), 0, 1, 384<<20, 0)
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	boot := r.sessions[id].bootID
	larger := sizedAs(m, 1, 2, 640<<20, 0)
	if err := r.Resize(t.Context(), larger); err != nil {
		t.Fatal(err)
	}
	awaitSize(t, r, id, "grown", "0-1", 640)
	if err := r.Save(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	next := r.successor(t, larger)
	if err := r.Restore(t.Context(), next, id); err != nil {
		t.Fatal(err)
	}
	if got := r.sessions[next.Assignment.ID].bootID; got != boot {
		t.Errorf("the guest's kernel is of boot %q, was %q", got, boot)
	}
	awaitSize(t, r, next.Assignment.ID, "restored", "0-1", 640)
	wantHeld(t, r, next)
	smaller := sizedAs(next, 2, 1, 512<<20, 0)
	if err := r.Resize(t.Context(), smaller); err != nil {
		t.Fatal(err)
	}
	awaitSize(t, r, next.Assignment.ID, "shrunk", "0", 512)
	wantHeld(t, r, smaller)
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
