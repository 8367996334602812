package controller

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestClaimantsFollowTheirClustersFromViewToView(t *testing.T) {
	l := newLed(t, memory.New())
	var kept claimants
	want := func(when string, names ...string) {
		t.Helper()
		for range 2 {
			var got []string
			for _, c := range kept.of(l.cache.View()) {
				if c != l.cache.Cluster(c.Name()) {
					t.Errorf("%s: %s is as it was in an earlier view", when, c.Name())
				}
				got = append(got, c.Name())
			}
			if !slices.Equal(got, names) {
				t.Errorf("%s: %v claim volumes, want %v", when, got, names)
			}
		}
	}
	set := func(name string, volumes ...api.VolumeClaim) {
		t.Helper()
		c := l.cache.Cluster(name)
		if c == nil {
			l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: name, UID: "uid-" + name, CreatedAt: l.now}))
			c = l.cache.Cluster(name)
		}
		record := api.ClusterRecord{Name: name, UID: "uid-" + name, Phase: api.ClusterReady, ChangedAt: l.now}
		if c.Record != nil {
			record.Generation = c.Record.Generation + 1
		}
		l.view(l.leader.Commit(t.Context(), c, state.Write{Record: record, Add: []state.Batch{{Assignments: []api.Assignment{{ID: "uid-" + name + ".m.1", Node: "n1", Volumes: volumes}}}}}))
	}
	claim := api.VolumeClaim{UID: "v", Name: "v", Path: "/v", Node: "n1"}
	want("at first")
	set("b", claim)
	set("a")
	want("with one", "b")
	set("a", claim)
	want("with two", "a", "b")
	set("b", claim)
	want("once one has changed", "a", "b")
	set("b")
	want("once one claims nothing", "a")
}
