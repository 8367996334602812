package controller

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/image"
)

func TestWhatBecomesOfABuild(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	running := api.Build{ID: "b1", Phase: api.BuildRunning, Node: "n1", Attempt: 1}
	cancelled := running
	cancelled.CancelRequested = true
	last := running
	last.Attempt = buildAttempts
	says := func(phase api.BuildPhase, percent int) []agentstream.BuildObserved {
		return []agentstream.BuildObserved{
			{ID: "b1", Attempt: 0, Phase: api.BuildFailed}, {ID: "b1", Attempt: 1, Phase: phase, Percent: percent, Step: "packages", Manifest: "sha256:m", Message: "said"},
		}
	}
	for name, test := range map[string]struct {
		build    api.Build
		seen     buildSeen
		phase    api.BuildPhase // "" for no change
		message  string
		manifest image.Digest
	}{
		"it goes to a builder":                 {api.Build{ID: "b1", Phase: api.BuildPending}, buildSeen{builderChoice: builderChoice{node: "n1"}}, api.BuildRunning, "", ""},
		"it waits in words":                    {api.Build{ID: "b1", Phase: api.BuildPending}, buildSeen{builderChoice: builderChoice{problem: "no builder"}}, api.BuildPending, "waits: no builder", ""},
		"cancelled before it began":            {api.Build{ID: "b1", Phase: api.BuildPending, CancelRequested: true}, buildSeen{builderChoice: builderChoice{node: "n1"}}, api.BuildCancelled, "before it began", ""},
		"it goes on":                           {running, buildSeen{heard: true, said: says(api.BuildRunning, 37)}, api.BuildRunning, "", ""},
		"it succeeds":                          {running, buildSeen{heard: true, said: says(api.BuildSucceeded, 100)}, api.BuildSucceeded, "said", "sha256:m"},
		"it fails":                             {running, buildSeen{heard: true, said: says(api.BuildFailed, 50)}, api.BuildFailed, "said", ""},
		"its node goes away":                   {running, buildSeen{down: true}, api.BuildPending, "node n1 went away; it begins anew", ""},
		"its third node goes away":             {last, buildSeen{down: true}, api.BuildFailed, "node n1 went away", ""},
		"nothing is said yet":                  {running, buildSeen{heard: true}, "", "", ""},
		"cancelled, and still there":           {cancelled, buildSeen{heard: true, said: says(api.BuildRunning, 0)}, api.BuildRunning, "", ""},
		"cancelled, and its node has ended it": {cancelled, buildSeen{heard: true}, api.BuildCancelled, "cancelled", ""},
		"cancelled, and its node is away":      {cancelled, buildSeen{}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			next, manifest := planBuild(test.build, test.seen, now)
			switch {
			case next == nil && test.phase != "":
				t.Fatalf("nothing changes, want %q", test.phase)
			case next == nil:
				return
			case next.Phase != test.phase || !strings.Contains(next.Message, test.message) || manifest != test.manifest:
				t.Errorf("got %q %q %q, want %q %q %q", next.Phase, next.Message, manifest, test.phase, test.message, test.manifest)
			case next.Phase.Ended() != (next.EndedAt != nil):
				t.Errorf("%q ended at %v", next.Phase, next.EndedAt)
			}
		})
	}
}

func TestPeersAreNamedOnlyWhenManyFetch(t *testing.T) {
	holders := func(n int) func(image.Digest) (map[string]string, map[string]bool) {
		fetching := map[string]bool{}
		for i := range n {
			fetching[strconv.Itoa(i)] = true
		}
		return func(image.Digest) (map[string]string, map[string]bool) {
			return map[string]string{"n1": "http://n1/", "n2": "http://n2/"}, fetching
		}
	}
	if got := Peers(holders(peersFrom-1), "sha256:x", "n3"); got != nil {
		t.Errorf("while few fetch it, peers are %v", got)
	}
	if got := Peers(holders(peersFrom), "sha256:x", "n2"); len(got) != 1 || got[0] != "http://n1/" {
		t.Errorf("n2 is told of %v", got)
	}
}
