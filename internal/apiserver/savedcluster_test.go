package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
)

// withHome gives a cluster a home that is a volume.
func withHome(t *testing.T, s *apiservertest.Site, change func(*api.ClusterIntent)) {
	t.Helper()
	_, revision, err := s.Repo.UpdateIntent(t.Context(), "m1", "", func(in *api.ClusterIntent) error { change(in); return nil })
	if err == nil {
		_, err = s.Cache.WaitRevision(t.Context(), revision)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestASaveOfFilesKeepsTheShapeOfTheClusterAndASnapshotOfItsHome(t *testing.T) {
	s := savingSite(t, nil)
	wholeCluster(t, s, "m1")
	ann := s.ClientAs("ann", "default", api.RoleMember)
	if _, err := ann.CreateVolume(t.Context(), api.VolumeRequest{Name: "ours", Size: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	withHome(t, s, func(in *api.ClusterIntent) {
		in.Spec.Groups[0].NodeSelector = map[string]string{"rack": "r1"}
		in.Spec.Volumes = []api.VolumeAttachment{{Name: "ours", Path: "/home"}}
	})
	snapshots := func() (names []string) {
		all, err := ann.VolumeSnapshots(t.Context(), "ours")
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range all {
			names = append(names, one.Name)
		}
		return names
	}
	s.Tunnels.Member = sends(filesOf(t, map[string]string{"opt/key": aKey}))
	if _, err := ann.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "refused"}); !client.HasCode(err, "keys_found") || len(snapshots()) > 0 {
		t.Errorf("%v, and then there are snapshots: %v", err, snapshots())
	}
	s.Tunnels.Member = sends(filesOf(t, map[string]string{"opt/solver": "x"}))
	b, err := ann.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "solver"})
	if err != nil || b.Saved == nil {
		t.Fatalf("%+v, %v", b.Saved, err)
	}
	if got := strings.Join(snapshots(), " "); b.Saved.Home != "ours@solver" || got != "solver" {
		t.Errorf("the home is %q, with the snapshots %q", b.Saved.Home, got)
	}
	g := b.Saved.Groups[0]
	if b.Saved.Cluster != "m1" || b.Saved.Member != "m1-0" || g.Size != 2 || g.Environment != "solver" || g.Stack != api.StackMetal || g.NodeSelector != nil {
		t.Errorf("saved is %+v", b.Saved)
	}
	if in := s.Cache.View().Cluster("m1").Intent.Spec.Groups[0]; in.Environment != "debian-mpi" || in.NodeSelector == nil {
		t.Errorf("the saved cluster itself is changed: %+v", in)
	}
	// A snapshot of that name is another save's.
	if _, err := ann.CreateVolumeSnapshot(t.Context(), "ours", "taken"); err != nil {
		t.Fatal(err)
	}
	if _, err := ann.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "taken"}); !client.HasCode(err, "volume_snapshot_exists") {
		t.Errorf("a snapshot of that name is there: %v", err)
	}
	if b, err = ann.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "taken", NoHome: true}); err != nil || b.Saved.Home != "" {
		t.Errorf("without the home: %+v, %v", b.Saved, err)
	}
}

// The groups of a save are those of a request again.
func TestASavedClusterCanBeAskedForAgain(t *testing.T) {
	s := savingSite(t, nil)
	wholeCluster(t, s, "m1")
	s.Tunnels.Member = sends(filesOf(t, map[string]string{"opt/solver": "x"}))
	ann := s.ClientAs("ann", "default", api.RoleMember)
	b, err := ann.SaveFiles(t.Context(), "m1", api.SaveFilesRequest{Environment: "solver"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.Saved.Groups { // this site carries no whole machines
		b.Saved.Groups[i].Stack, b.Saved.Groups[i].Environment = api.StackContainer, "debian-mpi"
	}
	c, err := ann.CreateCluster(t.Context(), api.ClusterRequest{Name: "m2", Groups: b.Saved.Groups})
	if err != nil || c.Spec.Groups[0].Size != 2 {
		t.Errorf("%+v, %v", c.Spec, err)
	}
}
