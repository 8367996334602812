package controller

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// pool stores a node with a pool of some GiB.
func (l *led) poolNode(name string, gib int64) {
	l.t.Helper()
	l.view(l.repo.PutNode(l.t.Context(), api.NodeRecord{
		Name: name, Underlay: "198.18.0." + name[1:], VolumePool: &api.VolumePool{Kind: "xfs", CapacityBytes: gib << 30},
	}))
}

// wantVolume stores a volume of some GiB that a user wants.
func (l *led) wantVolume(name string, gib int64, change ...func(*api.VolumeIntent)) {
	l.t.Helper()
	in := api.VolumeIntent{Name: name, UID: "uid-" + name, Project: api.DefaultProject, SizeBytes: gib << 30, MaxFiles: 10, Access: api.VolumeShared, CreatedAt: l.now}
	for _, c := range change {
		c(&in)
	}
	l.view(l.repo.CreateVolume(l.t.Context(), in, func([]api.VolumeIntent) error { return nil }))
}

// found lets a node report a volume, whole.
func (l *led) found(node, name string, gib int64) {
	if l.agents.volumes == nil {
		l.agents.volumes = map[string][]volume.State{}
	}
	l.agents.volumes[node] = append(l.agents.volumes[node], volume.State{UID: "uid-" + name, Ready: true, SizeBytes: gib << 30})
}

func TestAVolumeIsCarriedFromItsIntentToTheEndOfItsPurge(t *testing.T) {
	l := newLed(t, memory.New())
	l.poolNode("n1", 8)
	l.poolNode("n2", 16)
	l.wantVolume("data", 10)
	view := l.mustPass()
	v := view.VolumeNamed("data")
	if v.Node() != "n2" || v.Record.SizeBytes != 10<<30 || v.Record.Generation != 1 {
		t.Fatalf("it is placed as %+v", v.Record)
	}
	l.mustPass()
	told := l.agents.desired["n2"].Volumes
	want := []volume.Volume{{UID: "uid-data", Generation: v.Revision, SizeBytes: 10 << 30, MaxFiles: 10}}
	if !reflect.DeepEqual(told, want) || len(l.agents.desired["n1"].Volumes) != 0 {
		t.Errorf("n2 is told %+v, want %+v; n1 is told %+v", told, want, l.agents.desired["n1"].Volumes)
	}
	l.found("n2", "data", 10)
	if rec := l.mustPass().VolumeNamed("data").Record; !rec.Made || rec.Generation != 2 {
		t.Errorf("once its node has it, its record is %+v", rec)
	}
	_, revision, err := l.repo.RequestVolumeDelete(t.Context(), "data", "uid-data", l.now, func(*api.VolumeIntent) time.Time { return l.now.Add(time.Hour) })
	l.view(revision, err)
	if rec := l.mustPass().VolumeNamed("data").Record; rec.Purging {
		t.Error("a deleted volume is purged before its time")
	}
	l.now = l.now.Add(2 * time.Hour)
	purging := l.mustPass().VolumeNamed("data")
	if !purging.Record.Purging {
		t.Fatalf("after its time its record is %+v", purging.Record)
	}
	l.mustPass()
	if told := l.agents.desired["n2"].Volumes; len(told) != 1 || !told[0].Purge || told[0].Generation <= v.Revision {
		t.Errorf("n2 is told %+v, want a purge of a newer generation", told)
	}
	l.agents.volumes, l.agents.purged = nil, map[string][]string{"n2": {"uid-data"}}
	if view := l.mustPass(); len(view.Volumes) != 0 {
		t.Errorf("once nothing is left, what is stored is %+v", view.Volumes[0])
	}
	l.mustPass()
	if told := l.agents.desired["n2"].Volumes; len(told) != 0 {
		t.Errorf("n2 is still told %+v", told)
	}
}

func TestANodeIsToldOfEachChangeWithANewerGeneration(t *testing.T) {
	l := newLed(t, memory.New())
	l.poolNode("n1", 16)
	l.wantVolume("data", 4)
	l.mustPass()
	l.mustPass()
	before := l.agents.desired["n1"].Volumes[0]
	_, revision, err := l.repo.ChangeVolume(t.Context(), "data", "", func(v *api.VolumeIntent, _ []api.VolumeIntent) error {
		v.Snapshots = append(v.Snapshots, api.VolumeSnapshotIntent{Name: "s", UID: "s"})
		return nil
	})
	l.view(revision, err)
	l.mustPass()
	if after := l.agents.desired["n1"].Volumes[0]; after.Generation <= before.Generation || len(after.Snapshots) != 1 {
		t.Errorf("told %+v after %+v", after, before)
	}
}

func TestAttachmentsFollowTheMembersThatHaveAVolume(t *testing.T) {
	claim := func(node string, readOnly bool) api.Assignment {
		return api.Assignment{ID: "a-" + node, Node: node, Volumes: []api.VolumeClaim{{UID: "uid-data", Name: "data", Path: "/data", Node: "n1", ReadOnly: readOnly}}}
	}
	for what, test := range map[string]struct {
		held, releasing []api.Assignment
		want            []volume.Attachment
	}{
		"no member has it":             {[]api.Assignment{{ID: "a", Node: "n1"}}, nil, nil},
		"a member writes":              {[]api.Assignment{claim("n1", false)}, nil, []volume.Attachment{{ClusterUID: "uid-c1", UserIDs: api.IDRange{First: 1000}}}},
		"all members read":             {[]api.Assignment{claim("n1", true)}, nil, []volume.Attachment{{ClusterUID: "uid-c1", UserIDs: api.IDRange{First: 1000}, ReadOnly: true}}},
		"one member reads, one writes": {[]api.Assignment{claim("n1", true), claim("n1", false)}, nil, []volume.Attachment{{ClusterUID: "uid-c1", UserIDs: api.IDRange{First: 1000}}}},
		"a member is being released":   {nil, []api.Assignment{claim("n1", true)}, []volume.Attachment{{ClusterUID: "uid-c1", UserIDs: api.IDRange{First: 1000}, ReadOnly: true}}},
		"a member is to let go of it": {
			[]api.Assignment{{ID: "a", Node: "n1", Volumes: []api.VolumeClaim{{UID: "uid-data", Name: "data", Path: "/data", Node: "n1", Detaching: true, Number: 1}}}},
			nil,
			[]volume.Attachment{{ClusterUID: "uid-c1", UserIDs: api.IDRange{First: 1000}}},
		},
		"a member on another node has it": {[]api.Assignment{claim("n2", false)}, nil, []volume.Attachment{{ClusterUID: "uid-c1", UserIDs: api.IDRange{First: 1000}}}},
	} {
		t.Run(what, func(t *testing.T) {
			l := newLed(t, memory.New())
			l.poolNode("n1", 16)
			l.wantVolume("data", 4)
			l.mustPass()
			// What the cluster asks for does not matter: its members may have a home, or a volume that is being detached.
			l.view(l.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "c1", UID: "uid-c1", CreatedAt: l.now}))
			for i := range test.held {
				test.held[i].ID += string(rune('a' + i))
			}
			view := l.view(l.leader.Commit(t.Context(), l.cache.Cluster("c1"), state.Write{
				Record: api.ClusterRecord{Name: "c1", UID: "uid-c1", Phase: api.ClusterReady, UserIDs: api.IDRange{First: 1000}, ChangedAt: l.now},
				Add:    []state.Batch{{Assignments: test.held}, {Assignments: test.releasing, Releasing: true, ReleasedAt: &l.now}},
			}))
			want := map[string][]volume.Attachment{}
			if test.want != nil {
				want["uid-data"] = test.want
			}
			if got := attachments(view, (&claimants{}).of(view)); !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// lateVolume is a store whose next commit of a volume's record ends with a time-out and is lost or lands later.
type lateVolume struct {
	store.Store
	armed bool
}

func (s *lateVolume) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (int64, error) {
	if s.armed && strings.HasPrefix(ops[0].Key, "volumerecord/") {
		s.armed = false
		return 0, errors.New("request timed out")
	}
	return s.Store.Commit(ctx, conds, ops)
}

func TestRoomOfUnknownOutcomeEndsTheLeadership(t *testing.T) {
	l := newLed(t, &lateVolume{Store: memory.New(), armed: true})
	l.poolNode("n1", 16)
	l.wantVolume("a", 10)
	l.wantVolume("b", 10)
	view, err := l.pass()
	if !errors.Is(err, errDoubt) {
		t.Fatalf("the pass ends with %v, want the leadership to end", err)
	}
	if b := view.VolumeNamed("b"); b.Record != nil {
		t.Errorf("volume b is placed as %+v: that room may be that of a", b.Record)
	}
}

func TestAPoolIsNeverGivenOutTwice(t *testing.T) {
	l := newLed(t, memory.New())
	l.poolNode("n1", 16)
	for _, name := range []string{"a", "b", "c"} {
		l.wantVolume(name, 7)
	}
	l.mustPass()
	l.mustPass()
	if on := l.cache.View().VolumesOnNode("n1"); len(on) != 2 {
		t.Errorf("%d volumes of 7GiB lie in a pool of 16GiB, want 2", len(on))
	}
}
