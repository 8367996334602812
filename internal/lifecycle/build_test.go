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
var free = []Builder{{Node: "n1", Check: api.BuilderCheck{OK: true}, Phase: api.NodeReady}}

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
	known := BuildRecipe{Bases: map[string]string{"debian-mpi": "sha256:b"}, Image: "sha256:m"}
	local := known
	local.Local = true
	planned := map[[2]api.BuildPhase]bool{}
	for name, test := range map[string]struct {
		in      BuildInput
		phase   api.BuildPhase // "" for no change
		message string
		digest  string
	}{
		"a free builder gets it":                       {BuildInput{Build: pending, Builders: free}, api.BuildRunning, "", ""},
		"without a builder it waits":                   {BuildInput{Build: pending}, api.BuildPending, "waiting: no node accepts builds", ""},
		"it is cancelled before it began":              {BuildInput{Build: unwanted, Builders: free}, api.BuildCancelled, "before it began", ""},
		"its base is not built":                        {BuildInput{Build: pending, Builders: free, Recipe: BuildRecipe{Missing: "debian-mpi"}}, api.BuildFailed, "run: nearmetal env build debian-mpi", ""},
		"its recipe can't be read":                     {BuildInput{Build: pending, Builders: free, Recipe: BuildRecipe{Problem: "no name"}}, api.BuildFailed, "the recipe can't be read: no name", ""},
		"an image of its recipe exists":                {BuildInput{Build: pending, Builders: free, Recipe: known}, api.BuildSucceeded, "same recipe", "sha256:m"},
		"an image exists, and a rebuild was requested": {BuildInput{Build: forced, Builders: free, Recipe: known}, api.BuildRunning, "", ""},
		"an image exists of other local files":         {BuildInput{Build: pending, Builders: free, Recipe: local}, api.BuildRunning, "", ""},
		"its node builds":                              {BuildInput{Build: running, Heard: true, Seen: reports(api.BuildRunning, 37)}, api.BuildRunning, "", ""},
		"its node reports success":                     {BuildInput{Build: running, Heard: true, Seen: reports(api.BuildSucceeded, 100)}, api.BuildSucceeded, "said", "sha256:m"},
		"its node reports a failure":                   {BuildInput{Build: running, Heard: true, Seen: reports(api.BuildFailed, 50)}, api.BuildFailed, "said", ""},
		"its node goes away":                           {BuildInput{Build: running, Gone: true}, api.BuildPending, "node n1 is gone; the build starts again", ""},
		"its third node goes away":                     {BuildInput{Build: last, Gone: true}, api.BuildFailed, "node n1 is gone", ""},
		"it is cancelled, and its node goes away":      {BuildInput{Build: cancelled, Gone: true}, api.BuildFailed, "node n1 is gone", ""},
		"its node reports nothing yet":                 {BuildInput{Build: running, Heard: true}, "", "", ""},
		"it is cancelled, and its node still builds":   {BuildInput{Build: cancelled, Heard: true, Seen: reports(api.BuildRunning, 0)}, api.BuildRunning, "", ""},
		"it is cancelled, and its node has ended it":   {BuildInput{Build: cancelled, Heard: true}, api.BuildCancelled, "cancelled", ""},
		"it is cancelled, and its node is not heard":   {BuildInput{Build: cancelled}, "", "", ""},
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
		in := BuildInput{Build: build, Seen: []BuildSeen{{ID: "b1", Attempt: 1, Phase: api.BuildRunning, Step: "packages", Percent: percent, LogBytes: 9}}}
		if next := PlanBuild(in); next.Percent != want || next.LogBytes != 0 {
			t.Errorf("at %d %%: %d %% and %d bytes of output are stored, want %d %% and 0", percent, next.Percent, next.LogBytes, want)
		}
	}
}

func TestABuildWaitsForTheOneBeforeIt(t *testing.T) {
	can := api.BuilderCheck{OK: true}
	broken := Builder{Node: "n3", Check: api.BuilderCheck{Problems: []string{"crun is missing"}}, Phase: api.NodeReady}
	builders := func(first, second string) []Builder {
		return []Builder{{Node: "n1", Check: can, Phase: api.NodeReady, Build: first}, {Node: "n2", Check: can, Phase: api.NodeReady, Build: second}, broken}
	}
	for name, test := range map[string]struct {
		builders    []Builder
		node, waits string
	}{
		"two builders are free":            {builders("", ""), "n1", ""},
		"the first builder has a build":    {builders("b1", ""), "n2", ""},
		"each builder has a build":         {builders("b1", "b2"), "", "waiting for build b2 on node n2"},
		"the only builder is broken":       {[]Builder{broken}, "", "waiting: node n3 can't build: crun is missing"},
		"a broken builder gives no reason": {[]Builder{{Node: "n3"}}, "", "waiting: node n3 can't build: no reason was given"},
		"the only builder is not reporting": {
			[]Builder{{Node: "n1", Check: can, Phase: api.NodeUnknown}}, "", "waiting: the builder node n1 is unknown",
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
