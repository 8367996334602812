package apiserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

// twoProjects is a site of the projects "default" and "lab".
func twoProjects(t *testing.T) *apiservertest.Site {
	t.Helper()
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	s.Project("lab", api.Quota{})
	return s
}

// happen makes one thing after another: to administrators' objects, to those of both projects, to the site's.
func happen(t *testing.T, s *apiservertest.Site) {
	t.Helper()
	admin := s.Client()
	if _, err := admin.CreateToken(t.Context(), api.TokenRequest{User: "eve", Role: api.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	create(t, admin, "c1")
	s.Place("c1")
	s.MakeReady("c1")
	if _, err := admin.CreateJob(t.Context(), "c1", api.JobRequest{Command: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
	create(t, s.ClientAs("bob", "lab", api.RoleMember), "c2")
	if _, err := s.Repo.CreateBuild(t.Context(), api.Build{ID: "end"}); err != nil {
		t.Fatal(err)
	}
}

// watchWhile watches while things happen, until a change is the last. It returns each TYPE KIND NAME once; IDs made by chance are left out.
func watchWhile(t *testing.T, c *client.Client, of client.Selection, happens func(), last func(api.Change) bool) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var all []string
	for change, err := range c.Changes(ctx, of) {
		if err != nil {
			t.Fatalf("after %q the watch ended: %v", all, err)
		}
		if change.Synced {
			happens()
			continue
		}
		if change.Revision == 0 {
			t.Errorf("%+v has no revision", change.Change)
		}
		line := string(change.Type) + " " + string(change.Kind) + " " + change.Name
		if change.Kind == api.KindJob || change.Kind == api.KindToken || change.Kind == api.KindNetwork {
			line = string(change.Type) + " " + string(change.Kind)
		}
		if !slices.Contains(all, line) {
			all = append(all, line)
		}
		if last(change.Change) {
			break
		}
	}
	return all
}

func TestAWatchReportsWhatItsTokenMaySeeAndNothingElse(t *testing.T) {
	for name, test := range map[string]struct {
		project string
		role    api.Role
		want    []string
	}{
		"an administrator": {"", api.RoleAdmin, []string{
			"put build end", "put cluster c1", "put cluster lab.c2", "put job", "put network", "put token",
		}},
		"a member of the project":     {"default", api.RoleMember, []string{"put build end", "put cluster c1", "put job", "put network"}},
		"a viewer of another project": {"lab", api.RoleViewer, []string{"put build end", "put cluster c2"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := twoProjects(t)
			got := watchWhile(t, s.ClientAs("ann", test.project, test.role), client.Selection{}, func() { happen(t, s) },
				func(c api.Change) bool { return c.Kind == api.KindBuild })
			slices.Sort(got) // changes at the same moment may come together
			if !slices.Equal(got, test.want) {
				t.Errorf("reported %q, want %q", got, test.want)
			}
		})
	}
}

func TestAWatchReportsNoOtherProject(t *testing.T) {
	s := twoProjects(t)
	got := watchWhile(t, s.ClientAs("eve", "default", api.RoleViewer), client.Selection{}, func() {
		s.Project("other", api.Quota{})
		s.Build("end", "n1")
	}, func(c api.Change) bool { return c.Kind == api.KindBuild })
	if want := []string{"put build end"}; !slices.Equal(got, want) {
		t.Errorf("reported %q, want %q", got, want)
	}
}

func TestAWatchReportsOnlyWhatItSelects(t *testing.T) {
	for name, test := range map[string]struct {
		of   client.Selection
		want string // the first change; others that happen before it are not selected
	}{
		"by kind":             {client.Selection{Kind: api.KindBuild}, "put build end"},
		"by name":             {client.Selection{Name: "lab.c2"}, "put cluster lab.c2"},
		"by kind and name":    {client.Selection{Kind: api.KindCluster, Name: "c1"}, "put cluster c1"},
		"by project":          {client.Selection{Project: "lab"}, "put cluster lab.c2"},
		"networks":            {client.Selection{Kind: api.KindNetwork}, "put network"},
		"by kind and project": {client.Selection{Kind: api.KindJob, Project: "default"}, "put job"},
	} {
		t.Run(name, func(t *testing.T) {
			s := twoProjects(t)
			got := watchWhile(t, s.Client(), test.of, func() { happen(t, s) }, func(api.Change) bool { return true })
			if !slices.Equal(got, []string{test.want}) {
				t.Errorf("first reported %q, want %q", got, test.want)
			}
		})
	}
}

func TestARevokedTokenEndsItsWatchBeforeTheNextChange(t *testing.T) {
	s, member, revoke := revocable(t)
	for change, err := range member.Changes(t.Context(), client.Selection{}) {
		switch {
		case err != nil:
			if !client.HasCode(err, "unauthorized") {
				t.Errorf("the watch ended with %v, want unauthorized", err)
			}
			return
		case change.Synced:
			revoke()
			s.SetPhase("c1", api.ClusterDegraded, "") // what it is not to hear
		case change.Kind == api.KindCluster:
			t.Fatalf("%+v was reported after the token was revoked", change.Change)
		}
	}
}

func TestAWatchIsRefusedWithItsReason(t *testing.T) {
	s := twoProjects(t)
	member := s.Token("ann", "default", api.RoleMember)
	for name, test := range map[string]struct {
		query, last string
		code, says  string
	}{
		"a kind that does not exist":        {query: "?kind=nod", code: "invalid_parameter", says: `did you mean \"node\"?`},
		"a kind for administrators":         {query: "?kind=token", code: "forbidden"},
		"a project of others":               {query: "?project=lab", code: "project_not_found", says: "lab"},
		"a project that does not exist":     {query: "?project=bal", code: "project_not_found", says: "bal"},
		"a token in the URL":                {query: "?access_token=x", code: "invalid_parameter", says: "is not a parameter"},
		"a place that is no number":         {last: "x", code: "invalid_parameter", says: "Last-Event-ID"},
		"a place whose history is gone":     {last: "1", code: "history_gone", says: "list the objects, and watch again without Last-Event-ID"},
		"a place that was never in history": {last: "999999", code: "history_gone", says: "without Last-Event-ID"},
	} {
		t.Run(name, func(t *testing.T) {
			header := map[string]string{"Authorization": "Bearer " + bearerOf(t, member)}
			if test.last != "" {
				header["Last-Event-ID"] = test.last
			}
			resp := send(t, s, request{method: http.MethodGet, path: "/v1/changes" + test.query, header: header})
			if resp.StatusCode == http.StatusOK {
				t.Fatal("the watch began")
			}
			p := problemOf(t, resp)
			text := p.Detail
			for _, f := range p.Errors {
				text += " " + f.Location + " " + f.Message
			}
			if p.Code != test.code || !strings.Contains(text, strings.ReplaceAll(test.says, `\"`, `"`)) {
				t.Errorf("%d %s %q, want %s and %q", p.Status, p.Code, text, test.code, test.says)
			}
			if gone := test.code == "history_gone"; gone != (resp.StatusCode == http.StatusGone) {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	if p := problemOf(t, sendTCP(t, s, "", request{method: http.MethodGet, path: "/v1/changes?access_token=" + bearerOf(t, member)})); p.Status != http.StatusUnauthorized {
		t.Errorf("a token in the URL instead of the header: %d %s, want 401", p.Status, p.Code)
	}
}

// bearerOf is what a token's line sends.
func bearerOf(t *testing.T, line string) string {
	t.Helper()
	token, err := trust.ParseToken(line)
	if err != nil {
		t.Fatal(err)
	}
	return token.Bearer()
}

func TestAResumedWatchReportsWhatWasMissed(t *testing.T) {
	s := twoProjects(t)
	c := s.LocalClient()
	first := bufio.NewReader(send(t, s, request{method: "GET", path: "/v1/changes?kind=cluster"}).Body)
	create(t, c, "c1")
	var last string
	for e := readSSE(t, first); ; e = readSSE(t, first) {
		if last = e.id; e.name == "put" && strings.Contains(e.data, `"c1"`) {
			break
		}
	}
	s.Place("c1")
	s.Release("c1")
	s.Forget("c1")
	create(t, c, "c2")
	again := bufio.NewReader(send(t, s, request{method: "GET", path: "/v1/changes?kind=cluster", header: map[string]string{"Last-Event-ID": last}}).Body)
	var saw []string
	for !slices.Contains(saw, "put c2") {
		e := readSSE(t, again)
		for _, name := range []string{"c1", "c2"} {
			if strings.Contains(e.data, `"name":"`+name+`"`) {
				saw = append(saw, e.name+" "+name)
			}
		}
	}
	if !slices.Contains(saw, "delete c1") {
		t.Errorf("the resumed watch reported %q, want that c1 is gone, too", saw)
	}
}

func TestTheDocumentHasTheChangesOfAWatch(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	var doc struct {
		Paths      map[string]map[string]struct{ Parameters []struct{ Name string } }
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Enum []string }
			}
		}
	}
	if err := json.NewDecoder(sendTCP(t, s, "", request{method: "GET", path: "/openapi.json"}).Body).Decode(&doc); err != nil {
		t.Fatal(err)
	}
	change := doc.Components.Schemas["Change"].Properties
	var kinds []string
	for _, kind := range api.Kinds() {
		kinds = append(kinds, string(kind))
	}
	if got := change["kind"].Enum; !slices.Equal(got, kinds) {
		t.Errorf("a change is documented of %q, want %q", got, kinds)
	}
	if got := change["type"].Enum; !slices.Equal(got, []string{"put", "delete"}) {
		t.Errorf("a change is documented as %q", got)
	}
	var names []string
	for _, p := range doc.Paths["/v1/changes"]["get"].Parameters {
		names = append(names, p.Name)
	}
	if want := []string{"Last-Event-ID", "kind", "name", "project"}; !slices.Equal(names, want) {
		t.Errorf("parameters %q, want %q", names, want)
	}
}
