package cli_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestABuildIsFollowedToItsEnd(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(file, []byte("name: mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pending := api.Build{ID: "b1", Environment: "mine", Phase: api.BuildPending}
	running := api.Build{ID: "b1", Environment: "mine", Phase: api.BuildRunning, Attempt: 1, Node: "n1", Step: "packages", Percent: 40}
	ended := api.Build{ID: "b1", Environment: "mine", Phase: api.BuildSucceeded, Attempt: 1, Digest: "sha256:abc", StartedAt: moment(0), EndedAt: moment(90 * time.Second)}
	f.fixed("POST /v1/builds", pending)
	f.inTurn("GET /v1/builds/b1", pending, running, ended)
	f.fixed("GET /v1/builds/b1/log", "I: downloading packages\n")
	r := f.shell().run(t, "env", "build", "-f", file, "--verbose")
	has(t, r, 0, "I: downloading packages\nenvironment mine is built: sha256:abc, in 90.0s\n", "build b1 of mine: pending, waits for a builder node")
	f.expect(`POST /v1/builds {"recipe":"name: mine\n"}`, "GET /v1/builds/b1", "GET /v1/builds/b1",
		"GET /v1/builds/b1/log?attempt=1&offset=0&follow=true", "GET /v1/builds/b1")

	f = newFake(t)
	f.fixed("POST /v1/builds", pending)
	ended.Phase, ended.Message = api.BuildFailed, "package openmpy: no such package"
	ended.LogBytes = 5000
	f.inTurn("GET /v1/builds/b1", running, ended, running, ended)
	f.on("GET /v1/builds/b1/log", func(r *http.Request, _ string) any { return "from " + r.URL.RawQuery + "\nE: no such package\n" })
	r = f.shell().run(t, "env", "build", "debian-mpi", "--force")
	has(t, r, 1, "build b1 of mine: running on n1, 40%: packages", "packages: 0.0s\n", "printed last:\n  from attempt=1&offset=904\n  E: no such package\n",
		"failed: package openmpy: no such package\nAll it printed is shown by: nearmetal env log b1\n")
	if strings.Contains(r.out, "no such package") {
		t.Errorf("the output of the build is in that of the command: %q", r.out)
	}
	if r = f.shell().run(t, "env", "build", "debian-mpi", "--force", "--quiet"); r.code != 1 || strings.Contains(r.err, "40%") {
		t.Errorf("quiet: exit code %d, %q", r.code, r.err)
	}
	f.fixed("GET /v1/builds", api.List[api.Build]{Items: []api.Build{ended}})
	has(t, squeezed(f.shell().run(t, "env", "builds")), 0, "b1 mine failed")
	has(t, f.shell().run(t, "env", "build", "debian-mpi", "--detach"), 0, "b1\n")
	has(t, f.shell().run(t, "env", "build"), cli.ExitUsage, "name a recipe")
	has(t, f.shell().run(t, "env", "build", "debian-mpi", "--quiet", "--verbose"), cli.ExitUsage, "conflicts with --verbose")
}

func TestABuildIsFollowedOverARestartOfTheServer(t *testing.T) {
	f := newFake(t)
	running := api.Build{ID: "b1", Environment: "mine", Phase: api.BuildRunning, Attempt: 1, Node: "n1", Step: "base", Percent: 1}
	ended := api.Build{ID: "b1", Environment: "mine", Phase: api.BuildSucceeded, Attempt: 1, Digest: "sha256:abc"}
	f.fixed("POST /v1/builds", running)
	var mu sync.Mutex
	asked := map[string]int{}
	nth := func(what string) int {
		mu.Lock()
		defer mu.Unlock()
		asked[what]++
		return asked[what]
	}
	f.on("GET /v1/builds/b1", func(*http.Request, string) any {
		switch n := nth("build"); {
		case n == 1:
			return running
		case n < 5:
			panic(http.ErrAbortHandler) // the server is away
		case n == 5:
			return &api.Problem{Status: http.StatusServiceUnavailable, Code: "unavailable", Detail: "starting"}
		case n == 6:
			return running
		}
		return ended
	})
	has(t, f.shell().run(t, "env", "build", "debian-mpi"), 0, "environment mine is built: sha256:abc")

	var offsets []string
	f.mux.HandleFunc("GET /v1/builds/b1/log", func(w http.ResponseWriter, r *http.Request) {
		n := nth("log")
		mu.Lock()
		offsets = append(offsets, r.URL.Query().Get("offset"))
		mu.Unlock()
		switch n {
		case 3:
			_, _ = io.WriteString(w, "one\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case 5:
			_, _ = io.WriteString(w, "two\n")
		default:
			panic(http.ErrAbortHandler)
		}
	})
	for _, args := range [][]string{{"env", "log", "b1", "--follow"}, {"env", "build", "debian-mpi", "--verbose"}} {
		offsets, asked = nil, map[string]int{"build": 5}
		r := f.shell().run(t, args...)
		if r.code != 0 || !strings.HasPrefix(r.out, "one\ntwo\n") || !slices.Equal(slices.Compact(offsets), []string{"0", "4"}) {
			t.Errorf("%s: exit code %d, output %q, asked for offsets %q; %s", args, r.code, r.out, offsets, r.err)
		}
	}
}

func TestABuildThatWaitsSaysWhatFor(t *testing.T) {
	f := newFake(t)
	waiting := api.Build{ID: "b2", Environment: "mine", Phase: api.BuildPending, Message: "waiting for build b1 on node n1"}
	f.fixed("GET /v1/builds", api.List[api.Build]{Items: []api.Build{waiting}})
	f.fixed("GET /v1/environments", api.List[api.Environment]{})
	f.fixed("POST /v1/builds", waiting)
	f.inTurn("GET /v1/builds/b2", waiting, api.Build{ID: "b2", Phase: api.BuildSucceeded})
	has(t, squeezed(f.shell().run(t, "env", "builds")), 0, "b2 mine pending - - ", "- waiting for build b1 on node n1")
	has(t, f.shell().run(t, "env", "list"), 0, "build b2 of mine: pending, waiting for build b1 on node n1\n")
	has(t, f.shell().run(t, "env", "build", "debian-mpi"), 0, "build b2 of mine: pending, waiting for build b1 on node n1\n")
}

func TestAProblemInARecipeIsToldByItsFile(t *testing.T) {
	f := newFake(t)
	f.fixed("POST /v1/builds", &api.Problem{Status: http.StatusUnprocessableEntity, Code: "invalid_recipe", Detail: "the recipe: line 3, column 1: name: is missing"})
	file := filepath.Join(t.TempDir(), "mine.yaml")
	if err := os.WriteFile(file, []byte("x: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	has(t, f.shell().run(t, "env", "build", "-f", file), cli.ExitUsage, "Error: "+file+": line 3, column 1: name: is missing")
	s := f.shell()
	s.in = strings.NewReader("x: y\n")
	has(t, s.run(t, "env", "build", "-f", "-"), cli.ExitUsage, "Error: the recipe: line 3, column 1")
}

func TestAnInterruptedBuildGoesOn(t *testing.T) {
	f := newFake(t)
	pending := api.Build{ID: "b1", Environment: "mine", Phase: api.BuildPending}
	f.fixed("POST /v1/builds", pending)
	f.fixed("GET /v1/builds/b1", pending)
	s := f.shell()
	s.interrupts = make(chan os.Signal, 1)
	var once sync.Once
	s.told = func(string) { once.Do(func() { s.interrupts <- syscall.SIGINT }) }
	has(t, s.run(t, "env", "build", "debian-mpi"), cli.ExitInterrupted, "build b1 goes on", "nearmetal env cancel b1")
}

func TestEnvironmentsAreCheckedPrintedAndDeleted(t *testing.T) {
	f := newFake(t)
	built := api.Environment{Name: "e", Stacks: []api.Stack{api.StackMetal}, Recipe: "name: e\n", Image: &api.Image{
		Digest: "sha256:abc", RootBytes: 100 << 20, RootUnpackedBytes: 300 << 20, BuiltAt: t0, BuildID: "b1", Requirements: api.Requirements{MemoryBytes: 1 << 30},
	}}
	inspect := built
	inspect.Name, inspect.Image = "inspect", &api.Image{Digest: "sha256:def", MetalBytes: 80 << 20, BuiltAt: t0}
	f.fixed("GET /v1/environments", api.List[api.Environment]{Items: []api.Environment{built, inspect}})
	f.fixed("GET /v1/builds", api.List[api.Build]{})
	f.fixed("GET /v1/environments/e", built)
	f.fixed("GET /v1/environments/inspect", inspect)
	f.fixed("DELETE /v1/environments/inspect", nil)
	f.fixed("GET /v1/environments/e/check", api.EnvironmentCheck{Environment: "e", Nodes: []api.EnvironmentNode{{Node: "n1", Problems: []string{"needs 1 GiB more memory"}}}})
	f.fixed("DELETE /v1/environments/e", &api.Problem{Status: http.StatusConflict, Code: "environment_in_use", Detail: `environment "e" is in use: machine n1`})
	f.fixed("GET /v1/recipes", api.List[api.Recipe]{Items: []api.Recipe{{Name: "debian-mpi"}}})
	f.fixed("GET /v1/recipes/debian-mpi", api.Recipe{Name: "debian-mpi", Text: "name: debian-mpi\n"})
	f.fixed("GET /v1/environments/debian-mpi", &api.Problem{Status: http.StatusNotFound, Code: "environment_not_found", Detail: "none"})
	has(t, squeezed(f.shell().run(t, "env", "list")), 0, "e metal 0 of 0 100MiB 90s", "inspect metal 0 of 0 - 90s")
	has(t, squeezed(f.shell().run(t, "env", "show", "inspect")), 0, "Root: none, it is kernel and initrd only")
	has(t, squeezed(f.shell().run(t, "env", "show", "e")), 0, "Needs: 1GiB memory besides its root", "Root: 100MiB, 300MiB unpacked")
	has(t, f.shell().run(t, "env", "check", "e", "--node", "n1"), cli.ExitRefused, "needs 1 GiB more memory", "on none of these nodes")
	has(t, f.shell().run(t, "env", "delete", "e"), cli.ExitConflict, "machine n1")
	has(t, f.shell().run(t, "env", "delete", "inspect", "--force"), 0, "environment inspect deleted")
	if asked := f.requests(); asked[len(asked)-1] != "DELETE /v1/environments/inspect?force=true" {
		t.Errorf("asked %s", asked[len(asked)-1])
	}
	for name, want := range map[string]string{"e": "name: e\n", "debian-mpi": "name: debian-mpi\n"} {
		if r := f.shell().run(t, "env", "recipe", name); r.out != want {
			t.Errorf("recipe %s: %q %s", name, r.out, r.err)
		}
	}
	has(t, f.shell().run(t, "env", "recipe"), 0, "debian-mpi\n")
}
