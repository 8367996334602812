package apiserver

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// reporting is a Live whose nodes report volumes. A node without an entry is not heard of.
type reporting struct {
	*spoken
	volumes map[string][]volume.State
}

func (r *reporting) Volumes(node string) ([]volume.State, []string, bool) {
	said, heard := r.volumes[node]
	return said, nil, heard
}

// A node that stays ready may report something else about a volume, and its agent may start anew.
func TestEachReportAboutAVolumeIsNewsOfIt(t *testing.T) {
	m := makeMany(t, 0)
	m.reach(t)(m.repo.PutNode(t.Context(), api.NodeRecord{Name: "n1"}))
	for _, uid := range []string{"a", "b"} {
		m.reach(t)(m.repo.CreateVolume(t.Context(), api.VolumeIntent{Name: uid, UID: uid, SizeBytes: 1, MaxFiles: 1}, func([]api.VolumeIntent) error { return nil }))
		v := m.cache.View().Volume(uid)
		m.reach(t)(m.leader.CommitVolume(t.Context(), v, api.VolumeRecord{UID: uid, Name: v.Name(), Node: "n1", SizeBytes: 1, Generation: 1}, nil))
	}
	live, h := &reporting{newSpoken(), map[string][]volume.State{}}, heardVolumes{}
	ready := volume.State{UID: "a", Ready: true}
	for _, step := range []struct {
		when  string
		say   func()
		told  []string
		sweep bool
		want  []string
	}{
		{"an agent that is not heard of", func() {}, []string{"n1"}, false, nil},
		{"its first report", func() { live.volumes["n1"] = []volume.State{{UID: "a"}} }, []string{"n1"}, false, []string{"a", "b"}},
		{"the same report", func() {}, []string{"n1"}, false, nil},
		{"another report about one", func() { live.volumes["n1"] = []volume.State{ready} }, []string{"n1"}, false, []string{"a"}},
		{"a report of another node", func() {}, []string{"n2"}, false, nil},
		{"a silence, which nobody tells of", func() { delete(live.volumes, "n1") }, nil, false, nil},
		{"a silence, at a sweep", func() {}, nil, true, []string{"a", "b"}},
		{"the agent that is back", func() { live.volumes["n1"] = []volume.State{ready} }, []string{"n1"}, false, []string{"a", "b"}},
	} {
		step.say()
		var got []string
		for _, n := range h.look(live, m.cache.View(), step.told, step.sweep) {
			if n.kind != api.KindVolume || n.deleted {
				t.Errorf("%s: the note %+v", step.when, n)
			}
			got = append(got, n.name)
		}
		if slices.Sort(got); !slices.Equal(got, step.want) {
			t.Errorf("%s is news of %v, want %v", step.when, got, step.want)
		}
	}
}
