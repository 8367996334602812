package apiserver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
)

// snapshotted is a site whose ready cluster c1 of virtual machines has snapshots s, s1 and so on, without states on nodes.
func snapshotted(t *testing.T, n int) *apiservertest.Site {
	t.Helper()
	s, _, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 1})
	var wanted []api.SnapshotIntent
	var made []api.SnapshotRecord
	for i := range n {
		at := time.Unix(int64(i), 0).UTC()
		name := strings.TrimSuffix(fmt.Sprint("s", i), "0")
		wanted = append(wanted, api.SnapshotIntent{Name: name, AskedAt: at})
		made = append(made, api.SnapshotRecord{Name: name, AskedAt: at, MadeAt: &at})
	}
	s.ChangeRecord("c1", func(r *api.ClusterRecord) { r.Snapshots = made })
	_, _, err := s.Repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error {
		in.Spec.Groups[0].Stack, in.Snapshots = api.StackVM, wanted
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestASnapshotIsRequestedOnceAndListedUntilItIsGone(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2})
	s.OfferDisk("n1", 1<<40)
	refused := func(what, name, code, says string) {
		t.Helper()
		if _, err := c.CreateSnapshot(t.Context(), "c1", name); !client.HasCode(err, code) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, code, says)
		}
	}
	refused("a cluster of containers", "s1", "cant_save", `only members of stack "vm" have snapshots`)
	onStack(t, s, api.StackVM)
	refused("a name that is no label", "S 1", "invalid_request", "is not a DNS label")
	refused("a node without room", "s1", "no_room", `node "n2" offers 0`)
	s.OfferDisk("n2", 1<<40)
	cl, err := c.CreateSnapshot(t.Context(), "c1", "s1")
	if err != nil {
		t.Fatal(err)
	}
	if all := cl.Status.Snapshots; len(all) != 1 || all[0].Name != "s1" || all[0].Phase != api.SnapshotWaiting {
		t.Errorf("the snapshots are %+v; want s1, which waits", all)
	}
	refused("a second snapshot beside one that is not complete", "s2", "wrong_phase", `snapshot "s1" of cluster "c1" is being made`)
	if _, err := c.RestoreSnapshot(t.Context(), "c1", "s1"); !client.HasCode(err, "cant_restore") || !strings.Contains(err.Error(), "not complete yet") {
		t.Errorf("a restore of a snapshot that is not complete: %v", err)
	}
	if _, err := c.DeleteSnapshot(t.Context(), "c1", "s1"); err != nil {
		t.Fatal(err)
	}
	if all, err := c.Snapshots(t.Context(), "c1"); err != nil || len(all) != 0 {
		t.Errorf("the snapshots are %+v, %v; want none", all, err)
	}
	if _, err := c.SaveCluster(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	refused("a cluster that is about to be saved", "s1", "wrong_phase", "saved or about to be")
}

func TestASnapshotCountsAgainstTheDiskQuotaOfItsProject(t *testing.T) {
	s := snapshotted(t, 0)
	c := s.Client()
	send(t, s, request{method: "PATCH", path: "/v1/projects/default", body: `{"quota": {"disk": "1MiB"}}`})
	if _, err := c.CreateSnapshot(t.Context(), "c1", "s1"); !client.HasCode(err, "over_quota") || !strings.Contains(err.Error(), "can't have another snapshot") {
		t.Errorf("got %v, want over_quota", err)
	}
}
