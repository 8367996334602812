package state_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

func TestAnIntentIsChangedAsItWasSeen(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				_, _, err := w.repo.UpdateIntent(ctx, "c1", "uid-c1", func(in *api.ClusterIntent) error { in.Spec.Priority++; return nil })
				if err != nil {
					t.Errorf("update: %v", err)
				}
			})
		}
		wg.Wait()
		in, rev, err := w.repo.UpdateIntent(ctx, "c1", "", func(in *api.ClusterIntent) error { in.Paused = true; return nil })
		w.reach(rev, err)
		equal(t, in.Spec.Priority, 8)
		equal(t, w.c1().Intent, in)
		_, again, err := w.repo.UpdateIntent(ctx, "c1", "", func(in *api.ClusterIntent) error { in.Paused = true; return nil })
		must(t, err)
		equal(t, again, rev) // nothing changed, nothing written

		refusal := errors.New("no")
		if _, _, err := w.repo.UpdateIntent(ctx, "c1", "", func(*api.ClusterIntent) error { return refusal }); !errors.Is(err, refusal) {
			t.Errorf("a change that refuses: %v, want its own error", err)
		}
		for name, uid := range map[string]string{"c2": "", "c1": "uid-of-an-earlier-c1"} {
			_, _, err := w.repo.UpdateIntent(ctx, name, uid, func(*api.ClusterIntent) error { t.Error("a stranger is changed"); return nil })
			if !errors.Is(err, state.ErrNotFound) {
				t.Errorf("%s %s: %v, want ErrNotFound", name, uid, err)
			}
		}
		for what, change := range map[string]func(*api.ClusterIntent){
			"name":    func(in *api.ClusterIntent) { in.Name = "c9" },
			"UID":     func(in *api.ClusterIntent) { in.UID = "u9" },
			"project": func(in *api.ClusterIntent) { in.Project = "p9" },
			"time":    func(in *api.ClusterIntent) { in.CreatedAt = now.Add(1) },
		} {
			if _, _, err := w.repo.UpdateIntent(ctx, "c1", "", func(in *api.ClusterIntent) error { change(in); return nil }); err == nil {
				t.Errorf("the %s of a cluster was changed", what)
			}
		}
	})
}

func project(name string) api.Project { return api.Project{Name: name, Shares: 1, CreatedAt: now} }

func TestAProjectGoesOnlyWhenNothingBelongsToIt(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		sim := intent("physics.sim")
		sim.Project = "physics"
		if _, err := w.repo.CreateCluster(ctx, sim); !errors.Is(err, state.ErrNoProject) || !strings.Contains(err.Error(), `"physics"`) {
			t.Errorf("a cluster of no project: %v, want ErrNoProject", err)
		}
		token := api.TokenInfo{ID: "0a", User: "eve", Project: "physics", Role: api.RoleViewer, SHA256: "12"}
		if _, err := w.repo.CreateToken(ctx, token); !errors.Is(err, state.ErrNoProject) {
			t.Errorf("a token of no project: %v, want ErrNoProject", err)
		}
		w.reach(w.repo.CreateProject(ctx, project("physics")))
		if _, err := w.repo.CreateProject(ctx, project("physics")); !errors.Is(err, state.ErrExists) {
			t.Errorf("created twice: %v, want ErrExists", err)
		}
		w.reach(w.repo.CreateToken(ctx, token))
		w.reach(w.repo.CreateCluster(ctx, sim))
		if _, err := w.repo.CreateCluster(ctx, sim); !errors.Is(err, state.ErrExists) {
			t.Errorf("a taken name: %v, want ErrExists", err)
		}
		p, rev, err := w.repo.UpdateProject(ctx, "physics", func(p *api.Project) error { p.Quota.Cores = 5; return nil })
		w.reach(rev, err)
		equal(t, *w.cache.View().Project("physics"), p)
		equal(t, *w.cache.View().Token("0a"), token)

		for _, want := range []string{"physics.sim", "0a"} {
			if _, err := w.repo.DeleteProject(ctx, "physics"); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), want) {
				t.Errorf("in use: %v, want ErrInUse that names %s", err, want)
			}
			if want == "physics.sim" {
				w.reach(w.leader.Commit(ctx, w.cache.Cluster("physics.sim"), state.Write{Forget: true}))
			}
		}
		if _, err := w.repo.DeleteToken(ctx, "chemistry", "0a"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a token of another project: %v, want ErrNotFound", err)
		}
		w.reach(w.repo.DeleteToken(ctx, "physics", "0a"))
		if _, err := w.repo.DeleteToken(ctx, "", "0a"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a token that is gone: %v, want ErrNotFound", err)
		}
		w.reach(w.repo.DeleteProject(ctx, "physics"))
		if _, err := w.repo.DeleteProject(ctx, "physics"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("a project that is gone: %v, want ErrNotFound", err)
		}
		equal(t, len(w.cache.View().Projects), 1)
		equal(t, len(w.cache.View().Tokens), 0)
		// Its jobs and usage may be kept still: another project of the name would be shown them.
		if _, err := w.repo.CreateProject(ctx, api.Project{Name: "physics"}); !errors.Is(err, state.ErrNameUsed) {
			t.Errorf("a new project of the name: %v, want ErrNameUsed", err)
		}
	})
}

func TestAProjectDoesNotGoWhileSomethingComes(t *testing.T) {
	for what, come := range map[string]func(w *world, repo *state.Repo) error{
		"a cluster": func(w *world, repo *state.Repo) error {
			in := intent("physics.sim")
			in.Project = "physics"
			_, err := repo.CreateCluster(w.Context(), in)
			return err
		},
		"a token": func(w *world, repo *state.Repo) error {
			_, err := repo.CreateToken(w.Context(), api.TokenInfo{ID: "0a", Project: "physics"})
			return err
		},
	} {
		w := newWorld(t, openMemory(t))
		w.reach(w.repo.CreateProject(t.Context(), project("physics")))
		w.store.fail = func(ops []store.Op) error {
			if !ops[0].Delete {
				return nil
			}
			w.store.fail = nil
			return come(w, state.New(w.store.Store)) // between the look and the removal
		}
		if _, err := w.repo.DeleteProject(t.Context(), "physics"); !errors.Is(err, state.ErrInUse) {
			t.Errorf("%s came meanwhile: %v, want ErrInUse", what, err)
		}
		// The other way round: the project goes between the look and the write.
		w = newWorld(t, openMemory(t))
		w.reach(w.repo.CreateProject(t.Context(), project("physics")))
		w.store.fail = func([]store.Op) error {
			w.store.fail = nil
			_, err := state.New(w.store.Store).DeleteProject(t.Context(), "physics")
			return err
		}
		if err := come(w, w.repo); !errors.Is(err, state.ErrNoProject) {
			t.Errorf("%s of a project that went meanwhile: %v, want ErrNoProject", what, err)
		}
	}
}

func TestTheDefaultProjectIsAlwaysThere(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		want := api.Project{Name: "default", Shares: 1}
		equal(t, *w.cache.View().Project("default"), want)
		stored, err := w.repo.Project(ctx, "default")
		must(t, err)
		equal(t, stored, want)
		if _, err := w.repo.CreateProject(ctx, project("default")); !errors.Is(err, state.ErrExists) {
			t.Errorf("create: %v, want ErrExists", err)
		}
		if _, err := w.repo.DeleteProject(ctx, "default"); !errors.Is(err, state.ErrInUse) {
			t.Errorf("delete: %v, want ErrInUse", err)
		}
		_, rev, err := w.repo.UpdateProject(ctx, "default", func(p *api.Project) error { p.Shares = 3; return nil })
		w.reach(rev, err)
		equal(t, w.cache.View().Project("default").Shares, 3)
		if _, _, err := w.repo.UpdateProject(ctx, "default", func(p *api.Project) error { p.Name = "other"; return nil }); err == nil {
			t.Error("the default project was given another name")
		}
		if _, _, err := w.repo.UpdateProject(ctx, "physics", func(*api.Project) error { return nil }); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("update of no project: %v, want ErrNotFound", err)
		}
		if _, err := w.repo.Project(ctx, "physics"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("no project: %v, want ErrNotFound", err)
		}
		again, err := w.repo.OpenCache(ctx)
		must(t, err)
		equal(t, again.View().Project("default").Shares, 3)
	})
}

func TestTokensThatEndedArePruned(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ended := now.Add(-time.Second)
	for id, ends := range map[string]*time.Time{"old": &ended, "ends": &now, "for-ever": nil} {
		w.reach(w.repo.CreateToken(t.Context(), api.TokenInfo{ID: id, Role: api.RoleAdmin, ExpiresAt: ends}))
	}
	removed, err := w.leader.PruneTokens(t.Context(), w.cache.View(), now)
	must(t, err)
	equal(t, removed, 1)
	left, err := w.repo.Tokens(t.Context())
	must(t, err)
	equal(t, len(left), 2)
	equal(t, left[0].ID+left[1].ID, "endsfor-ever")
}

func TestAForgottenNodeLeavesNothing(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		w.reach(w.repo.PutNode(ctx, api.NodeRecord{Name: "n1"}))
		_, rev, err := w.repo.EnrollNode(ctx, identity("n1", "k1"), nil)
		w.reach(rev, err)
		_, rev, err = w.repo.SetDrain(ctx, "n1", "broken", "eve", now)
		w.reach(rev, err)
		w.reach(w.repo.ForgetNode(ctx, w.cache.View(), "n1"))
		if w.cache.View().Node("n1") != nil {
			t.Error("the node, its identity or its drain is still there")
		}
		_, rev, err = w.repo.EnrollNode(ctx, identity("n3", "k3"), nil) // its agent has never called
		w.reach(rev, err)
		w.reach(w.repo.ForgetNode(ctx, w.cache.View(), "n3"))
		if w.cache.View().Node("n3") != nil {
			t.Error("a node with nothing but an identity is still there")
		}
		if _, err := w.repo.ForgetNode(ctx, w.cache.View(), "n2"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("no node: %v, want ErrNotFound", err)
		}
	})
}

func TestANodeIsNotForgottenWhileSomethingIsOnIt(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	for _, name := range []string{"node-0", "node-1", "node-2"} {
		rev, err := w.repo.PutNode(ctx, api.NodeRecord{Name: name})
		w.reach(rev, err)
	}
	as := w.first(2)
	for i, a := range as {
		if _, err := w.repo.ForgetNode(ctx, w.cache.View(), a.Node); !errors.Is(err, state.ErrInUse) || !strings.Contains(err.Error(), a.ID) {
			t.Errorf("member %d is on it: %v, want ErrInUse that names it", i, err)
		}
	}
	rec := w.generation(2, api.ClusterDeleting)
	w.reach(w.leader.Commit(ctx, w.c1(), state.Write{Record: rec, Quarantines: []api.Quarantine{{Assignment: as[0]}}}))
	// A machine that never comes back can't clean what is quarantined on it.
	w.reach(w.repo.ForgetNode(ctx, w.cache.View(), "node-0"))
}

func TestADrainIsSetOnceAndEnds(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		if _, _, err := w.repo.SetDrain(ctx, "n1", "", "", now); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("drain of no node: %v, want ErrNotFound", err)
		}
		if _, err := w.repo.Undrain(ctx, "n1"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("undrain of no node: %v, want ErrNotFound", err)
		}
		rev, err := w.repo.PutNode(ctx, api.NodeRecord{Name: "n1"})
		w.reach(rev, err)
		want := api.NodeControl{Name: "n1", Drained: true, Reason: "disk", By: "eve", Since: now}
		got, first, err := w.repo.SetDrain(ctx, "n1", "disk", "eve", now)
		w.reach(first, err)
		equal(t, got, want)
		for _, reason := range []string{"", "disk"} {
			got, rev, err := w.repo.SetDrain(ctx, "n1", reason, "ann", now.Add(time.Hour))
			must(t, err)
			equal(t, got, want)
			equal(t, rev, first)
		}
		want.Reason, want.By = "fan", "ann"
		got, rev, err = w.repo.SetDrain(ctx, "n1", "fan", "ann", now.Add(time.Hour))
		w.reach(rev, err)
		equal(t, got, want)
		equal(t, *w.cache.View().Node("n1").Control, want)
		for range 2 {
			rev, err = w.repo.Undrain(ctx, "n1")
			w.reach(rev, err)
			if c := w.cache.View().Node("n1").Control; c != nil {
				t.Errorf("still drained: %+v", *c)
			}
		}
	})
}

func TestANodeForgottenMeanwhileIsNotDrained(t *testing.T) {
	w := newWorld(t, openMemory(t))
	ctx := t.Context()
	rev, err := w.repo.PutNode(ctx, api.NodeRecord{Name: "n1"})
	w.reach(rev, err)
	w.store.fail = func([]store.Op) error {
		w.store.fail = nil
		_, err := state.New(w.store.Store).ForgetNode(ctx, w.cache.View(), "n1")
		return err
	}
	if _, _, err := w.repo.SetDrain(ctx, "n1", "", "", now); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	left, err := w.store.List(ctx, "node")
	must(t, err)
	equal(t, len(left.Entries), 0)
}

func TestTheNewestUseOfATokenIsStored(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		w.reach(w.repo.CreateToken(ctx, api.TokenInfo{ID: "a", User: "ann", Role: api.RoleAdmin, SHA256: "12", CreatedAt: now}))
		for _, tt := range []struct{ at, want time.Time }{
			{now.Add(time.Hour), now.Add(time.Hour)}, {now.Add(time.Minute), now.Add(time.Hour)}, {now.Add(2 * time.Hour), now.Add(2 * time.Hour)},
		} {
			must(t, w.repo.NoteTokenUses(ctx, []state.TokenUse{{ID: "a", At: tt.at, From: "10.0.0.7"}, {ID: "gone", At: tt.at}}))
			all, err := w.repo.Tokens(ctx)
			must(t, err)
			equal(t, len(all), 1)
			equal(t, all[0], api.TokenInfo{
				ID: "a", User: "ann", Role: api.RoleAdmin, SHA256: "12", CreatedAt: now, LastUsedAt: &tt.want, LastUsedFrom: "10.0.0.7",
			})
		}
	})
}

func TestATokenThatIsRevokedAsItsUseIsStoredStaysRevoked(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		for _, id := range []string{"a", "b"} {
			w.reach(w.repo.CreateToken(ctx, api.TokenInfo{ID: id, Role: api.RoleAdmin, CreatedAt: now}))
		}
		w.meanwhile(func() error {
			_, err := w.repo.DeleteToken(ctx, "", "a")
			return err
		})
		must(t, w.repo.NoteTokenUses(ctx, []state.TokenUse{{ID: "a", At: now}, {ID: "b", At: now}}))
		all, err := w.repo.Tokens(ctx)
		must(t, err)
		if len(all) != 1 || all[0].ID != "b" || all[0].LastUsedAt == nil {
			t.Errorf("stored %+v, want b alone, used", all)
		}
	})
}

func TestUsesOfMoreTokensThanOneCommitHoldsAreStored(t *testing.T) {
	w := newWorld(t, openMemory(t))
	var uses []state.TokenUse
	for i := range store.MaxOps + 1 {
		id := fmt.Sprintf("t%03d", i)
		w.reach(w.repo.CreateToken(t.Context(), api.TokenInfo{ID: id, Role: api.RoleAdmin, CreatedAt: now}))
		uses = append(uses, state.TokenUse{ID: id, At: now})
	}
	must(t, w.repo.NoteTokenUses(t.Context(), uses))
	all, err := w.repo.Tokens(t.Context())
	must(t, err)
	for _, token := range all {
		if token.LastUsedAt == nil {
			t.Errorf("the use of %s is not stored", token.ID)
		}
	}
}
