package inventory

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestTheMachinesTotalIsSharedByItsNUMANodes(t *testing.T) {
	const gib = 1 << 30
	for _, test := range []struct {
		name  string
		total int64
		nodes []int64
		want  []int64
	}{
		{"one node that reports the total", 24 * gib, []int64{24 * gib}, []int64{24 * gib}},
		{"one node that reports a quarter of the total", 24 * gib, []int64{6 * gib}, []int64{24 * gib}},
		{"one node that reports nothing", 24 * gib, []int64{0}, []int64{24 * gib}},
		{"two nodes that together report half of the total", 24 * gib, []int64{8 * gib, 4 * gib}, []int64{16 * gib, 8 * gib}},
		{"two nodes that together report more than the total", 24 * gib, []int64{36 * gib, 12 * gib}, []int64{18 * gib, 6 * gib}},
		{"two nodes, the second one of processors only", 24 * gib, []int64{6 * gib, 0}, []int64{24 * gib, 0}},
		{"two nodes that both report nothing", 24 * gib, []int64{0, 0}, []int64{12 * gib, 12 * gib}},
		{"three nodes whose shares do not come out even", 100, []int64{1, 1, 1}, []int64{33, 33, 34}},
		{"sizes whose product exceeds 64 bits", 64 << 40, []int64{16 << 40, 16 << 40}, []int64{32 << 40, 32 << 40}},
		{"an unknown total", 0, []int64{6 * gib, 2 * gib}, []int64{6 * gib, 2 * gib}},
		{"no nodes", 24 * gib, nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			var nodes []api.NUMANode
			for id, bytes := range test.nodes {
				nodes = append(nodes, api.NUMANode{ID: id, MemoryBytes: bytes})
			}
			var got []int64
			for id, n := range ShareMemory(test.total, nodes) {
				got = append(got, n.MemoryBytes)
				if n.ID != id {
					t.Errorf("node %d became node %d", id, n.ID)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			for id, n := range nodes {
				if n.MemoryBytes != test.nodes[id] {
					t.Errorf("the argument was changed: node %d has %d bytes, had %d", id, n.MemoryBytes, test.nodes[id])
				}
			}
		})
	}
}

func TestTheTotalOfProcMeminfoIsOfferedWhateverTheNodesReport(t *testing.T) {
	for _, test := range []struct {
		name    string
		meminfo string
		want    int64 // KiB
	}{
		{"nodes that report half of the total", "MemTotal: 4000000 kB\n", 4000000},
		{"nodes that report twice the total", "MemTotal: 1000000 kB\n", 1000000},
		{"no /proc/meminfo", "", 2000000},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := twoSockets(t)
			if test.meminfo != "" {
				if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, "proc/meminfo"), []byte(test.meminfo), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := Discover(root, []int{0, 1, 2, 3}, Request{})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range got.NUMANodes {
				if n.MemoryBytes != test.want<<10/2 {
					t.Errorf("NUMA node %d: got %d bytes, want %d", n.ID, n.MemoryBytes, test.want<<10/2)
				}
			}
			if want := test.want << 10 / 10 * 9; got.MemoryBytes < want-10000 || got.MemoryBytes > want+10000 {
				t.Errorf("memory: got %d, want about %d (a tenth stays with the host)", got.MemoryBytes, want)
			}
		})
	}
}

func TestAMachineWithoutNUMAIsOneNode(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "proc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "proc/meminfo"), []byte("MemTotal: 1000 kB\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := Discover(root, []int{0}, Request{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []api.NUMANode{{ID: 0, MemoryBytes: 1000 << 10}}; !reflect.DeepEqual(got.NUMANodes, want) {
		t.Errorf("got %v, want %v", got.NUMANodes, want)
	}
}
