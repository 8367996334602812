package apiserver_test

import (
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
