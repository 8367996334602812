package vm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/resource"
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

func TestAMachineThatTakesMoreThanItsShareOfTheNodeIsEndedAndSaysSo(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	m.Assignment.ReserveBytes = 150<<20 + resource.HomeServerBytes
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	dir, limit, used := groupOf(t, r, id)
	if got, want := readNumber(t, filepath.Join(dir, limit)), (384+150)<<20; got != want {
		t.Errorf("the limit is %d bytes, want %d: the guest's memory and the reserve", got, want)
	}
	process, err := os.ReadFile("/proc/" + pidOf(t, r, id) + "/status")
	if want := fmt.Sprintf("Cpus_allowed_list:\t%d\n", m.Assignment.CPUs[0]); err != nil || !strings.Contains(string(process), want) {
		t.Errorf("QEMU may use other CPUs than its member's (%v):\n%s", err, process)
	}
	usedBytes := readNumber(t, filepath.Join(dir, used))
	t.Logf("once it runs, a machine of 384 MiB uses %d MiB of its control group", usedBytes>>20)
	if err := os.WriteFile(filepath.Join(dir, limit), []byte(strconv.Itoa(usedBytes+8<<20)), 0); err != nil {
		t.Fatal(err)
	}
	if n, err := r.OutOfMemory(id); n != 0 || err != nil {
		t.Errorf("before: %d, %v", n, err)
	}
	r.order(t, id, order{Fill: 200 << 20})
	end, err := r.Wait(t.Context(), id)
	if err != nil || !strings.Contains(end.Message, "it ran out of memory: its limit is 534MiB, of which the guest has 384MiB") {
		t.Errorf("its end: %q, %v", end.Message, err)
	}
	if n, err := r.OutOfMemory(id); n != 1 || err != nil {
		t.Errorf("after: %d, %v; want 1", n, err)
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

func TestAMachinesThreadsStayWhereTheyBelong(t *testing.T) {
	r := newRig(t, needGuests(t))
	r.cfg.SpareCPUs = []int{1}
	r.reopen(t)
	m := r.member(t)
	m.Assignment.Slots, m.Assignment.CPUs = []int{0, 1}, []int{0} // two processors of the guest on one CPU, and so two queues
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	threads, err := filepath.Glob("/proc/" + pidOf(t, r, id) + "/task/*/status")
	if err != nil {
		t.Fatal(err)
	}
	processors := 0
	for _, file := range threads {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a worker that has ended
		}
		want := "Cpus_allowed_list:\t1\n"
		if strings.HasPrefix(string(text), "Name:\tCPU ") {
			processors++
			want = "Cpus_allowed_list:\t0\n"
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("want %q of this thread:\n%s", want, text)
		}
	}
	if processors != 2 {
		t.Errorf("%d threads of %d run the guest's 2 processors", processors, len(threads))
	}
	if online := r.tell(t, id, order{Read: "/sys/devices/system/cpu/online"}).Text; online != "0-1\n" {
		t.Errorf("the guest has processors %q, want 0-1", online)
	}
	for n, kind := range []string{"rx", "tx", "rx", "tx"} {
		r.tell(t, id, order{Read: fmt.Sprintf("/sys/class/net/eth0/queues/%s-%d/%s", kind, n/2, map[string]string{"rx": "rps_cpus", "tx": "xps_cpus"}[kind])})
	}
}
