package decision

import (
	"reflect"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume/plan"
)

func TestWhatAVolumeHeldIsWrittenDownWhenItEnds(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	now := since.Add(time.Hour)
	intent := api.VolumeIntent{UID: "u1", Name: "lab.data", Project: "lab", User: "eve", SizeBytes: 20, DeleteRequestedAt: &since}
	home := intent
	home.Cluster, home.ClusterUID = "lab.c1", "uc1"
	held := api.VolumeRecord{UID: "u1", Name: "lab.data", Node: "n1", SizeBytes: 10, HeldSince: since, Generation: 3}
	purging, older := held, held
	purging.Purging, older.HeldSince = true, time.Time{}
	ended := func(change ...func(*api.UsageRecord)) *api.UsageRecord {
		r := &api.UsageRecord{
			Seq: 4, UID: "u1", Volume: "lab.data", Project: "lab", User: "eve",
			Spans: []api.UsageSpan{{Kind: api.SpanStorage, Node: "n1", From: since, To: now, StorageBytes: 10}},
		}
		for _, c := range change {
			c(r)
		}
		return r
	}
	for what, test := range map[string]struct {
		intent api.VolumeIntent
		record *api.VolumeRecord
		op     plan.Operation
		now    time.Time
		want   *api.UsageRecord
		since  time.Time
	}{
		"a new volume begins to hold":                   {intent, nil, plan.Place{Node: "n1", SizeBytes: 20}, now, nil, now},
		"a volume that is made goes on holding":         {intent, &held, plan.NoteMade{}, now, nil, since},
		"a volume that grows has held its size":         {intent, &held, plan.Resize{SizeBytes: 20}, now, ended(), now},
		"a volume that shrinks has held its size":       {intent, &held, plan.Resize{SizeBytes: 5}, now, ended(), now},
		"a volume of the same size goes on holding":     {intent, &held, plan.Resize{SizeBytes: 10}, now, nil, since},
		"a volume that is to be purged goes on holding": {intent, &held, plan.Purge{}, now, nil, since},
		"a purged volume has held its size":             {intent, &purging, plan.Forget{}, now, ended(), now},
		"a home is the use of its cluster":              {home, &purging, plan.Forget{}, now, ended(func(r *api.UsageRecord) { r.Cluster, r.ClusterUID = "lab.c1", "uc1" }), now},
		"a volume without an intent is its project's":   {api.VolumeIntent{}, &purging, plan.Forget{}, now, ended(func(r *api.UsageRecord) { r.User = "" }), now},
		"a volume that held nothing is forgotten":       {intent, nil, plan.Forget{}, now, nil, time.Time{}},
		"a record of an older version begins to hold":   {intent, &older, plan.Resize{SizeBytes: 20}, now, nil, now},
		"a size that is changed at once was not in use": {intent, &held, plan.Resize{SizeBytes: 20}, since, nil, since},
	} {
		got, err := ApplyVolume(&test.intent, test.record, []plan.Operation{test.op}, test.now)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if !reflect.DeepEqual(got.Usage, test.want) {
			t.Errorf("%s: got %+v, want %+v", what, got.Usage, test.want)
		}
		if !got.Record.HeldSince.Equal(test.since) {
			t.Errorf("%s: it holds since %s, want %s", what, got.Record.HeldSince, test.since)
		}
	}
}
