package controller

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
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
		"it waits in words":                    {api.Build{ID: "b1", Phase: api.BuildPending}, buildSeen{builderChoice: builderChoice{waits: "waits: no builder"}}, api.BuildPending, "waits: no builder", ""},
		"cancelled before it began":            {api.Build{ID: "b1", Phase: api.BuildPending, CancelRequested: true}, buildSeen{builderChoice: builderChoice{node: "n1"}}, api.BuildCancelled, "before it began", ""},
		"its base is not built":                {api.Build{ID: "b1", Phase: api.BuildPending}, buildSeen{builderChoice: builderChoice{node: "n1"}, refused: "it stands on x"}, api.BuildFailed, "stands on x", ""},
		"there is its image already":           {api.Build{ID: "b1", Phase: api.BuildPending}, buildSeen{builderChoice: builderChoice{node: "n1"}, reuse: &api.Image{Digest: "sha256:m"}}, api.BuildSucceeded, "same recipe", "sha256:m"},
		"it goes on":                           {running, buildSeen{heard: true, said: says(api.BuildRunning, 37)}, api.BuildRunning, "", ""},
		"it succeeds":                          {running, buildSeen{heard: true, said: says(api.BuildSucceeded, 100)}, api.BuildSucceeded, "said", "sha256:m"},
		"it fails":                             {running, buildSeen{heard: true, said: says(api.BuildFailed, 50)}, api.BuildFailed, "said", ""},
		"its node goes away":                   {running, buildSeen{down: true}, api.BuildPending, "node n1 is gone; the build starts again", ""},
		"its third node goes away":             {last, buildSeen{down: true}, api.BuildFailed, "node n1 is gone", ""},
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

func TestABuildIsReusedOnTheSameBasesOnly(t *testing.T) {
	text := "name: debian-slurm\nbase:\n  environment: debian-mpi\npackages: [slurmd]\nstacks: [container]\n"
	r, err := recipe.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	base := &api.Image{Digest: "sha256:" + strings.Repeat("b", 64), Environment: "debian-mpi"}
	built := &api.Image{
		Digest: "sha256:" + strings.Repeat("c", 64), Environment: "debian-slurm", RecipeDigest: r.DigestOn(map[string]string{"debian-mpi": base.Digest}),
	}
	names := []*api.EnvironmentRecord{{Name: "debian-mpi", Digest: base.Digest}}
	view := &state.View{Images: []*api.Image{base, built}, Environments: names}
	build := &api.Build{Recipe: text}
	bases, reuse, refused := standsOn(view, build)
	if refused != "" || reuse != built || bases["debian-mpi"] != base.Digest {
		t.Errorf("got %v, %v, %q", bases, reuse, refused)
	}
	if _, reuse, _ := standsOn(view, &api.Build{Recipe: text, Force: true}); reuse != nil {
		t.Error("a forced build is not built")
	}
	other := &api.Image{Digest: "sha256:" + strings.Repeat("a", 64), Environment: "debian-mpi"}
	view = &state.View{Images: []*api.Image{other, base, built}, Environments: []*api.EnvironmentRecord{{Name: "debian-mpi", Digest: other.Digest}}}
	if _, reuse, _ := standsOn(view, build); reuse != nil {
		t.Error("the image on the former base is reused")
	}
	if _, _, refused := standsOn(&state.View{}, build); !strings.Contains(refused, "nearmetal env build debian-mpi") {
		t.Errorf("without its base it is refused with %q", refused)
	}
}

func TestABuilderPutsItsImageInNoOtherEnvironmentsPlace(t *testing.T) {
	text := "name: debian-slurm\nbase:\n  environment: debian-mpi\npackages: [slurmd]\nstacks: [container]\n"
	r, err := recipe.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	bases := map[string]string{"debian-mpi": "sha256:" + strings.Repeat("b", 64)}
	build := api.Build{Environment: "debian-slurm", Recipe: text, Bases: bases, Node: "n1"}
	if err := madeOf(&image.Manifest{Environment: "debian-slurm", RecipeDigest: r.DigestOn(bases)}, build); err != nil {
		t.Error(err)
	}
	for name, m := range map[string]image.Manifest{
		"another environment": {Environment: "inspect", RecipeDigest: r.DigestOn(bases)},
		"another recipe":      {Environment: "debian-slurm", RecipeDigest: "sha256:" + strings.Repeat("0", 64)},
		"other bases":         {Environment: "debian-slurm", RecipeDigest: r.DigestOn(nil)},
	} {
		if err := madeOf(&m, build); err == nil || !strings.Contains(err.Error(), "node n1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPeersAreNamedOnlyWhenManyFetch(t *testing.T) {
	holders := func(n int) func(image.Digest) (whole, fetching map[string]string) {
		fetching := map[string]string{}
		for i := range n {
			fetching["f"+strconv.Itoa(i)] = "http://f" + strconv.Itoa(i) + "/"
		}
		fetching["silent"] = ""
		return func(image.Digest) (whole, _ map[string]string) {
			return map[string]string{"n1": "http://n1/", "n2": "http://n2/"}, fetching
		}
	}
	if got := Peers(holders(peersFrom-2), "sha256:x", "n3"); got != nil {
		t.Errorf("while few fetch it, peers are %v", got)
	}
	if got := Peers(holders(peersFrom), "sha256:x", ""); len(got) != 2 {
		t.Errorf("a boot is told of %v; want the two that have all of it", got)
	}
	booting := map[string]bool{}
	for range 100 {
		got := Peers(func(image.Digest) (whole, fetching map[string]string) {
			_, fetching = holders(100)("")
			return fetching, fetching
		}, "sha256:x", "")
		booting[got[0]] = true
	}
	if len(booting) < 30 {
		t.Errorf("100 boots ask %d machines of 100 first; they should spread", len(booting))
	}
	told := 0
	for range 1000 {
		if Peers(func(image.Digest) (whole, fetching map[string]string) {
			_, fetching = holders(1000)("")
			return map[string]string{"n1": "http://n1/"}, fetching
		}, "sha256:x", "") != nil {
			told++
		}
	}
	if told == 0 || told > 3*bootsPerPeer {
		t.Errorf("of 1000 boots %d are sent to the one node that has the image, want about %d", told, bootsPerPeer)
	}
	many := holders(100)
	seen := map[string]bool{}
	for i := range 100 {
		node := "f" + strconv.Itoa(i)
		got := Peers(many, "sha256:x", node)
		if len(got) != maxPeers || slices.Contains(got, "http://"+node+"/") || slices.Contains(got, "") {
			t.Fatalf("node %s is told of %v", node, got)
		}
		seen[got[0]] = true
	}
	if len(seen) < 30 {
		t.Errorf("100 nodes ask %d others first; they should spread", len(seen))
	}
}

func TestABuildWaitsForTheOneBeforeIt(t *testing.T) {
	can := &api.BuilderCheck{OK: true}
	ready := lifecycle.NodeState{Phase: api.NodeReady}
	p := &pass{
		view: &state.View{Nodes: []*api.NodeRecord{
			{Name: "n1", Builder: can}, {Name: "n2", Builder: can}, {Name: "n3", Builder: &api.BuilderCheck{Problems: []string{"crun is missing"}}}, {Name: "n4"},
		}},
		Site: &situation.Site{Nodes: map[string]lifecycle.NodeState{"n1": ready, "n2": ready, "n3": ready, "n4": ready}},
	}
	b := &api.Build{ID: "b9", Phase: api.BuildPending}
	for _, test := range []struct {
		busy map[string]string
		want builderChoice
	}{
		{map[string]string{}, builderChoice{node: "n1"}},
		{map[string]string{"n1": "b1"}, builderChoice{node: "n2"}},
		{map[string]string{"n1": "b1", "n2": "b2"}, builderChoice{waits: "waiting for build b2 on node n2"}},
	} {
		if got := p.builder(b, test.busy); got != test.want {
			t.Errorf("while nodes build %v: %+v, want %+v", test.busy, got, test.want)
		}
	}
	p.view.Nodes = p.view.Nodes[2:]
	if got := p.builder(b, nil); got.node != "" || got.waits != "waiting: node n3 can't build: crun is missing" {
		t.Errorf("without a builder: %+v", got)
	}
}
