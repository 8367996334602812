// Package standin makes a tree of RAPL counters that are no hardware's, for demos and tests on machines without.
//
// Its counters follow the CPU time of this machine: what is idle costs something, and each busy CPU costs more. They wrap as real ones do. A file in
// the tree says that it is a stand-in, so nothing read there is called measured. Start with New.
package standin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/energy/rapl"
)

// Note is what the mark of a tree says.
const Note = "a stand-in whose counters follow CPU time"

// zone is a counter of the tree: its power with all CPUs idle, and what each busy CPU adds.
type zone struct {
	folder, name    string
	idleMilliwatts  int64
	perCPU          int64 // milliwatts
	count, overflow int64
}

// Tree is a tree of counters. It is for one goroutine.
type Tree struct {
	dir   string
	zones []*zone
	rng   int64
}

// DefaultRange is the range of counters, in microjoules, as many processors have it.
const DefaultRange = 262_143_328_850

// New makes a tree in a folder, or resets the one that is there. rangeUJ is where counters wrap; 0: DefaultRange.
func New(dir string, rangeUJ int64) (*Tree, error) {
	if rangeUJ <= 0 {
		rangeUJ = DefaultRange
	}
	t := &Tree{dir: dir, rng: rangeUJ, zones: []*zone{
		{folder: "intel-rapl:0", name: "package-0", idleMilliwatts: 20_000, perCPU: 15_000},
		{folder: "intel-rapl:0:0", name: "core", idleMilliwatts: 5_000, perCPU: 13_000},
		{folder: "intel-rapl:0:1", name: "dram", idleMilliwatts: 3_000, perCPU: 1_000},
	}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	if err := t.write(rapl.StandInFile, Note); err != nil {
		return nil, err
	}
	for _, z := range t.zones {
		if err := os.MkdirAll(filepath.Join(dir, z.folder), 0o755); err != nil {
			return nil, err
		}
		if err := t.write(z.folder+"/name", z.name); err != nil {
			return nil, err
		}
		if err := t.write(z.folder+"/max_energy_range_uj", strconv.FormatInt(t.rng, 10)); err != nil {
			return nil, err
		}
	}
	return t, t.Add(0, 0)
}

// Add counts an interval in which CPUs worked for a time, both in nanoseconds.
func (t *Tree) Add(elapsed, busy int64) error {
	for _, z := range t.zones {
		// A milliwatt for a nanosecond is 1e-6 microjoules; what is less than one is carried over.
		z.overflow += z.idleMilliwatts*elapsed + z.perCPU*busy
		z.count = (z.count + z.overflow/1e6) % t.rng
		z.overflow %= 1e6
		if err := t.write(z.folder+"/energy_uj", strconv.FormatInt(z.count, 10)); err != nil {
			return err
		}
	}
	return nil
}

// write replaces a file: a reader sees all of one count.
func (t *Tree) write(name, text string) error {
	file := filepath.Join(t.dir, filepath.FromSlash(name))
	if err := os.WriteFile(file+".new", []byte(text+"\n"), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// every is the pause between two counts.
const every = 200 * time.Millisecond

// Run counts what this machine's CPUs do until ctx ends.
func (t *Tree) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var busy int64
	var at time.Time
	for {
		next, _, err := energy.BusyTime("/proc/stat")
		if err != nil {
			return fmt.Errorf("the stand-in for energy counters stands still: %w", err)
		}
		now := time.Now()
		if !at.IsZero() {
			if err := t.Add(int64(now.Sub(at)), max(next-busy, 0)); err != nil {
				return fmt.Errorf("the stand-in for energy counters stands still: %w", err)
			}
		}
		busy, at = next, now
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
