package rapl_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/energy/rapl"
)

// samplePause is the agent's pause between two samples, in nanoseconds.
const samplePause = 5e9

// BenchmarkSample is one sample of a node with two sockets and 64 members, from files as the kernel has them. It reports the part of a core that a
// sample each five seconds takes.
func BenchmarkSample(b *testing.B) {
	dir := b.TempDir()
	for socket := range 2 {
		for n, name := range []string{fmt.Sprint("package-", socket), "core", "dram"} {
			zone := filepath.Join(dir, fmt.Sprintf("intel-rapl:%d", socket))
			if n > 0 {
				zone += fmt.Sprint(":", n-1)
			}
			if err := os.Mkdir(zone, 0o755); err != nil {
				b.Fatal(err)
			}
			for file, text := range map[string]string{"name": name, "max_energy_range_uj": "262143328850", "energy_uj": "123456789"} {
				if err := os.WriteFile(filepath.Join(zone, file), []byte(text), 0o600); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	members := map[string]int64{}
	for n := range 64 {
		members[fmt.Sprintf("u.m-%d.1", n)] = int64(n) * 1e9
	}
	s := energy.NewSampler(energy.SamplerConfig{Direct: []energy.Source{rapl.Open(dir, nil)}})
	b.ReportAllocs()
	for b.Loop() {
		sample, err := s.Sample(b.Context(), members)
		if err != nil || len(sample.Counters) != 1 || sample.Counters[0].Reason != "" {
			b.Fatalf("%v, %+v", err, sample.Counters)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/samplePause*100, "%-of-a-core")
}
