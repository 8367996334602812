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
	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/recipes"
)

// builtHere is the environment that operators have built; all others are there from the start.
const builtHere = "rescue"

// forged is what a rogue builder node reports instead.
const forged = "forged"

// The rogue builder offers itself and is never trusted. The others are, but for a while now and then.
const rogueBuilder = "n1"

var honestBuilders = []string{"n2", "n3"}

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

// trustPause is how often operators look whether the honest builders are trusted.
const trustPause = 20 * time.Second

// scheduleTrust lets operators trust the honest builders as soon as they are there, and take the trust from one for a moment now and then.
func (w *world) scheduleTrust() {
	r := source(w.cfg.Seed, "trust")
	var next func()
	next = func() {
		ends, node, after := r.IntN(8) == 0, honestBuilders[r.IntN(len(honestBuilders))], span(r, 0, trustPause)
		if s := w.up(); s != nil && w.cfg.Kinds.Has(Builds) {
			w.trustBuilders(s)
			if ends && !w.isCalm() {
				w.after(after, func() { w.distrust(node) })
			}
		}
		w.after(trustPause, next)
	}
	next()
}

func (w *world) trustBuilders(s *server) {
	view := s.cache.View()
	for _, name := range honestBuilders {
		if n := view.Node(name); n != nil && n.Agent != nil && !n.TrustedBuilder() {
			w.trace("%s is trusted as a builder", name)
			_, _ = s.repo.TrustBuilder(s.ctx, name, "operator", s.now())
		}
	}
	if !w.isCalm() {
		return
	}
	for _, b := range view.Builds { // what no second node may come to verify is not waited for
		if b.Verify && b.Phase == api.BuildPending && !b.CancelRequested {
			_, _, _ = s.repo.UpdateBuild(s.ctx, b.ID, func(b *api.Build) error {
				b.CancelRequested = !b.Phase.Ended()
				return nil
			})
		}
	}
}

func (w *world) distrust(node string) {
	if s := w.up(); s != nil && s.cache.View().Node(node).TrustedBuilder() {
		w.trace("%s is trusted no longer", node)
		_, _ = s.repo.DistrustBuilder(s.ctx, node)
	}
}

// checkBuilder checks that a build is given to a builder that an operator trusts, or to two different nodes.
func (m *mirror) checkBuilder(b *api.Build) {
	if b.Phase != api.BuildRunning {
		return
	}
	if b.Node == rogueBuilder && !b.Verify {
		m.w.fail("builders", "build %s is given to %s, which nobody has ever trusted", b.ID, b.Node)
	}
	for _, by := range b.Built {
		if by.Node == b.Node {
			m.w.fail("builders", "build %s is verified by %s, which built it", b.ID, b.Node)
		}
	}
}

// checkImage checks that what becomes an image was built by a builder that is trusted now, or by two nodes alike, and that no image is forged.
func (m *mirror) checkImage(img *api.Image) {
	if _, _, digest := manifestOf(forged); img.Digest == string(digest) {
		m.w.fail("builders", "the image that %s forged is registered", rogueBuilder)
	}
	nodes := map[string]bool{}
	for _, by := range img.BuiltBy {
		nodes[by.Node] = by.Digest == img.Digest
		if by.Trusted && m.trusted[by.Node] && nodes[by.Node] {
			return
		}
	}
	alike := 0
	for _, same := range nodes {
		if same {
			alike++
		}
	}
	if alike < 2 && img.Environment == builtHere {
		m.w.fail("builders", "image %s of %q is registered, but its builders %v are not trusted, nor two", img.Digest, img.Environment, img.BuiltBy)
	}
}

// putControl notes which builders are trusted.
func (m *mirror) putControl(name string, op store.Op) {
	m.trusted[name] = !op.Delete && decodeOp[api.NodeControl](m.w, op).Builder != nil
}

// putImage checks an image when it becomes one.
func (m *mirror) putImage(digest string, op store.Op) {
	if !op.Delete && !m.images[digest] {
		m.checkImage(decodeOp[api.Image](m.w, op))
	}
	m.images[digest] = !op.Delete
}

func (w *world) build(r *rand.Rand) {
	force, cancel, verify, after := r.IntN(3) > 0, r.IntN(4) == 0, r.IntN(3) == 0, span(r, 0, 90*time.Second)
	s := w.up()
	if s == nil || !w.cfg.Kinds.Has(Builds) {
		return
	}
	w.ids++
	b := api.Build{
		ID: fmt.Sprintf("b%d", w.ids), Environment: builtHere, Recipe: recipeText(), RecipeDigest: recipeDigest(), Force: force, Verify: verify,
		Phase: api.BuildPending, CreatedAt: s.now(),
	}
	if w.drawnFor(b.ID+" of an older version", 10) == 0 {
		b.Recipe = "name: [" // another version of the server could read it
	}
	if _, err := s.repo.CreateBuild(s.ctx, b); err != nil {
		return
	}
	w.happened(Builds.String())
	w.trace("build %s, by force: %t, to be verified: %t", b.ID, force, verify)
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
					made := builtHere
					if a.n.record.Name == rogueBuilder && w.drawnFor(key+" forged", 3) > 0 {
						made = forged
					}
					_, _, digest := manifestOf(made)
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
