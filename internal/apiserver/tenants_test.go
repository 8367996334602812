package apiserver_test

import (
	"bytes"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAProjectLivesItsLife(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 8)
	c, ctx := s.Client(), t.Context()
	p, err := c.CreateProject(ctx, api.ProjectRequest{Name: "fluids", Description: "CFD", Quota: api.Quota{Cores: 16, Memory: 1 << 30}})
	if err != nil || p.Shares != 1 || p.CreatedAt.IsZero() {
		t.Fatalf("created %+v, %v", p, err)
	}
	if _, err := c.CreateProject(ctx, api.ProjectRequest{Name: "fluids"}); !client.HasCode(err, "project_exists") {
		t.Errorf("again: %v", err)
	}
	p.Quota.Cores, p.Shares, p.Description = 32, 5, ""
	changed, err := c.UpdateProject(ctx, p.Project)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.Project, changed.Project); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
	if _, err := c.UpdateProject(ctx, api.Project{Name: "nix", Shares: 1}); !client.HasCode(err, "project_not_found") {
		t.Errorf("change of what is not there: %v", err)
	}
	if _, err := c.CreateCluster(ctx, api.ClusterRequest{Name: "c1", Project: "fluids", Size: 2}); err != nil {
		t.Fatal(err)
	}
	s.Place("fluids.c1")
	if err := c.DeleteProject(ctx, "fluids"); !client.HasCode(err, "project_in_use") || !strings.Contains(err.Error(), "fluids.c1") {
		t.Errorf("delete while it owns a cluster: %v", err)
	}
	p.Quota = api.Quota{Cores: 1, Memory: 512 << 20, Members: 2}
	_, err = c.UpdateProject(ctx, p.Project)
	if !client.HasCode(err, "quota_in_use") || !strings.Contains(err.Error(), "quota.cores: 1 is less than the 2 in use") ||
		!strings.Contains(err.Error(), "quota.memory: 512MiB is less than the 1GiB in use") || strings.Contains(err.Error(), "members") {
		t.Errorf("a quota below what is in use: %v", err)
	}
	if p, err := c.Project(ctx, "fluids"); err != nil || p.Quota.Cores != 32 || !cmp.Equal(p.Used, api.Quota{Cores: 2, Memory: 1 << 30, Members: 2, Clusters: 1}) {
		t.Errorf("after that: %+v, %v", p, err)
	}
	s.Release("fluids.c1")
	s.Forget("fluids.c1")
	if err := c.DeleteProject(ctx, "fluids"); err != nil {
		t.Errorf("delete: %v", err)
	}
	if err := c.DeleteProject(ctx, "fluids"); !client.HasCode(err, "project_not_found") {
		t.Errorf("delete again: %v", err)
	}
	if list, err := c.Projects(ctx); err != nil || len(list) != 1 || list[0].Name != "default" || list[0].Shares != 1 {
		t.Errorf("projects: %+v, %v; want the default one", list, err)
	}
}

func TestBadProjectsAndTokensAreRefused(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	tests := []struct {
		method, path, body, text string
	}{
		{"POST", "/v1/projects", `{}`, "name"},
		{"POST", "/v1/projects", `{"name": "Fluids"}`, `"Fluids" is not a DNS label`},
		{"POST", "/v1/projects", `{"name": "a.b"}`, `for example "a-b"`},
		{"POST", "/v1/projects", `{"name": "` + strings.Repeat("a", 41) + `"}`, "use at most 40"},
		{"POST", "/v1/projects", `{"name": "a", "shares": -1}`, "shares: -1 is not a weight"},
		{"POST", "/v1/projects", `{"name": "a", "quota": {"cores": -1, "members": -2}}`, "quota.members: -2 is not a quota"},
		{"POST", "/v1/projects", `{"name": "a", "qouta": {}}`, `did you mean "quota"?`},
		{"POST", "/v1/projects", `{"name": "a", "description": "` + strings.Repeat("a", 2000) + `"}`, "2000 bytes long"},
		{"PUT", "/v1/projects/default", `{"name": "other", "description": "", "quota": {}, "shares": 1}`, `is not "default"`},
		{"POST", "/v1/tokens", `{}`, "user: is missing"},
		{"POST", "/v1/tokens", `{"user": "ann"}`, "role: is missing"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "membr"}`, `did you mean "member"?`},
		{"POST", "/v1/tokens", `{"user": "a b", "role": "member"}`, "holds spaces"},
		{"POST", "/v1/tokens", `{"user": "` + strings.Repeat("a", 65) + `", "role": "member"}`, "at most 64"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "project": ""}`, "project"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "admin", "project": ""}`, "project"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "admin", "project": "default"}`, "omit it"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "valid_for": "0s"}`, "every token ends: omit it for a token that is valid for 90d"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "verbs": ["write"]}`, `verbs[0]: "write" is not a verb`},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "verbs": ["run", "administer"]}`, `verbs[1]: the role member does not allow "administer"`},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "viewer", "verbs": ["run"]}`, `the role viewer does not allow "run"`},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "clusters": ["CI"]}`, `clusters[0]: "CI" is not a pattern`},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "clusters": ["c[a-z]"]}`, "is not a pattern"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "clusters": [""]}`, "is empty"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "clusters": ["` + strings.Repeat("a", 41) + `"]}`, "at most 40"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "clusters": ["a"` + strings.Repeat(`, "a"`, 16) + `]}`, "are 17 patterns"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "admin", "clusters": ["ci-*"]}`, "is for the whole site"},
		{"POST", "/v1/tokens", `{"user": "n1", "role": "agent", "verbs": ["read"]}`, "can't be limited"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "valid_for": "3651d"}`, "too long"},
		{"POST", "/v1/tokens", `{"user": "ann", "role": "member", "valid_for": 60}`, "the number needs a unit"},
		{"POST", "/v1/nodes/n1/drain", `{"reason": "` + strings.Repeat("a", 1001) + `"}`, "at most 1000"},
		{"POST", "/v1/nodes/n1/drain", `{"why": ""}`, "known fields: reason"},
	}
	for _, tt := range tests {
		p := problemOf(t, send(t, s, request{method: tt.method, path: tt.path, body: tt.body}))
		if p.Code != "invalid_request" || !strings.Contains(p.Detail, tt.text) || len(p.Errors) == 0 || p.Errors[0].Location == "" {
			t.Errorf("%s %s %.60s: %s %q, want %q with a location", tt.method, tt.path, tt.body, p.Code, p.Detail, tt.text)
		}
	}
	if v := s.Cache.View(); len(v.Projects) != 1 || len(v.Tokens) != 0 {
		t.Errorf("something was stored: %d projects, %d tokens", len(v.Projects), len(v.Tokens))
	}
}

func TestATokenWorksUntilItIsOverOrRevoked(t *testing.T) {
	now := t0
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Now = func() time.Time { return now } })
	c, ctx := s.Client(), t.Context()
	made, err := c.CreateToken(ctx, api.TokenRequest{User: "ann", Role: api.RoleViewer, ValidFor: api.Duration(time.Hour)})
	if err != nil || made.Project != "default" || made.ExpiresAt == nil || !made.ExpiresAt.Equal(t0.Add(time.Hour)) || made.SHA256 != "" {
		t.Fatalf("made %+v, %v", made, err)
	}
	ann := s.ClientOf(made.Token)
	if me, err := ann.Whoami(ctx); err != nil || !reflect.DeepEqual(me, api.Identity{User: "ann", Project: "default", Role: api.RoleViewer, ExpiresAt: made.ExpiresAt}) {
		t.Errorf("whoami: %+v, %v", me, err)
	}
	if _, err := ann.CreateCluster(ctx, api.ClusterRequest{Name: "c1"}); !client.HasCode(err, "forbidden") {
		t.Errorf("a viewer's create: %v", err)
	}
	now = t0.Add(time.Hour)
	if _, err := ann.Whoami(ctx); !client.HasCode(err, "unauthorized") || !strings.Contains(err.Error(), `of "ann" ended on `) {
		t.Errorf("after its time: %v", err)
	}
	now = t0
	list, err := c.Tokens(ctx)
	if err != nil || len(list) != 1 || list[0].ID != made.ID || list[0].SHA256 != "" {
		t.Errorf("tokens: %+v, %v", list, err)
	}
	if resp := send(t, s, request{method: "DELETE", path: "/v1/tokens/" + made.ID}); resp.StatusCode != http.StatusNoContent {
		t.Errorf("revoke: %s", resp.Status)
	}
	if _, err := ann.Whoami(ctx); !client.HasCode(err, "unauthorized") {
		t.Errorf("revoked: %v", err)
	}
	if err := c.RevokeToken(ctx, made.ID); !client.HasCode(err, "token_not_found") {
		t.Errorf("revoke again: %v", err)
	}
	if _, err := c.CreateToken(ctx, api.TokenRequest{User: "ann", Project: "nix", Role: api.RoleMember}); !client.HasCode(err, "project_not_found") {
		t.Errorf("for a project that is not there: %v", err)
	}
	if me, err := s.LocalClient().Whoami(ctx); err != nil || !reflect.DeepEqual(me, api.Identity{User: "admin", Role: api.RoleAdmin}) {
		t.Errorf("by the Unix socket: %+v, %v", me, err)
	}
}

func TestANodeIsATrustedBuilderByAnAdministratorsWordOnly(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 8)
	c, ctx := s.Client(), t.Context()
	for range 2 {
		if n, err := c.TrustNode(ctx, "n1"); err != nil || n.Control == nil || n.Control.Drained || n.Control.Builder == nil || n.Control.Builder.By != "admin" {
			t.Errorf("trust: %+v, %v", n.Control, err)
		}
	}
	for range 2 {
		if n, err := c.UntrustNode(ctx, "n1"); err != nil || n.Control != nil {
			t.Errorf("untrust: %+v, %v", n.Control, err)
		}
	}
	_, trusted := c.TrustNode(ctx, "nix")
	_, untrusted := c.UntrustNode(ctx, "nix")
	for what, err := range map[string]error{"trust": trusted, "untrust": untrusted} {
		if !client.HasCode(err, "node_not_found") {
			t.Errorf("%s in what is not there: %v", what, err)
		}
	}
}

func TestANodeIsDrainedAndForgotten(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 8)
	c, ctx := s.Client(), t.Context()
	for _, reason := range []string{"new fans", ""} {
		n, err := c.DrainNode(ctx, "n1", reason)
		if err != nil || n.Control == nil || n.Control.Reason != "new fans" || n.Control.By != "admin" || !n.Control.Drained {
			t.Errorf("drain: %+v, %v", n.Control, err)
		}
	}
	if resp := send(t, s, request{method: "POST", path: "/v1/nodes/n1/drain"}); resp.StatusCode != http.StatusOK {
		t.Errorf("drain without a body: %s", resp.Status)
	}
	for range 2 {
		if n, err := c.UndrainNode(ctx, "n1"); err != nil || n.Control != nil {
			t.Errorf("undrain: %+v, %v", n.Control, err)
		}
	}
	_, drain := c.DrainNode(ctx, "nix", "")
	_, undrain := c.UndrainNode(ctx, "nix")
	for what, err := range map[string]error{"drain": drain, "undrain": undrain, "forget": c.ForgetNode(ctx, "nix")} {
		if !client.HasCode(err, "node_not_found") {
			t.Errorf("%s of what is not there: %v", what, err)
		}
	}
	create(t, c, "c1")
	s.Place("c1")
	if err := c.ForgetNode(ctx, "n1"); !client.HasCode(err, "node_in_use") || !strings.Contains(err.Error(), "c1-0") {
		t.Errorf("forget while members are on it: %v", err)
	}
	s.Release("c1")
	s.Forget("c1")
	if err := c.ForgetNode(ctx, "n1"); err != nil {
		t.Errorf("forget: %v", err)
	}
	if nodes, err := c.Nodes(ctx); err != nil || len(nodes) != 0 {
		t.Errorf("nodes: %+v, %v", nodes, err)
	}
}

func TestUsageIsToldOfOnesOwnProject(t *testing.T) {
	s, admin, now := ready(t, api.ClusterRequest{Name: "c1", Size: 2})
	ctx := t.Context()
	s.Project("fluids", api.Quota{})
	fluids := s.ClientAs("ann", "fluids", api.RoleMember)
	if _, err := fluids.CreateCluster(ctx, api.ClusterRequest{Name: "c2", Size: 3}); err != nil {
		t.Fatal(err)
	}
	s.Place("fluids.c2")
	*now = t0.Add(2 * time.Hour)
	own, err := fluids.Usage(ctx, client.UsageQuery{By: "cluster", Period: "hour"})
	if err != nil || len(own.Rows) != 2 || own.Rows[0].Cluster != "c2" || own.Rows[0].CoreSeconds != 3*3600 || own.Rows[0].User != "ann" || own.Site != nil {
		t.Errorf("a project's usage: %+v, %v; want two hours of three cores", own, err)
	}
	all, err := admin.Usage(ctx, client.UsageQuery{})
	if err != nil || len(all.Rows) != 2 || all.Rows[0].Project != "default" || all.Rows[0].CoreSeconds != 2*7200 || len(all.Site) != 1 {
		t.Errorf("an administrator's usage: %+v, %v", all, err)
	}
	var csv bytes.Buffer
	if err := fluids.UsageCSV(ctx, client.UsageQuery{By: "user"}, &csv); err != nil || !strings.Contains(csv.String(), "ann") ||
		strings.Contains(csv.String(), "admin") || strings.Count(csv.String(), "\n") != 2 {
		t.Errorf("as text: %v\n%s", err, csv.String())
	}
	for query, text := range map[string]string{
		"from=yesterday": "query.from", "to=x": "query.to", "period=fortnight": "query.period", "period=dya": `did you mean \"day\"?`,
		"by=node": "query.by", "format=xml": "query.format", "from=2026-02-01&to=2026-01-01": "is not before the end",
		"from=1970-01-01&to=2026-01-01&period=hour": "makes more rows",
	} {
		p := problemOf(t, send(t, s, request{method: "GET", path: "/v1/usage?" + query}))
		if p.Code != "invalid_parameter" || !strings.Contains(p.Detail, strings.ReplaceAll(text, `\`, "")) {
			t.Errorf("usage?%s: %s %q, want %q", query, p.Code, p.Detail, text)
		}
	}
	resp := send(t, s, request{method: "GET", path: "/v1/usage?from=2026-01-31&to=2026-01-31T10:00:00Z&by=site&format=csv"})
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/csv") {
		t.Errorf("the site's capacity as text: %s %s", resp.Status, resp.Header.Get("Content-Type"))
	}
}

func TestTheOutputOfEveryAttemptIsKeptApart(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	c, ctx := s.Client(), t.Context()
	create(t, c, "c1")
	s.Place("c1")
	s.MakeReady("c1")
	job, err := c.CreateJob(ctx, "c1", api.JobRequest{Command: []string{"x"}, Requeue: true})
	if err != nil {
		t.Fatal(err)
	}
	out := &lockedBuffer{wrote: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() {
		_, err := c.JobAttemptLog(ctx, job.ID, 0, 0, true, out)
		done <- err
	}()
	s.Logs.Write(job.ID, "first\n")
	<-out.wrote
	s.ChangeJob(job.ID, func(j *api.Job) { j.Attempt = 1 })
	if err := <-done; err != nil || out.String() != "first\n" {
		t.Errorf("the first attempt followed: %v, %q; want its end when the second begins", err, out.String())
	}
	s.Logs.Write(job.ID+".1", "second\n")
	for path, want := range map[string]string{"": "second\n", "?attempt=1": "second\n", "?attempt=0": "first\n"} {
		resp := send(t, s, request{method: "GET", path: "/v1/jobs/" + job.ID + "/log" + path})
		var text bytes.Buffer
		if _, err := text.ReadFrom(resp.Body); err != nil || text.String() != want {
			t.Errorf("log%s: %q, %v; want %q", path, text.String(), err, want)
		}
	}
	for _, bad := range []string{"2", "-1", "x"} {
		p := problemOf(t, send(t, s, request{method: "GET", path: "/v1/jobs/" + job.ID + "/log?attempt=" + bad}))
		if p.Code != "invalid_parameter" || !strings.Contains(p.Detail, "query.attempt: is not a") {
			t.Errorf("attempt %s: %s %q", bad, p.Code, p.Detail)
		}
	}
}
