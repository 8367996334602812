package usage

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestStorageIsCountedToTheNanosecond(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return begin.Add(d) }
	span := func(from, to time.Duration, bytes int64) api.UsageSpan {
		return api.UsageSpan{Kind: api.SpanStorage, Node: "n1", From: at(from), To: at(to), StorageBytes: bytes}
	}
	records := []*api.UsageRecord{
		{Seq: 2, UID: "v1", Volume: "lab.data", Project: "lab", User: "eve", Spans: []api.UsageSpan{span(time.Hour, 3*time.Hour+1, 10)}},
		{Seq: 9, UID: "v3", Volume: "lab.clusterhome-uc1", Project: "lab", User: "eve", Cluster: "lab.c1", ClusterUID: "uc1", Spans: []api.UsageSpan{span(0, time.Hour, 7)}},
		{Seq: 1, UID: "uc1", Project: "lab", User: "eve", Cluster: "lab.c1", Spans: []api.UsageSpan{{Kind: api.SpanAllocated, Node: "n1", From: at(0), To: at(time.Hour), Members: 1, Cores: 2, MemoryBytes: 1}}},
	}
	in := func() Input {
		return Input{
			Now: at(10 * time.Hour),
			Records: func(yield func(*api.UsageRecord, error) bool) {
				for _, r := range records {
					if !yield(r, nil) {
						return
					}
				}
			},
			Volumes: []Held{
				{&api.VolumeIntent{Project: "lab", User: "eve"}, &api.VolumeRecord{Name: "lab.data", Node: "n1", SizeBytes: 20, HeldSince: at(3*time.Hour + 1)}},
				{&api.VolumeIntent{}, &api.VolumeRecord{Name: "class.lost", Node: "n2", SizeBytes: 1, HeldSince: at(9 * time.Hour)}},
			},
			Nodes: []*api.NodeSpan{{Seq: 1, Node: "n1", Cores: 4, MemoryBytes: 8, From: at(0)}},
		}
	}
	hour := time.Hour.Seconds()
	all, err := Report(in(), at(0), at(10*time.Hour), Whole, ByProject)
	if err != nil || len(all.Rows) != 2 {
		t.Fatalf("the report is %+v, %v", all, err)
	}
	for i, want := range []float64{1 * hour, 7*hour + 10*(2*hour+1e-9) + 20*(7*hour-1e-9)} {
		if got := all.Rows[i].StorageByteSeconds; got != want {
			t.Errorf("project %s held %v byte-seconds, want %v", all.Rows[i].Project, got, want)
		}
	}
	site := all.Site[0]
	if site.Capacity.StorageByteSeconds != 0 || site.Capacity.CoreSeconds != 40*hour || site.Cleaning.CoreSeconds != 0 {
		t.Errorf("the site has %+v, want cores alone, and nothing cleaned", site)
	}
	one, another := in(), in()
	one.atOnce = 1 // in parts, which add up
	if parts, err := Report(one, at(0), at(10*time.Hour), Whole, ByProject); err != nil || parts.Rows[1].StorageByteSeconds != all.Rows[1].StorageByteSeconds {
		t.Errorf("in parts it is %+v, %v", parts.Rows, err)
	}
	byHour, err := Report(in(), at(0), at(10*time.Hour), Hour, ByCluster)
	if err != nil {
		t.Fatal(err)
	}
	sum, home := 0.0, 0.0
	for _, r := range byHour.Rows {
		sum += r.StorageByteSeconds
		if r.UID == "uc1" {
			home += r.StorageByteSeconds
		}
	}
	if want := all.Rows[0].StorageByteSeconds + all.Rows[1].StorageByteSeconds; sum < want-1e-6 || sum > want+1e-6 || home != 7*hour {
		t.Errorf("by hours it comes to %v, and the home of c1 to %v; want %v and %v", sum, home, want, 7*hour)
	}
	another.Cluster = func(full string) bool { return full == "lab.c1" }
	if limited, err := Report(another, at(0), at(10*time.Hour), Whole, ByAll); err != nil || len(limited.Rows) != 1 || limited.Rows[0].StorageByteSeconds != 7*hour {
		t.Errorf("a token for one cluster sees %+v, %v; want its home alone", limited.Rows, err)
	}
}
