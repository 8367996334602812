package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Names of the memory program's metrics in its output.
const (
	CopyGBPerS  = "copy_gb_per_s"
	TriadGBPerS = "triad_gb_per_s"
)

// StreamMetrics are what the memory program measures.
func StreamMetrics() []Metric {
	return []Metric{
		{Name: TriadGBPerS, Title: "STREAM triad, per rank", Unit: "GB/s", HigherIsBetter: true},
		{Name: CopyGBPerS, Title: "STREAM copy, per rank", Unit: "GB/s", HigherIsBetter: true},
	}
}

const (
	// beyondCache is how many times the last cache a vector has to hold, for memory to be what is measured (STREAM's run rules).
	beyondCache = 4
	// usualCache is taken where the machine does not say how large its caches are, in bytes.
	usualCache = 32 << 20
	// besideVectors is what a rank needs besides its vectors: MPI and its buffers, in bytes.
	besideVectors = 96 << 20
)

// Stream is a setting of the memory program: three vectors in every rank.
type Stream struct {
	// Words is a vector's length, in words of 8 bytes.
	Words int64
	// CacheBytes is the last-level cache that it was chosen by.
	CacheBytes int64
}

// PlanStream chooses vectors of four times the last cache, or the longest that a rank's memory has room for.
func PlanStream(cacheBytes, memoryPerRank int64) (Stream, error) {
	bytes := min(beyondCache*cacheBytes, (memoryPerRank-besideVectors)/3)
	if bytes < 1<<20 {
		return Stream{}, fmt.Errorf("%d MiB of memory a rank have no room for STREAM's three vectors", memoryPerRank>>20)
	}
	return Stream{Words: bytes / 8, CacheBytes: cacheBytes}, nil
}

// StreamMemory is how much memory a rank needs for vectors of four times the last cache, in bytes.
func StreamMemory(cacheBytes int64) int64 { return 3*beyondCache*cacheBytes + besideVectors }

// Condition says how long the vectors are, beside the cache.
func (s Stream) Condition() Condition {
	times := float64(8*s.Words) / float64(s.CacheBytes)
	value := fmt.Sprintf("three vectors of %d MiB a rank, %s times the last-level cache of %d MiB", 8*s.Words>>20, number(times), s.CacheBytes>>20)
	if times < beyondCache*0.99 {
		value += fmt.Sprintf("; below %d times, caches make part of it, but members have no memory for more", beyondCache)
	}
	return Condition{"STREAM", value}
}

// Arguments are the memory program's.
func (s Stream) Arguments() []string { return []string{strconv.FormatInt(s.Words, 10)} }

// ParseStream reads the memory program's output. Its point is at the number of ranks.
func ParseStream(output []byte) ([]Point, error) {
	return parsePoints(output, "ranks", CopyGBPerS, TriadGBPerS)
}

// LastLevelCache returns the size of the largest last-level cache of the CPUs in bytes, as the kernel lists them below root (/sys), and
// whether it lists any; if not, 32 MiB.
func LastLevelCache(root string) (bytes int64, known bool) {
	level := 0
	// The pattern is well formed.
	caches, _ := filepath.Glob(filepath.Join(root, "devices/system/cpu/cpu[0-9]*/cache/index[0-9]*"))
	for _, cache := range caches {
		at, err := strconv.Atoi(attribute(cache, "level"))
		if err != nil || at < level || attribute(cache, "type") == "Instruction" {
			continue
		}
		size, ok := cacheSize(attribute(cache, "size"))
		if !ok {
			continue
		}
		if at > level {
			level, bytes = at, 0
		}
		bytes = max(bytes, size)
	}
	if bytes == 0 {
		return usualCache, false
	}
	return bytes, true
}

func attribute(dir, name string) string {
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(content))
}

// cacheSize reads "32768K", as the kernel writes it (Documentation/ABI/testing/sysfs-devices-system-cpu), and other units to be safe.
func cacheSize(text string) (int64, bool) {
	shift := 0
	for unit, by := range map[string]int{"K": 10, "M": 20, "G": 30} {
		if rest, ok := strings.CutSuffix(text, unit); ok {
			text, shift = rest, by
			break
		}
	}
	n, err := strconv.ParseInt(text, 10, 32)
	return n << shift, err == nil && n > 0
}
