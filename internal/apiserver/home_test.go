package apiserver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestTheAgentOfAMemberCountsTheHome(t *testing.T) {
	s := withMember(t, nil, nil)
	want := api.HomeUsage{Files: 12, Bytes: 3 << 20, AtLeast: true}
	s.Homes.Set(want, nil)
	got, err := s.Client().ClusterHome(t.Context(), "c1")
	if err != nil || got != want {
		t.Errorf("the home is %+v, %v; want %+v", got, err, want)
	}
	if asked := s.Homes.Asked(); len(asked) != 1 || !strings.HasPrefix(asked[0], "n1/") {
		t.Errorf("asked %q, want the one node once", asked)
	}
	if _, err := s.Client().ClusterHome(t.Context(), "nix"); !client.HasCode(err, "cluster_not_found") {
		t.Errorf("no cluster: %v", err)
	}
}

func TestANodeThatDoesNotAnswerAboutAHomeIsAskedOnce(t *testing.T) {
	s := withMember(t, nil, nil)
	s.Homes.Set(api.HomeUsage{}, errors.New("its agent is asleep"))
	_, err := s.Client().ClusterHome(t.Context(), "c1")
	if !client.HasCode(err, "home_unknown") || !strings.Contains(err.Error(), "its agent is asleep") {
		t.Errorf("got %v", err)
	}
	if asked := s.Homes.Asked(); len(asked) != 1 {
		t.Errorf("asked %q; both members are on one node, which sees one home", asked)
	}
}

func TestAClusterThatWasNeverPlacedHasAnEmptyHome(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	create(t, s.LocalClient(), "c1")
	s.Homes.Set(api.HomeUsage{}, errors.New("nobody is to be asked"))
	if got, err := s.Client().ClusterHome(t.Context(), "c1"); err != nil || !got.Empty() {
		t.Errorf("the home is %+v, %v; want none", got, err)
	}
}

func TestAHomeThatIsKeptIsNotCounted(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	for name, req := range map[string]api.ClusterRequest{
		"user": {Home: api.ClusterHome{Kind: api.HomeOfUser}}, "volume": {Volumes: []api.VolumeAttachment{{Name: "mine", Path: "/home"}}},
	} {
		req.Name = name
		if name == "volume" {
			if _, err := s.LocalClient().CreateVolume(t.Context(), api.VolumeRequest{Name: "mine", Size: 1 << 30}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.LocalClient().CreateCluster(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		s.Place(name)
		s.Homes.Set(api.HomeUsage{Files: 3}, nil)
		if got, err := s.Client().ClusterHome(t.Context(), name); err != nil || !got.Empty() {
			t.Errorf("home %q: got %+v, %v; want nothing that is lost with the cluster", name, got, err)
		}
	}
}
