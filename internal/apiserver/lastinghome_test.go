package apiserver

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAHomeThatEndsWithItsClusterGetsNoSnapshotThatWouldEndWithIt(t *testing.T) {
	for name, tc := range map[string]struct {
		spec api.ClusterSpec
		want string
	}{
		"a directory":                    {api.ClusterSpec{}, ""},
		"private directories":            {api.ClusterSpec{Home: api.ClusterHome{Kind: api.HomeNone}}, ""},
		"a volume of the cluster's own":  {api.ClusterSpec{Home: api.ClusterHome{Kind: api.HomeOfCluster, Size: 1 << 30}}, ""},
		"the user's":                     {api.ClusterSpec{Home: api.ClusterHome{Kind: api.HomeOfUser}}, "home-ann"},
		"a volume at /home":              {api.ClusterSpec{Volumes: []api.VolumeAttachment{{Name: "ours", Path: "/home"}}}, "ours"},
		"a volume that is anywhere else": {api.ClusterSpec{Volumes: []api.VolumeAttachment{{Name: "ours"}}}, ""},
	} {
		if got := lastingHome(&api.ClusterIntent{User: "ann", UID: "u1", Spec: tc.spec}); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
