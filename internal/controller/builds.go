package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// builds plans every build that has not ended and makes the plans true.
func (p *pass) builds(ctx context.Context) error {
	var errs []error
	busy := map[string]string{} // the build of each node that has one
	var open []*api.Build
	for _, b := range p.view.Builds {
		if b.Phase == api.BuildRunning {
			busy[b.Node] = b.ID
		}
		if !b.Phase.Ended() {
			open = append(open, b)
		}
	}
	slices.SortStableFunc(open, func(a, b *api.Build) int { return a.CreatedAt.Compare(b.CreatedAt) }) // the oldest is built first
	p.recipes.keepOnly(open)
	reported := p.cfg.Agents.Builds()
	for _, b := range open {
		next := lifecycle.PlanBuild(p.buildInput(b, busy, reported))
		if reflect.DeepEqual(next, *b) {
			continue
		}
		if next.Phase == api.BuildRunning && b.Phase == api.BuildPending {
			busy[next.Node] = b.ID
		}
		err := p.commitBuild(ctx, b, next)
		if errors.Is(err, store.ErrNotLeader) {
			return err
		}
		if err != nil && !errors.Is(err, store.ErrConflict) {
			errs = append(errs, fmt.Errorf("build %s of %q: %w", b.ID, b.Environment, err))
		}
	}
	return errors.Join(errs...)
}

// buildInput is what a decision about one build depends on.
func (p *pass) buildInput(b *api.Build, busy map[string]string, reported map[string][]agentstream.BuildObserved) lifecycle.BuildInput {
	in := lifecycle.BuildInput{Build: *b, Now: p.now}
	if b.Phase == api.BuildPending {
		in.Recipe, in.Builders = p.recipes.of(p.view, b), p.builders(busy)
		return in
	}
	in.Trusted, in.Identity = p.view.Node(b.Node).TrustedBuilder(), p.view.Node(b.Node).IdentityID()
	in.Gone = b.Node != "" && (p.view.Agent(b.Node) == nil || p.Nodes[b.Node].Phase == api.NodeDown)
	if b.Node != "" {
		in.Heard, _ = p.cfg.Agents.Connected(b.Node)
	}
	for _, o := range reported[b.Node] {
		in.Seen = append(in.Seen, lifecycle.BuildSeen{
			ID: o.ID, Attempt: o.Attempt, Phase: o.Phase, Step: o.Step, Percent: o.Percent, Message: o.Message, Manifest: string(o.Manifest),
			LogBytes: o.LogBytes,
		})
	}
	return in
}

// builders are the nodes that were set up to build. busy has the build of each node that has one.
func (p *pass) builders(busy map[string]string) []lifecycle.Builder {
	var all []lifecycle.Builder
	for n := range p.view.Agents() {
		if n.Builder != nil {
			all = append(all, lifecycle.Builder{
				Node: n.Name, Check: *n.Builder, Phase: p.Nodes[n.Name].Phase, Build: busy[n.Name],
				Trusted: p.view.Node(n.Name).TrustedBuilder(), Identity: p.view.Node(n.Name).IdentityID(),
			})
		}
	}
	return all
}

// recipes are those of the builds that wait, by their texts. A build may wait through thousands of passes, and to read a recipe takes longer
// than all the rest of a pass.
type recipes map[string]readRecipe

// readRecipe is a recipe, or what is wrong with it.
type readRecipe struct {
	*recipe.Recipe
	err error
}

// read returns the recipe of a text. It must not be changed.
func (r recipes) read(text string) (*recipe.Recipe, error) {
	known, ok := r[text]
	if !ok {
		known.Recipe, known.err = recipe.Parse([]byte(text))
		r[text] = known
	}
	return known.Recipe, known.err
}

// keepOnly forgets the recipes of builds that do not wait any more.
func (r recipes) keepOnly(open []*api.Build) {
	if len(r) == 0 {
		return
	}
	waits := map[string]bool{}
	for _, b := range open {
		waits[b.Recipe] = waits[b.Recipe] || b.Phase == api.BuildPending
	}
	maps.DeleteFunc(r, func(text string, _ readRecipe) bool { return !waits[text] })
}

// of looks up what the recipe of a build is built on, and whether there is its image already.
func (r recipes) of(view *state.View, b *api.Build) lifecycle.BuildRecipe {
	read, err := r.read(b.Recipe)
	if err != nil {
		return lifecycle.BuildRecipe{Problem: err.Error()}
	}
	out := lifecycle.BuildRecipe{Bases: map[string]string{}, Local: read.Local()}
	for _, name := range read.Needs() {
		img := view.ImageOf(name)
		if b.Project != "" { // changed files fit the image that their member had, and no later one
			img = view.Image(b.Bases[name])
		}
		if img == nil {
			return lifecycle.BuildRecipe{Missing: name}
		}
		out.Bases[name] = img.Digest
	}
	digest := read.DigestOn(out.Bases)
	for _, img := range view.Images {
		if img.RecipeDigest == digest && img.Environment == read.Name {
			out.Image = img
		}
	}
	return out
}

// commitBuild makes what becomes of a build true. A success makes its image true, and the environment's name stand for it, in one commit. A
// change of phase that the table of builds does not have is refused.
func (p *pass) commitBuild(ctx context.Context, before *api.Build, next api.Build) error {
	if next.Phase != api.BuildSucceeded || next.Digest == "" {
		_, revision, err := p.writer.UpdateBuild(ctx, next.ID, func(b *api.Build) error {
			if err := lifecycle.Builds().CheckChange(b.Phase, next.Phase); err != nil {
				return err
			}
			cancel := b.CancelRequested
			*b = next
			b.CancelRequested = cancel || next.CancelRequested
			return nil
		})
		p.committed = max(p.committed, revision)
		return err
	}
	if err := lifecycle.Builds().CheckChange(before.Phase, next.Phase); err != nil {
		return err
	}
	manifest := image.Digest(next.Digest)
	m, err := p.cfg.Images.Load(manifest)
	if err == nil {
		err = p.cfg.Images.Complete(manifest)
	}
	if err != nil {
		err = fmt.Errorf("the site's store lacks parts of the built image: %w", err)
	} else {
		err = madeOf(m, next)
	}
	if err == nil {
		err = nameIsFree(p.view, next)
	}
	if err != nil {
		at := p.now
		next.Phase, next.EndedAt, next.Message, next.Digest, next.Reused = api.BuildFailed, &at, err.Error(), "", false
		return p.commitBuild(ctx, before, next)
	}
	img := imageOf(m, manifest)
	img.BuiltAt, img.BuildID, img.Bases, img.BuiltBy = p.now, next.ID, next.Bases, next.Built
	revision, err := p.writer.FinishBuild(ctx, next, img, api.EnvironmentRecord{
		Name: m.Environment, Digest: string(manifest), Recipe: next.Recipe, Project: next.Project, Saved: next.Saved, UpdatedAt: p.now,
	})
	p.committed = max(p.committed, revision)
	return err
}

// madeOf refuses an image that is not what was to be built: a builder node must not put its image into the place of any other environment,
// least of all of what strangers boot.
func madeOf(m *image.Manifest, b api.Build) error {
	if m.Environment != b.Environment {
		return fmt.Errorf("node %s was assigned to build %q but reported an image of %q; the image is rejected", b.Node, b.Environment, m.Environment)
	}
	if b.Reused {
		return nil
	}
	r, err := recipe.Parse([]byte(b.Recipe))
	if err != nil {
		return fmt.Errorf("the recipe can't be read: %w", err)
	}
	if m.RecipeDigest != r.DigestOn(b.Bases) {
		return fmt.Errorf("node %s built a different recipe of %q; the image is rejected; build it again", b.Node, b.Environment)
	}
	return nil
}

// nameIsFree refuses to put files that were saved of a member into the place of another environment.
func nameIsFree(view *state.View, b api.Build) error {
	if b.Project == "" || view.Environment(b.Environment) == nil {
		return nil
	}
	return fmt.Errorf("environment %q was made by somebody else meanwhile; save under another name", b.Environment)
}

// imageOf is what the API tells of an image.
func imageOf(m *image.Manifest, digest image.Digest) api.Image {
	img := api.Image{
		Digest: string(digest), Environment: m.Environment, Description: m.Description, RecipeDigest: m.RecipeDigest, Architecture: m.Architecture,
		Stacks: m.Stacks, Requirements: m.Requirements, Services: m.Services, RootBytes: m.Root.SizeBytes, RootUnpackedBytes: m.Root.UnpackedBytes, Disk: m.Disk,
	}
	for _, l := range m.Layers {
		img.RootBytes += l.SizeBytes
		img.RootUnpackedBytes += l.UnpackedBytes
	}
	if m.Metal != nil {
		img.MetalBytes, img.KernelVersion = m.Metal.Kernel.SizeBytes+m.Metal.Initrd.SizeBytes, m.Metal.KernelVersion
		img.Drivers = m.Metal.Drivers
	}
	return img
}

// pinImages gives new assignments the images that their environments' names stand for. Members of one group run one image: those that
// come later get that of those that are there.
func pinImages(view *state.View, c *state.Cluster, assignments []api.Assignment) {
	held := map[string]string{}
	for a := range c.Held() {
		if a.IsPart() || a.IsSnapshot() {
			continue
		}
		held[a.Group] = a.EnvironmentDigest
	}
	for i := range assignments {
		a := &assignments[i]
		if a.IsPart() {
			continue // it runs nothing
		}
		if digest, ok := held[a.Group]; ok {
			a.EnvironmentDigest = digest
		} else if img := view.ImageOf(a.Environment); img != nil {
			a.EnvironmentDigest = img.Digest
		}
	}
}
