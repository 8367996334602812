package situation

import (
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestAClusterGoesWhereItsVolumesLie(t *testing.T) {
	on := func(name, node string) *state.Volume {
		v := &state.Volume{Intent: api.VolumeIntent{UID: "uid-" + name, Name: name}}
		if node != "" {
			v.Record = &api.VolumeRecord{UID: "uid-" + name, Node: node}
		}
		return v
	}
	deleted, purging := on("deleted", "n1"), on("purging", "n1")
	deleted.Intent.DeleteRequestedAt, purging.Record.Purging = &noon, true
	stored := map[string]*state.Volume{
		"lab.home-ada": on("lab.home-ada", "n1"), "lab.a": on("lab.a", "n1"), "lab.far": on("lab.far", "n2"), "lab.farther": on("lab.farther", "n3"),
		"lab.new": on("lab.new", ""), "lab.deleted": deleted, "lab.purging": purging, "foreign": on("foreign", "n1"),
	}
	for name, tc := range map[string]struct {
		home    string
		volumes []string
		want    api.VolumePlace
	}{
		"no volumes":                  {"", nil, api.VolumePlace{}},
		"a home":                      {api.HomeOfUser, nil, api.VolumePlace{Volume: "home-ada", Node: "n1"}},
		"a volume beside the home":    {api.HomeOfUser, []string{"a"}, api.VolumePlace{Volume: "home-ada", Node: "n1"}},
		"volumes on three nodes":      {api.HomeOfUser, []string{"far", "farther"}, api.VolumePlace{Volume: "home-ada", Node: "n1", Other: "far", OtherNode: "n2"}},
		"a volume without a node":     {"", []string{"a", "new"}, api.VolumePlace{Volume: "a", Node: "n1", Unplaced: "new", Why: "has no node yet"}},
		"a deleted volume":            {"", []string{"deleted"}, api.VolumePlace{Unplaced: "deleted", Why: "is being deleted"}},
		"a volume that is purged":     {"", []string{"purging"}, api.VolumePlace{Unplaced: "purging", Why: "is being deleted"}},
		"a volume of another project": {"", []string{"foreign"}, api.VolumePlace{Unplaced: "foreign", Why: "does not exist"}},
	} {
		intent := api.ClusterIntent{Project: "lab", User: "ada", Spec: api.ClusterSpec{Home: api.ClusterHome{Kind: tc.home}}}
		for _, v := range tc.volumes {
			intent.Spec.Volumes = append(intent.Spec.Volumes, api.VolumeAttachment{Name: v})
		}
		if got := volumePlace(func(name string) *state.Volume { return stored[name] }, &intent); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", name, got, tc.want)
		}
	}
}
