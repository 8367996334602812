package apiserver_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/energy"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// account is an account with one record of the last hour.
type account struct{ at time.Time }

func (a account) Records() []api.EnergyRecord {
	amount := func(joules int64) api.EnergyAmount { return api.EnergyAmount{MeasuredMicrojoules: joules * 1e6} }
	return []api.EnergyRecord{{
		Node: "n1", Hour: a.at.Truncate(time.Hour), From: a.at.Add(-time.Minute), To: a.at, Counter: amount(60), Idle: amount(20), Unattributed: amount(10), KnownNanoseconds: 60e9,
		Shares: []api.EnergyShare{
			{ClusterUID: "u1", Cluster: "c1", User: "ann", EnergyAmount: amount(25)}, {ClusterUID: "u2", Cluster: "other.c2", Project: "other", User: "eve", Job: "j1", EnergyAmount: amount(5)},
		},
	}}
}

func (account) Node(name string) (api.NodeEnergy, bool) {
	watts := 42.0
	return api.NodeEnergy{Node: name, EnergyReading: api.EnergyReading{Source: api.EnergyRAPL, Tag: api.EnergyMeasured, Watts: &watts}}, name == "n1"
}

func (account) Member(string, string) []energy.MemberPower {
	return []energy.MemberPower{{At: time.Unix(1, 3e8).UTC(), Watts: 7, Tag: api.EnergyModelled}, {At: time.Unix(6, 0).UTC(), Watts: 8}}
}

func TestPowerIsShownWithTheUseThatCameWithIt(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Energy, c.MemberUses = account{time.Now()}, used{} })
	s.AddNode("n1", 4)
	answer[api.Cluster](t, send(t, s, request{method: "POST", path: "/v1/clusters", body: `{"name": "c1", "groups": [{"size": 1, "cores": 1}]}`}))
	s.Place("c1")
	got := answer[api.List[api.MemberTop]](t, send(t, s, request{method: "GET", path: "/v1/clusters/c1/top"})).Items
	if len(got) != 1 || len(got[0].Points) != 1 || got[0].Points[0].PowerWatts == nil || *got[0].Points[0].PowerWatts != 7 || got[0].Points[0].PowerTag != api.EnergyModelled {
		t.Errorf("got %+v; want the power of the same reading, 7 W modelled", got)
	}
}

func TestUsersSeeTheEnergyOfTheirOwnClustersAndAdministratorsAll(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Energy = account{time.Now()} })
	s.AddNode("n1", 4)
	s.AddNode("n2", 4)
	s.Project("other", api.Quota{})
	all, err := s.LocalClient().Energy(t.Context(), 24)
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Clusters) != 2 || len(all.Nodes) != 2 {
		t.Fatalf("an administrator sees %+v; want two clusters and two nodes", all)
	}
	n1, n2 := all.Nodes[0], all.Nodes[1]
	if *n1.Watts != 42 || n1.Counter.MeasuredMicrojoules != 60e6 || n1.Clusters.Plus(*n1.Idle).Plus(*n1.Unattributed) != *n1.Counter {
		t.Errorf("node n1 is %+v", n1)
	}
	if n2.Tag != api.EnergyUnavailable || n2.Watts != nil || n2.Counter != nil || n2.Reason == "" {
		t.Errorf("a node of which nothing is known is %+v; want the reason and no number", n2)
	}
	for _, role := range []api.Role{api.RoleMember, api.RoleViewer} {
		own, err := s.ClientAs("eve", "other", role).Energy(t.Context(), 24)
		if err != nil {
			t.Fatal(err)
		}
		if len(own.Nodes) != 0 || len(own.Clusters) != 1 || own.Clusters[0].Cluster != "c2" || own.Clusters[0].Job != "j1" || own.Clusters[0].MeasuredMicrojoules != 5e6 {
			t.Errorf("a %s of another project sees %+v; want cluster c2 alone", role, own)
		}
	}
	if resp := send(t, s, request{method: "GET", path: "/v1/energy?hours=0"}); resp.StatusCode != http.StatusUnprocessableEntity && resp.StatusCode != http.StatusBadRequest {
		t.Errorf("no hours: %s", resp.Status)
	}
}

func TestANodeThatIsSilentHasNoPresentPower(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Energy = account{time.Now()} })
	s.AddNode("n1", 4)
	s.Live.SetNode("n1", api.NodeDown, "its agent has been silent for 9s")
	all, err := s.LocalClient().Energy(t.Context(), 24)
	if err != nil {
		t.Fatal(err)
	}
	if n := all.Nodes[0]; n.Tag != api.EnergyUnavailable || n.Watts != nil || !strings.Contains(n.Reason, "silent") || n.Counter == nil {
		t.Errorf("got %+v; want no present power, the reason, and what was counted before", n)
	}
}
