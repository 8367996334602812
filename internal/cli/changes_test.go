package cli_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// awaitView waits until the stored state is as a test needs it.
func awaitView(t *testing.T, s *apiservertest.Site, ok func(*state.View) bool) {
	t.Helper()
	for v := s.Cache.View(); !ok(v); v = s.Cache.View() {
		if _, err := s.Cache.WaitRevision(t.Context(), v.Revision+1); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWaitsEndWithTheChangeTheyWaitFor(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Now = func() time.Time { return t0 } })
	s.AddNode("n1", 2)
	sh := viaTCP(s)
	ctx := t.Context()

	r := sh.during(t, func() {
		awaitView(t, s, func(v *state.View) bool { return len(v.Builds) > 0 })
		build := *s.Cache.View().Builds[0]
		for _, step := range []string{"packages", "image"} {
			var err error
			build, _, err = s.Repo.UpdateBuild(ctx, build.ID, func(b *api.Build) error {
				b.Phase, b.Node, b.Step, b.Attempt = api.BuildRunning, "n1", step, 1
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		image := api.Image{Digest: "sha256:" + strings.Repeat("a", 64), Environment: build.Environment}
		for _, node := range []string{"n1", "n2"} {
			image.BuiltBy = append(image.BuiltBy, api.BuiltBy{Node: node, Digest: image.Digest, At: build.CreatedAt})
		}
		build.Phase, build.Digest, build.Built = api.BuildSucceeded, image.Digest, image.BuiltBy
		env := api.EnvironmentRecord{Name: build.Environment, Digest: image.Digest}
		if _, err := s.Leader.FinishBuild(ctx, build, image, env); err != nil {
			t.Error(err)
		}
	}, "env", "build", "debian-mpi")
	has(t, r, 0, "environment debian-mpi is built: sha256:aaaa", ", the same on node n1 and node n2")

	has(t, sh.run(t, "node", "enroll", "m1", "--mac", "52:54:00:00:00:01", "--power", "manual", "--no-inspect"), 0)
	r = sh.during(t, func() {
		awaitView(t, s, func(v *state.View) bool { return v.Machine("m1").Intent.Inspect > 0 })
		m := s.Cache.View().Machine("m1")
		at := t0.Add(time.Second)
		rec := api.MachineRecord{Name: "m1", UID: m.UID(), Phase: api.MachineOff, DoneInspect: m.Intent.Inspect, InspectedAt: &at, ChangedAt: at}
		if _, err := s.Leader.CommitMachine(ctx, m, state.MachineWrite{Record: rec, Hardware: &api.Hardware{MemoryBytes: 1 << 30}}); err != nil {
			t.Error(err)
		}
	}, "node", "inspect", "m1", "--wait")
	has(t, r, 0, "Looked at:")

	r = sh.during(t, func() {
		awaitView(t, s, func(v *state.View) bool { return v.Machine("m1").Intent.RemoveRequestedAt != nil })
		if _, err := s.Leader.ForgetMachine(ctx, s.Cache.View().Machine("m1")); err != nil {
			t.Error(err)
		}
	}, "node", "remove", "m1", "--wait")
	has(t, r, 0, "node m1 is removed")
}

func TestAJobWhoseOutputEndsBeforeItIsReadOnAfterItsNextChange(t *testing.T) {
	f := newFake(t)
	running, ended := api.Job{ID: "j1", Cluster: "c1", Phase: api.JobRunning}, api.Job{ID: "j1", Cluster: "c1", Phase: api.JobSucceeded}
	f.fixed("POST /v1/clusters/c1/jobs", running)
	f.inTurn("GET /v1/jobs/j1", running, ended)
	f.on("GET /v1/jobs/j1/log", func(r *http.Request, _ string) any {
		if r.URL.Query().Get("offset") == "0" {
			return "before\n"
		}
		return "after\n"
	})
	has(t, f.shell().run(t, "run", "c1", "x"), 0, "before\nafter\n")
}
