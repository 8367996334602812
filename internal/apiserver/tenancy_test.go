package apiserver_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/tenancy"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// contextOf is a context for what a site's levers do.
func contextOf(*apiservertest.Site) context.Context { return context.Background() }

// matrix says for every operation what it takes to call it. An operation that is not listed fails the test: who adds one says here who may call it.
var matrix = map[string]apiserver.Access{
	"GET /healthz": "open", "GET /readyz": "open",
	"GET /v1/version": "read", "GET /v1/whoami": "read", "GET /v1/watch": "read", "GET /v1/changes": "read", "GET /v1/queue": "read", "GET /v1/usage": "read", "GET /v1/energy": "read", "GET /v1/metrics": "read",
	"GET /v1/clusters": "read", "POST /v1/clusters": "change",
	"GET /v1/clusters/{name}": "read", "PUT /v1/clusters/{name}": "change", "DELETE /v1/clusters/{name}": "change",
	"GET /v1/clusters/{name}/watch": "read", "GET /v1/clusters/{name}/events": "read", "GET /v1/clusters/{name}/explain": "read", "GET /v1/clusters/{name}/home": "read",
	"POST /v1/clusters/{name}/jobs": "run", "POST /v1/clusters/{name}/scale": "change", "POST /v1/clusters/{name}/pause": "change",
	"POST /v1/clusters/{name}/save": "change", "POST /v1/clusters/{name}/save-files": "change", "POST /v1/clusters/{name}/restore": "change", "POST /v1/clusters/{name}/migrate": "change",
	"POST /v1/clusters/{name}/reboot":   "change",
	"POST /v1/clusters/{name}/resize":   "change",
	"PUT /v1/clusters/{name}/condition": "change", "DELETE /v1/clusters/{name}/condition": "change",
	"POST /v1/clusters/{name}/layers": "change", "DELETE /v1/clusters/{name}/layers/{environment}": "change",
	"POST /v1/clusters/{name}/volumes": "change", "DELETE /v1/clusters/{name}/volumes/{volume}": "change",
	"GET /v1/clusters/{name}/snapshots": "read", "POST /v1/clusters/{name}/snapshots": "change",
	"DELETE /v1/clusters/{name}/snapshots/{snapshot}": "change", "POST /v1/clusters/{name}/snapshots/{snapshot}/restore": "change",
	"POST /v1/clusters/{name}/resume": "change", "POST /v1/clusters/{name}/extend": "change", "POST /v1/clusters/{name}/labels": "change",
	"GET /v1/clusters/{name}/top": "read", "POST /v1/nodes/{name}/maintenance": "administer", "DELETE /v1/nodes/{name}/maintenance/{id}": "administer",
	"POST /v1/clusters/{name}/certificate": "run", "GET /v1/clusters/{name}/members/{member}/connect": "run",
	"GET /v1/clusters/{name}/members/{member}/console": "run", "GET /v1/clusters/{name}/members/{member}/display": "run",
	"GET /v1/jobs": "read", "GET /v1/jobs/{id}": "read", "GET /v1/jobs/{id}/log": "read", "POST /v1/jobs/{id}/cancel": "run",
	"GET /v1/networks": "read", "POST /v1/networks": "change", "GET /v1/networks/{name}": "read", "DELETE /v1/networks/{name}": "change",
	"GET /v1/networks/{name}/check": "run", "GET /v1/networks/{name}/trace": "read", "GET /v1/clusters/{name}/trace": "read",
	"GET /v1/addresses": "read", "POST /v1/addresses": "change", "GET /v1/addresses/{address}": "read", "DELETE /v1/addresses/{address}": "change",
	"PUT /v1/addresses/{address}/assignment": "change", "DELETE /v1/addresses/{address}/assignment": "change",
	"GET /v1/volumes": "read", "POST /v1/volumes": "change", "GET /v1/volumes/{name}": "read", "PATCH /v1/volumes/{name}": "change",
	"DELETE /v1/volumes/{name}": "change", "POST /v1/volumes/{name}/undelete": "change", "GET /v1/volumes/{name}/snapshots": "read",
	"POST /v1/volumes/{name}/snapshots": "change", "DELETE /v1/volumes/{name}/snapshots/{snapshot}": "change",
	"POST /v1/volumes/{name}/snapshots/{snapshot}/restore": "change", "GET /v1/volumes/{name}/backup": "run",
	"POST /v1/volumes/{name}/content": "change", "DELETE /v1/volumes/{name}/content": "change",
	"GET /v1/datasets": "read", "POST /v1/datasets": "change", "GET /v1/datasets/{name}": "read", "DELETE /v1/datasets/{name}": "change",
	"POST /v1/datasets/{name}/check": "change", "POST /v1/datasets/{name}/evict": "change", "POST /v1/datasets/{name}/replicate": "change",
	"GET /v1/security-groups": "read", "POST /v1/security-groups": "change", "GET /v1/security-groups/{name}": "read",
	"POST /v1/security-groups/{name}/rules": "change", "POST /v1/networks/{name}/records": "change", "DELETE /v1/security-groups/{name}": "change",
	"GET /v1/nodes": "read", "GET /v1/nodes/{name}": "read",
	"POST /v1/nodes/{name}/drain": "administer", "POST /v1/nodes/{name}/undrain": "administer", "POST /v1/nodes/{name}/trust": "administer", "POST /v1/nodes/{name}/untrust": "administer", "DELETE /v1/nodes/{name}": "administer",
	"GET /v1/environments": "read", "GET /v1/environments/{name}": "read",
	"GET /v1/environments/{name}/check": "read", "DELETE /v1/environments/{name}": "change",
	"POST /v1/builds": "administer", "GET /v1/builds": "read", "GET /v1/builds/{id}": "read", "POST /v1/builds/{id}/cancel": "administer",
	"GET /v1/builds/{id}/log": "read", "PUT /v1/uploads/{hex}": "administer", "GET /v1/recipes": "read", "GET /v1/recipes/{name}": "read",
	"POST /v1/nodes": "administer", "PUT /v1/nodes/{name}": "administer", "PATCH /v1/nodes/{name}": "administer", "POST /v1/nodes/{name}/power": "administer", "POST /v1/power": "administer", "POST /v1/nodes/{name}/inspect": "administer", "POST /v1/clean": "administer", "POST /v1/nodes/{name}/hold": "administer",
	"GET /v1/nodes/{name}/events": "read", "GET /v1/nodes/{name}/host-check": "administer", "GET /v1/nodes/{name}/console": "administer", "GET /v1/nodes/{name}/console-login": "administer", "GET /v1/nodes/{name}/bmc-login": "administer",
	"GET /v1/candidates": "administer", "GET /v1/enroll-tokens": "administer", "POST /v1/enroll-tokens": "administer", "DELETE /v1/enroll-tokens/{id}": "administer",
	"GET /agent/v1/images/{hex}": "agent", "PUT /agent/v1/images/{hex}": "agent",
	"GET /v1/projects": "read", "GET /v1/projects/{name}": "read",
	"POST /v1/projects": "administer", "PUT /v1/projects/{name}": "administer", "PATCH /v1/projects/{name}": "administer", "DELETE /v1/projects/{name}": "administer",
	"GET /v1/fabrics": "read", "GET /v1/fabrics/{name}": "read", "GET /v1/fabrics/{name}/topology": "read", "GET /v1/fabrics/{name}/events": "read", "GET /v1/fabrics/{name}/audit": "administer",
	"GET /v1/shapes": "read", "GET /v1/shapes/{name}": "read", "PUT /v1/shapes/{name}": "administer", "DELETE /v1/shapes/{name}": "administer",
	"GET /v1/audit": "administer", "GET /v1/audit/verification": "administer",
	"GET /v1/tokens": "administer", "POST /v1/tokens": "administer", "DELETE /v1/tokens/{id}": "administer",
	"POST /agent/v5/stream": "agent", "POST /agent/v1/tunnel/{id}": "agent",
	"POST /agent/v1/enrollment": "enroll", "POST /agent/v1/renewal": "enroll", "POST /v1/nodes/{name}/approve": "administer", "POST /v1/nodes/{name}/revoke": "administer",
}

// callers are the roles that may call what takes an access: a(dmin), m(ember), v(iewer), (a)g(ent), o for everybody, without a token too.
var callers = map[apiserver.Access]string{
	apiserver.AccessOpen: "amvgo", apiserver.AccessRead: "amv", apiserver.AccessRun: "am", apiserver.AccessChange: "am",
	apiserver.AccessAdmin: "a", apiserver.AccessAgent: "g", apiserver.AccessEnroll: "amvgo",
}

// TestEveryRoleMayDoWhatIsItsOwnAndNothingElse calls every operation with every role. Things named do not exist, so what is allowed ends
// in another error, or none.
func TestEveryRoleMayDoWhatIsItsOwnAndNothingElse(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.AgentStream, c.AgentTunnel = ok, ok })
	tokens := map[rune]string{
		'a': s.Token("root", "", api.RoleAdmin), 'm': s.Token("ann", "default", api.RoleMember),
		'v': s.Token("vic", "default", api.RoleViewer), 'g': agentLine,
	}
	unlisted := map[string]bool{}
	for op := range matrix {
		unlisted[op] = true
	}
	for _, op := range s.Server.Operations() {
		name := op.Method + " " + op.Path
		access, listed := matrix[name]
		if !listed || op.Access != access {
			t.Errorf("%s takes %q, and the table says %q: say there what it takes", name, op.Access, access)
			continue
		}
		delete(unlisted, name)
		roles, path := callers[access], named(op.Path, "nix")
		for letter, line := range tokens {
			code, status := call(t, s, line, op.Method, path)
			if allowed := strings.ContainsRune(roles, letter); allowed == (code == "forbidden") {
				t.Errorf("%s with role %c: %d %s; allowed should be %v", name, letter, status, code, allowed)
			}
		}
		code, status := call(t, s, "", op.Method, path)
		if allowed := strings.Contains(roles, "o"); allowed == (code == "unauthorized") {
			t.Errorf("%s without a token: %d %s; allowed should be %v", name, status, code, allowed)
		}
	}
	for op := range unlisted {
		t.Errorf("%s is in the table, but the API has no such operation", op)
	}
}

// named is a path in which every thing has a name.
func named(path, name string) string {
	return strings.NewReplacer("{name}", name, "{id}", name, "{member}", name, "{hex}", name, "{snapshot}", name).Replace(path)
}

// TestATokenMayDoWhatItsVerbsSayAndNothingElse calls every operation with a token of every role that is limited to one verb.
func TestATokenMayDoWhatItsVerbsSayAndNothingElse(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	roles := map[api.Role]string{api.RoleAdmin: "a", api.RoleMember: "m", api.RoleViewer: "v"}
	for role, letter := range roles {
		for _, verb := range tenancy.RoleVerbs(role) {
			line := s.TokenWith(api.TokenInfo{User: "ann", Role: role, Limits: api.Limits{Verbs: tenancy.NormalVerbs([]api.Verb{verb})}})
			for _, op := range s.Server.Operations() {
				may := op.Access == apiserver.AccessOpen || op.Access == apiserver.AccessEnroll ||
					strings.Contains(callers[op.Access], letter) && (op.Access == apiserver.AccessRead || op.Access == apiserver.Access(verb))
				code, status := call(t, s, line, op.Method, named(op.Path, "nix"))
				if may == (code == "forbidden") {
					t.Errorf("%s %s by a %s limited to %s: %d %s; allowed should be %v", op.Method, op.Path, role, verb, status, code, may)
				}
			}
		}
	}
}

func TestWhoSendsATokenOverTheSocketIsWhoItSays(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	by := func(line string) api.Identity {
		t.Helper()
		token, err := trust.ParseToken(line)
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.New(client.Options{Addr: "unix:" + s.Socket(), Bearer: token.Bearer()})
		if err != nil {
			t.Fatal(err)
		}
		who, err := c.Whoami(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.DeleteCluster(t.Context(), "nix"); client.HasCode(err, "forbidden") != (who.Role == api.RoleViewer) {
			t.Errorf("delete by %s: %v", who.Role, err)
		}
		return who
	}
	if who := by(s.Token("vic", "default", api.RoleViewer)); who.User != "vic" || who.Role != api.RoleViewer {
		t.Errorf("it is %+v, want vic, a viewer", who)
	}
	if who := by(s.Token("root", "", api.RoleAdmin)); who.User != "root" || who.Role != api.RoleAdmin {
		t.Errorf("it is %+v, want root, an administrator", who)
	}
	c, err := client.New(client.Options{Addr: "unix:" + s.Socket(), Bearer: "of.another"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Whoami(t.Context()); !client.HasCode(err, "unauthorized") {
		t.Errorf("with a token that is not this server's: %v", err)
	}
}

// agentLine stands for the certificate of a node's agent.
const agentLine = "agent"

// call makes a request with a token's line ("": none) and returns the code of the problem, if it is one. Streams are left.
func call(t *testing.T, s *apiservertest.Site, line, method, path string) (string, int) {
	t.Helper()
	r := request{method: method, path: path}
	pin, err := trust.ReadToken(s.TokenFile())
	if err != nil {
		t.Fatal(err)
	}
	if line != "" && line != agentLine {
		token, err := trust.ParseToken(line)
		if err != nil {
			t.Fatal(err)
		}
		r.header = map[string]string{"Authorization": "Bearer " + token.Bearer()}
	}
	config := trust.ClientTLS(pin.Pin, "127.0.0.1")
	if line == agentLine {
		config = s.NodeTLS("n1")
	}
	resp := sendBy(t, &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true,
	}}, "https://"+s.Addr, r)
	if resp.Header.Get("Content-Type") != "application/problem+json" {
		return "", resp.StatusCode
	}
	return problemOf(t, resp).Code, resp.StatusCode
}

func TestAProjectSeesNothingOfAnother(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 8)
	s.Project("fluids", api.Quota{})
	s.Project("solids", api.Quota{})
	ctx := t.Context()
	fluids, solids, admin := s.ClientAs("ann", "fluids", api.RoleMember), s.ClientAs("bob", "solids", api.RoleMember), s.Client()
	for _, c := range []*client.Client{fluids, solids, admin} {
		if _, err := c.CreateCluster(ctx, api.ClusterRequest{Name: "c1", Size: 2}); err != nil {
			t.Fatal(err)
		}
	}
	for _, full := range []string{"fluids.c1", "solids.c1", "c1"} {
		s.Place(full)
		s.MakeReady(full)
	}
	job, err := solids.CreateJob(ctx, "c1", api.JobRequest{Command: []string{"secret"}})
	if err != nil || job.Cluster != "c1" {
		t.Fatalf("job %+v, %v", job, err)
	}

	own, err := fluids.Clusters(ctx)
	if err != nil || len(own) != 1 || own[0].Name != "c1" || own[0].Project != "fluids" || own[0].User != "ann" {
		t.Errorf("a project's clusters: %+v, %v", own, err)
	}
	if all, err := admin.Clusters(ctx); err != nil || len(all) != 3 {
		t.Errorf("an administrator's clusters: %d, %v; want 3", len(all), err)
	}
	for _, name := range []string{"c1", "fluids.c1"} {
		if c, err := fluids.Cluster(ctx, name); err != nil || c.UID != own[0].UID {
			t.Errorf("%q in its project: %+v, %v", name, c, err)
		}
	}
	if c, err := admin.Cluster(ctx, "solids.c1"); err != nil || c.Project != "solids" || c.Name != "c1" {
		t.Errorf("an administrator by the full name: %+v, %v", c, err)
	}
	checkHidden(t, fluids, job)

	nodes, err := fluids.Nodes(ctx)
	if err != nil || strings.Join(nodes[0].Members, " ") != "c1/c1-0 c1/c1-1" || nodes[0].AllocatedCores != 6 {
		t.Errorf("a project's node: %v, %d cores, %v; want its own members and all cores", nodes[0].Members, nodes[0].AllocatedCores, err)
	}
	nodes, err = admin.Nodes(ctx)
	if err != nil || strings.Join(nodes[0].Members, " ") != "c1/c1-0 c1/c1-1 fluids.c1/c1-0 fluids.c1/c1-1 solids.c1/c1-0 solids.c1/c1-1" {
		t.Errorf("an administrator's node: %v, %v", nodes[0].Members, err)
	}
	projects, err := fluids.Projects(ctx)
	if err != nil || len(projects) != 1 || projects[0].Name != "fluids" || projects[0].Used.Members != 2 {
		t.Errorf("a project's projects: %+v, %v", projects, err)
	}
	if me, err := fluids.Whoami(ctx); err != nil || !reflect.DeepEqual(me, api.Identity{User: "ann", Project: "fluids", Role: api.RoleMember}) {
		t.Errorf("whoami: %+v, %v", me, err)
	}
	if events, err := admin.Events(ctx, "solids.c1", 0); err != nil || len(events) != 2 || events[0].Cluster != "solids.c1" {
		t.Errorf("an administrator's events: %+v, %v", events, err)
	}
	if events, err := solids.Events(ctx, "c1", 0); err != nil || len(events) != 2 || events[0].Cluster != "c1" {
		t.Errorf("a project's events: %+v, %v", events, err)
	}
	if jobs, err := admin.Jobs(ctx, "solids.c1"); err != nil || len(jobs) != 1 || jobs[0].Cluster != "solids.c1" {
		t.Errorf("an administrator's jobs: %+v, %v", jobs, err)
	}
}

// checkHidden tries everything on another project's cluster and job: it is as if they were not there.
func checkHidden(t *testing.T, c *client.Client, job api.Job) {
	t.Helper()
	ctx, other := t.Context(), "solids.c1"
	err := func(_ any, err error) error { return err }
	last := func(stream func(func(client.ClusterChange, error) bool)) error {
		for _, err := range stream {
			return err
		}
		return nil
	}
	for what, got := range map[string]error{
		"show": err(c.Cluster(ctx, other)), "delete": err(c.DeleteCluster(ctx, other)), "events": err(c.Events(ctx, other, 0)),
		"scale": err(c.ScaleCluster(ctx, other, api.ScaleRequest{Size: 1})), "pause": err(c.PauseCluster(ctx, other)),
		"save": err(c.SaveCluster(ctx, other)), "restore": err(c.RestoreCluster(ctx, other)), "migrate": err(c.MigrateCluster(ctx, other, api.MigrateRequest{})),
		"reboot": err(c.RebootCluster(ctx, other, api.RebootRequest{})),
		"resize": err(c.ResizeCluster(ctx, other, api.ResizeRequest{Cores: 2})),
		"attach": err(c.AttachVolume(ctx, other, api.VolumeAttachment{Name: "data"})),
		"detach": err(c.DetachVolume(ctx, other, "data")),
		"resume": err(c.ResumeCluster(ctx, other)), "extend": err(c.ExtendCluster(ctx, other, 1e12)),
		"labels": err(c.LabelCluster(ctx, other, map[string]string{"a": "b"})), "explain": err(c.Explain(ctx, other)),
		"apply": err(c.ApplyCluster(ctx, other, api.ClusterRequest{Name: "c1"}, false)), "certificate": err(c.Certificate(ctx, other, "x")),
		"connect": err(c.ConnectMember(ctx, other, "c1-0", 22)), "jobs": err(c.Jobs(ctx, other)), "watch": last(c.WatchCluster(ctx, other)),
		"run": err(c.CreateJob(ctx, other, api.JobRequest{Command: []string{"x"}})), "not a name": err(c.Cluster(ctx, "a.b.c")),
	} {
		if !client.HasCode(got, "cluster_not_found") {
			t.Errorf("%s of another project's cluster: %v, want cluster_not_found", what, got)
		}
	}
	for what, got := range map[string]error{
		"show": err(c.Job(ctx, job.ID)), "cancel": err(c.CancelJob(ctx, job.ID)), "log": err(c.JobLog(ctx, job.ID, 0, false, io.Discard)),
	} {
		if !client.HasCode(got, "job_not_found") {
			t.Errorf("%s of another project's job: %v, want job_not_found", what, got)
		}
	}
	if jobs, err := c.Jobs(ctx, ""); err != nil || len(jobs) != 0 {
		t.Errorf("jobs: %+v, %v; want none of another project's", jobs, err)
	}
	if _, err := c.Project(ctx, "solids"); !client.HasCode(err, "project_not_found") {
		t.Errorf("another project: %v", err)
	}
	if _, err := c.CreateCluster(ctx, api.ClusterRequest{Name: "c2", Project: "solids"}); !client.HasCode(err, "forbidden") {
		t.Errorf("create in another project: %v, want forbidden", err)
	}
}

func TestAWatchTellsOfItsProjectOnly(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.Project("fluids", api.Quota{})
	ctx, admin := t.Context(), s.Client()
	fluids := s.ClientAs("ann", "fluids", api.RoleViewer)
	create := func(project, name string) {
		t.Helper()
		if _, err := admin.CreateCluster(ctx, api.ClusterRequest{Name: name, Project: project}); err != nil {
			t.Fatal(err)
		}
	}
	create("default", "theirs")
	create("fluids", "ours")
	var told []string
	for change, err := range fluids.WatchClusters(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if change.Synced {
			create("default", "theirs2")
			create("fluids", "last")
			continue
		}
		told = append(told, change.Cluster.Project+"/"+change.Cluster.Name)
		if change.Cluster.Name == "last" {
			break
		}
	}
	if got := fmt.Sprint(told); got != "[fluids/ours fluids/last]" {
		t.Errorf("told %s, want those of the project only", got)
	}
}

func TestARevokedTokenEndsItsStreams(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	line := s.Token("ann", "default", api.RoleMember)
	token, err := trust.ParseToken(line)
	if err != nil {
		t.Fatal(err)
	}
	admin := s.Client()
	if _, err := admin.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1"}); err != nil {
		t.Fatal(err)
	}
	for change, err := range s.ClientOf(line).WatchCluster(t.Context(), "c1") {
		if err != nil {
			if !client.HasCode(err, "unauthorized") {
				t.Errorf("the watch ended with %v, want unauthorized", err)
			}
			return
		}
		if change.Synced {
			if err := admin.RevokeToken(t.Context(), token.ID()); err != nil {
				t.Fatal(err)
			}
			s.SetPhase("c1", api.ClusterStarting, "") // what it is no longer told
		}
		if change.Cluster.Status.Phase == api.ClusterStarting {
			t.Fatal("told after the token was revoked")
		}
	}
}

// revocable is a site with a ready cluster "c1", a client of a member of its project, and what revokes that one's token.
func revocable(t *testing.T) (s *apiservertest.Site, member *client.Client, revoke func()) {
	t.Helper()
	s = apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	admin := s.Client()
	create(t, admin, "c1")
	s.Place("c1")
	s.MakeReady("c1")
	line := s.Token("ann", "default", api.RoleMember)
	token, err := trust.ParseToken(line)
	if err != nil {
		t.Fatal(err)
	}
	return s, s.ClientOf(line), func() {
		if err := admin.RevokeToken(t.Context(), token.ID()); err != nil {
			t.Error(err)
		}
	}
}

func TestARevokedTokenEndsTheEventsThatAreFollowedWithIt(t *testing.T) {
	_, member, revoke := revocable(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for e, err := range member.FollowEvents(ctx, "c1", 0) {
		if err != nil {
			if !client.HasCode(err, "unauthorized") {
				t.Errorf("the events ended with %v, want unauthorized", err)
			}
			return
		}
		if e.Reason == "Placed" {
			revoke()
		}
	}
}

// revoking verifies tokens, and has one revoked at the moment in which it was found valid.
type revoking struct {
	apiserver.Verifier
	revoke atomic.Pointer[func()]
}

func (v *revoking) Verify(bearer string) (tenancy.Principal, bool) {
	p, ok := v.Verifier.Verify(bearer)
	if p.User == "ann" {
		if revoke := v.revoke.Swap(nil); revoke != nil {
			(*revoke)()
		}
	}
	return p, ok
}

func TestATokenThatIsRevokedJustAfterItWasFoundValidEndsItsStreams(t *testing.T) {
	verifier := &revoking{}
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		verifier.Verifier, c.Tokens = c.Tokens, verifier
		c.KeepAlive = time.Hour // what looks at tokens now and then does not help
	})
	s.AddNode("n1", 4)
	admin := s.Client()
	create(t, admin, "c1")
	s.Place("c1")
	s.MakeReady("c1")
	for what, follow := range map[string]func(context.Context, *client.Client, func()) error{
		"output": func(ctx context.Context, c *client.Client, arm func()) error {
			job, err := c.CreateJob(ctx, "c1", api.JobRequest{Command: []string{"x"}, Ranks: 1})
			if err != nil {
				return err
			}
			out := &lockedBuffer{wrote: make(chan struct{}, 1)}
			done := make(chan error, 1)
			go func() { _, err := c.JobLog(ctx, job.ID, 0, true, out); done <- err }()
			s.Logs.Write(job.ID, "before\n")
			<-out.wrote
			arm()
			s.Logs.Write(job.ID, "more\n") // what brings the server to look at the token
			return <-done
		},
		"events": func(ctx context.Context, c *client.Client, arm func()) error {
			for e, err := range c.FollowEvents(ctx, "c1", 0) {
				if err != nil {
					return err
				}
				if e.Reason == "Placed" {
					arm()
					s.Event("c1", "More", "what brings the server to look at the token")
				}
			}
			return nil
		},
	} {
		line := s.Token("ann", "default", api.RoleMember)
		token, err := trust.ParseToken(line)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		revoke := func() {
			if err := admin.RevokeToken(context.WithoutCancel(ctx), token.ID()); err != nil {
				t.Error(err)
			}
		}
		err = follow(ctx, s.ClientOf(line), func() { verifier.revoke.Store(&revoke) })
		if err != nil && !client.HasCode(err, "unauthorized") {
			t.Errorf("%s ended with %v, want it ended as the token was revoked", what, err)
		}
		cancel()
	}
}

func TestARevokedTokenEndsTheOutputThatIsFollowedWithIt(t *testing.T) {
	s, member, revoke := revocable(t)
	job, err := member.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"x"}, Ranks: 1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out := &lockedBuffer{wrote: make(chan struct{}, 1)}
	done := make(chan error, 1)
	go func() {
		_, err := member.JobLog(ctx, job.ID, 0, true, out)
		done <- err
	}()
	s.Logs.Write(job.ID, "before\n")
	<-out.wrote
	revoke()
	if err := <-done; err != nil && !client.HasCode(err, "unauthorized") {
		t.Errorf("the output of a job that runs ended with %v, want it ended as the token was revoked", err)
	}
}
