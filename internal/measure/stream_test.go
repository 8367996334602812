package measure

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestVectorsAreFourTimesTheCacheUnlessMemoryIsShort(t *testing.T) {
	for _, c := range []struct {
		name          string
		cache, memory int64
		vector        int64
		says          string
	}{
		{"enough memory", 32 << 20, 512 << 20, 128 << 20, "128 MiB a rank, 4.00 times"},
		{"exactly enough", 32 << 20, StreamMemory(32 << 20), 128 << 20, "4.00 times"},
		{"a large cache", 256 << 20, 512 << 20, (512 - 96) << 20 / 3, "no memory for more"},
	} {
		s, err := PlanStream(c.cache, c.memory)
		if got := s.Condition().Value; err != nil || s.Words != c.vector/8 || !strings.Contains(got, c.says) {
			t.Errorf("%s: got %+v, %q, %v; want vectors of %d bytes and %q", c.name, s, got, err, c.vector, c.says)
		}
	}
	if s, err := PlanStream(32<<20, 90<<20); err == nil {
		t.Errorf("no memory at all: got %+v", s)
	}
}

func TestTheLastLevelCacheIsReadFromTheKernel(t *testing.T) {
	root := t.TempDir()
	if bytes, known := LastLevelCache(root); known || bytes != usualCache {
		t.Errorf("a machine that lists no caches: got %d, %v", bytes, known)
	}
	for path, attributes := range map[string][3]string{
		"cpu0/cache/index0": {"1", "Data", "48K"}, "cpu0/cache/index1": {"1", "Instruction", "32K"}, "cpu0/cache/index2": {"2", "Unified", "1024K"},
		"cpu0/cache/index3": {"3", "Unified", "32768K"}, "cpu1/cache/index3": {"3", "Unified", "98304K"}, "cpu1/cache/index4": {"4", "Unified", "nonsense"},
	} {
		dir := filepath.Join(root, "devices/system/cpu", path)
		err := os.MkdirAll(dir, 0o755)
		for i, name := range []string{"level", "type", "size"} {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(attributes[i]+"\n"), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if bytes, known := LastLevelCache(root); !known || bytes != 96<<20 {
		t.Errorf("got %d, %v; want the largest at the last level, 96 MiB", bytes, known)
	}
}

func TestTheMemoryProgramChecksItsVectors(t *testing.T) {
	needs.Program(t, "mpirun")
	dir := t.TempDir()
	programs, err := BuildPrograms(t.Context(), dir)
	if errors.Is(err, ErrNoCompiler) {
		needs.Missing(t, "%v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	out, err := HostCommand(t.Context(), []int{0, 0}, TransportSharedMemory, dir, programs.Stream, "100000").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	points, err := ParseStream(out)
	if err != nil || len(points) != 1 || points[0].X != 2 || !(points[0].Values[TriadGBPerS] > 0) || !(points[0].Values[CopyGBPerS] > 0) {
		t.Errorf("got %+v, %v from %s", points, err, out)
	}
	if out, err := HostCommand(t.Context(), []int{0}, TransportSharedMemory, dir, programs.Stream, "0").Output(); err == nil {
		t.Errorf("vectors of no words were measured: %s", out)
	}
}
