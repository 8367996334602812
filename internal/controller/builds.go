package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store"
)

// buildAttempts is how often a build is given to a node before it has failed: a node that goes away is not the recipe's fault.
const buildAttempts = 3

// builds plans every build that has not ended and makes the plans true.
func (p *pass) builds(ctx context.Context) error {
	var errs []error
	busy := map[string]string{}
	var open []*api.Build
	for _, b := range p.view.Builds {
		if b.Phase == api.BuildRunning {
			busy[b.Node] = b.ID
		}
		if !b.Phase.Ended() {
			open = append(open, b)
		}
	}
	slices.SortStableFunc(open, func(a, b *api.Build) int { return a.CreatedAt.Compare(b.CreatedAt) }) // who came first is built first
	observed := p.cfg.Agents.Builds()
	for _, b := range open {
		next, manifest := planBuild(*b, p.buildSeen(b, busy, observed), p.now)
		if next == nil {
			continue
		}
		if next.Phase == api.BuildRunning && b.Phase == api.BuildPending {
			busy[next.Node] = b.ID
		}
		err := p.commitBuild(ctx, b, *next, manifest)
		if errors.Is(err, store.ErrNotLeader) {
			return err
		}
		if err != nil && !errors.Is(err, store.ErrConflict) {
			errs = append(errs, fmt.Errorf("build %s of %q: %w", b.ID, b.Environment, err))
		}
	}
	return errors.Join(errs...)
}

func (p *pass) nodeIsDown(name string) bool {
	return name != "" && (p.view.Node(name) == nil || p.Nodes[name].Phase == api.NodeDown)
}

// builder is the node that a pending build is to go to: one that can build and builds nothing, for nodes build one thing at a time. busy has
// the build of each node that has one.
func (p *pass) builder(b *api.Build, busy map[string]string) (choice builderChoice) {
	if b.Phase != api.BuildPending {
		return builderChoice{}
	}
	choice.waits = "waiting: no node accepts builds; start an agent with --builder auto"
	behind := ""
	for _, n := range p.view.Nodes {
		switch {
		case n.Builder == nil:
		case !n.Builder.OK:
			choice.waits = fmt.Sprintf("waiting: node %s can't build: %s", n.Name, first(n.Builder.Problems))
		case p.Nodes[n.Name].Phase != api.NodeReady:
			choice.waits = fmt.Sprintf("waiting: the builder node %s is %s", n.Name, p.Nodes[n.Name].Phase)
		case busy[n.Name] != "":
			behind = fmt.Sprintf("waiting for build %s on node %s", busy[n.Name], n.Name)
		default:
			return builderChoice{node: n.Name}
		}
	}
	if behind != "" { // that ends by itself, the others' troubles do not
		choice.waits = behind
	}
	return choice
}

// builderChoice is the node for a build, or what it waits for.
type builderChoice struct{ node, waits string }

// buildSeen is what the next step of a build depends on.
type buildSeen struct {
	builderChoice
	// heard: its node is connected, and said has all that it says of builds; down: it is gone.
	heard, down bool
	said        []agentstream.BuildObserved
	// bases are the images that the recipe stands on, by environment; refused why it can't be built at all; reuse an image of the same
	// recipe on the same bases, nil for none. All three are of pending builds only.
	bases   map[string]string
	refused string
	reuse   *api.Image
}

func (p *pass) buildSeen(b *api.Build, busy map[string]string, said map[string][]agentstream.BuildObserved) buildSeen {
	seen := buildSeen{builderChoice: p.builder(b, busy), down: p.nodeIsDown(b.Node), said: said[b.Node]}
	if b.Node != "" {
		seen.heard, _ = p.cfg.Agents.Connected(b.Node)
	}
	if b.Phase == api.BuildPending {
		seen.bases, seen.reuse, seen.refused = standsOn(p.view, b)
	}
	return seen
}

// standsOn looks up what a build stands on, and whether there is its image already. A recipe that takes in files of the builder node is always
// built: nobody knows what they hold now.
func standsOn(view *state.View, b *api.Build) (bases map[string]string, reuse *api.Image, refused string) {
	r, err := recipe.Parse([]byte(b.Recipe))
	if err != nil {
		return nil, nil, "the recipe can't be read: " + err.Error()
	}
	bases = map[string]string{}
	for _, name := range r.Needs() {
		img := view.ImageOf(name)
		if img == nil {
			return nil, nil, fmt.Sprintf("its base environment %q is not built; run: nearmetal env build %s", name, name)
		}
		bases[name] = img.Digest
	}
	if b.Force || r.Local() {
		return bases, nil, ""
	}
	digest := r.DigestOn(bases)
	for _, img := range view.Images {
		if img.RecipeDigest == digest && img.Environment == r.Name {
			reuse = img
		}
	}
	return bases, reuse, ""
}

func first(list []string) string {
	if len(list) == 0 {
		return "no reason was given"
	}
	return list[0]
}

// planBuild is what becomes of a build, nil for no change, and the manifest of the image when it has succeeded. It is pure.
func planBuild(b api.Build, seen buildSeen, now time.Time) (*api.Build, image.Digest) {
	next := b
	end := func(phase api.BuildPhase, message string) {
		at := now
		next.Phase, next.Message, next.EndedAt = phase, message, &at
	}
	switch {
	case b.Phase == api.BuildPending && b.CancelRequested:
		end(api.BuildCancelled, "cancelled before it began")
		return &next, ""
	case b.Phase == api.BuildPending && seen.refused != "":
		end(api.BuildFailed, seen.refused)
		return &next, ""
	case b.Phase == api.BuildPending && seen.reuse != nil:
		next.Percent, next.Digest, next.Reused = 100, seen.reuse.Digest, true
		end(api.BuildSucceeded, "an image of the same recipe already exists; use --force to rebuild it with today's packages")
		return &next, image.Digest(seen.reuse.Digest)
	case b.Phase == api.BuildPending && seen.node != "":
		at := now
		next.Bases = seen.bases
		next.Phase, next.Node, next.Message, next.StartedAt = api.BuildRunning, seen.node, "", &at
		next.Attempt++
		return &next, ""
	case b.Phase == api.BuildPending:
		next.Message = seen.waits
		return changed(b, next), ""
	case seen.down && b.Attempt < buildAttempts && !b.CancelRequested:
		next.Phase, next.Message, next.Node, next.Step, next.Percent = api.BuildPending, fmt.Sprintf("node %s is gone; the build starts again", b.Node), "", "", 0
		return &next, ""
	case seen.down:
		end(api.BuildFailed, fmt.Sprintf("node %s is gone", b.Node))
		return &next, ""
	}
	for _, o := range seen.said {
		if o.ID != b.ID || o.Attempt != b.Attempt {
			continue
		}
		// Each change is a commit: not every percent is worth one.
		next.Step, next.Percent, next.LogBytes = o.Step, o.Percent/5*5, b.LogBytes
		switch {
		case o.Phase == api.BuildSucceeded:
			next.Percent, next.LogBytes, next.Step = 100, o.LogBytes, ""
			end(api.BuildSucceeded, o.Message)
			next.Digest = string(o.Manifest)
			return &next, o.Manifest
		case o.Phase.Ended():
			next.LogBytes = o.LogBytes
			end(o.Phase, o.Message)
			return &next, ""
		}
		return changed(b, next), ""
	}
	// A node says nothing more of a build that it was told to end and has ended.
	if b.CancelRequested && seen.heard {
		end(api.BuildCancelled, "cancelled")
		return &next, ""
	}
	return nil, ""
}

// changed is next, or nil when nothing differs.
func changed(b, next api.Build) *api.Build {
	if b.Step == next.Step && b.Percent == next.Percent && b.Message == next.Message {
		return nil
	}
	return &next
}

// commitBuild makes what became of a build true. A success makes its image true, and the environment's name stand for it, in one commit.
func (p *pass) commitBuild(ctx context.Context, before *api.Build, next api.Build, manifest image.Digest) error {
	if manifest == "" {
		_, revision, err := p.cfg.Repo.UpdateBuild(ctx, next.ID, func(b *api.Build) error {
			cancel := b.CancelRequested
			*b = next
			b.CancelRequested = cancel || next.CancelRequested
			return nil
		})
		p.committed = max(p.committed, revision)
		return err
	}
	m, err := p.cfg.Images.Load(manifest)
	if err == nil {
		err = p.cfg.Images.Complete(manifest)
	}
	if err != nil {
		err = fmt.Errorf("the site's store lacks parts of the built image: %w", err)
	} else {
		err = madeOf(m, next)
	}
	if err != nil {
		at := p.now
		next.Phase, next.EndedAt, next.Message, next.Digest, next.Reused = api.BuildFailed, &at, err.Error(), "", false
		return p.commitBuild(ctx, before, next, "")
	}
	img := imageOf(m, manifest)
	img.BuiltAt, img.BuildID = p.now, next.ID
	revision, err := p.writer.FinishBuild(ctx, next, img, api.EnvironmentRecord{
		Name: m.Environment, Digest: string(manifest), Recipe: next.Recipe, UpdatedAt: p.now,
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

// imageOf is what the API tells of an image.
func imageOf(m *image.Manifest, digest image.Digest) api.Image {
	img := api.Image{
		Digest: string(digest), Environment: m.Environment, Description: m.Description, RecipeDigest: m.RecipeDigest, Architecture: m.Architecture,
		Stacks: m.Stacks, Requirements: m.Requirements, RootBytes: m.Root.SizeBytes, RootUnpackedBytes: m.Root.UnpackedBytes,
	}
	for _, l := range m.Layers {
		img.RootBytes += l.SizeBytes
		img.RootUnpackedBytes += l.UnpackedBytes
	}
	if m.Metal != nil {
		img.MetalBytes, img.KernelVersion = m.Metal.Kernel.SizeBytes+m.Metal.Initrd.SizeBytes, m.Metal.KernelVersion
	}
	return img
}

// pinImages gives new assignments the images that their environments' names stand for. Members of one group run one image: those that
// come later get that of those that are there.
func pinImages(view *state.View, c *state.Cluster, assignments []api.Assignment) {
	held := map[string]string{}
	for a := range c.Held() {
		held[a.Group] = a.EnvironmentDigest
	}
	for i := range assignments {
		a := &assignments[i]
		if digest, ok := held[a.Group]; ok {
			a.EnvironmentDigest = digest
		} else if img := view.ImageOf(a.Environment); img != nil {
			a.EnvironmentDigest = img.Digest
		}
	}
}
