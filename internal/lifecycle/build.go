package lifecycle

import (
	"fmt"
	"slices"
	"strings"
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
	// Image is an image of the same recipe on the same bases, nil when there is none.
	Image *api.Image
}

// Builder is a node that was set up to build.
type Builder struct {
	Node  string
	Check api.BuilderCheck
	Phase api.NodePhase
	// Trusted: an operator trusts it as a builder.
	Trusted bool
	// Identity is the ID of the node's identity.
	Identity string
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
	// Gone: the build's node is down, or no longer in the inventory. Heard: it is connected, and has reported all its builds. Trusted: an operator
	// trusts it as a builder.
	Gone, Heard, Trusted bool
	// Identity is the ID of the identity of the build's node.
	Identity string
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
	lost := ""
	switch {
	case in.Gone:
		lost = fmt.Sprintf("node %s is gone", in.Build.Node)
	case !in.Trusted && !in.Build.Verify:
		lost = fmt.Sprintf("node %s is no longer a trusted builder", in.Build.Node)
	}
	switch b := in.Build; {
	case lost != "" && b.Attempt < buildAttempts+len(b.Built) && !b.CancelRequested:
		return again(b, lost+"; the build starts again")
	case lost != "":
		return in.end(b, api.BuildFailed, lost)
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

// again returns a build to be given to another node.
func again(b api.Build, message string) api.Build {
	b.Phase, b.Message, b.Node, b.Step, b.Percent, b.LogBytes = api.BuildPending, message, "", "", 0, 0
	return b
}

// planPending gives a build to a node, unless there is no need for it, or no way.
func (in BuildInput) planPending() api.Build {
	b := in.Build
	switch {
	case b.CancelRequested && len(b.Built) == 0:
		return in.end(b, api.BuildCancelled, "cancelled before it began")
	case b.CancelRequested:
		return in.end(b, api.BuildCancelled, "cancelled before it was verified")
	case len(b.Built) > 0: // it was begun, and the second node builds what the first one did
	case in.Recipe.Problem != "":
		return in.end(b, api.BuildFailed, "the recipe can't be read: "+in.Recipe.Problem)
	case in.Recipe.Missing != "":
		return in.end(b, api.BuildFailed,
			fmt.Sprintf("its base environment %q is not built; run: nearmetal env build %s", in.Recipe.Missing, in.Recipe.Missing))
	case in.reuses():
		b.Percent, b.Digest, b.Reused = 100, in.Recipe.Image.Digest, true
		return in.end(b, api.BuildSucceeded, fmt.Sprintf("an image of the same recipe already exists, built by %s; use --force to rebuild it with "+
			"today's packages", BuildersOf(in.Recipe.Image.BuiltBy)))
	}
	node, waits := in.builder()
	if node == "" {
		b.Message = waits
		return b
	}
	if len(b.Built) == 0 {
		b.Bases, b.StartedAt = in.Recipe.Bases, &in.Now
	}
	b.Phase, b.Node, b.Message = api.BuildRunning, node, ""
	b.Attempt++
	return b
}

// reuses reports whether an image that exists is what was asked for.
func (in BuildInput) reuses() bool {
	img := in.Recipe.Image
	return img != nil && !in.Build.Force && !in.Recipe.Local && (!in.Build.Verify || img.Verified())
}

// builder returns the node that the build goes to, one that can build and builds nothing, or else what the build waits for.
func (in BuildInput) builder() (node, waits string) {
	may, waits := in.eligible()
	behind := ""
	for _, b := range may {
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

// eligible returns the builders whose result counts, and what to do if there are none: trusted ones, or, for a build that is to be verified,
// all but the one that has built it.
func (in BuildInput) eligible() (may []Builder, otherwise string) {
	for _, b := range in.Builders {
		it := api.BuiltBy{Node: b.Node, Identity: b.Identity}
		if in.Build.Verify && !slices.ContainsFunc(in.Build.Built, func(by api.BuiltBy) bool { return by.SameNode(&it) }) ||
			!in.Build.Verify && b.Trusted {
			may = append(may, b)
		}
	}
	if len(in.Builders) == 0 {
		return nil, "waiting: no node accepts builds; start an agent with --builder auto"
	}
	switch first := in.Builders[0].Node; {
	case in.Build.Verify && len(in.Builders) == 1:
		return nil, fmt.Sprintf("waiting: verification takes builds on two nodes, and only node %s accepts builds; start an agent with --builder auto "+
			"on another node", first)
	case len(may) == 0:
		return nil, fmt.Sprintf("waiting: node %[1]s accepts builds but is not a trusted builder; run: nearmetal node trust %[1]s; or cancel this build, "+
			"and build with --verify on two nodes", first)
	}
	return may, ""
}

// follow takes over what the node reports of the attempt. Each change is a commit: not every percent is worth one.
func (in BuildInput) follow(seen BuildSeen) api.Build {
	b := in.Build
	b.Step, b.Percent = seen.Step, seen.Percent/5*5
	switch {
	case seen.Phase == api.BuildSucceeded:
		b.LogBytes, b.Step = seen.LogBytes, ""
		return in.built(b, seen)
	case seen.Phase.Ended():
		b.LogBytes = seen.LogBytes
		return in.end(b, seen.Phase, seen.Message)
	default:
		return b
	}
}

// built takes over what a node made. Where that is to be verified, another one makes it again, and both must be the same.
func (in BuildInput) built(b api.Build, seen BuildSeen) api.Build {
	b.Built = append(slices.Clone(b.Built), api.BuiltBy{Node: b.Node, Identity: in.Identity, Trusted: in.Trusted, Digest: seen.Manifest, At: in.Now})
	first, last := b.Built[0], b.Built[len(b.Built)-1]
	switch {
	case first.Digest != last.Digest:
		return in.end(b, api.BuildFailed, fmt.Sprintf("the build is not verified: node %s built %s, node %s built %s; packages changed in between, "+
			"files that the recipe takes from the builder nodes differ, or one of the nodes can't be trusted; build the environment again", first.Node, first.Digest, last.Node, last.Digest))
	case b.Verify && len(b.Built) < 2:
		return again(b, fmt.Sprintf("built by node %s; another node builds it for verification", first.Node))
	}
	b.Percent, b.Digest = 100, seen.Manifest
	return in.end(b, api.BuildSucceeded, seen.Message)
}

// BuildersOf names nodes that built an image, for people.
func BuildersOf(by []api.BuiltBy) string {
	names := make([]string, len(by))
	for i := range by {
		names[i] = "node " + by[i].Node
	}
	return strings.Join(names, " and ")
}

func (in BuildInput) end(b api.Build, phase api.BuildPhase, message string) api.Build {
	b.Phase, b.Message, b.EndedAt = phase, message, &in.Now
	return b
}
