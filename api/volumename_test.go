package api_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAHomesNameIsADNSLabelOfItsUser(t *testing.T) {
	for user, want := range map[string]string{"eve": "home-eve", "a-1": "home-a-1", "": "home-nobody"} {
		if got := api.HomeVolumeName(user); got != want {
			t.Errorf("the home of %q is %q, want %q", user, got, want)
		}
	}
	seen := map[string]string{}
	for _, user := range []string{"Eve", "eve@example.org", "eve-", strings.Repeat("e", 64), "e.ve"} {
		name := api.HomeVolumeName(user)
		if len(name) != len("home-")+16 || seen[name] != "" || !api.IsHomeVolumeName(name) {
			t.Errorf("the home of %q is %q, as that of %q", user, name, seen[name])
		}
		seen[name] = user
	}
	if api.IsHomeVolumeName("homework") {
		t.Error("homework is kept for a home")
	}
}

func TestAClusterAsksForEachVolumeOnce(t *testing.T) {
	in := api.ClusterIntent{UID: "u1", User: "eve", Spec: api.ClusterSpec{
		Home:    api.ClusterHome{Kind: api.HomeOfUser},
		Volumes: []api.VolumeAttachment{{Name: "data", Path: "/a", ReadOnly: true}, {Name: "in", ReadOnly: true}, {Name: "data", Path: "/b"}},
	}}
	want := []api.VolumeAttachment{{Name: "home-eve", Path: "/home"}, {Name: "data", Path: "/a"}, {Name: "in", ReadOnly: true}}
	if got := api.VolumesOf(&in); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	in.Spec = api.ClusterSpec{Home: api.ClusterHome{Kind: api.HomeOfCluster}}
	if got := api.VolumesOf(&in); got != nil {
		t.Errorf("a cluster with a home that is a directory asks for %+v", got)
	}
	in.Spec.Home.Size = 1 << 30
	want = []api.VolumeAttachment{{Name: "clusterhome-u1", Path: "/home"}}
	if got := api.VolumesOf(&in); !reflect.DeepEqual(got, want) || !api.IsClusterHomeName(want[0].Name) || api.IsHomeVolumeName(want[0].Name) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
