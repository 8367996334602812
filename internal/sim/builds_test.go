package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/recipes"
)

// builtHere is the environment that operators have built; all others are there from the start.
const builtHere = "rescue"

func recipeText() string {
	text, _ := recipes.Catalog{}.Shipped(builtHere)
	return string(text)
}

func recipeDigest() string {
	r, err := recipe.Parse([]byte(recipeText()))
	if err != nil {
		panic(err)
	}
	return r.DigestOn(nil)
}

// scheduleBuilds lets operators have an environment built now and then, and cancel some.
func (w *world) scheduleBuilds() {
	r := source(w.cfg.Seed, "builds")
	var next func()
	next = func() {
		if w.isCalm() {
			return
		}
		w.build(r)
		w.after(span(r, 20*time.Second, 5*time.Minute), next)
	}
	w.after(span(r, time.Second, 2*time.Minute), next)
}

func (w *world) build(r *rand.Rand) {
	force, cancel, after := r.IntN(3) > 0, r.IntN(4) == 0, span(r, 0, 90*time.Second)
	s := w.up()
	if s == nil || !w.cfg.Kinds.Has(Builds) {
		return
	}
	w.ids++
	b := api.Build{
		ID: fmt.Sprintf("b%d", w.ids), Environment: builtHere, Recipe: recipeText(), RecipeDigest: recipeDigest(), Force: force,
		Phase: api.BuildPending, CreatedAt: s.now(),
	}
	if w.drawnFor(b.ID+" of an older version", 10) == 0 {
		b.Recipe = "name: [" // another version of the server could read it
	}
	if _, err := s.repo.CreateBuild(s.ctx, b); err != nil {
		return
	}
	w.happened(Builds.String())
	w.trace("build %s, by force: %t", b.ID, force)
	if !cancel {
		return
	}
	w.after(after, func() {
		if s := w.up(); s != nil {
			w.trace("build %s is cancelled", b.ID)
			_, _, _ = s.repo.UpdateBuild(s.ctx, b.ID, func(b *api.Build) error {
				b.CancelRequested = !b.Phase.Ended()
				return nil
			})
		}
	})
}

// buildRun is a build on a node: it ends with the agent.
type buildRun struct{ agentstream.BuildObserved }

// runBuilds begins the builds that are wanted, and ends those that no longer are.
func (a *agent) runBuilds() {
	w, wanted := a.n.w, map[string]bool{}
	for i := range a.wantedBuilds {
		b := &a.wantedBuilds[i]
		key := b.RunID()
		wanted[key] = true
		if a.builds[key] != nil {
			continue
		}
		began := time.Now()
		run := &buildRun{agentstream.BuildObserved{ID: b.ID, Attempt: b.Attempt, Phase: api.BuildRunning, Step: "packages", StartedAt: &began}}
		a.builds[key] = run
		w.after(time.Duration(5+w.drawnFor(key, 120))*time.Second, func() {
			a.run(func() {
				if a.builds[key] != run {
					return
				}
				at := time.Now()
				run.Phase, run.EndedAt, run.Message = api.BuildFailed, &at, "a package is missing"
				if w.drawnFor(key+" end", 4) > 0 {
					_, _, digest := manifestOf(builtHere)
					run.Phase, run.Message, run.Manifest, run.Percent = api.BuildSucceeded, "", digest, 100
				}
				a.wake(0)
			})
		})
	}
	maps.DeleteFunc(a.builds, func(key string, _ *buildRun) bool { return !wanted[key] })
}

// buildsObserved is what the agent says of builds.
func (a *agent) buildsObserved() []agentstream.BuildObserved {
	var all []agentstream.BuildObserved
	for _, key := range slices.Sorted(maps.Keys(a.builds)) {
		all = append(all, a.builds[key].BuildObserved)
	}
	return all
}
