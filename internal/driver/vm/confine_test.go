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
	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/resource"
	"github.com/nearmetal/nearmetal/testbed/debiantree"
	"github.com/nearmetal/nearmetal/testbed/foreignimage"
)

// groupOf is a member's control group for memory, with either version, and its files for the limit and for what is used.
func groupOf(t *testing.T, r *rig, id string) (dir, limit, used string) {
	t.Helper()
	below := filepath.Join("nearmetal", cgroup.NodeGroup(r.cfg.Node, r.cfg.StateDir)+"-vm", id)
	if dir = filepath.Join("/sys/fs/cgroup/memory", below); exists(dir) {
		return dir, "memory.limit_in_bytes", "memory.usage_in_bytes"
	}
	if dir = filepath.Join("/sys/fs/cgroup", below); exists(dir) {
		return dir, "memory.max", "memory.current"
	}
	t.Fatalf("member %s has no control group for memory", id)
	return "", "", ""
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func readNumber(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// wantShare checks that a running machine has its member's share of the node and no more: the limit of its memory, and the CPUs of its threads.
func (r *rig) wantShare(t *testing.T, m driver.Member) {
	t.Helper()
	a := &m.Assignment
	dir, limit, _ := groupOf(t, r, a.ID)
	if got, want := int64(readNumber(t, filepath.Join(dir, limit))), a.MemoryBytes()+a.ReserveBytes-resource.HomeServerBytes; got != want {
		t.Errorf("the limit is %d bytes, want %d: the guest's memory and the reserve", got, want)
	}
	pid := pidOf(t, r, a.ID)
	if procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || !slices.Contains(strings.Fields(string(procs)), pid) {
		t.Errorf("QEMU, process %s, is not in the control group with the processes %q (%v)", pid, procs, err)
	}
	threads, err := filepath.Glob("/proc/" + pid + "/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	processors := 0
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a worker that has ended
		}
		want := fmt.Sprintf("Cpus_allowed_list:\t%d\n", r.cfg.SpareCPUs[0])
		if strings.HasPrefix(string(text), "Name:\tCPU ") {
			processors++
			want = fmt.Sprintf("Cpus_allowed_list:\t%d\n", a.CPUs[0])
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("want %q of this thread:\n%s", want, text)
		}
	}
	if processors != len(a.Slots) {
		t.Errorf("%d threads of %d run the guest's %d processors", processors, len(threads), len(a.Slots))
	}
	if t.Failed() {
		t.FailNow() // a machine without its limit does not meet it
	}
}

// The machine is of another system, which nothing waits for: the test is quick also where the host itself is emulated, as in make test-vm-guest.
func TestAMachineHasItsShareOfTheNodeFromItsFirstInstruction(t *testing.T) {
	needForeign(t)
	disk := foreignimage.Bare(t, debiantree.Ensure(t).Path("vmlinuz"))
	as := api.ForeignDisk{OS: api.SystemOther, Firmware: api.FirmwareBIOS, Size: api.Bytes(disk.Bytes), Probe: api.Probe{Console: foreignimage.BareText}}
	r := foreign(t, disk.Path, as)
	r.cfg.SpareCPUs = []int{1}
	r.reopen(t)
	start := func() driver.Member {
		m := r.member(t)
		m.Assignment.ReserveBytes = 150<<20 + resource.HomeServerBytes
		m.Assignment.Slots, m.Assignment.CPUs = []int{0, 1}, []int{0}
		if err := r.Driver.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	first := start()
	r.wantShare(t, first)
	if err := r.Pause(t.Context(), first.Assignment.ID); err != nil {
		t.Fatal(err)
	}
	r.reopen(t)
	if got := observed(t, r, first.Assignment.ID); got != driver.StatePaused {
		t.Errorf("the new driver finds it %s, want paused", got)
	}
	if err := errors.Join(r.Resume(t.Context(), first.Assignment.ID), r.Stop(t.Context(), first.Assignment.ID, 0)); err != nil {
		t.Fatal(err)
	}
	if got := observed(t, r, first.Assignment.ID); got != driver.StateExited {
		t.Errorf("after Stop it is %s, want exited", got)
	}

	t.Log("another machine meets a limit that was lowered while it boots")
	second := start()
	id := second.Assignment.ID
	r.wantShare(t, second)
	dir, limit, used := groupOf(t, r, id)
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(readNumber(t, filepath.Join(dir, used))+1<<20)), 0); err != nil {
		t.Fatal(err)
	}
	r.wantOutOfMemory(t, id)
	if err := errors.Join(r.Clean(t.Context(), id), r.Clean(t.Context(), first.Assignment.ID)); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// wantOutOfMemory waits for the end of a machine of 384 MiB with a reserve of 150 MiB, which must be for want of memory.
func (r *rig) wantOutOfMemory(t *testing.T, id string) {
	t.Helper()
	end, err := r.Wait(t.Context(), id)
	if err != nil || !strings.Contains(end.Message, "it ran out of memory: its limit is 534MiB, of which the guest has 384MiB") {
		t.Errorf("its end: %q, %v", end.Message, err)
	}
	if n, err := r.OutOfMemory(id); n != 1 || err != nil {
		t.Errorf("the kernel ended %d processes of it (%v), want 1", n, err)
	}
}

func TestAMachineKeepsWithinItsShareOfTheNodeUntilItTakesMoreAndIsEnded(t *testing.T) {
	r := newRig(t, needGuests(t))
	r.cfg.SpareCPUs = []int{1}
	r.reopen(t)
	m := r.member(t)
	a := &m.Assignment
	a.ReserveBytes = 150<<20 + resource.HomeServerBytes
	a.Slots, a.CPUs = []int{0, 1}, []int{0} // two processors of the guest on one CPU, and so two queues
	began := time.Now()
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	t.Logf("start took %s", time.Since(began))
	r.wantShare(t, m)
	if online := r.tell(t, a.ID, order{Read: "/sys/devices/system/cpu/online"}).Text; online != "0-1\n" {
		t.Errorf("the guest has processors %q, want 0-1", online)
	}
	for n, kind := range []string{"rx", "tx", "rx", "tx"} {
		r.tell(t, a.ID, order{Read: fmt.Sprintf("/sys/class/net/eth0/queues/%s-%d/%s", kind, n/2, map[string]string{"rx": "rps_cpus", "tx": "xps_cpus"}[kind])})
	}

	t.Log("it is paused, found by a new driver, resumed, saved, and restored")
	if err := r.Pause(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	r.reopen(t)
	if all, err := r.Observe(t.Context()); err != nil || len(all) != 1 || all[0].State != driver.StatePaused {
		t.Fatalf("the new driver finds %+v (%v), want one paused member", all, err)
	}
	if err := errors.Join(r.Resume(t.Context(), a.ID), r.Save(t.Context(), a.ID)); err != nil {
		t.Fatal(err)
	}
	next := r.successor(t, m)
	if err := r.Restore(t.Context(), next, a.ID); err != nil {
		t.Fatal(err)
	}
	r.wantShare(t, next)

	t.Log("its guest fills memory up to a limit that was lowered")
	id := next.Assignment.ID
	dir, limit, used := groupOf(t, r, id)
	usedBytes := readNumber(t, filepath.Join(dir, used))
	t.Logf("a machine of 384 MiB uses %d MiB of its control group", usedBytes>>20)
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(usedBytes+8<<20)), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := r.OutOfMemory(id); n != 0 || err != nil {
		t.Errorf("before: %d, %v", n, err)
	}
	r.order(t, id, order{Fill: 200 << 20})
	r.wantOutOfMemory(t, id)
	if err := errors.Join(r.Stop(t.Context(), id, time.Minute), r.Clean(t.Context(), id), r.Clean(t.Context(), a.ID)); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
