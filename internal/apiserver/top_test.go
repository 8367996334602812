package apiserver_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// used says the same of every member.
type used struct{}

func (used) UsesOf(string, string) []api.UsePoint {
	cores := 1.5
	return []api.UsePoint{{At: time.Unix(1, 0).UTC(), CPUCores: &cores, MemoryBytes: 5}}
}

func TestUsersSeeWhatTheirOwnMembersUse(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.MemberUses = used{} })
	s.AddNode("n1", 4)
	s.Project("other", api.Quota{})
	answer[api.Cluster](t, send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name": "c1", "groups": [{"size": 2, "cores": 1}]}`}))
	s.Place("c1")
	got := answer[api.List[api.MemberTop]](t, send(t, s, request{method: "GET", path: "/v1/clusters/c1/top"})).Items
	if len(got) != 2 || got[0].Node != "n1" || len(got[0].Points) != 1 || *got[0].Points[0].CPUCores != 1.5 || got[0].Cores != 1 || got[0].Sensors != nil {
		t.Errorf("got %+v; want two members with one point each", got)
	}
	if _, err := s.ClientAs("eve", "other", api.RoleMember).ClusterTop(t.Context(), "c1"); err == nil {
		t.Error("a user of another project sees what the members use")
	}
	if resp := send(t, s, request{method: "GET", path: "/v1/clusters/none/top"}); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a cluster that is not there: %s", resp.Status)
	}
}
