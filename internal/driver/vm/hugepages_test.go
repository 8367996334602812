package vm_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource"
)

const (
	hugePage = 2 << 20
	// hugePool is the kernel's pool of pages of that size.
	hugePool = "/sys/kernel/mm/hugepages/hugepages-2048kB"
)

// reservePages adds huge pages to the host's pool and removes as many at the end of the test.
func reservePages(t *testing.T, pages int) {
	t.Helper()
	file := filepath.Join(hugePool, "nr_hugepages")
	change := func(by int) int {
		want := readNumber(t, file) + by
		if err := os.WriteFile(file, []byte(strconv.Itoa(want)), 0); err != nil {
			t.Fatal(err)
		}
		return want - readNumber(t, file)
	}
	t.Cleanup(func() {
		if kept := -change(-pages); kept != 0 {
			t.Errorf("%d huge pages were not returned to the host", kept)
		}
	})
	if lacking := change(pages); lacking != 0 {
		t.Fatalf("the kernel reserves %d huge pages less than requested: its memory is fragmented", lacking)
	}
}

// freePages returns how many huge pages of the pool no process holds or has reserved.
func freePages(t *testing.T) int {
	t.Helper()
	return readNumber(t, filepath.Join(hugePool, "free_hugepages")) - readNumber(t, filepath.Join(hugePool, "resv_hugepages"))
}

// hugeBytes returns how much of a process's memory lies in huge pages (proc_pid_smaps(5)).
func hugeBytes(t *testing.T, pid string) (sum int64) {
	t.Helper()
	text, err := os.ReadFile("/proc/" + pid + "/smaps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(text) {
		var kib int64
		for _, name := range []string{"Shared_Hugetlb:", "Private_Hugetlb:"} {
			if n, _ := fmt.Sscanf(string(line), name+" %d kB", &kib); n == 1 {
				sum += kib << 10
			}
		}
	}
	return sum
}

func TestTheMemoryOfAMachineLiesInHugePagesThatItsLimitDoesNotCount(t *testing.T) {
	images := needGuests(t)
	const memory, pages = 512 << 20, 512 << 20 / hugePage
	reservePages(t, pages) // before the rig, whose end frees them
	before := freePages(t)
	r := newRig(t, images)
	m := r.member(t)
	a := &m.Assignment
	a.Memory = []api.MemoryClaim{{Bytes: memory, PageBytes: hugePage}}
	a.ReserveBytes = resource.MachineReserve(api.Shape{Cores: 1, Memory: memory}, false) + resource.HomeServerBytes
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	wantHuge := func(id string) {
		t.Helper()
		if got := hugeBytes(t, pidOf(t, r, id)); got != memory {
			t.Errorf("QEMU has %d MiB of huge pages, want the guest's %d MiB", got>>20, memory>>20)
		}
		if got := before - freePages(t); got != pages {
			t.Errorf("%d pages of the host's pool are taken, want %d", got, pages)
		}
	}
	wantHuge(a.ID)

	t.Log("the guest writes to more memory than its control group may use, whose limit is the reserve alone")
	dir, limit, _ := groupOf(t, r, a.ID)
	if got, want := int64(readNumber(t, filepath.Join(dir, limit))), a.ReserveBytes-resource.HomeServerBytes; got != want {
		t.Errorf("the limit is %d MiB, want the reserve of %d MiB", got>>20, want>>20)
	}
	const fill = 200 << 20
	if fill < a.ReserveBytes {
		t.Fatalf("%d MiB are within the reserve", fill>>20)
	}
	r.tell(t, a.ID, order{Fill: fill})
	if n, err := r.OutOfMemory(a.ID); n != 0 || err != nil {
		t.Errorf("the kernel ended QEMU %d times for want of memory (%v)", n, err)
	}

	t.Log("a machine for which no huge pages are left does not start, and says so")
	second := r.member(t)
	second.Assignment.Memory = a.Memory
	if err := r.Driver.Start(t.Context(), second); err == nil || !strings.Contains(err.Error(), "needs 256 huge pages of 2MiB, and 0 are free") {
		t.Errorf("the second machine: %v", err)
	}
	if err := r.Clean(t.Context(), second.Assignment.ID); err != nil {
		t.Fatal(err)
	}

	t.Log("saved, it holds none; restored, it holds as many again")
	if err := r.Save(t.Context(), a.ID); err != nil {
		t.Fatal(err)
	}
	if got := freePages(t); got != before {
		t.Errorf("%d huge pages are free while the machine is saved, want %d", got, before)
	}
	next := r.successor(t, m)
	if err := r.Restore(t.Context(), next, a.ID); err != nil {
		t.Fatal(err)
	}
	wantHuge(next.Assignment.ID)
	for _, id := range r.made {
		if err := r.Clean(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	if got := freePages(t); got != before {
		t.Errorf("%d huge pages are free after the machine was cleaned, want %d", got, before)
	}
}
