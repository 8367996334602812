package cli_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestBuildersAreTrustedAndWhatTheyBuiltIsShown(t *testing.T) {
	f := newFake(t)
	offers := api.Node{Name: "n1", Phase: api.NodeReady, Agent: &api.AgentPart{Builder: &api.BuilderCheck{OK: true}, FirstSeenAt: t0}}
	trusted := offers
	trusted.Control = &api.NodeControl{Name: "n1", Builder: &api.BuilderTrust{By: "ada", Since: t0}}
	broken := api.Node{Name: "n2", Phase: api.NodeReady, Agent: &api.AgentPart{Builder: &api.BuilderCheck{Problems: []string{"crun is missing"}}, FirstSeenAt: t0}}
	silent := api.Node{Name: "n3", Phase: api.NodeReady, Control: trusted.Control}
	f.fixed("GET /v1/nodes/n1", trusted)
	f.fixed("GET /v1/nodes/n2", broken)
	f.fixed("POST /v1/nodes/n1/trust", trusted)
	f.fixed("POST /v1/nodes/n3/trust", silent)
	f.fixed("POST /v1/nodes/n1/untrust", offers)
	by := func(node string, trusted bool) api.BuiltBy {
		return api.BuiltBy{Node: node, Trusted: trusted, Digest: "sha256:abc", At: t0}
	}
	environment := func(name string, by ...api.BuiltBy) api.Environment {
		return api.Environment{Name: name, Image: &api.Image{Digest: "sha256:abc", BuiltAt: t0, BuildID: "b1", BuiltBy: by, Bases: map[string]string{"base": "sha256:def"}}}
	}
	both, one := environment("both", by("n1", true), by("n2", false)), environment("one", by("n2", false))
	f.fixed("GET /v1/environments", api.List[api.Environment]{Items: []api.Environment{both, one, {Name: "local"}}})
	f.fixed("GET /v1/environments/both", both)
	f.fixed("GET /v1/builds", api.List[api.Build]{})
	golden(t, "trust", f.script(
		"node trust n1 n3", "node untrust n1", "node show n1", "node show n2", "env list", "env list --built-by n1", "env show both"))
}

func TestABuildIsVerifiedOnRequest(t *testing.T) {
	f := newFake(t)
	f.on("POST /v1/builds", func(*http.Request, string) any { return api.Build{ID: "b1", Phase: api.BuildPending} })
	has(t, f.shell().run(t, "env", "build", "debian-mpi", "--verify", "--detach"), 0, "b1")
	if want := `POST /v1/builds {"shipped":"debian-mpi","verify":true}`; !slices.Contains(f.asked, want) {
		t.Errorf("asked %q, want %q", f.asked, want)
	}
}
