package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAHomeWithASizeIsAVolumeOfItsCluster(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddPool("n1", 100*gib)
	s.AddNode("n2", 4)
	s.Project("lab", api.Quota{Storage: 10 * gib})
	eve := s.ClientAs("eve", "lab", api.RoleMember)
	request := func(name string, size api.Bytes) api.ClusterRequest {
		return api.ClusterRequest{Name: name, Home: api.ClusterHome{Size: size}}
	}
	cl, err := eve.CreateCluster(t.Context(), request("c1", 6*gib))
	if err != nil || cl.Spec.Home != (api.ClusterHome{Size: 6 * gib}) {
		t.Fatalf("the cluster is %+v, %v", cl.Spec, err)
	}
	all, err := eve.Volumes(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("the volumes are %+v, %v", all, err)
	}
	home := all[0]
	if home.Name != "clusterhome-"+cl.UID || home.Cluster != "c1" || !home.Home || home.Size != 6*gib || home.User != "eve" || len(home.Clusters) != 1 || home.Clusters[0].Cluster != "c1" {
		t.Errorf("the home is %+v", home)
	}
	if v, err := s.Client().Volume(t.Context(), home.UID); err != nil || v.Cluster != "lab.c1" {
		t.Errorf("an administrator sees %+v, %v", v, err)
	}
	limited := s.ClientOf(s.TokenWith(api.TokenInfo{User: "ann", Role: api.RoleMember, Project: "lab", Limits: api.Limits{Clusters: []string{"x"}}}))
	if v, err := limited.Volume(t.Context(), home.UID); err != nil || v.Cluster != "" {
		t.Errorf("a token for other clusters sees %+v, %v", v, err)
	}
	if _, err := eve.CreateCluster(t.Context(), request("c2", 6*gib)); !hasCodeSaying(err, "over_quota", `the home of cluster "c2" exceeds the quota of project "lab"`) {
		t.Errorf("two homes exceed the quota: %v", err)
	}
	if _, err := eve.Cluster(t.Context(), "c2"); err == nil {
		t.Error("a cluster is there without its home")
	}
	if _, err := eve.DeleteVolume(t.Context(), home.Name, true); !hasCodeSaying(err, "volume_in_use", "attached to cluster c1") {
		t.Errorf("a home is deleted below its cluster: %v", err)
	}
	other := api.ClusterRequest{Name: "c3", Volumes: []api.VolumeAttachment{{Name: home.Name}}}
	if _, err := eve.CreateCluster(t.Context(), other); !hasCodeSaying(err, "invalid_cluster", "is the home of a cluster, which no other cluster can have") {
		t.Errorf("another cluster attaches the home: %v", err)
	}
	if _, err := eve.CreateVolume(t.Context(), api.VolumeRequest{Name: "clusterhome-x", Size: gib}); !hasCodeSaying(err, "invalid_request", "kept for homes of clusters") {
		t.Errorf("a volume has the name of a home: %v", err)
	}
	if _, err := eve.DeleteCluster(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	v, err := eve.Volume(t.Context(), home.UID)
	if err != nil || v.Phase != api.VolumeDeleted || !strings.Contains(v.Message, "cluster c1 is deleted; purged now") || v.Cluster != "c1" {
		t.Errorf("the home of a deleted cluster is %+v, %v", v, err)
	}
	if _, err := eve.CreateVolume(t.Context(), api.VolumeRequest{Name: "data", Size: 6 * gib}); !hasCodeSaying(err, "over_quota", "") {
		t.Errorf("a home that is not purged yet counts no more: %v", err)
	}
}

func hasCodeSaying(err error, code, says string) bool {
	return client.HasCode(err, code) && strings.Contains(err.Error(), says)
}
