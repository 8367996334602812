package state_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// volumeIntent is what a user wants of a volume of a project.
func volumeIntent(project, name string) api.VolumeIntent {
	full := state.VolumeName(project, name)
	return api.VolumeIntent{
		Name: full, UID: "volume-" + full, Project: project, User: "eve", SizeBytes: 1 << 30, MaxFiles: 1 << 16, Access: api.VolumeOneWriter,
		Retention: api.DefaultVolumeRetention, CreatedAt: now,
	}
}

// attaching is the intent of a cluster that asks for volumes; a name with "/ro" is to be read only.
func attaching(name string, volumes ...string) api.ClusterIntent {
	in := intent(name)
	for _, v := range volumes {
		own, readOnly := strings.CutSuffix(v, "/ro")
		in.Spec.Volumes = append(in.Spec.Volumes, api.VolumeAttachment{Name: own, ReadOnly: readOnly})
	}
	return in
}

func anyVolume([]api.VolumeIntent) error { return nil }

// placed gives a volume a record on a node.
func (w *world) placed(uid, node string) {
	v := w.cache.View().Volume(uid)
	w.reach(w.leader.CommitVolume(w.Context(), v, api.VolumeRecord{UID: uid, Name: v.Name(), Node: node, SizeBytes: v.Intent.SizeBytes, Generation: 1}, nil))
}

// deletes deletes a volume of the default project, to be purged an hour later.
func (w *world) deletes(name string) (int64, error) {
	_, revision, err := w.repo.RequestVolumeDelete(w.Context(), name, "", now, func(*api.VolumeIntent) time.Time { return now.Add(time.Hour) })
	return revision, err
}

func (w *world) changesVolume(name string, change func(*api.VolumeIntent)) (int64, error) {
	_, revision, err := w.repo.ChangeVolume(w.Context(), name, "", func(v *api.VolumeIntent, _ []api.VolumeIntent) error {
		change(v)
		return nil
	})
	return revision, err
}

func TestAVolumeIsFoundByUIDNameAndNode(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateProject(ctx, api.Project{Name: "physics", CreatedAt: now}))
		w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "data"), anyVolume))
		w.reach(w.repo.CreateVolume(ctx, volumeIntent("physics", "data"), anyVolume))
		w.placed("volume-data", "n1")
		view := w.cache.View()
		for what, got := range map[string]*state.Volume{
			"by UID": view.Volume("volume-data"), "by name": view.VolumeNamed("data"), "by node": view.VolumesOnNode("n1")[0],
		} {
			if got == nil || got.Intent.UID != "volume-data" || got.Record == nil || got.Record.Node != "n1" || got.Node() != "n1" {
				t.Errorf("found %s: %+v", what, got)
			}
		}
		other := view.VolumeNamed("physics.data")
		if other == nil || other.Record != nil || other.Node() != "" || other.UID() != "volume-physics.data" || len(view.Volumes) != 2 {
			t.Errorf("the volume of the other project is %+v, of %d volumes", other, len(view.Volumes))
		}
		if gone := view.VolumeNamed("nothing"); gone != nil {
			t.Errorf("no volume is found as %+v", gone)
		}
	})
}

func TestANewVolumeNeedsAFreeNameAndAProject(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "data"), anyVolume))
		snapshotted := volumeIntent("default", "clone")
		snapshotted.Origin = &api.VolumeOrigin{VolumeUID: "volume-data", SnapshotUID: "s1"}
		stranger := volumeIntent("default", "stranger")
		stranger.Origin = &api.VolumeOrigin{VolumeUID: "volume-physics.data", SnapshotUID: "s1"}
		full := errors.New("full")
		for what, test := range map[string]struct {
			in    api.VolumeIntent
			check error
			want  error
		}{
			"the name is taken":               {volumeIntent("default", "data"), nil, state.ErrExists},
			"the project does not exist":      {volumeIntent("nobody", "data"), nil, state.ErrNoProject},
			"the check refuses":               {volumeIntent("default", "more"), full, full},
			"the snapshot does not exist":     {snapshotted, nil, state.ErrNoVolume},
			"the origin is another project's": {stranger, nil, state.ErrNoVolume},
		} {
			if _, err := w.repo.CreateVolume(ctx, test.in, func([]api.VolumeIntent) error { return test.check }); !errors.Is(err, test.want) {
				t.Errorf("%s: got %v, want %v", what, err, test.want)
			}
		}
		if n := len(w.cache.View().Volumes); n != 1 {
			t.Errorf("%d volumes are stored, want 1", n)
		}
		w.reach(w.changesVolume("data", func(v *api.VolumeIntent) {
			v.Snapshots = append(v.Snapshots, api.VolumeSnapshotIntent{Name: "s1", UID: "s1", CreatedAt: now})
		}))
		w.reach(w.repo.CreateVolume(ctx, snapshotted, anyVolume))
		w.reach(w.deletes("data"))
		again := snapshotted
		again.Name, again.UID = "clone2", "volume-clone2"
		if _, err := w.repo.CreateVolume(ctx, again, anyVolume); !errors.Is(err, state.ErrNoVolume) || !strings.Contains(err.Error(), "was deleted") {
			t.Errorf("a clone of a deleted volume: %v", err)
		}
	})
}

func TestTwoVolumesOfOneProjectDoNotPassTheQuotaTogether(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		atMostOne := func(others []api.VolumeIntent) error {
			if len(others) > 0 {
				return errors.New("over the quota")
			}
			return nil
		}
		w.meanwhile(func() error {
			_, err := w.repo.CreateVolume(ctx, volumeIntent("default", "a"), atMostOne)
			return err
		})
		if _, err := w.repo.CreateVolume(ctx, volumeIntent("default", "b"), atMostOne); err == nil || !strings.Contains(err.Error(), "over the quota") {
			t.Errorf("the second volume: %v", err)
		}
		w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "c"), anyVolume))
		grow := func(name string) error {
			_, _, err := w.repo.ChangeVolume(ctx, name, "", func(v *api.VolumeIntent, others []api.VolumeIntent) error {
				sum := v.SizeBytes + 1<<30
				for i := range others {
					sum += others[i].SizeBytes
				}
				if sum > 3<<30 {
					return errors.New("over the quota")
				}
				v.SizeBytes += 1 << 30
				return nil
			})
			return err
		}
		w.meanwhile(func() error { return grow("a") })
		if err := grow("c"); err == nil || !strings.Contains(err.Error(), "over the quota") {
			t.Errorf("two volumes grew past the quota: %v", err)
		}
	})
}

func TestAVolumeIsAttachedAsItsAccessAllows(t *testing.T) {
	for what, test := range map[string]struct {
		access api.VolumeAccess
		has    []string // what clusters that are there ask for
		asks   string
		want   error
	}{
		"one writer, the first":           {api.VolumeOneWriter, nil, "data", nil},
		"one writer, beside a reader":     {api.VolumeOneWriter, []string{"data/ro"}, "data", nil},
		"one writer, beside a writer":     {api.VolumeOneWriter, []string{"data"}, "data", state.ErrInUse},
		"a reader beside the one writer":  {api.VolumeOneWriter, []string{"data"}, "data/ro", nil},
		"many readers, a reader":          {api.VolumeManyReaders, []string{"data/ro"}, "data/ro", nil},
		"many readers, a writer":          {api.VolumeManyReaders, nil, "data", state.ErrAccess},
		"shared, a second writer":         {api.VolumeShared, []string{"data", "data"}, "data", nil},
		"a volume that does not exist":    {api.VolumeShared, nil, "none", state.ErrNoVolume},
		"two attachments, one that reads": {api.VolumeManyReaders, nil, "data/ro data", state.ErrAccess},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, openMemory(t))
			ctx := w.Context()
			in := volumeIntent("default", "data")
			in.Access = test.access
			w.reach(w.repo.CreateVolume(ctx, in, anyVolume))
			for i, has := range test.has {
				w.reach(w.repo.CreateCluster(ctx, attaching("has-"+string(rune('a'+i)), has)))
			}
			_, err := w.repo.CreateCluster(ctx, attaching("new", strings.Fields(test.asks)...))
			if !errors.Is(err, test.want) {
				t.Errorf("a new cluster: %v, want %v", err, test.want)
			}
			w.reach(w.repo.CreateCluster(ctx, intent("other")))
			_, _, err = w.repo.UpdateIntent(ctx, "other", "", func(in *api.ClusterIntent) error {
				in.Spec.Volumes = attaching("", strings.Fields(test.asks)...).Spec.Volumes
				return nil
			})
			if test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("a changed cluster: %v, want %v", err, test.want)
			}
		})
	}
}

func TestTwoClustersDoNotBothBecomeTheOneWriter(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "data"), anyVolume))
		w.meanwhile(func() error {
			_, err := w.repo.CreateCluster(ctx, attaching("a", "data"))
			return err
		})
		_, err := w.repo.CreateCluster(ctx, attaching("b", "data"))
		if !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), `volume "data" is in use by cluster a, which writes to it`) {
			t.Errorf("the second writer: %v", err)
		}
		if _, err := w.changesVolume("data", func(v *api.VolumeIntent) { v.Access = api.VolumeManyReaders }); !errors.Is(err, state.ErrInUse) {
			t.Errorf("a volume with a writer becomes one for readers: %v", err)
		}
		w.reach(w.changesVolume("data", func(v *api.VolumeIntent) { v.Access = api.VolumeShared }))
		w.reach(w.repo.CreateCluster(ctx, attaching("b", "data")))
		if _, err := w.changesVolume("data", func(v *api.VolumeIntent) { v.Access = api.VolumeOneWriter }); !errors.Is(err, state.ErrInUse) {
			t.Errorf("a volume with two writers becomes one for one: %v", err)
		}
	})
}

func TestAHomeIsThatOfTheClustersUser(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := w.Context()
	in := intent("c2")
	in.User, in.Spec.Home = "eve", api.ClusterHome{Kind: api.HomeOfUser}
	if _, err := w.repo.CreateCluster(ctx, in); !errors.Is(err, state.ErrNoVolume) || !strings.Contains(err.Error(), `"home-eve"`) {
		t.Errorf("a cluster without its home: %v", err)
	}
	home := volumeIntent("default", "home-eve")
	home.Home, home.Access = true, api.VolumeShared
	w.reach(w.repo.CreateVolume(ctx, home, anyVolume))
	w.reach(w.repo.CreateCluster(ctx, in))
	if _, err := w.deletes("home-eve"); !errors.Is(err, state.ErrInUse) {
		t.Errorf("a home is deleted below its cluster: %v", err)
	}
	if got := w.cache.View().ClustersWithVolume(w.cache.View().VolumeNamed("home-eve")); len(got) != 1 || got[0].Name() != "c2" {
		t.Errorf("the home is attached to %v", got)
	}
}

func TestADeletionOfAVolumeAndItsUseDoNotPassEachOther(t *testing.T) {
	uses := map[string]func(w *world, volume string) error{
		"a new cluster": func(w *world, volume string) error {
			_, err := w.repo.CreateCluster(w.Context(), attaching("c-"+volume, volume))
			return err
		},
		"a new attachment of a cluster": func(w *world, volume string) error {
			_, _, err := w.repo.UpdateIntent(w.Context(), "c1", "", func(in *api.ClusterIntent) error {
				in.Spec.Volumes = append(slices.Clone(in.Spec.Volumes), api.VolumeAttachment{Name: volume})
				return nil
			})
			return err
		},
	}
	for what, use := range uses {
		t.Run(what, func(t *testing.T) {
			onEveryStore(t, func(t *testing.T, s store.Store) {
				w := newWorld(t, s)
				for _, name := range []string{"first", "last"} {
					w.reach(w.repo.CreateVolume(w.Context(), volumeIntent("default", name), anyVolume))
				}
				w.meanwhile(func() error { return use(w, "first") })
				if _, err := w.deletes("first"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "detach it or delete the cluster first") {
					t.Errorf("%s came between look and deletion: %v", what, err)
				}
				w.meanwhile(func() error {
					_, err := w.deletes("last")
					return err
				})
				if err := use(w, "last"); !errors.Is(err, state.ErrNoVolume) {
					t.Errorf("the volume was deleted between look and use by %s: %v", what, err)
				}
			})
		})
	}
}

func TestAnUndeletionAndAPurgeDoNotPassEachOther(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := w.Context()
		w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "data"), anyVolume))
		w.placed("volume-data", "n1")
		w.reach(w.deletes("data"))
		purge := func(v *state.Volume) (int64, error) {
			rec := *v.Record
			rec.Generation++
			rec.Purging = true
			return w.leader.CommitVolume(ctx, v, rec, nil)
		}
		undelete := func() (int64, error) {
			_, revision, err := w.repo.UndeleteVolume(ctx, "data", "")
			return revision, err
		}
		before := w.cache.View().Volume("volume-data")
		w.reach(undelete())
		if _, err := purge(before); !errors.Is(err, store.ErrConflict) {
			t.Errorf("a purge that was decided before the undeletion: %v", err)
		}
		if v := w.cache.View().Volume("volume-data"); v.Intent.DeleteRequestedAt != nil || v.Intent.PurgeAt != nil || v.Record.Purging {
			t.Errorf("the undeleted volume is %+v, %+v", v.Intent, v.Record)
		}
		w.reach(w.deletes("data"))
		w.meanwhile(func() error {
			_, err := purge(w.cache.View().Volume("volume-data"))
			return err
		})
		if _, err := undelete(); !errors.Is(err, state.ErrPurging) {
			t.Errorf("an undeletion after the purge was decided: %v", err)
		}
		if _, err := w.changesVolume("data", func(v *api.VolumeIntent) { v.SizeBytes *= 2 }); !errors.Is(err, state.ErrDeleted) {
			t.Errorf("a deleted volume is changed: %v", err)
		}
	})
}

func TestTheEarlierPurgeOfADeletedVolumeCounts(t *testing.T) {
	w := newWorld(t, openMemory(t))
	w.reach(w.repo.CreateVolume(w.Context(), volumeIntent("default", "data"), anyVolume))
	for _, test := range []struct{ ask, want time.Duration }{{time.Hour, time.Hour}, {2 * time.Hour, time.Hour}, {0, 0}} {
		v, revision, err := w.repo.RequestVolumeDelete(w.Context(), "data", "volume-data", now.Add(test.ask), func(*api.VolumeIntent) time.Time { return now.Add(test.ask) })
		w.reach(revision, err)
		if !v.PurgeAt.Equal(now.Add(test.want)) || !v.DeleteRequestedAt.Equal(now.Add(time.Hour)) {
			t.Errorf("deleted to be purged after %s: %+v", test.ask, v)
		}
	}
	if _, _, err := w.repo.RequestVolumeDelete(w.Context(), "data", "volume-other", now, nil); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("the volume of another UID: %v", err)
	}
}

func TestARecordOfAVolumeOnlyGoesForward(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := w.Context()
	w.reach(w.repo.CreateVolume(ctx, volumeIntent("default", "data"), anyVolume))
	w.placed("volume-data", "n1")
	purging := api.VolumeRecord{UID: "volume-data", Name: "data", Node: "n1", Generation: 2, Purging: true}
	first := w.cache.View().Volume("volume-data")
	if _, err := w.leader.ForgetVolume(ctx, first, nil); err == nil {
		t.Error("a volume is forgotten that may hold something")
	}
	w.reach(w.leader.CommitVolume(ctx, first, purging, nil))
	for what, change := range map[string]func(*api.VolumeRecord){
		"an old generation": func(r *api.VolumeRecord) { r.Generation = 2 },
		"another node":      func(r *api.VolumeRecord) { r.Node = "n2" },
		"an end of a purge": func(r *api.VolumeRecord) { r.Purging = false },
		"another volume":    func(r *api.VolumeRecord) { r.UID = "volume-other" },
	} {
		rec := purging
		rec.Generation = 3
		change(&rec)
		if _, err := w.leader.CommitVolume(ctx, w.cache.View().Volume("volume-data"), rec, nil); err == nil {
			t.Errorf("%s is written", what)
		}
	}
	if _, err := w.leader.ForgetVolume(ctx, first, nil); err == nil {
		t.Error("a volume is forgotten as it was before")
	}
	w.reach(w.leader.ForgetVolume(ctx, w.cache.View().Volume("volume-data"), nil))
	if all := w.cache.View().Volumes; len(all) != 0 {
		t.Errorf("a forgotten volume is %+v", all[0])
	}
	again := volumeIntent("default", "data")
	again.UID = "volume-again"
	w.reach(w.repo.CreateVolume(ctx, again, anyVolume))
	if v := w.cache.View().VolumeNamed("data"); v == nil || v.UID() != "volume-again" || v.Record != nil {
		t.Errorf("the new volume of the name is %+v", v)
	}
}

func TestProjectsAndNodesWithVolumesStay(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := w.Context()
	w.reach(w.repo.CreateProject(ctx, api.Project{Name: "physics", CreatedAt: now}))
	w.reach(w.repo.PutNode(ctx, api.NodeRecord{Name: "n1"}))
	w.reach(w.repo.CreateVolume(ctx, volumeIntent("physics", "data"), anyVolume))
	w.placed("volume-physics.data", "n1")
	if _, err := w.repo.DeleteProject(ctx, "physics"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "1 volume (physics.data)") {
		t.Errorf("a project with a volume is deleted: %v", err)
	}
	if _, err := w.repo.ForgetNode(ctx, w.cache.View(), "n1"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), "1 volume (physics.data)") {
		t.Errorf("a node with a volume is forgotten: %v", err)
	}
	w.reach(w.deletes("physics.data"))
	v := w.cache.View().Volume("volume-physics.data")
	w.reach(w.leader.CommitVolume(ctx, v, api.VolumeRecord{UID: v.UID(), Name: v.Name(), Node: "n1", Generation: 2, Purging: true}, nil))
	w.reach(w.repo.ForgetNode(ctx, w.cache.View(), "n1"))
}

func TestTheRevisionOfAVolumeIsThatOfItsNewestCommitAfterARestartToo(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		w.reach(w.repo.CreateVolume(w.Context(), volumeIntent("default", "data"), anyVolume))
		w.placed("volume-data", "n1")
		w.reach(w.changesVolume("data", func(v *api.VolumeIntent) { v.SizeBytes *= 2 }))
		again, err := w.repo.OpenCache(w.Context())
		must(t, err)
		equal(t, again.View().Volume("volume-data").Revision, w.cache.View().Volume("volume-data").Revision)
	})
}
