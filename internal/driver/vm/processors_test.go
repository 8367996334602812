package vm

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

func TestAGuestSeesTheMemoryNodesThatItsMemberHolds(t *testing.T) {
	const mib = 1 << 20
	fourCPUs := map[int]int{0: 0, 1: 0, 2: 1, 3: 1}
	claim := func(bytes ...int64) (claims []api.MemoryClaim) {
		for node, b := range bytes {
			if b > 0 {
				claims = append(claims, api.MemoryClaim{NUMANode: node, Bytes: b})
			}
		}
		return claims
	}
	for _, c := range []struct {
		name           string
		cpus           []int
		memory         []api.MemoryClaim
		nodes          map[int]int
		want           []cell
		sockets, cores int
	}{
		{"a host of one node", []int{0, 1}, claim(64 * mib), nil, nil, 1, 2},
		{"all on one node", []int{2, 3}, claim(0, 64*mib), fourCPUs, []cell{{0, []int{0, 1}, 64 * mib, []int{1}}}, 1, 2},
		{
			"half on each, which does not divide",
			[]int{0, 1, 2, 3},
			claim(32*mib+1, 32*mib-1), fourCPUs,
			[]cell{{0, []int{0, 1}, 33 * mib, []int{0}}, {1, []int{2, 3}, 31 * mib, []int{1}}},
			2, 2,
		},
		{"unlike shares of processors", []int{0, 2, 3}, claim(32*mib, 32*mib), fourCPUs, []cell{{0, []int{0}, 32 * mib, []int{0}}, {1, []int{1, 2}, 32 * mib, []int{1}}}, 1, 3},
		{"processors that alternate", []int{2, 0}, claim(32*mib, 32*mib), fourCPUs, []cell{{0, []int{0}, 32 * mib, []int{1}}, {1, []int{1}, 32 * mib, []int{0}}}, 2, 1},
		{"memory of a node without a processor", []int{0, 1}, claim(32*mib, 32*mib), fourCPUs, []cell{{0, []int{0, 1}, 64 * mib, []int{0, 1}}}, 1, 2},
		{"a processor of a node without memory", []int{0, 2}, claim(64 * mib), fourCPUs, []cell{{0, []int{0, 1}, 64 * mib, []int{0}}}, 1, 2},
	} {
		a := &api.Assignment{CPUs: c.cpus, Memory: c.memory}
		got := cellsOf(a, c.nodes)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", c.name, diff)
		}
		if sockets, cores := topology(len(c.cpus), got); sockets != c.sockets || cores != c.cores {
			t.Errorf("%s: %d sockets of %d cores, want %d of %d", c.name, sockets, cores, c.sockets, c.cores)
		}
		sum := int64(0)
		for _, cell := range got {
			sum += cell.Bytes
		}
		if len(got) > 0 && sum != a.MemoryBytes() {
			t.Errorf("%s: the cells have %d bytes, the member %d", c.name, sum, a.MemoryBytes())
		}
	}
}

func TestOnlyAThreadThatRunsAProcessorIsTakenForOne(t *testing.T) {
	for name, want := range map[string]int{"CPU 0/KVM\n": 0, "CPU 13/TCG\n": 13, "CPU x/KVM\n": -1, "CPU -1/KVM\n": -1, "IO mon_iothread\n": -1, "vhost-77\n": -1, "worker\n": -1, "ALL CPUs/TCG\n": -1} {
		n, ok := processorOf(name)
		if !ok {
			n = -1
		}
		if n != want {
			t.Errorf("%q: got %d, want %d", name, n, want)
		}
	}
}

func TestANICHasAQueueForEachProcessorUpToABound(t *testing.T) {
	for cpus, want := range map[int]int{1: 1, 4: 4, 64: mostQueues} {
		if got := queuesOf(&api.Assignment{CPUs: make([]int, cpus)}); got != want {
			t.Errorf("%d processors: %d queues, want %d", cpus, got, want)
		}
	}
}
