package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/situation"
)

func TestAResizeIsRefusedWithTheReasonOrItsMembersAreListed(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2, Cores: 1, Memory: 512 << 20})
	refused := func(what string, req api.ResizeRequest, code, says string) {
		t.Helper()
		if _, err := c.ResizeCluster(t.Context(), "c1", req); !client.HasCode(err, code) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, code, says)
		}
		if cl, err := c.Cluster(t.Context(), "c1"); err != nil || cl.Spec.Groups[0].Cores != 1 || cl.Spec.Groups[0].Memory != 512<<20 || cl.Status.Members[0].Resizing != nil {
			t.Errorf("%s: the refusal changed the cluster: %+v, %v", what, cl.Spec.Groups, err)
		}
	}
	change := func(change func(*api.ClusterIntent)) {
		t.Helper()
		if _, _, err := s.Repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error { change(in); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	refused("containers", api.ResizeRequest{Cores: 3}, "cant_resize", `only members of stack "vm" can be resized`)
	change(func(in *api.ClusterIntent) { in.Spec.Groups[0].Stack = api.StackVM })
	refused("no size at all", api.ResizeRequest{}, "invalid_request", "give the new cores, memory or disk")
	refused("a group that is not there", api.ResizeRequest{Group: "g", Cores: 3}, "invalid_request", `"g" is not a group of this cluster`)
	refused("no cores", api.ResizeRequest{Cores: -1}, "invalid_request", "-1 is not possible")
	refused("too little memory for a machine", api.ResizeRequest{Memory: 64 << 20}, "invalid_request", "give at least 192MiB per member")
	refused("a disk of an environment that has none", api.ResizeRequest{Disk: 1 << 30}, "cant_resize", "have no disks of their own")
	s.Explainer.SetNoRoom(&situation.NoRoom{Reason: "node n1 has no room for it"})
	refused("no room", api.ResizeRequest{Cores: 3}, "no_room", "node n1 has no room for it; nothing was changed")
	s.Explainer.SetNoRoom(nil)
	quota := func(cores int) {
		t.Helper()
		if _, err := c.PatchProject(t.Context(), api.DefaultProject, api.MergePatch{"quota": api.MergePatch{"cores": cores}}); err != nil {
			t.Fatal(err)
		}
	}
	quota(3)
	refused("more than the quota", api.ResizeRequest{Cores: 3}, "over_quota", "quota is 3")
	quota(0)
	change(func(in *api.ClusterIntent) { in.Paused = true })
	refused("a cluster that is about to be paused", api.ResizeRequest{Cores: 3}, "wrong_phase", "paused or about to be")
	change(func(in *api.ClusterIntent) { in.Paused = false })

	cl, err := c.ResizeCluster(t.Context(), "c1", api.ResizeRequest{Cores: 3})
	if err != nil {
		t.Fatal(err)
	}
	want := api.MemberResizing{Phase: api.ResizeWaiting, Shape: api.Shape{Cores: 3, Memory: 512 << 20}, Message: "waits for room on node n1"}
	if m := cl.Status.Members[0]; m.Resizing == nil || *m.Resizing != want || len(m.CPUs) != 1 {
		t.Errorf("the member is %+v, resizing %+v", m, m.Resizing)
	}
	if _, err := c.SaveCluster(t.Context(), "c1"); !client.HasCode(err, "cant_save") || !strings.Contains(err.Error(), "takes effect at a reboot") {
		t.Errorf("saving it: %v", err)
	}
	if _, err := c.MigrateCluster(t.Context(), "c1", api.MigrateRequest{}); !client.HasCode(err, "cant_move") || !strings.Contains(err.Error(), "reboot") {
		t.Errorf("moving it: %v", err)
	}
	if cl, err = c.ResizeCluster(t.Context(), "c1", api.ResizeRequest{Cores: 1}); err != nil || cl.Status.Members[0].Resizing != nil {
		t.Errorf("once it was taken back: %+v, %v", cl.Status.Members, err)
	}
	change(func(in *api.ClusterIntent) { in.Spec.Groups[0].Disk = 2 << 30 })
	if _, err := c.ResizeCluster(t.Context(), "c1", api.ResizeRequest{Disk: 1 << 30}); !client.HasCode(err, "cant_resize") || !strings.Contains(err.Error(), "a disk can only grow") {
		t.Errorf("a smaller disk: %v", err)
	}
}
