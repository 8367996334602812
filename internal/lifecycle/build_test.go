package lifecycle

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// free are builders of which the first is free.
var free = []Builder{{Node: "n1", Check: api.BuilderCheck{OK: true}, Phase: api.NodeReady, Trusted: true}}

func TestABuildFollowsWhatBecomesOfItsNodeAndItsRecipe(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pending := api.Build{ID: "b1", Phase: api.BuildPending}
	forced, unwanted := pending, pending
	forced.Force, unwanted.CancelRequested = true, true
	running := api.Build{ID: "b1", Phase: api.BuildRunning, Node: "n1", Attempt: 1}
	cancelled, last := running, running
	cancelled.CancelRequested = true
	last.Attempt = buildAttempts
	reports := func(phase api.BuildPhase, percent int) []BuildSeen {
		return []BuildSeen{
			{ID: "b1", Attempt: 0, Phase: api.BuildFailed},
			{ID: "b2", Attempt: 1, Phase: api.BuildFailed},
			{ID: "b1", Attempt: 1, Phase: phase, Percent: percent, Step: "packages", Manifest: "sha256:m", Message: "said"},
		}
	}
	known := BuildRecipe{Bases: map[string]string{"debian-mpi": "sha256:b"}, Image: &api.Image{Digest: "sha256:m", BuiltBy: []api.BuiltBy{{Node: "n7", Digest: "sha256:m", Trusted: true}}}}
	local := known
	local.Local = true
	two := []Builder{free[0], free[0]}
	two[0].Trusted, two[1].Trusted, two[1].Node = false, false, "n2"
	verify := pending
	verify.Verify = true
	planned := map[[2]api.BuildPhase]bool{}
	for name, test := range map[string]struct {
		in      BuildInput
		phase   api.BuildPhase // "" for no change
		message string
		digest  string
	}{
		"a free builder gets it":                                         {BuildInput{Build: pending, Builders: free}, api.BuildRunning, "", ""},
		"without a builder it waits":                                     {BuildInput{Build: pending}, api.BuildPending, "waiting: no node accepts builds", ""},
		"it is cancelled before it began":                                {BuildInput{Build: unwanted, Builders: free}, api.BuildCancelled, "before it began", ""},
		"its base is not built":                                          {BuildInput{Build: pending, Builders: free, Recipe: BuildRecipe{Missing: "debian-mpi"}}, api.BuildFailed, "run: nearmetal env build debian-mpi", ""},
		"its recipe can't be read":                                       {BuildInput{Build: pending, Builders: free, Recipe: BuildRecipe{Problem: "no name"}}, api.BuildFailed, "the recipe can't be read: no name", ""},
		"an image of its recipe exists":                                  {BuildInput{Build: pending, Builders: free, Recipe: known}, api.BuildSucceeded, "same recipe already exists, built by node n7", "sha256:m"},
		"an image exists that one node has built, and two are asked for": {BuildInput{Build: verify, Builders: two, Recipe: known}, api.BuildRunning, "", ""},
		"its builder is not trusted": {
			BuildInput{Build: pending, Builders: two[:1]},
			api.BuildPending,
			"node n1 accepts builds but is not a trusted builder; run: nearmetal node trust n1;", "",
		},
		"its node is no longer trusted":                {BuildInput{Build: running, Heard: true, Seen: reports(api.BuildSucceeded, 100)}, api.BuildPending, "node n1 is no longer a trusted builder; the build starts again", ""},
		"its third node is no longer trusted":          {BuildInput{Build: last, Heard: true}, api.BuildFailed, "node n1 is no longer a trusted builder", ""},
		"an image exists, and a rebuild was requested": {BuildInput{Build: forced, Builders: free, Recipe: known}, api.BuildRunning, "", ""},
		"an image exists of other local files":         {BuildInput{Build: pending, Builders: free, Recipe: local}, api.BuildRunning, "", ""},
		"its node builds":                              {BuildInput{Build: running, Trusted: true, Heard: true, Seen: reports(api.BuildRunning, 37)}, api.BuildRunning, "", ""},
		"its node reports success":                     {BuildInput{Build: running, Trusted: true, Heard: true, Seen: reports(api.BuildSucceeded, 100)}, api.BuildSucceeded, "said", "sha256:m"},
		"its node reports a failure":                   {BuildInput{Build: running, Trusted: true, Heard: true, Seen: reports(api.BuildFailed, 50)}, api.BuildFailed, "said", ""},
		"its node goes away":                           {BuildInput{Build: running, Trusted: true, Gone: true}, api.BuildPending, "node n1 is gone; the build starts again", ""},
		"its third node goes away":                     {BuildInput{Build: last, Trusted: true, Gone: true}, api.BuildFailed, "node n1 is gone", ""},
		"it is cancelled, and its node goes away":      {BuildInput{Build: cancelled, Trusted: true, Gone: true}, api.BuildFailed, "node n1 is gone", ""},
		"its node reports nothing yet":                 {BuildInput{Build: running, Trusted: true, Heard: true}, "", "", ""},
		"it is cancelled, and its node still builds":   {BuildInput{Build: cancelled, Trusted: true, Heard: true, Seen: reports(api.BuildRunning, 0)}, api.BuildRunning, "", ""},
		"it is cancelled, and its node has ended it":   {BuildInput{Build: cancelled, Trusted: true, Heard: true}, api.BuildCancelled, "cancelled", ""},
		"it is cancelled, and its node is not heard":   {BuildInput{Build: cancelled, Trusted: true}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			test.in.Now = now
			before := test.in.Build
			next := PlanBuild(test.in)
			if changed := !reflect.DeepEqual(next, before); changed != (test.phase != "") {
				t.Fatalf("changed: %v; got %+v", changed, next)
			}
			if test.phase == "" {
				return
			}
			if next.Phase != test.phase || !strings.Contains(next.Message, test.message) || next.Digest != test.digest {
				t.Errorf("got %q %q %q, want %q %q %q", next.Phase, next.Message, next.Digest, test.phase, test.message, test.digest)
			}
			if next.Phase.Ended() != (next.EndedAt != nil) {
				t.Errorf("%q ended at %v", next.Phase, next.EndedAt)
			}
			if before.Phase == api.BuildPending && next.Phase == api.BuildRunning &&
				(next.Node != "n1" || next.Attempt != 1 || next.StartedAt == nil || !maps.Equal(next.Bases, test.in.Recipe.Bases)) {
				t.Errorf("it is given to %q as attempt %d on %v, started at %v", next.Node, next.Attempt, next.Bases, next.StartedAt)
			}
			if next.Phase != before.Phase {
				planned[[2]api.BuildPhase{before.Phase, next.Phase}] = true
			}
		})
	}
	sameTransitions(t, Builds(), planned)
}

func TestNotEveryPercentOfABuildIsWorthACommit(t *testing.T) {
	build := api.Build{ID: "b1", Phase: api.BuildRunning, Node: "n1", Attempt: 1, Percent: 35, Step: "packages"}
	for percent, want := range map[int]int{35: 35, 39: 35, 40: 40} {
		in := BuildInput{Build: build, Trusted: true, Seen: []BuildSeen{{ID: "b1", Attempt: 1, Phase: api.BuildRunning, Step: "packages", Percent: percent, LogBytes: 9}}}
		if next := PlanBuild(in); next.Percent != want || next.LogBytes != 0 {
			t.Errorf("at %d %%: %d %% and %d bytes of output are stored, want %d %% and 0", percent, next.Percent, next.LogBytes, want)
		}
	}
}

func TestABuildWaitsForTheOneBeforeIt(t *testing.T) {
	can := api.BuilderCheck{OK: true}
	broken := Builder{Node: "n3", Check: api.BuilderCheck{Problems: []string{"crun is missing"}}, Phase: api.NodeReady, Trusted: true}
	builders := func(first, second string) []Builder {
		return []Builder{
			{Node: "n1", Check: can, Phase: api.NodeReady, Build: first, Trusted: true}, {Node: "n2", Check: can, Phase: api.NodeReady, Build: second, Trusted: true}, broken,
		}
	}
	for name, test := range map[string]struct {
		builders    []Builder
		node, waits string
	}{
		"two builders are free":         {builders("", ""), "n1", ""},
		"the first builder has a build": {builders("b1", ""), "n2", ""},
		"each builder has a build":      {builders("b1", "b2"), "", "waiting for build b2 on node n2"},
		"the first builder is not trusted": {
			[]Builder{{Node: "n1", Check: can, Phase: api.NodeReady}, {Node: "n2", Check: can, Phase: api.NodeReady, Trusted: true}}, "n2", "",
		},
		"the only builder is broken":       {[]Builder{broken}, "", "waiting: node n3 can't build: crun is missing"},
		"a broken builder gives no reason": {[]Builder{{Node: "n3", Trusted: true}}, "", "waiting: node n3 can't build: no reason was given"},
		"the only builder is not reporting": {
			[]Builder{{Node: "n1", Check: can, Phase: api.NodeUnknown, Trusted: true}}, "", "waiting: the builder node n1 is unknown",
		},
	} {
		t.Run(name, func(t *testing.T) {
			next := PlanBuild(BuildInput{Build: api.Build{ID: "b9", Phase: api.BuildPending}, Builders: test.builders})
			if next.Node != test.node || next.Message != test.waits {
				t.Errorf("it goes to %q and waits for %q, want %q and %q", next.Node, next.Message, test.node, test.waits)
			}
		})
	}
}

// verified plays a build that is to be verified: each node in turn gets it and arrives at a digest.
func verified(builders []Builder, digests ...string) api.Build {
	b := api.Build{ID: "b1", Phase: api.BuildPending, Verify: true}
	recipe := BuildRecipe{Bases: map[string]string{"debian-mpi": "sha256:b"}}
	for i, digest := range digests {
		b = PlanBuild(BuildInput{Build: b, Recipe: recipe, Builders: builders})
		if b.Phase != api.BuildRunning {
			return b
		}
		recipe.Bases = map[string]string{"debian-mpi": "sha256:newer"}
		recipe.Image = &api.Image{Digest: "sha256:other"} // another build of the same recipe has ended meanwhile
		b = PlanBuild(BuildInput{
			Build: b, Heard: true, Seen: []BuildSeen{{ID: "b1", Attempt: i + 1, Phase: api.BuildSucceeded, Manifest: digest}},
		})
	}
	return b
}

func TestABuildIsVerifiedByASecondNodeThatArrivesAtTheSameImage(t *testing.T) {
	can := api.BuilderCheck{OK: true}
	one, other := Builder{Node: "n1", Check: can, Phase: api.NodeReady}, Builder{Node: "n2", Check: can, Phase: api.NodeReady}
	gone := other
	gone.Phase = api.NodeDown
	for name, test := range map[string]struct {
		builders []Builder
		digests  []string
		phase    api.BuildPhase
		digest   string
		nodes    string
		message  []string
	}{
		"two nodes arrive at the same image": {[]Builder{one, other}, []string{"sha256:m", "sha256:m"}, api.BuildSucceeded, "sha256:m", "node n1 and node n2", nil},
		"two nodes arrive at different images": {
			[]Builder{one, other},
			[]string{"sha256:m", "sha256:x"},
			api.BuildFailed, "", "node n1 and node n2",
			[]string{"node n1 built sha256:m", "node n2 built sha256:x"},
		},
		"the first node has built it":               {[]Builder{one, other}, []string{"sha256:m"}, api.BuildPending, "", "node n1", []string{"built by node n1"}},
		"the second node is down":                   {[]Builder{one, gone}, []string{"sha256:m", "sha256:m"}, api.BuildPending, "", "node n1", []string{"node n2 is down"}},
		"the second node has gone for good":         {[]Builder{one}, []string{"sha256:m"}, api.BuildPending, "", "", []string{"only node n1 accepts builds"}},
		"there is one node only, though it is free": {[]Builder{one}, []string{"sha256:m", "sha256:m"}, api.BuildPending, "", "", []string{"only node n1 accepts builds"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := verified(test.builders, test.digests...)
			if b.Phase != test.phase || b.Digest != test.digest || BuildersOf(b.Built) != test.nodes {
				t.Errorf("it is %q with %q, built by %q (%s); want %q with %q, built by %q", b.Phase, b.Digest, BuildersOf(b.Built), b.Message, test.phase, test.digest, test.nodes)
			}
			for _, part := range test.message {
				if !strings.Contains(b.Message, part) {
					t.Errorf("it says %q, want %q in it", b.Message, part)
				}
			}
			if len(b.Built) > 0 && b.Bases["debian-mpi"] != "sha256:b" {
				t.Errorf("the second node builds on %q, the first one built on sha256:b", b.Bases["debian-mpi"])
			}
		})
	}
}
