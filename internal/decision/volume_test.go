package decision

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume/plan"
)

func TestAVolumesRecordChangesByItsOperationsOnly(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	live := &api.VolumeIntent{UID: "u1", Name: "data", SizeBytes: 10}
	deleted := &api.VolumeIntent{UID: "u1", Name: "data", SizeBytes: 10, DeleteRequestedAt: &at}
	on := &api.VolumeRecord{UID: "u1", Name: "data", Node: "n1", SizeBytes: 10, Generation: 3}
	home := &api.VolumeIntent{UID: "u1", Name: "data", SizeBytes: 10, Cluster: "c1", ClusterUID: "uc1"}
	purging := &api.VolumeRecord{UID: "u1", Name: "data", Node: "n1", SizeBytes: 10, Generation: 3, Purging: true}
	for what, test := range map[string]struct {
		intent *api.VolumeIntent
		record *api.VolumeRecord
		ops    []plan.Operation
		want   api.VolumeRecord
		forget bool
		fails  bool
	}{
		"a new volume is placed":             {live, nil, []plan.Operation{plan.Place{Node: "n1", SizeBytes: 10}}, api.VolumeRecord{UID: "u1", Name: "data", Node: "n1", SizeBytes: 10, HeldSince: at, Generation: 1}, false, false},
		"a volume is placed twice":           {live, on, []plan.Operation{plan.Place{Node: "n2", SizeBytes: 10}}, api.VolumeRecord{}, false, true},
		"a volume is made and grows":         {live, on, []plan.Operation{plan.NoteMade{}, plan.Resize{SizeBytes: 20}}, api.VolumeRecord{UID: "u1", Name: "data", Node: "n1", SizeBytes: 20, HeldSince: at, Generation: 4, Made: true}, false, false},
		"a volume without a node grows":      {live, nil, []plan.Operation{plan.Resize{SizeBytes: 20}}, api.VolumeRecord{}, false, true},
		"a deleted volume is purged":         {deleted, on, []plan.Operation{plan.Purge{}}, api.VolumeRecord{UID: "u1", Name: "data", Node: "n1", SizeBytes: 10, Generation: 4, Purging: true}, false, false},
		"a volume that is wanted is purged":  {live, on, []plan.Operation{plan.Purge{}}, api.VolumeRecord{}, false, true},
		"a home goes with its cluster":       {home, on, []plan.Operation{plan.Purge{Cluster: "uc1"}}, api.VolumeRecord{UID: "u1", Name: "data", Node: "n1", SizeBytes: 10, Generation: 4, Purging: true}, false, false},
		"a home goes with another cluster":   {home, on, []plan.Operation{plan.Purge{Cluster: "uc2"}}, api.VolumeRecord{}, false, true},
		"a home goes without its cluster":    {home, on, []plan.Operation{plan.Purge{}}, api.VolumeRecord{}, false, true},
		"a volume goes with a cluster":       {live, on, []plan.Operation{plan.Purge{Cluster: "uc1"}}, api.VolumeRecord{}, false, true},
		"a purged volume is forgotten":       {deleted, purging, []plan.Operation{plan.Forget{}}, api.VolumeRecord{UID: "u1", Name: "data", Node: "n1", SizeBytes: 10, HeldSince: at, Generation: 4, Purging: true}, true, false},
		"a volume without node is forgotten": {deleted, nil, []plan.Operation{plan.Forget{}}, api.VolumeRecord{Generation: 1}, true, false},
		"what may hold data is forgotten":    {deleted, on, []plan.Operation{plan.Forget{}}, api.VolumeRecord{}, false, true},
	} {
		got, err := ApplyVolume(test.intent, test.record, test.ops, at)
		if (err != nil) != test.fails {
			t.Errorf("%s: %v, want an error: %t", what, err, test.fails)
		}
		if err == nil && (got.Record != test.want || got.Forget != test.forget) {
			t.Errorf("%s: got %+v, want %+v, forgotten: %t", what, got, test.want, test.forget)
		}
	}
}
