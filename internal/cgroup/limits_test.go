package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAMembersShareIsWrittenAsEachVersionWantsIt(t *testing.T) {
	share := Limits{MemoryBytes: 1 << 30, CPUs: []int{2, 3}, MemoryNodes: []int{0}}
	for _, c := range []struct {
		name string
		tree hierarchy
		want []setting
	}{
		{"version 2", hierarchy{v2: true}, []setting{{"memory.max", "1073741824", false}, {"memory.swap.max", "0", true}, {"cpuset.cpus", "2,3", false}, {"cpuset.mems", "0", false}}},
		{"version 1, memory", hierarchy{controllers: []string{"memory"}}, []setting{{"memory.memsw.limit_in_bytes", "-1", true}, {"memory.limit_in_bytes", "1073741824", false}, {"memory.memsw.limit_in_bytes", "1073741824", true}}},
		{"version 1, cpuset", hierarchy{controllers: []string{"cpuset"}}, []setting{{"cpuset.cpus", "2,3", false}, {"cpuset.mems", "0", false}}},
		{"version 1, another", hierarchy{controllers: []string{"pids"}}, nil},
	} {
		if diff := cmp.Diff(c.want, share.settings(c.tree), cmp.AllowUnexported(setting{})); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", c.name, diff)
		}
	}
}

func TestAControlGroupThatCanNotBeLimitedIsAnError(t *testing.T) {
	root := t.TempDir() // plain files: nothing comes of itself here, as it does in the kernel's
	c := &Groups{group: "n1", trees: []hierarchy{{mountPoint: root, controllers: []string{"memory"}}}}
	dir := filepath.Join(root, parentName, "n1", "m")
	if err := os.MkdirAll(filepath.Join(dir, "memory.limit_in_bytes"), 0o755); err != nil { // a folder can't be written
		t.Fatal(err)
	}
	if err := c.Make("m", Limits{MemoryBytes: 1}); err == nil {
		t.Error("a member without its limit would run")
	}
}
