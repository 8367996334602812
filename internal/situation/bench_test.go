package situation

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// BenchmarkAccounts makes the accounts of a site that keeps 100,000 usage records of 8 spans each, by 200 users in 50 projects over 400 days. It
// reports the memory of the view of the state beside the time.
func BenchmarkAccounts(b *testing.B) {
	const records, atOnce = 100_000, 100
	s := memory.New()
	for first := 0; first < records; first += atOnce {
		var ops []store.Op
		for n := first; n < first+atOnce; n++ {
			r := ended(n, noon.Add(-time.Duration(records-n)*(state.UsageKept/records)))
			data, err := json.Marshal(r)
			if err != nil {
				b.Fatal(err)
			}
			ops = append(ops, store.Op{Key: fmt.Sprintf("usage/%s/%012d", r.UID, 1), Value: data})
		}
		if _, err := s.Commit(b.Context(), nil, ops); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Compact(b.Context(), 1+records/atOnce); err != nil {
		b.Fatal(err)
	}
	before, began := heap(), time.Now()
	cache, err := state.New(s).OpenCache(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	opened := time.Since(began)
	held := heap() - before
	site := see(cache.View(), nil)
	b.ReportAllocs()
	for b.Loop() {
		if len(site.accounts(nil)) != 51 {
			b.Fatal("not every project has an account")
		}
	}
	b.ReportMetric(float64(held)/1e6, "MB-view")
	b.ReportMetric(opened.Seconds(), "s-open")
	runtime.KeepAlive(cache)
}

// ended is the record of a cluster on 8 nodes that was there for an hour.
func ended(n int, at time.Time) api.UsageRecord {
	r := api.UsageRecord{Seq: 1, UID: fmt.Sprintf("u%06d", n), Project: fmt.Sprint("p", n%50), User: fmt.Sprint("u", n%200)}
	r.Cluster = fmt.Sprint(r.Project, ".c", n)
	for i := range 8 {
		r.Spans = append(r.Spans, api.UsageSpan{
			Kind: api.SpanAllocated, Node: fmt.Sprint("n", (n+i)%1000), From: at.Add(-time.Hour), To: at, Members: 1, Cores: 4, MemoryBytes: 1 << 30,
		})
	}
	return r
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
