package inventory

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// twoSockets is a machine of two NUMA nodes with interleaved CPUs.
func twoSockets(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range map[string]string{
		"sys/devices/system/node/node0/cpulist": "0,2\n",
		"sys/devices/system/node/node1/cpulist": "1,3\n",
		"sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       1000000 kB\nNode 0 MemFree: 1 kB\n",
		"sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       1000000 kB\n",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestCoresKnowTheirNUMANode(t *testing.T) {
	got, err := Discover(twoSockets(t), []int{0, 1, 2, 3}, Request{})
	if err != nil {
		t.Fatal(err)
	}
	var numa []int
	for _, c := range got.Cores {
		numa = append(numa, c.NUMANode)
	}
	if !slices.Equal(numa, []int{0, 1, 0, 1}) {
		t.Errorf("NUMA nodes of the cores: got %v, want 0 1 0 1", numa)
	}
	if want := int64(2000000<<10) / 10 * 9; got.MemoryBytes < want-10000 || got.MemoryBytes > want+10000 {
		t.Errorf("memory: got %d, want about %d (a tenth stays with the host)", got.MemoryBytes, want)
	}
}

func TestMoreSlotsThanCPUsShareThemInTurn(t *testing.T) {
	got, err := Discover(twoSockets(t), []int{0, 1, 2, 3}, Request{CPUs: []int{1, 2}, Slots: 4})
	if err != nil {
		t.Fatal(err)
	}
	var cpus []int
	for _, c := range got.Cores {
		cpus = append(cpus, c.CPU)
	}
	if !slices.Equal(cpus, []int{1, 2, 1, 2}) {
		t.Errorf("got CPUs %v, want 1 2 1 2", cpus)
	}
}

func TestACPUThatIsNotUsableIsRefused(t *testing.T) {
	if _, err := Discover(twoSockets(t), []int{0, 1}, Request{CPUs: []int{3}}); err == nil {
		t.Fatal("want an error")
	}
}

func TestListsOfCPUsAreReadAndWritten(t *testing.T) {
	for text, want := range map[string][]int{"0-3,8": {0, 1, 2, 3, 8}, "5": {5}, "": nil} {
		got, err := ParseList(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("ParseList(%q) = %v, %v; want %v", text, got, err, want)
		}
		if back := FormatList(got); back != text {
			t.Errorf("FormatList(%v) = %q, want %q", got, back, text)
		}
	}
	for _, text := range []string{"x", "3-1", "-1", "1,,2", "0-99999999"} {
		if got, err := ParseList(text); err == nil {
			t.Errorf("ParseList(%q) = %v, want an error", text, got)
		}
	}
}

func TestThisMachineHasCores(t *testing.T) {
	usable, err := UsableCPUs()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Discover("/", usable, Request{})
	if err != nil || len(got.Cores) != len(usable) || got.MemoryBytes <= 0 {
		t.Fatalf("got %+v, %v", got, err)
	}
}
