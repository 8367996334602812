package state_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// benchNodes is how many nodes the members of a placed site are spread over, benchMachines how many machines it has.
const (
	benchNodes    = 100
	benchMachines = 1000
)

// placedCluster is what the store holds of cluster i: two members, in the n-th chunk, on nodes that depend on both.
func placedCluster(b *testing.B, i, n int) []store.Op {
	name, chunk := fmt.Sprintf("c%05d", i), fmt.Sprintf("1-%d", n)
	as := assignments(name, 2, 1)
	for k := range as {
		as[k].Node = fmt.Sprintf("node-%d", (i+n+k)%benchNodes)
	}
	var ops []store.Op
	for _, v := range []struct {
		key   string
		value any
	}{
		{"chunk/uid-" + name + "/" + chunk, as},
		{"intent/" + name, intent(name)},
		{"record/" + name, api.ClusterRecord{
			Name: name, UID: "uid-" + name, Generation: int64(n), Phase: api.ClusterReady, Chunks: []api.ChunkRef{{ID: chunk, Count: len(as)}},
		}},
	} {
		data, err := json.Marshal(v.value)
		must(b, err)
		ops = append(ops, store.Op{Key: v.key, Value: data})
	}
	return ops
}

// placedSite is a site of clusters with members, and machines.
func placedSite(b *testing.B, clusters int) (*state.Repo, *state.Cache) {
	s := openMemory(b)
	for i := range clusters {
		_, err := s.Commit(b.Context(), nil, placedCluster(b, i, 1))
		must(b, err)
	}
	repo := state.New(s)
	for i := range benchMachines {
		_, err := repo.CreateMachine(b.Context(), machine(fmt.Sprintf("node-%d", i), benchMAC(i)))
		must(b, err)
	}
	cache, err := repo.OpenCache(b.Context())
	must(b, err)
	return repo, cache
}

func benchMAC(i int) string { return fmt.Sprintf("52:54:00:00:%02x:%02x", i>>8, i&255) }

// BenchmarkView is the first View after one change among many clusters, and the change itself with it.
func BenchmarkView(b *testing.B) {
	for _, clusters := range []int{1000, 10_000} {
		for what, change := range map[string]func(n int) []store.Op{
			"intent":  func(n int) []store.Op { return placedCluster(b, 500, 1)[1:2] },
			"members": func(n int) []store.Op { return placedCluster(b, 500, n+2) },
		} {
			b.Run(fmt.Sprintf("%s/clusters=%d", what, clusters), func(b *testing.B) {
				repo, cache := placedSite(b, clusters)
				cache.View()
				var took time.Duration
				n := 0
				for b.Loop() {
					n++
					rev, err := repo.Store().Commit(b.Context(), nil, change(n))
					must(b, err)
					_, err = cache.WaitRevision(b.Context(), rev)
					must(b, err)
					begun := time.Now()
					cache.View()
					took += time.Since(begun)
				}
				b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/view")
			})
		}
	}
}

// BenchmarkLookups finds things by something other than their name, among 10,000 clusters and 1,000 machines.
func BenchmarkLookups(b *testing.B) {
	_, cache := placedSite(b, 10_000)
	view := cache.View()
	for what, find := range map[string]func(i int) bool{
		"MachineByMAC": func(i int) bool { return view.MachineByMAC(benchMAC(i%benchMachines)) != nil },
		"MachineByUID": func(i int) bool { return view.MachineByUID(fmt.Sprintf("uid-node-%d", i%benchMachines)) != nil },
		"OnNode":       func(i int) bool { return len(view.OnNode(fmt.Sprintf("node-%d", i%benchNodes))) == 200 },
	} {
		b.Run(what, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if !find(i) {
					b.Fatalf("nothing is found for %d", i)
				}
			}
		})
	}
}
