package inventory

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func writeTree(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestHugePagesAreOfferedByMemoryNodeAndAreNoOrdinaryMemory(t *testing.T) {
	root := twoSockets(t)
	writeTree(t, root, map[string]string{
		"sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages":    "100\n",
		"sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages": "0\n",
		"sys/devices/system/node/node1/hugepages/hugepages-64kB/nr_hugepages":      "7\n", // of no size that members can have
	})
	got, err := Discover(root, []int{0, 1, 2, 3}, Request{})
	if err != nil {
		t.Fatal(err)
	}
	const node = 1000000 << 10
	want := []api.NUMANode{
		{ID: 0, MemoryBytes: node - 100*2<<20, HugePages: []api.HugePages{{PageBytes: 2 << 20, Bytes: 100 * 2 << 20}}}, {ID: 1, MemoryBytes: node},
	}
	if diff := cmp.Diff(want, got.NUMANodes); diff != "" {
		t.Errorf("memory nodes (-want +got):\n%s", diff)
	}
	if most := int64(2*node - 100*2<<20); got.MemoryBytes > most {
		t.Errorf("%d bytes of ordinary memory are offered of %d", got.MemoryBytes, most)
	}
}

func TestEachPartOffersPagesOfItsOwnOfEachMemoryNodeAndNoneIsLost(t *testing.T) {
	root := twoSockets(t)
	writeTree(t, root, map[string]string{
		"sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages":    "100\n",
		"sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages":    "5\n",
		"sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages": "1\n",
	})
	const mib = 1 << 20
	for part, want := range map[string]map[int][]api.HugePages{
		"all":  {0: {{PageBytes: 2 * mib, Bytes: 200 * mib}}, 1: {{PageBytes: 2 * mib, Bytes: 10 * mib}, {PageBytes: 1024 * mib, Bytes: 1024 * mib}}},
		"1/2":  {0: {{PageBytes: 2 * mib, Bytes: 100 * mib}}, 1: {{PageBytes: 2 * mib, Bytes: 4 * mib}}},
		"2/2":  {0: {{PageBytes: 2 * mib, Bytes: 100 * mib}}, 1: {{PageBytes: 2 * mib, Bytes: 6 * mib}, {PageBytes: 1024 * mib, Bytes: 1024 * mib}}},
		"none": {},
	} {
		offered, err := ParsePart(part)
		if err != nil || offered.String() != part {
			t.Fatalf("%q is read as %q (%v)", part, offered, err)
		}
		got, err := Discover(root, []int{0, 1, 2, 3}, Request{HugePages: offered})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range got.NUMANodes {
			if diff := cmp.Diff(want[n.ID], n.HugePages); diff != "" {
				t.Errorf("part %s of memory node %d (-want +got):\n%s", part, n.ID, diff)
			}
			reserved := map[int]int64{0: 200 * mib, 1: 1034 * mib}[n.ID]
			if n.MemoryBytes != max(0, 1000000<<10-reserved) {
				t.Errorf("part %s: memory node %d has %d bytes of ordinary memory; all its huge pages are none of it", part, n.ID, n.MemoryBytes)
			}
		}
	}
	for _, text := range []string{"", "0/2", "3/2", "1/0", "-1/2", "1", "half", "1/2/3"} {
		if part, err := ParsePart(text); err == nil {
			t.Errorf("%q is read as part %s", text, part)
		}
	}
}

func TestAKernelWithoutNUMAHasOnePoolOfHugePages(t *testing.T) {
	root := t.TempDir()
	writeTree(t, root, map[string]string{
		"proc/meminfo": "MemTotal: 1000000 kB\n", "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3\n",
	})
	got, err := Discover(root, []int{0}, Request{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []api.HugePages{{PageBytes: 2 << 20, Bytes: 3 * 2 << 20}}; !cmp.Equal(got.NUMANodes[0].HugePages, want) {
		t.Errorf("got %v, want %v", got.NUMANodes[0].HugePages, want)
	}
}

func TestRoomForDisksIsWhatIsFreeWithWhatMembersHaveLessAReserve(t *testing.T) {
	needs.Root(t, "mounts a file system")
	mount := func(source, fs, data string) string {
		t.Helper()
		dir := t.TempDir()
		if err := unix.Mount(source, dir, fs, 0, data); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		return dir
	}
	if got, err := DiskBytes(mount("tmpfs", "tmpfs", "size=4g"), "vms/*/disk"); err != nil || got != 0 {
		t.Errorf("a file system in memory offers %d bytes of disk (%v), want none", got, err)
	}
	dir := t.TempDir()
	before, err := DiskBytes(dir, "vms/*/disk")
	if err != nil || before <= 0 {
		t.Fatalf("the disk below %s has no room: %d, %v", dir, before, err)
	}
	disk := filepath.Join(dir, "vms", "a", "disk")
	if err := os.MkdirAll(filepath.Dir(disk), 0o755); err != nil {
		t.Fatal(err)
	}
	const size = 256 << 20
	f, err := os.Create(disk)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	counted, err := DiskBytes(dir, "vms/*/disk")
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := DiskBytes(dir, "vms/*/other")
	if err != nil {
		t.Fatal(err)
	}
	// Others use the disk at the same time, within less than this member's disk.
	if more := counted - ignored; more < size/2 {
		t.Errorf("a member's disk of %d bytes adds %d to the offer of a node that knows it", int64(size), more)
	}
}
