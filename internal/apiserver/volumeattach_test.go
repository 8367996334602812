package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestAVolumeIsAttachedToARunningClusterOrRefusedWithTheReason(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 1, Cores: 1, Memory: 512 << 20})
	s.AddPool("pool", 100<<30)
	cl, err := c.Cluster(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	here := cl.Status.Members[0].Node
	for name, node := range map[string]string{"data": here, "more": here, "far": "pool"} {
		makeVolume(t, c, api.VolumeRequest{Name: name, Size: gib})
		s.PlaceVolume(name, node, 0)
	}
	makeVolume(t, c, api.VolumeRequest{Name: "unplaced", Size: gib})
	refused := func(what string, v api.VolumeAttachment, code, says string) {
		t.Helper()
		if _, err := c.AttachVolume(t.Context(), "c1", v); !client.HasCode(err, code) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, code, says)
		}
	}
	change := func(change func(*api.ClusterIntent)) {
		t.Helper()
		if _, _, err := s.Repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error { change(in); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	refused("no such volume", api.VolumeAttachment{Name: "none"}, "unknown_volume", `no such volume: "none"`)
	refused("a home", api.VolumeAttachment{Name: "data", Path: "/home"}, "invalid_request", "which members get when they start")
	refused("a user's home", api.VolumeAttachment{Name: "home-ann"}, "invalid_request", "is the name of a user's home")
	refused("the system", api.VolumeAttachment{Name: "data", Path: "/etc/x"}, "invalid_request", "would hide a part of the member's system")
	refused("another node", api.VolumeAttachment{Name: "far"}, "cant_attach", `volume "far" lies on node pool, which does not serve it to others`)
	refused("no node yet", api.VolumeAttachment{Name: "unplaced"}, "cant_attach", `volume "unplaced" has no node yet`)
	change(func(in *api.ClusterIntent) { in.Spec.Groups[0].Stack = api.StackMetal })
	refused("whole machines", api.VolumeAttachment{Name: "data"}, "cant_attach", `only members of the stacks "container" and "vm" take volumes while they run`)
	s.AddDisk("other")
	environment := ""
	change(func(in *api.ClusterIntent) {
		g := &in.Spec.Groups[0]
		environment, g.Stack, g.Environment = g.Environment, api.StackVM, "other"
	})
	refused("another system", api.VolumeAttachment{Name: "data"}, "cant_attach", `environment "other", without an agent to mount a volume`)
	change(func(in *api.ClusterIntent) { in.Spec.Groups[0].Environment = environment })

	data := api.VolumeAttachment{Name: "data", Path: "/ref"}
	for range 2 { // again changes nothing
		if cl, err = c.AttachVolume(t.Context(), "c1", data); err != nil {
			t.Fatal(err)
		}
		want := api.MemberVolumeChange{Name: "data", Path: "/ref", Change: api.VolumeAttaching}
		if m := cl.Status.Members[0]; len(cl.Spec.Volumes) != 1 || cl.Spec.Volumes[0] != data || len(m.VolumeChanges) != 1 || m.VolumeChanges[0] != want {
			t.Errorf("it asks for %+v, and the member changes %+v", cl.Spec.Volumes, m.VolumeChanges)
		}
	}
	refused("another path", api.VolumeAttachment{Name: "data"}, "cant_attach", `is attached to cluster "c1" already, at /ref; detach it first: nearmetal volume detach data c1`)
	refused("a path below", api.VolumeAttachment{Name: "more", Path: "/ref/more"}, "invalid_request", `is at, above or below the path of volume "data"`)
	if _, err := c.DeleteVolume(t.Context(), "data", true); !client.HasCode(err, "volume_in_use") {
		t.Errorf("its deletion: %v", err)
	}
	makeVolume(t, c, api.VolumeRequest{Name: "own", Size: gib})
	s.PlaceVolume("own", here, 0)
	in := api.ClusterIntent{Name: "other", UID: "other", Spec: api.ClusterSpec{Groups: []api.Group{{Name: "other", Size: 1}}, Volumes: []api.VolumeAttachment{{Name: "own"}}}}
	if _, err := s.Repo.CreateCluster(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	refused("a second writer", api.VolumeAttachment{Name: "own"}, "volume_in_use", "by cluster other, which writes to it")
}

func TestADetachedVolumeIsInUseUntilAllMembersHaveLetGo(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 1, Cores: 1, Memory: 512 << 20})
	s.AddPool("pool", 100<<30)
	cl, err := c.Cluster(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	makeVolume(t, c, api.VolumeRequest{Name: "data", Size: gib})
	s.PlaceVolume("data", cl.Status.Members[0].Node, 0)
	if _, err := c.DetachVolume(t.Context(), "c1", "data"); !client.HasCode(err, "volume_not_attached") {
		t.Errorf("detaching what it does not have: %v", err)
	}
	if _, err := c.AttachVolume(t.Context(), "c1", api.VolumeAttachment{Name: "data"}); err != nil {
		t.Fatal(err)
	}
	for range 2 { // again changes nothing
		if cl, err = c.DetachVolume(t.Context(), "c1", "data"); err != nil || len(cl.Spec.Volumes) != 0 || len(cl.Status.DetachingVolumes) != 1 {
			t.Fatalf("it asks for %+v, and detaches %v: %v", cl.Spec.Volumes, cl.Status.DetachingVolumes, err)
		}
	}
	if v, err := c.Volume(t.Context(), "data"); err != nil || len(v.Clusters) != 1 || !v.Clusters[0].Detaching {
		t.Errorf("the volume shows %+v, %v", v.Clusters, err)
	}
	if _, err := c.DeleteVolume(t.Context(), "data", true); !client.HasCode(err, "volume_in_use") {
		t.Errorf("its deletion meanwhile: %v", err)
	}
	if _, err := c.AttachVolume(t.Context(), "c1", api.VolumeAttachment{Name: "data", Path: "/else"}); !client.HasCode(err, "cant_attach") || !strings.Contains(err.Error(), "is still being detached") {
		t.Errorf("attaching it elsewhere meanwhile: %v", err)
	}
	second := api.ClusterIntent{Name: "c2", UID: "c2", Spec: api.ClusterSpec{Groups: []api.Group{{Name: "c2", Size: 1}}, Volumes: []api.VolumeAttachment{{Name: "data"}}}}
	if _, err := s.Repo.CreateCluster(t.Context(), second); err == nil || !strings.Contains(err.Error(), "by cluster c1, which writes to it") {
		t.Errorf("a second writer meanwhile: %v", err)
	}
	if cl, err = c.AttachVolume(t.Context(), "c1", api.VolumeAttachment{Name: "data"}); err != nil || len(cl.Status.DetachingVolumes) != 0 {
		t.Errorf("attaching it after all: %v, and it detaches %v", err, cl.Status.DetachingVolumes)
	}
	if _, err = c.DetachVolume(t.Context(), "c1", "data"); err != nil {
		t.Fatal(err)
	}
	detaching := s.Cache.View().Cluster("c1").Intent.Detaching
	s.ChangeRecord("c1", func(r *api.ClusterRecord) { r.Detached = detaching })
	if cl, err := c.Cluster(t.Context(), "c1"); err != nil || len(cl.Status.DetachingVolumes) != 0 {
		t.Errorf("once all members have let go: %v, %v", cl.Status.DetachingVolumes, err)
	}
	if _, err := s.Repo.CreateCluster(t.Context(), second); err != nil {
		t.Errorf("another writer then: %v", err)
	}
}

func TestAFileAttachesAndDetachesVolumes(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 1, Cores: 1, Memory: 512 << 20})
	s.AddPool("pool", 100<<30)
	cl, err := c.Cluster(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data", "more"} {
		makeVolume(t, c, api.VolumeRequest{Name: name, Size: gib})
		s.PlaceVolume(name, cl.Status.Members[0].Node, 0)
	}
	with := func(volumes ...api.VolumeAttachment) api.ClusterRequest {
		return api.ClusterRequest{Name: "c1", Size: 1, Cores: 1, Memory: 512 << 20, Volumes: volumes}
	}
	if _, err := c.AttachVolume(t.Context(), "c1", api.VolumeAttachment{Name: "data"}); err != nil {
		t.Fatal(err)
	}
	got, err := c.ApplyCluster(t.Context(), "c1", with(api.VolumeAttachment{Name: "more", ReadOnly: true}), false)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Steps) != 2 || got.Steps[0].Message != `volume "more" is attached read-only at /volumes/more` || got.Steps[1].Message != `volume "data" is detached` ||
		len(got.Cluster.Spec.Volumes) != 1 || len(got.Cluster.Status.DetachingVolumes) != 1 {
		t.Errorf("the steps are %+v, and the cluster has %+v", got.Steps, got.Cluster.Spec.Volumes)
	}
	_, err = c.ApplyCluster(t.Context(), "c1", with(api.VolumeAttachment{Name: "more"}), false)
	if !client.HasCode(err, "unchangeable") || !strings.Contains(err.Error(), "is read-only at /volumes/more and can't become at /volumes/more") {
		t.Errorf("another way to attach it: %v", err)
	}
	_, err = c.ApplyCluster(t.Context(), "c1", with(api.VolumeAttachment{Name: "more", Path: "/home"}), false)
	if err == nil || !strings.Contains(err.Error(), "is none at /home and can't become more at /home") {
		t.Errorf("as a home: %v", err)
	}
}
