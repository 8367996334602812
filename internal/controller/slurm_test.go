package controller

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestTheMemberOfTheLowestRankWithSlurmIsTheControllerAlsoWhileItIsLost(t *testing.T) {
	view := &state.View{
		Images: []*api.Image{{Digest: "sha256:1", Services: []api.Service{api.ServiceSlurm}}, {Digest: "sha256:2"}, {Digest: "sha256:3", Services: []api.Service{api.ServiceSlurm}}},
		// What s stands for now has no Slurm any more; its members have the image that they were made with.
		Environments: []*api.EnvironmentRecord{{Name: "plain", Digest: "sha256:2"}, {Name: "s", Digest: "sha256:2"}, {Name: "t", Digest: "sha256:3"}},
	}
	c := &state.Cluster{Record: &api.ClusterRecord{}, Intent: api.ClusterIntent{UID: "u1", Spec: api.ClusterSpec{Groups: []api.Group{
		{Name: "login", Environment: "plain"}, {Name: "c", Environment: "s", NodeSelector: map[string]string{"rack": "r1"}}, {Name: "later", Environment: "t"},
	}}}}
	login := api.Assignment{Group: "login", Member: "login-0", Rank: 0, Environment: "plain", EnvironmentDigest: "sha256:2"}
	member := func(name string, rank int) api.Assignment {
		return api.Assignment{Group: "c", Member: name, Rank: rank, Environment: "s", EnvironmentDigest: "sha256:1"}
	}
	groups := []contextualization.SlurmGroup{{Name: "c", Labels: map[string]string{"rack": "r1"}}, {Name: "later"}}
	for _, tt := range []struct {
		name string
		held []api.Assignment
		lost []api.LostMember
		want *contextualization.Slurm
	}{
		{"all are there", []api.Assignment{login, member("c-1", 2), member("c-0", 1)}, nil, &contextualization.Slurm{Groups: groups, Controller: "c-0"}},
		{"the first is lost", []api.Assignment{login, member("c-1", 2)}, []api.LostMember{{Group: "c", Member: "c-0", Rank: 1}}, &contextualization.Slurm{Groups: groups, Controller: "c-0"}},
		{"the first was taken out", []api.Assignment{login, member("c-1", 2)}, nil, &contextualization.Slurm{Groups: groups, Controller: "c-1"}},
		{"none has Slurm", []api.Assignment{login}, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c.Record.Lost = tt.lost
			if tt.want != nil {
				tt.want.MungeKey = []byte("key")
			}
			if diff := cmp.Diff(tt.want, slurmOf(view, c, tt.held, []byte("key"))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestEachClusterHasItsOwnKeyOfMunge(t *testing.T) {
	keys := map[string]string{}
	for _, uid := range []string{"u1", "u2"} {
		a, err := newDesired().authorities(&api.ClusterIntent{UID: uid})
		if err != nil {
			t.Fatal(err)
		}
		if other := keys[string(a.mungeKey)]; other != "" {
			t.Errorf("%s has the key of %s", uid, other)
		}
		keys[string(a.mungeKey)] = uid
	}
}
