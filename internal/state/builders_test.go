package state_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

func TestTrustInABuilderEndsWithItsNode(t *testing.T) {
	onEveryStore(t, func(t *testing.T, s store.Store) {
		w := newWorld(t, s)
		ctx := t.Context()
		if _, err := w.repo.TrustBuilder(ctx, "n1", "eve", now); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("trust in no node: %v, want ErrNotFound", err)
		}
		if _, err := w.repo.DistrustBuilder(ctx, "n1"); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("the end of trust in no node: %v, want ErrNotFound", err)
		}
		joins := func() { w.reach(w.repo.PutNode(ctx, api.NodeRecord{Name: "n1", Builder: &api.BuilderCheck{OK: true}})) }
		joins()
		if w.cache.View().Node("n1").TrustedBuilder() {
			t.Error("a node that offers to build is trusted by that")
		}
		w.reach(w.repo.TrustBuilder(ctx, "n1", "eve", now))
		w.reach(w.repo.TrustBuilder(ctx, "n1", "ann", now.Add(time.Hour)))
		want := api.NodeControl{Name: "n1", Builder: &api.BuilderTrust{By: "eve", Since: now}}
		equal(t, *w.cache.View().Node("n1").Control, want)
		_, rev, err := w.repo.SetDrain(ctx, "n1", "disk", "ann", now)
		w.reach(rev, err)
		w.reach(w.repo.Undrain(ctx, "n1"))
		equal(t, *w.cache.View().Node("n1").Control, want)
		_, rev, err = w.repo.SetDrain(ctx, "n1", "disk", "ann", now)
		w.reach(rev, err)
		for range 2 {
			w.reach(w.repo.DistrustBuilder(ctx, "n1"))
			equal(t, *w.cache.View().Node("n1").Control, api.NodeControl{Name: "n1", Drained: true, Reason: "disk", By: "ann", Since: now})
		}
		_, rev, err = w.repo.EnrollNode(ctx, api.NodeIdentity{Node: "n1", ID: "i1", Key: "k1", EnrolledAt: now, ApprovedAt: &now}, nil)
		w.reach(rev, err)
		w.reach(w.repo.TrustBuilder(ctx, "n1", "eve", now))
		equal(t, w.cache.View().Node("n1").IdentityID(), "i1")
		w.reach(w.repo.RevokeNode(ctx, "n1"))
		equal(t, *w.cache.View().Node("n1").Control, api.NodeControl{Name: "n1", Drained: true, Reason: "disk", By: "ann", Since: now})
		w.reach(w.repo.TrustBuilder(ctx, "n1", "eve", now))
		w.reach(w.repo.ForgetNode(ctx, w.cache.View(), "n1"))
		joins()
		if w.cache.View().Node("n1").TrustedBuilder() {
			t.Error("a node that was forgotten is trusted when it comes back")
		}
	})
}

// finish ends a build of an image that was built by these nodes.
func (w *world) finish(id string, reused bool, by ...api.BuiltBy) (int64, error) {
	img := image("e", 1)
	build := api.Build{ID: id, Environment: "e", Phase: api.BuildRunning}
	w.reach(w.repo.CreateBuild(w.Context(), build))
	build.Phase, build.Digest, build.Reused, build.Built, img.BuiltBy = api.BuildSucceeded, img.Digest, reused, by, by
	return w.leader.FinishBuild(w.Context(), build, img, api.EnvironmentRecord{Name: "e", Digest: img.Digest})
}

func TestOnlyAnImageThatIsVouchedForIsRegistered(t *testing.T) {
	good, other := image("e", 1).Digest, image("e", 2).Digest
	trusted := api.BuiltBy{Node: "n1", Trusted: true, Digest: good}
	for name, test := range map[string]struct {
		reused  bool
		by      []api.BuiltBy
		vouched bool
	}{
		"a trusted builder built it":                   {false, []api.BuiltBy{trusted}, true},
		"a node that was trusted built it":             {false, []api.BuiltBy{{Node: "n2", Trusted: true, Digest: good}}, false},
		"a node built it before it was trusted":        {false, []api.BuiltBy{{Node: "n1", Digest: good}}, false},
		"a trusted builder built something else":       {false, []api.BuiltBy{{Node: "n1", Trusted: true, Digest: other}}, false},
		"a node that has left built it":                {false, []api.BuiltBy{{Node: "n9", Trusted: true, Digest: good}}, false},
		"nobody built it":                              {false, nil, false},
		"two nodes built it":                           {false, []api.BuiltBy{{Node: "n2", Digest: good}, {Node: "n3", Digest: good}}, true},
		"one node built it twice":                      {false, []api.BuiltBy{{Node: "n2", Digest: good}, {Node: "n2", Digest: good}}, false},
		"two nodes of one identity built it":           {false, []api.BuiltBy{{Node: "n2", Identity: "i", Digest: good}, {Node: "n3", Identity: "i", Digest: good}}, false},
		"the second of two nodes built something else": {false, []api.BuiltBy{{Node: "n2", Digest: good}, {Node: "n3", Digest: other}}, false},
		"it is used again, but not there":              {true, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, openMemory(t))
			for _, node := range []string{"n1", "n2", "n3"} {
				w.reach(w.repo.PutNode(t.Context(), api.NodeRecord{Name: node}))
			}
			w.reach(w.repo.TrustBuilder(t.Context(), "n1", "eve", now))
			_, err := w.finish("b1", test.reused, test.by...)
			if test.vouched && err != nil || !test.vouched && !errors.Is(err, store.ErrConflict) {
				t.Errorf("got %v, want it registered: %t", err, test.vouched)
			}
			stored, err := w.store.List(t.Context(), "image/")
			must(t, err)
			equal(t, len(stored.Entries) == 1, test.vouched)
		})
	}
}

func TestABuilderThatLosesItsTrustMeanwhileRegistersNothing(t *testing.T) {
	w := newWorld(t, openMemory(t))
	w.reach(w.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
	w.reach(w.repo.TrustBuilder(t.Context(), "n1", "eve", now))
	img := image("e", 1)
	build := api.Build{ID: "b1", Environment: "e", Phase: api.BuildRunning}
	w.reach(w.repo.CreateBuild(t.Context(), build))
	img.BuiltBy = []api.BuiltBy{{Node: "n1", Trusted: true, Digest: img.Digest}}
	build.Phase, build.Digest = api.BuildSucceeded, img.Digest
	w.store.fail = func([]store.Op) error {
		w.store.fail = nil
		_, err := state.New(w.store.Store).DistrustBuilder(t.Context(), "n1")
		return err
	}
	if _, err := w.leader.FinishBuild(t.Context(), build, img, api.EnvironmentRecord{Name: "e", Digest: img.Digest}); !errors.Is(err, store.ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
}

func TestAnImageKeepsAllThatHaveBuiltIt(t *testing.T) {
	w := newWorld(t, openMemory(t))
	digest := image("e", 1).Digest
	for _, node := range []string{"n1", "n2", "n3"} {
		w.reach(w.repo.PutNode(t.Context(), api.NodeRecord{Name: node}))
		w.reach(w.repo.TrustBuilder(t.Context(), node, "eve", now))
	}
	two := []api.BuiltBy{{Node: "n1", Digest: digest, At: now}, {Node: "n2", Digest: digest, At: now}}
	trusted := func(node string) api.BuiltBy {
		return api.BuiltBy{Node: node, Trusted: true, Digest: digest, At: now.Add(time.Hour)}
	}
	w.reach(w.finish("b1", false, two...))
	for i, by := range []api.BuiltBy{trusted("n3"), trusted("n2"), trusted("n3")} {
		w.reach(w.finish(fmt.Sprintf("b%d", i+2), false, by))
	}
	w.reach(w.finish("b9", true))
	equal(t, w.cache.View().ImageOf("e").BuiltBy, []api.BuiltBy{two[0], trusted("n2"), trusted("n3")})
}
