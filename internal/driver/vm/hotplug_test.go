package vm

import (
	"errors"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/cgroup"
)

func TestAMachineThatIsHotpluggedMayUseWhatEitherOfItsSizesTakes(t *testing.T) {
	got := widest(cgroup.Limits{MemoryBytes: 1, CPUs: []int{1, 3}, MemoryNodes: []int{1}}, cgroup.Limits{MemoryBytes: 2, CPUs: []int{2, 3}, MemoryNodes: []int{0, 1}})
	if diff := cmp.Diff(cgroup.Limits{MemoryBytes: 2, CPUs: []int{1, 2, 3}, MemoryNodes: []int{0, 1}}, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// TestAnEmulatingQEMURunsNoMoreProcessorsThanItHasPlacesFor: QEMU aborts otherwise, and the machine is lost.
func TestAnEmulatingQEMURunsNoMoreProcessorsThanItHasPlacesFor(t *testing.T) {
	m := goldenMember()
	id := m.Assignment.ID
	for _, c := range []struct {
		name       string
		emulated   bool
		ran        int // by the record
		has, wants int
		want       error
		counted    int
	}{
		{"a first growth to all places", true, 0, 1, 3, nil, 3},
		{"a machine that shrinks", true, 0, 3, 1, nil, 3},
		{"a growth after a machine has shrunk, to a place that was free", true, 2, 1, 2, nil, 3},
		{"a growth after a machine has shrunk from all places", true, 3, 1, 2, errThreads, 3},
		{"a virtualized machine that has shrunk", false, 0, 1, 3, nil, 0},
	} {
		d := &Driver{machines: t.TempDir(), cfg: Config{Accelerate: func() error {
			if c.emulated {
				return errors.New("emulated")
			}
			return nil
		}}}
		r := record{Member: m, Shape: &shape{Chassis: &chassis{Processors: 3}}, Threads: c.ran}
		if err := errors.Join(os.Mkdir(d.dir(id), 0o755), d.writeRecord(id, r)); err != nil {
			t.Fatal(err)
		}
		if err := d.countThreads(&r, c.has, c.wants); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if kept, err := d.recall(id); err != nil || kept.Threads != c.counted || r.Threads != c.counted {
			t.Errorf("%s: %d processors are counted, and %d in the record (%v), want %d", c.name, r.Threads, kept.Threads, err, c.counted)
		}
	}
}
