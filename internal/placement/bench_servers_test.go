package placement

import (
	"fmt"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// BenchmarkServers chooses servers for many members of one cluster, each of which has to be told from all nodes with GPUs.
func BenchmarkServers(b *testing.B) {
	for _, size := range []struct{ nodes, members int }{{100, 100}, {1000, 100}, {1000, 1000}, {10_000, 1000}} {
		v := NewView()
		for i := range size.nodes {
			rec := testNode(fmt.Sprintf("n%d", i), 8, 1, 64)
			rec.Capacity.Devices, rec.GPUPrograms = []api.Device{sharedGPU(fmt.Sprintf("g%d", i), 81920)}, true
			rec.Places = []api.NodePlace{{Cell: "lan1", Technology: api.FabricEthernet, Switch: fmt.Sprintf("leaf%d", i/40), Pod: fmt.Sprintf("pod%d", i/400), RateBitsPerSecond: 100e9}}
			v.SetNode(rec, Schedulable)
		}
		g := remoteGPUs(1, 8<<30)
		g.Size = size.members
		s := v.Sketch()
		fit, _, ok := s.Fit([]api.Group{g})
		if !ok {
			b.Fatal("no room")
		}
		b.Run(fmt.Sprintf("%d members on %d nodes", size.members, size.nodes), func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if _, missing := s.FitDevices([]api.Group{g}, fit); missing != "" {
					b.Fatal(missing)
				}
			}
		})
	}
}
