package controller

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAHomeIsAttachedToAClusterWithoutOtherVolumes(t *testing.T) {
	for what, home := range map[string]api.ClusterHome{
		"the home of its user": {Kind: api.HomeOfUser},
		"a home of its own":    {Size: 1 << 30},
	} {
		l := newLed(t, memory.New())
		l.poolNode("n1", 16)
		in := api.ClusterIntent{Name: "c1", UID: "uid-c1", User: "eve", CreatedAt: l.now, Spec: api.ClusterSpec{Home: home}}
		name := api.VolumesOf(&in)[0].Name
		l.wantVolume(name, 4)
		l.mustPass()
		l.view(l.repo.CreateCluster(t.Context(), in))
		uid := l.cache.View().VolumeNamed(name).UID()
		member := api.Assignment{ID: "a", Node: "n1", Volumes: []api.VolumeClaim{{UID: uid, Name: name, Path: "/home", Node: "n1"}}}
		view := l.view(l.leader.Commit(t.Context(), l.cache.Cluster("c1"), state.Write{
			Record: api.ClusterRecord{Name: "c1", UID: "uid-c1", Phase: api.ClusterReady, ChangedAt: l.now}, Add: []state.Batch{{Assignments: []api.Assignment{member}}},
		}))
		if got := attachments(view, (&claimants{}).of(view))[uid]; len(got) != 1 || got[0].ClusterUID != "uid-c1" || got[0].ReadOnly {
			t.Errorf("%s: got %+v, want an attachment of the cluster that may write", what, got)
		}
	}
}
