package apiserver_test

import (
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func fabricErrors(t *testing.T, s *apiservertest.Site) []errorCase {
	t.Helper()
	do := func(method, path, body string) func() *http.Response {
		return func() *http.Response { return send(t, s, request{method: method, path: path, body: body}) }
	}
	return []errorCase{
		{"fabric_not_found", `"ib7" does not exist; the site has: ethernet`, do("GET", "/v1/fabrics/ib7", "")},
		{"fabric_not_found", `"ib7"`, do("GET", "/v1/fabrics/ib7/topology", "")},
		{"fabric_not_found", `"ib7"`, do("GET", "/v1/fabrics/ib7/audit", "")},
		{"fabric_not_found", `"ib7"`, do("GET", "/v1/fabrics/ib7/events", "")},
		{"fabric_unaudited", "nearmetal network check NAME", do("GET", "/v1/fabrics/ethernet/audit", "")},
		{"invalid_cluster", "is not the technology of a fabric", do("POST", "/v1/clusters", `{"name": "c9", "interconnect": {"technology": "myrinet"}}`)},
	}
}

func TestAlarmsOfAFabricAreShownAndCountedWhicheverServerAnswers(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.Fabrics = situation.Fabrics{"ib0": site.NewKeeper(fake.NewSite(&fake.Tables{}), slog.New(slog.DiscardHandler))}
	})
	s.Project("lab", api.Quota{})
	begun := api.Event{Time: time.Now(), Fabric: "ib0", Reason: api.ReasonAlarm}
	rogue, link, over := begun, begun, begun
	rogue.Alarm, rogue.Message = "unexpected_manager 0x9", "port 0x9 has a subnet manager"
	link.Alarm, link.Message = "link_errors link between a and b", "link between a and b: 9 symbol errors"
	over.Alarm, over.Message = "no_master", "the fabric has no master"
	ended := over
	ended.Reason = api.ReasonAlarmEnded
	s.Events(rogue, link, over, ended)
	c := s.ClientAs("eve", "lab", api.RoleViewer)
	f, err := c.Fabric(t.Context(), "ib0")
	if err != nil || !slices.Equal(f.Alarms, []string{rogue.Message}) {
		t.Errorf("alarms %q, %v", f.Alarms, err)
	}
	events, err := c.FabricEvents(t.Context(), "ib0")
	if err != nil || len(events) != 4 || events[3].Reason != api.ReasonAlarmEnded {
		t.Errorf("events %+v, %v", events, err)
	}
	got := metricsFor(t, s, s.Token("ann", "lab", api.RoleViewer))
	for _, want := range []string{
		`nearmetal_fabric_alarms{fabric="ib0",kind="unexpected_manager"} 1`, `nearmetal_fabric_alarms{fabric="ib0",kind="link_errors"} 1`,
		`nearmetal_fabric_alarms{fabric="ib0",kind="no_master"} 0`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestAFabricTellsAMemberOfAProjectNothingOfOthers(t *testing.T) {
	s := twoProjects(t)
	if _, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: "hidden"}); err != nil {
		t.Fatal(err)
	}
	for _, req := range []api.ClusterRequest{{Name: "secret", Project: "default"}, {Name: "own", Project: "lab"}} {
		if _, err := s.Client().CreateCluster(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	s.Place("secret")
	s.Place("lab.own")
	read := func(line, path string) string {
		token, err := trust.ParseToken(line)
		if err != nil {
			t.Fatal(err)
		}
		resp := send(t, s, request{method: "GET", path: path, header: map[string]string{"Authorization": "Bearer " + token.Bearer()}})
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	member, admin := s.Token("eve", "lab", api.RoleMember), s.Token("root", "", api.RoleAdmin)
	for _, path := range []string{"/v1/fabrics", "/v1/fabrics/ethernet", "/v1/fabrics/ethernet/topology", "/v1/fabrics/ethernet/events", "/v1/fabrics/ethernet/audit", "/v1/metrics"} {
		text := read(member, path)
		for _, name := range []string{"secret", "hidden", `"default"`} {
			if strings.Contains(text, name) {
				t.Errorf("%s tells a member of project lab of %s: %s", path, name, text)
			}
		}
	}
	if text := read(member, "/v1/fabrics/ethernet"); !strings.Contains(text, `"lab.own"`) {
		t.Errorf("a member sees nothing of its own network: %s", text)
	}
	if text := read(admin, "/v1/fabrics/ethernet"); !strings.Contains(text, `"secret"`) {
		t.Errorf("an administrator does not see all networks: %s", text)
	}
	if text := read(member, "/v1/fabrics/ethernet/audit"); !strings.Contains(text, "forbidden") {
		t.Errorf("a member may audit: %s", text)
	}
}
