package lifecycle

import (
	"fmt"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// buildAttempts is how often a build is given to a node before it has failed: a node that goes away is not the recipe's fault.
const buildAttempts = 3

// BuildRecipe is what is known of the recipe of a build that has not begun.
type BuildRecipe struct {
	// Problem is why the recipe can't be read, "" when it can.
	Problem string
	// Bases are the images that the recipe is built on, by environment, and Missing is the first environment among them without an image.
	Bases   map[string]string
	Missing string
	// Local: it takes files of the builder node, whose content is known nowhere else.
	Local bool
	// Image is the digest of an image of the same recipe on the same bases, "" when there is none.
	Image string
}

// Builder is a node that was set up to build.
type Builder struct {
	Node  string
	Check api.BuilderCheck
	Phase api.NodePhase
	// Build is the ID of the build that the node has, "" for none: a node builds one thing at a time.
	Build string
}

// BuildSeen is what a node last reported of one attempt at a build.
type BuildSeen struct {
	ID      string
	Attempt int
	Phase   api.BuildPhase
	Step    string
	Percent int
	Message string
	// Manifest is the digest of the image, once the build succeeded.
	Manifest string
	LogBytes int64
}

// BuildInput is everything a decision about one build depends on.
type BuildInput struct {
	Build api.Build
	// Recipe and Builders are those of a pending build; builders are chosen in this order.
	Recipe   BuildRecipe
	Builders []Builder
	// Gone: the build's node is down, or no longer in the inventory. Heard: it is connected, and has reported all its builds.
	Gone, Heard bool
	// Seen is what the build's node reported, of this build and others.
	Seen []BuildSeen
	Now  time.Time
}

// PlanBuild returns the build as it should be stored now. It equals the build of the input when there is nothing to do. A build that has
// succeeded names its image by Digest; the image and the name that stands for it become true with it.
func PlanBuild(in BuildInput) api.Build {
	if in.Build.Phase == api.BuildPending {
		return in.planPending()
	}
	switch b := in.Build; {
	case in.Gone && b.Attempt < buildAttempts && !b.CancelRequested:
		b.Phase, b.Message, b.Node, b.Step, b.Percent = api.BuildPending, fmt.Sprintf("node %s is gone; the build starts again", b.Node), "", "", 0
		return b
	case in.Gone:
		return in.end(b, api.BuildFailed, fmt.Sprintf("node %s is gone", b.Node))
	}
	for _, seen := range in.Seen {
		if seen.ID == in.Build.ID && seen.Attempt == in.Build.Attempt {
			return in.follow(seen)
		}
	}
	// A node reports nothing more of a build that it was ordered to end and has ended.
	if in.Build.CancelRequested && in.Heard {
		return in.end(in.Build, api.BuildCancelled, "cancelled")
	}
	return in.Build
}

// planPending gives a build to a node, unless there is no need for it, or no way.
func (in BuildInput) planPending() api.Build {
	b := in.Build
	switch {
	case b.CancelRequested:
		return in.end(b, api.BuildCancelled, "cancelled before it began")
	case in.Recipe.Problem != "":
		return in.end(b, api.BuildFailed, "the recipe can't be read: "+in.Recipe.Problem)
	case in.Recipe.Missing != "":
		return in.end(b, api.BuildFailed,
			fmt.Sprintf("its base environment %q is not built; run: nearmetal env build %s", in.Recipe.Missing, in.Recipe.Missing))
	case in.Recipe.Image != "" && !b.Force && !in.Recipe.Local:
		b.Percent, b.Digest, b.Reused = 100, in.Recipe.Image, true
		return in.end(b, api.BuildSucceeded, "an image of the same recipe already exists; use --force to rebuild it with today's packages")
	}
	node, waits := in.builder()
	if node == "" {
		b.Message = waits
		return b
	}
	b.Bases = in.Recipe.Bases
	b.Phase, b.Node, b.Message, b.StartedAt = api.BuildRunning, node, "", &in.Now
	b.Attempt++
	return b
}

// builder returns the node that the build goes to, one that can build and builds nothing, or else what the build waits for.
func (in BuildInput) builder() (node, waits string) {
	waits = "waiting: no node accepts builds; start an agent with --builder auto"
	behind := ""
	for _, b := range in.Builders {
		switch {
		case !b.Check.OK:
			problem := "no reason was given"
			if len(b.Check.Problems) > 0 {
				problem = b.Check.Problems[0]
			}
			waits = fmt.Sprintf("waiting: node %s can't build: %s", b.Node, problem)
		case b.Phase != api.NodeReady:
			waits = fmt.Sprintf("waiting: the builder node %s is %s", b.Node, b.Phase)
		case b.Build != "":
			behind = fmt.Sprintf("waiting for build %s on node %s", b.Build, b.Node)
		default:
			return b.Node, ""
		}
	}
	if behind != "" { // that ends by itself, the others' troubles do not
		waits = behind
	}
	return "", waits
}

// follow takes over what the node reports of the attempt. Each change is a commit: not every percent is worth one.
func (in BuildInput) follow(seen BuildSeen) api.Build {
	b := in.Build
	b.Step, b.Percent = seen.Step, seen.Percent/5*5
	switch {
	case seen.Phase == api.BuildSucceeded:
		b.Percent, b.LogBytes, b.Step, b.Digest = 100, seen.LogBytes, "", seen.Manifest
		return in.end(b, api.BuildSucceeded, seen.Message)
	case seen.Phase.Ended():
		b.LogBytes = seen.LogBytes
		return in.end(b, seen.Phase, seen.Message)
	default:
		return b
	}
}

func (in BuildInput) end(b api.Build, phase api.BuildPhase, message string) api.Build {
	b.Phase, b.Message, b.EndedAt = phase, message, &in.Now
	return b
}
