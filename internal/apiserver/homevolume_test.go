package apiserver

import (
	"errors"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestTheHomeOfAUserIsMadeWithTheFirstClusterThatAsksForIt(t *testing.T) {
	m := makeMany(t, 1)
	s := New(Config{Reader: m.cache, Writer: m.repo, Live: m.live, Now: func() time.Time { return time.Unix(1000, 0) }})
	cluster := func(name, user string, size api.Bytes) error {
		_, err := s.storeCluster(t.Context(), api.ClusterIntent{
			Name: name, UID: "uid-" + name, Project: api.DefaultProject, User: user, CreatedAt: time.Unix(1000, 0),
			Spec: api.ClusterSpec{Groups: []api.Group{{Name: name, Size: 1}}, Home: api.ClusterHome{Kind: api.HomeOfUser, Size: size}},
		})
		return err
	}
	for _, c := range []struct {
		name, user string
		size       api.Bytes
	}{{"first", "eve", 2 << 30}, {"second", "eve", 8 << 30}, {"other", "ada", 0}} {
		if err := cluster(c.name, c.user, c.size); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]int64{"home-eve": 2 << 30, "home-ada": defaultHomeBytes} {
		v := m.cache.View().VolumeNamed(name)
		if v == nil || !v.Intent.Home || v.Intent.SizeBytes != want || v.Intent.Access != api.VolumeShared || v.Intent.Retention != homeRetention {
			t.Errorf("%s is %+v, want %d bytes", name, v, want)
		}
	}
	if all := m.cache.View().ClustersWithVolume(m.cache.View().VolumeNamed("home-eve")); len(all) != 2 {
		t.Errorf("%d clusters have the home, want 2", len(all))
	}
	v := m.cache.View().VolumeNamed("home-eve")
	for _, name := range []string{"first", "second"} {
		_, revision, err := m.repo.UpdateIntent(t.Context(), name, "", func(in *api.ClusterIntent) error { in.Spec.Home = api.ClusterHome{}; return nil })
		m.reach(t)(revision, err)
		c := m.cache.Cluster(name) // what follows is what a leader notes once no member has it
		rec := api.ClusterRecord{Name: name, UID: c.UID(), Generation: 1, Phase: api.ClusterQueued, Detached: c.Intent.Detaching}
		m.reach(t)(m.leader.Commit(t.Context(), c, state.Write{Record: rec}))
	}
	_, revision, err := m.repo.RequestVolumeDelete(t.Context(), "home-eve", v.UID(), time.Unix(1000, 0), func(*api.VolumeIntent) time.Time { return time.Unix(9000, 0) })
	m.reach(t)(revision, err)
	var refused *failure
	if err := cluster("third", "eve", 0); !errors.As(err, &refused) || refused.Code != codeVolumeDeleted.Code {
		t.Errorf("a cluster with a home that was deleted: %v", err)
	}
}
