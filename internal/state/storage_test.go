package state_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

func TestWhatAVolumeHeldIsStoredWithTheCommitThatEndsIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "data"), anyVolume))
		volume := w.cache.View().VolumeNamed("data")
		rec := api.VolumeRecord{UID: volume.UID(), Name: "data", Node: "n1", SizeBytes: 10, HeldSince: now, Generation: 1}
		used := api.UsageRecord{Seq: 2, UID: volume.UID(), Volume: "data", Project: "default", Spans: []api.UsageSpan{
			{Kind: api.SpanStorage, Node: "n1", From: now, To: now.Add(time.Hour), StorageBytes: 10},
		}}
		if _, err := w.leader.CommitVolume(ctx, volume, rec, &used); err == nil {
			t.Error("a volume that held nothing has ended holding something")
		}
		w.reach(w.leader.CommitVolume(ctx, volume, rec, nil))
		if newest := w.cache.View().NewestTime(); newest.Before(now) {
			t.Errorf("the newest time is %s, and a volume holds its size since %s", newest, now)
		}
		if held := w.cache.View().HeldStorage(); len(held) != 1 || held[0].Record.SizeBytes != 10 {
			t.Errorf("what is held is %+v", held)
		}
		placed := w.cache.View().Volume(volume.UID())
		rec.SizeBytes, rec.HeldSince, rec.Generation, rec.Purging = 20, now.Add(time.Hour), 2, true
		for what, change := range map[string]func(*api.UsageRecord){
			"another volume's UID":          func(r *api.UsageRecord) { r.UID = "other" },
			"another volume's name":         func(r *api.UsageRecord) { r.Volume = "other" },
			"the number of a record before": func(r *api.UsageRecord) { r.Seq = 1 },
		} {
			wrong := used
			change(&wrong)
			if _, err := w.leader.CommitVolume(ctx, placed, rec, &wrong); err == nil {
				t.Errorf("%s: it was written", what)
			}
		}
		w.reach(w.leader.CommitVolume(ctx, placed, rec, &used))
		last := used
		last.Seq, last.Spans = 3, []api.UsageSpan{{Kind: api.SpanStorage, Node: "n1", From: now.Add(time.Hour), To: now.Add(3 * time.Hour), StorageBytes: 20}}
		w.reach(w.leader.ForgetVolume(ctx, w.cache.View().Volume(volume.UID()), &last))
		sum := int64(0)
		for r, err := range w.cache.UsageInput(ctx, now.Add(4*time.Hour)).Records {
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range r.Spans {
				sum += s.StorageBytes * int64(s.To.Sub(s.From)/time.Hour)
			}
		}
		if held := w.cache.View().HeldStorage(); sum != 50 || len(held) != 0 {
			t.Errorf("the records come to %d byte-hours, want 50; %+v is still held", sum, held)
		}
	})
}
