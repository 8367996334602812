package situation

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// findings are what nodes found of volumes; a node that is not among them is not heard of.
type findings map[string][]volume.State

func (f findings) Volumes(node string) ([]volume.State, []string, bool) {
	found, heard := f[node]
	return found, nil, heard
}

// Node holds n2 to be down.
func (f findings) Node(name string) (api.NodePhase, time.Time, string) {
	if name == "n2" {
		return api.NodeDown, time.Time{}, ""
	}
	return api.NodeUnknown, time.Time{}, ""
}

func TestTheSituationOfVolumesIsWhatIsStoredAndFound(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	past, future := now.Add(-time.Minute), now.Add(time.Minute)
	claimed := &api.Quarantine{Assignment: api.Assignment{ID: "a", Volumes: []api.VolumeClaim{{UID: "u1"}}}}
	view := &state.View{
		Nodes: []*state.Node{
			{Name: "n1", Agent: &api.NodeRecord{Name: "n1", VolumePool: &api.VolumePool{Kind: "xfs"}}, Control: &api.NodeControl{Drained: true}},
			{Name: "n2", Agent: &api.NodeRecord{Name: "n2"}},
			{Name: "n3"}, // a machine whose agent never called
		},
		Volumes: []*state.Volume{
			{Intent: api.VolumeIntent{UID: "u1", Name: "data", PurgeAt: &past}, Record: &api.VolumeRecord{UID: "u1", Node: "n1"}},
			{Record: &api.VolumeRecord{UID: "u2", Node: "n2"}},
		},
		Quarantines: []*api.Quarantine{claimed},
	}
	s := Volumes(view, findings{"n1": {{UID: "u1"}}}, now)
	if len(s.Nodes) != 2 || !s.Nodes[0].Heard || !s.Nodes[0].Drained || s.Nodes[0].Pool == nil || len(s.Nodes[0].Volumes) != 1 || s.Nodes[0].Down || s.Nodes[1].Heard || !s.Nodes[1].Down {
		t.Errorf("the nodes are %+v", s.Nodes)
	}
	if len(s.Volumes) != 2 || s.Volumes[0].Intent == nil || s.Volumes[1].Intent != nil || !s.Now.Equal(now) {
		t.Errorf("the volumes are %+v", s.Volumes)
	}
	if !s.Claimed["u1"] {
		t.Error("a quarantined member's volume counts as free")
	}
	view.Volumes[0].Intent.PurgeAt = &future
	if s := Volumes(view, findings{}, now); s.Claimed != nil {
		t.Error("all assignments are looked through though no volume is to go")
	}
	view.Volumes[0].Intent.Cluster, view.Volumes[0].Intent.ClusterUID = "c1", "uc1"
	if s := Volumes(view, findings{}, now); !s.Ended["uc1"] || !s.Claimed["u1"] {
		t.Errorf("the home of a cluster that is gone: ended %v, claimed %v", s.Ended, s.Claimed)
	}
	view.Clusters = []*state.Cluster{{Intent: api.ClusterIntent{Name: "c1", UID: "uc1"}}}
	if s := Volumes(view, findings{}, now); len(s.Ended) > 0 || s.Claimed != nil {
		t.Errorf("the home of a cluster that is there: ended %v, claimed %v", s.Ended, s.Claimed)
	}
}

func TestStorageInUseIsSizesAndWhatSnapshotsHold(t *testing.T) {
	at := time.Unix(1, 0)
	volumes := []api.VolumeIntent{{UID: "a", SizeBytes: 10}, {UID: "b", SizeBytes: 20, DeleteRequestedAt: &at}, {UID: "c", SizeBytes: 30}}
	found := map[string]*volume.State{"a": {UsedBytes: 5, Snapshots: []volume.SnapshotState{{HeldBytes: 1}, {HeldBytes: 2}}}, "c": {}}
	if got := UsedStorage(volumes, func(uid string) *volume.State { return found[uid] }); got != 63 {
		t.Errorf("%d bytes are in use, want 63", got)
	}
}
