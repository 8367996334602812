package apiserver_test

import (
	"io"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// ciTokens returns the lines of a member's and of a viewer's token that are limited to clusters named ci-*.
func ciTokens(s *apiservertest.Site) map[string]string {
	lines := map[string]string{}
	for _, role := range []api.Role{api.RoleMember, api.RoleViewer} {
		lines[string(role)] = s.TokenWith(api.TokenInfo{User: "bot", Role: role, Project: "default", Limits: api.Limits{Clusters: []string{"ci-*"}}})
	}
	return lines
}

// shared is a site with the ready clusters ci-1 and prod-1 of one project, each with a job that has output. prod is the job of prod-1.
func shared(t *testing.T) (s *apiservertest.Site, prod api.Job) {
	t.Helper()
	s = apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 8)
	for _, name := range []string{"ci-1", "prod-1"} {
		create(t, s.Client(), name)
		s.Place(name)
		s.MakeReady(name)
		job, err := s.Client().CreateJob(t.Context(), name, api.JobRequest{Command: []string{"of-" + name}})
		if err != nil {
			t.Fatal(err)
		}
		s.Logs.Write(job.ID, "output of "+name+"\n")
		prod = job
	}
	s.Explainer.SetWaiting(api.Waiting{Cluster: "prod-1", Kind: "placement", Members: 2, Position: 1, Reason: "prod-1 needs room"},
		api.Waiting{Cluster: "ci-1", Kind: "placement", Members: 2, Position: 2})
	return s, prod
}

// answerTo makes a request with a token's line and returns status and body. Of a stream only the status.
func answerTo(t *testing.T, s *apiservertest.Site, line, method, path string) (int, string) {
	t.Helper()
	token, err := trust.ParseToken(line)
	if err != nil {
		t.Fatal(err)
	}
	resp := sendBy(t, &http.Client{Transport: &http.Transport{TLSClientConfig: trust.ClientTLS(token.Pin, "127.0.0.1"), ForceAttemptHTTP2: true}},
		"https://"+s.Addr, request{method: method, path: path, header: map[string]string{"Authorization": "Bearer " + token.Bearer()}})
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind == "text/event-stream" {
		return resp.StatusCode, ""
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// TestClustersOutsideATokensPatternsDoNotExist calls every operation for things of a cluster that the token does not see. Each answer is the one
// for a thing that nobody ever made, and no answer names the cluster.
func TestClustersOutsideATokensPatternsDoNotExist(t *testing.T) {
	s, job := shared(t)
	uid := s.Cache.View().Cluster("prod-1").UID()
	for role, line := range ciTokens(s) {
		for _, op := range s.Server.Operations() {
			for _, hidden := range []string{"prod-1", job.ID, uid} {
				path := strings.NewReplacer("{member}", "prod-1-0").Replace(op.Path)
				status, body := answerTo(t, s, line, op.Method, named(path, hidden))
				noStatus, noBody := answerTo(t, s, line, op.Method, named(path, "prod-9"))
				if body = strings.ReplaceAll(body, hidden, "prod-9"); path != op.Path || strings.Contains(op.Path, "{") {
					if status != noStatus || body != noBody {
						t.Errorf("%s %s by a %s about %q:\n%d %s\nand about what is not there:\n%d %s", op.Method, op.Path, role, hidden, status, body, noStatus, noBody)
					}
				} else if strings.Contains(body, "prod-1") || strings.Contains(body, job.ID) {
					t.Errorf("%s %s by a %s names what it may not know of: %s", op.Method, op.Path, role, body)
				}
			}
		}
	}
}

func TestWhatATokensPatternsCoverIsThere(t *testing.T) {
	s, _ := shared(t)
	ctx := t.Context()
	for role, line := range ciTokens(s) {
		c := s.ClientOf(line)
		clusters, err := c.Clusters(ctx)
		if err != nil || len(clusters) != 1 || clusters[0].Name != "ci-1" {
			t.Errorf("%s: clusters %+v, %v", role, clusters, err)
		}
		jobs, err := c.Jobs(ctx, "")
		if err != nil || len(jobs) != 1 || jobs[0].Cluster != "ci-1" {
			t.Errorf("%s: jobs %+v, %v", role, jobs, err)
		}
		networks, err := c.Networks(ctx)
		if err != nil || len(networks) != 1 || networks[0].Cluster != "ci-1" {
			t.Errorf("%s: networks %+v, %v", role, networks, err)
		}
		nodes, err := c.Nodes(ctx)
		if err != nil || strings.Join(nodes[0].Members, " ") != "ci-1/ci-1-0 ci-1/ci-1-1" || nodes[0].AllocatedCores != 4 {
			t.Errorf("%s: nodes %+v, %v; want the cores of all, the members of one", role, nodes, err)
		}
		queue, err := c.Queue(ctx)
		if err != nil || len(queue) != 2 || queue[0].Cluster != "" || queue[0].Members != 2 || queue[1].Cluster != "ci-1" ||
			queue[0].Reason != "a request of a cluster that this token does not see" {
			t.Errorf("%s: queue %+v, %v", role, queue, err)
		}
		me, err := c.Whoami(ctx)
		if err != nil || !reflect.DeepEqual(me.Limits, api.Limits{Clusters: []string{"ci-*"}}) {
			t.Errorf("%s: whoami %+v, %v", role, me, err)
		}
	}
}

func TestUsageIsOfTheClustersThatATokenSees(t *testing.T) {
	now := t0
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Now = func() time.Time { return now } })
	s.AddNode("n1", 8)
	for _, name := range []string{"ci-1", "prod-1"} {
		create(t, s.Client(), name)
		s.Place(name)
	}
	now = t0.Add(time.Hour)
	for by, want := range map[string]float64{"cluster": 2 * 3600, "project": 2 * 3600, "user": 2 * 3600} {
		got, err := s.ClientOf(ciTokens(s)["viewer"]).Usage(t.Context(), client.UsageQuery{By: by})
		if err != nil || len(got.Rows) != 1 || got.Rows[0].CoreSeconds != want || strings.Contains(got.Rows[0].Cluster, "prod") {
			t.Errorf("by %s: %+v, %v; want an hour of the two cores of ci-1", by, got.Rows, err)
		}
	}
}

func TestWatchesReportWhatATokensPatternsCover(t *testing.T) {
	s, _ := shared(t)
	member := s.ClientOf(ciTokens(s)["member"])
	happens := func() {
		if _, err := s.Client().CreateJob(t.Context(), "prod-1", api.JobRequest{Command: []string{"x"}}); err != nil {
			t.Error(err)
		}
		create(t, s.Client(), "prod-2")
		s.Place("prod-2") // which has a network then
		s.SetPhase("prod-1", api.ClusterDegraded, "")
		create(t, s.Client(), "ci-2")
		s.Build("end", "n1") // of what happens at once, builds are reported last
	}
	got := watchWhile(t, member, client.Selection{}, happens, func(c api.Change) bool { return c.Kind == api.KindBuild })
	slices.Sort(got)
	if want := []string{"put build end", "put cluster ci-2"}; !slices.Equal(got, want) {
		t.Errorf("a watch of all kinds reports %q, want %q", got, want)
	}
	for change, err := range member.WatchClusters(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if change.Synced {
			s.SetPhase("prod-1", api.ClusterReady, "")
			create(t, s.Client(), "ci-end")
			continue
		}
		if !strings.HasPrefix(change.Cluster.Name, "ci-") {
			t.Errorf("a watch of clusters reports %s", change.Cluster.Name)
		}
		if change.Cluster.Name == "ci-end" {
			break
		}
	}
}

func TestAClusterIsNotMadeOutsideATokensPatterns(t *testing.T) {
	s, _ := shared(t)
	ctx, bot := t.Context(), s.ClientOf(ciTokens(s)["member"])
	for _, name := range []string{"prod-1", "prod-9"} { // one that is there, and one that is not
		_, made := bot.CreateCluster(ctx, api.ClusterRequest{Name: name})
		_, applied := bot.ApplyCluster(ctx, name, api.ClusterRequest{Name: name}, false)
		_, planned := bot.ApplyCluster(ctx, name, api.ClusterRequest{Name: name}, true)
		for what, err := range map[string]error{"create": made, "apply": applied, "plan": planned} {
			want := `the token of "bot" is limited to clusters named ci-*, and "` + name + `" is not such a name; choose another name`
			if !client.HasCode(err, "forbidden") || err.Error() != want {
				t.Errorf("%s %s: %v, want %s", what, name, err, want)
			}
		}
	}
	if s.Cache.View().Cluster("prod-9") != nil {
		t.Error("prod-9 was made")
	}
	if _, err := bot.CreateCluster(ctx, api.ClusterRequest{Name: "ci-2"}); err != nil {
		t.Errorf("create ci-2: %v", err)
	}
	if _, err := bot.DeleteCluster(ctx, "ci-2"); err != nil {
		t.Errorf("delete ci-2: %v", err)
	}
}

func TestATokenEndsAfterNinetyDaysUnlessItSaysWhen(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Now = func() time.Time { return t0 } })
	for want, req := range map[time.Duration]api.TokenRequest{
		90 * 24 * time.Hour: {User: "ann", Role: api.RoleMember}, time.Hour: {User: "ann", Role: api.RoleMember, ValidFor: api.Duration(time.Hour)},
	} {
		made, err := s.Client().CreateToken(t.Context(), req)
		if err != nil || made.ExpiresAt == nil || !made.ExpiresAt.Equal(t0.Add(want)) {
			t.Errorf("made %+v, %v; want an end in %s", made.TokenInfo, err, want)
		}
	}
}

// TestATokenGivesNoMoreThanItHas is about administrators: nobody else makes tokens.
func TestATokenGivesNoMoreThanItHas(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	c := s.ClientOf(s.TokenWith(api.TokenInfo{User: "ops", Role: api.RoleAdmin, Limits: api.Limits{Verbs: []api.Verb{api.VerbRead, api.VerbAdminister}}}))
	for _, req := range []api.TokenRequest{
		{Role: api.RoleAdmin}, {Role: api.RoleMember}, {Role: api.RoleMember, Limits: api.Limits{Verbs: []api.Verb{api.VerbRun}}},
	} {
		req.User = "x"
		if _, err := c.CreateToken(t.Context(), req); !client.HasCode(err, "forbidden") || !strings.Contains(err.Error(), `lacks the verb "run"`) {
			t.Errorf("%s %v: %v, want it refused", req.Role, req.Verbs, err)
		}
	}
	for _, req := range []api.TokenRequest{
		{Role: api.RoleViewer}, {Role: api.RoleAdmin, Limits: api.Limits{Verbs: []api.Verb{api.VerbAdminister}}},
	} {
		req.User = "x"
		if _, err := c.CreateToken(t.Context(), req); err != nil {
			t.Errorf("%s %v: %v", req.Role, req.Verbs, err)
		}
	}
}

func TestAnAdministratorWithoutTheVerbSeesAndDecidesNothingThatIsTheSites(t *testing.T) {
	s, _ := shared(t)
	ctx := t.Context()
	c := s.ClientOf(s.TokenWith(api.TokenInfo{User: "ops", Role: api.RoleAdmin, Limits: api.Limits{Verbs: []api.Verb{api.VerbRead, api.VerbChange}}}))
	if clusters, err := c.Clusters(ctx); err != nil || len(clusters) != 2 {
		t.Errorf("clusters: %+v, %v; want those of all projects", clusters, err)
	}
	if _, err := c.CreateCluster(ctx, api.ClusterRequest{Name: "c1", Priority: 1}); !client.HasCode(err, "forbidden") {
		t.Errorf("a priority: %v", err)
	}
	got := watchWhile(t, c, client.Selection{}, func() { s.Token("ann", "", api.RoleAdmin); s.Build("end", "n1") },
		func(c api.Change) bool { return c.Kind == api.KindBuild })
	if slices.Contains(got, "put token") {
		t.Errorf("a watch reports %q", got)
	}
	if usage, err := c.Usage(ctx, client.UsageQuery{By: "cluster"}); err != nil || len(usage.Site) == 0 {
		t.Errorf("usage: %+v, %v; want that of all projects", usage, err)
	}
}

// uses remembers the last use.
type uses struct {
	mu       sync.Mutex
	id, from string
	times    int
}

func (u *uses) Used(id, from string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.id, u.from = id, from
	u.times++
}

func (u *uses) last() (id, from string, times int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.id, u.from, u.times
}

func TestAnswersSayWhenTheTokenEndsAndItsUseIsNoted(t *testing.T) {
	seen := &uses{}
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Uses = seen })
	ends := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	for _, end := range []*time.Time{&ends, nil} {
		token, err := trust.ParseToken(s.TokenWith(api.TokenInfo{User: "ann", Role: api.RoleViewer, ExpiresAt: end}))
		if err != nil {
			t.Fatal(err)
		}
		var got time.Time
		c, err := client.New(client.Options{
			Addr: s.Addr, Bearer: token.Bearer(), TLS: trust.ClientTLS(token.Pin, "127.0.0.1"), TokenEnds: func(at time.Time) { got = at },
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Cluster(t.Context(), "nix"); !client.HasCode(err, "cluster_not_found") { // errors say it too
			t.Errorf("got %v", err)
		}
		if end != nil && !got.Equal(*end) || end == nil && !got.IsZero() {
			t.Errorf("the answer says that the token ends at %v, want %v", got, end)
		}
		if id, from, _ := seen.last(); id != token.ID() || from != "127.0.0.1" {
			t.Errorf("a use of %q from %q is noted, want %q from 127.0.0.1", id, from, token.ID())
		}
	}
}

func TestAStreamThatLastsUsesItsToken(t *testing.T) {
	seen := &uses{}
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Uses = seen })
	begun := 0
	for change, err := range s.ClientAs("ann", "default", api.RoleViewer).Changes(t.Context(), client.Selection{}) {
		if err != nil {
			t.Fatal(err)
		}
		if change.Synced {
			create(t, s.LocalClient(), "c1") // by the socket, without a token
			continue
		}
		if begun == 0 {
			_, _, begun = seen.last()
			create(t, s.LocalClient(), "c2")
			continue
		}
		if _, _, now := seen.last(); now <= begun {
			t.Errorf("%d uses when the stream went on, %d before", now, begun)
		}
		return
	}
}
