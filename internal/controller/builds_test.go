package controller

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/environment/recipe"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestABuildThatAnotherLeaderHasEndedIsNotStartedAgain(t *testing.T) {
	l := newLed(t, memory.New())
	l.node("n1", 1)
	view := l.view(l.repo.CreateBuild(t.Context(), api.Build{ID: "b1", Phase: api.BuildRunning, Node: "n1", Attempt: 1}))
	_, revision, err := l.repo.UpdateBuild(t.Context(), "b1", func(b *api.Build) error { b.Phase = api.BuildCancelled; return nil })
	l.view(revision, err)
	// This leader looked before, and does not know yet that it is deposed.
	l.agents.down["n1"] = true
	var illegal *lifecycle.IllegalTransition
	if err := l.lead.newPass(view).builds(t.Context()); !errors.As(err, &illegal) || illegal.From != "cancelled" || illegal.To != "pending" {
		t.Errorf("the pass returns %v, want an IllegalTransition from cancelled to pending", err)
	}
	l.until("the build", func(v *state.View) bool { return len(v.Builds) == 1 })
	if got := l.cache.View().Build("b1").Phase; got != api.BuildCancelled {
		t.Errorf("stored as %q, want it left cancelled", got)
	}
}

func TestTheRecipesOfBuildsThatWaitAreReadOnce(t *testing.T) {
	build := &api.Build{ID: "b1", Phase: api.BuildPending, Recipe: "name: e\nbase:\n  debian: bookworm\n"}
	broken := &api.Build{ID: "b2", Phase: api.BuildPending, Recipe: "name: ["}
	known := recipes{}
	first, err := known.read(build.Recipe)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := known.read(build.Recipe); again != first || err != nil {
		t.Errorf("it is read twice: %p, then %p, %v", first, again, err)
	}
	if problem := known.of(&state.View{}, broken).Problem; problem == "" || known.of(&state.View{}, broken).Problem != problem {
		t.Errorf("the broken recipe's problem is %q at first, then %q", problem, known.of(&state.View{}, broken).Problem)
	}
	started := *build
	started.Phase = api.BuildRunning
	if known.keepOnly([]*api.Build{&started, broken}); len(known) != 1 {
		t.Errorf("%d recipes are kept, want that of the build that waits", len(known))
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
	build, waiting := &api.Build{Recipe: text}, recipes{}
	if got := waiting.of(view, build); got.Problem != "" || got.Missing != "" || got.Local || got.Image != built || got.Bases["debian-mpi"] != base.Digest {
		t.Errorf("got %+v, want the image %s on %s", got, built.Digest, base.Digest)
	}
	other := &api.Image{Digest: "sha256:" + strings.Repeat("a", 64), Environment: "debian-mpi"}
	view = &state.View{Images: []*api.Image{other, base, built}, Environments: []*api.EnvironmentRecord{{Name: "debian-mpi", Digest: other.Digest}}}
	if got := waiting.of(view, build).Image; got != nil {
		t.Errorf("the image %s on the former base is reused", got.Digest)
	}
	if got := waiting.of(&state.View{}, build); got.Missing != "debian-mpi" {
		t.Errorf("without its base %q is missing, want debian-mpi", got.Missing)
	}
	if got := waiting.of(view, &api.Build{Recipe: text + "files: [{source: motd, path: /etc/motd}]\n"}); !got.Local || got.Problem != "" {
		t.Errorf("a recipe with a file of the builder node: %+v, want it local", got)
	}
	if got := waiting.of(view, &api.Build{Recipe: "name: ["}); got.Problem == "" {
		t.Error("a recipe that can't be read has no problem")
	}
}

func TestChangedFilesAreLaidOverTheImageThatTheirMemberHad(t *testing.T) {
	had, now := &api.Image{Digest: "sha256:" + strings.Repeat("a", 64)}, &api.Image{Digest: "sha256:" + strings.Repeat("b", 64)}
	view := &state.View{Images: []*api.Image{had, now}, Environments: []*api.EnvironmentRecord{{Name: "debian-mpi", Digest: now.Digest}}}
	build := &api.Build{
		Recipe:  "name: saved\nbase: {environment: debian-mpi}\nchanges: sha256:" + strings.Repeat("0", 64) + "\n",
		Project: "default", Bases: map[string]string{"debian-mpi": had.Digest},
	}
	waiting := recipes{}
	if got := waiting.of(view, build); got.Bases["debian-mpi"] != had.Digest {
		t.Errorf("saved files: %+v, want %s", got, had.Digest)
	}
	// A build of the site that starts again is laid over what the name stands for now.
	build.Project = ""
	if got := waiting.of(view, build); got.Bases["debian-mpi"] != now.Digest {
		t.Errorf("a build of the site: %+v, want %s", got, now.Digest)
	}
	build.Project, view.Images = "default", []*api.Image{now}
	if got := waiting.of(view, build); got.Missing != "debian-mpi" {
		t.Errorf("without that image: %+v", got)
	}
}

func TestSavedFilesReplaceNoEnvironment(t *testing.T) {
	view := &state.View{Environments: []*api.EnvironmentRecord{{Name: "taken"}}}
	for _, tc := range []struct {
		build api.Build
		free  bool
	}{
		{api.Build{Environment: "taken", Project: "default"}, false},
		{api.Build{Environment: "taken"}, true},
		{api.Build{Environment: "fresh", Project: "default"}, true},
	} {
		if err := nameIsFree(view, tc.build); (err == nil) != tc.free {
			t.Errorf("%+v: %v", tc.build, err)
		}
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

func TestOnlyNodesThatWereSetUpToBuildAreBuilders(t *testing.T) {
	can := &api.BuilderCheck{OK: true}
	ready := lifecycle.NodeState{Phase: api.NodeReady}
	p := &pass{
		view: &state.View{Nodes: []*state.Node{
			{Name: "n1", Agent: &api.NodeRecord{Name: "n1", Builder: can}, Control: &api.NodeControl{Builder: &api.BuilderTrust{}}},
			{Name: "n2", Agent: &api.NodeRecord{Name: "n2", Builder: can, Labels: map[string]string{"builder": "trusted"}}, Control: &api.NodeControl{Drained: true}},
			{Name: "n3", Agent: &api.NodeRecord{Name: "n3", Builder: &api.BuilderCheck{Problems: []string{"crun is missing"}}}},
			{Name: "n4", Agent: &api.NodeRecord{Name: "n4"}, Control: &api.NodeControl{Builder: &api.BuilderTrust{}}},
			{Name: "n5", Machine: &state.Machine{}},
		}},
		Site: &situation.Site{Nodes: map[string]lifecycle.NodeState{"n1": ready, "n2": ready, "n3": {Phase: api.NodeDown}, "n4": ready}},
	}
	want := []lifecycle.Builder{
		{Node: "n1", Check: *can, Phase: api.NodeReady, Build: "b1", Trusted: true},
		{Node: "n2", Check: *can, Phase: api.NodeReady},
		{Node: "n3", Check: api.BuilderCheck{Problems: []string{"crun is missing"}}, Phase: api.NodeDown},
	}
	if diff := cmp.Diff(want, p.builders(map[string]string{"n1": "b1"})); diff != "" {
		t.Errorf("builders (-want +got):\n%s", diff)
	}
}
