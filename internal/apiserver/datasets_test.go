package apiserver_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/plan"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// events is a dataset of one file.
func events() api.DatasetRequest {
	return api.DatasetRequest{Name: "events", Files: []api.DatasetFile{{URLs: []string{"https://data.example/run1.root"}, SizeBytes: 100, Adler32: "0A1B2C3D"}}}
}

// withEvents asks for a cluster whose members have the dataset.
func withEvents(name string) api.ClusterRequest {
	return api.ClusterRequest{Name: name, Datasets: []string{"events"}}
}

func TestADatasetBelongsToItsProject(t *testing.T) {
	s := twoProjects(t)
	ann, eve, vic := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember), s.ClientAs("vic", "default", api.RoleViewer)
	made, err := ann.CreateDataset(t.Context(), events())
	if err != nil || made.Project != "default" || len(made.Files) != 1 || made.Files[0].Path != "run1.root" || made.Files[0].Adler32 != "0a1b2c3d" || made.SizeBytes != 100 {
		t.Fatalf("created %+v, %v", made, err)
	}
	if _, err := ann.CreateDataset(t.Context(), events()); !client.HasCode(err, "dataset_exists") {
		t.Errorf("a second dataset of the name: %v", err)
	}
	if _, err := vic.CheckDataset(t.Context(), "events"); !client.HasCode(err, "forbidden") {
		t.Errorf("a viewer checks a dataset: %v", err)
	}
	for _, name := range []string{"default.events", made.UID} {
		_, show := eve.Dataset(t.Context(), name)
		_, replicate := eve.ReplicateDataset(t.Context(), name, []string{"n1"})
		_, evict := eve.EvictDataset(t.Context(), name, nil)
		_, check := eve.CheckDataset(t.Context(), name)
		for what, err := range map[string]error{"shows": show, "replicates": replicate, "evicts": evict, "checks": check, "deletes": eve.DeleteDataset(t.Context(), name)} {
			if !client.HasCode(err, "dataset_not_found") {
				t.Errorf("a member of another project %s %s: %v", what, name, err)
			}
		}
	}
	if _, err := eve.CreateCluster(t.Context(), withEvents("c9")); !client.HasCode(err, "unknown_dataset") {
		t.Errorf("a cluster of another project has the dataset: %v", err)
	}
	if all, err := eve.Datasets(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("a member of another project sees %+v, %v", all, err)
	}
	if err := ann.DeleteDataset(t.Context(), "events"); err != nil {
		t.Errorf("a dataset that nothing asks for is not deleted: %v", err)
	}
}

func TestACredentialOfADatasetIsSealedAndNeverShown(t *testing.T) {
	s := twoProjects(t)
	c := s.Client()
	req := events()
	req.Credential = &api.DatasetCredential{User: "reader", Password: "open sesame"}
	made, err := c.CreateDataset(t.Context(), req)
	if err != nil || !made.Private {
		t.Fatalf("created %+v, %v", made, err)
	}
	shown, err := c.Dataset(t.Context(), "events")
	if err != nil {
		t.Fatal(err)
	}
	all, err := c.Datasets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, v := range map[string]any{"create": made, "show": shown, "list": all} {
		if text, err := json.Marshal(v); err != nil || strings.Contains(string(text), "sesame") || strings.Contains(string(text), "reader") || strings.Contains(string(text), "sealed") {
			t.Errorf("%s answers %s, %v", what, text, err)
		}
	}
	stored := s.Cache.View().Dataset("events")
	if stored == nil || !strings.HasPrefix(string(stored.Sealed), stored.UID+":") {
		t.Errorf("stored is %+v, want a credential that is sealed for the dataset", stored)
	}
	req.Name, req.Files[0].URLs[0] = "clear", "http://data.example/run1.root"
	if _, err := c.CreateDataset(t.Context(), req); !client.HasCode(err, "invalid_request") || strings.Contains(err.Error(), "sesame") {
		t.Errorf("a password by http://: %v", err)
	}
}

func TestADatasetIsKeptWhileClustersHaveIt(t *testing.T) {
	s := twoProjects(t)
	ann := s.ClientAs("ann", "default", api.RoleMember)
	d, err := ann.CreateDataset(t.Context(), events())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ann.CreateCluster(t.Context(), withEvents("c1")); err != nil {
		t.Fatal(err)
	}
	s.Place("c1")
	c1, err := ann.Cluster(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	node := c1.Status.Members[0].Node
	s.Live.SayDatasets(
		plan.Node{Name: node, States: []dataset.State{{UID: d.UID, Whole: true, HeldBytes: 100, OfBytes: 100}}},
		plan.Node{Name: "other", States: []dataset.State{{UID: d.UID, Failed: true, Message: "no such host"}}},
	)
	d, err = ann.Dataset(t.Context(), "events")
	if err != nil || !slices.Equal(d.Clusters, []string{"c1"}) || len(d.Replicas) != 2 {
		t.Fatalf("the dataset is %+v, %v; want cluster c1, and two replicas", d, err)
	}
	for _, r := range d.Replicas {
		if r.Node == node && (r.Phase != api.ReplicaWhole || !r.InUse) || r.Node == "other" && (r.Phase != api.ReplicaFailed || r.InUse || r.Message != "no such host") {
			t.Errorf("replica %+v", r)
		}
	}
	if _, err := ann.EvictDataset(t.Context(), "events", nil); !client.HasCode(err, "replica_in_use") || !strings.Contains(err.Error(), node) {
		t.Errorf("a replica is evicted under a member: %v", err)
	}
	if err := ann.DeleteDataset(t.Context(), "events"); !client.HasCode(err, "dataset_in_use") || !strings.Contains(err.Error(), "c1") {
		t.Errorf("a dataset is deleted under a cluster: %v", err)
	}
	if n := s.Cache.View().Dataset("events").Evictions[node]; n != 0 {
		t.Errorf("a refused eviction is noted %d times", n)
	}
}

func TestReplicasAreAskedForByNode(t *testing.T) {
	s := twoProjects(t)
	c := s.Client()
	if _, err := c.CreateDataset(t.Context(), events()); err != nil {
		t.Fatal(err)
	}
	s.AddNode("n7", 2)
	if _, err := c.ReplicateDataset(t.Context(), "events", []string{"nowhere"}); !client.HasCode(err, "node_not_found") {
		t.Errorf("a node that does not exist: %v", err)
	}
	if _, err := c.ReplicateDataset(t.Context(), "events", nil); !client.HasCode(err, "invalid_request") {
		t.Errorf("no node: %v", err)
	}
	d, err := c.ReplicateDataset(t.Context(), "events", []string{"n7", "n7"})
	if err != nil || len(d.Replicas) != 1 || !d.Replicas[0].Kept || d.Replicas[0].Node != "n7" {
		t.Fatalf("after replicate: %+v, %v", d, err)
	}
	if d, err = c.EvictDataset(t.Context(), "events", nil); err != nil || len(d.Replicas) != 0 {
		t.Fatalf("after evict: %+v, %v", d, err)
	}
	if n := s.Cache.View().Dataset("events").Evictions["n7"]; n != 1 {
		t.Errorf("the eviction has number %d, want 1", n)
	}
	if d, err = c.CheckDataset(t.Context(), "events"); err != nil || d.Checks != 1 {
		t.Errorf("the first check: %+v, %v", d, err)
	}
}

func TestWhatNodesSayOfTheirCachesIsShown(t *testing.T) {
	s := twoProjects(t)
	ann := s.ClientAs("ann", "default", api.RoleMember)
	made, err := ann.CreateDataset(t.Context(), api.DatasetRequest{
		Name: "far", Files: []api.DatasetFile{{URLs: []string{"root://data.example//run1.root"}, SizeBytes: 100, Adler32: "0A1B2C3D"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	figures := dataset.CacheFigures{HitBytes: 1, MissBytes: 200, AheadBytes: 3, AgainBytes: 100, Restarts: 5}
	s.Live.SayDatasets(plan.Node{Name: "n1", Caches: []dataset.CacheState{
		{UID: made.UID, Running: true, SizeBytes: 400, HeldBytes: 7, CacheFigures: figures}, {UID: "another", Running: true},
	}})
	d, err := ann.Dataset(t.Context(), "far")
	want := api.DatasetCache{
		Node: "n1", Running: true, SizeBytes: 400, HeldBytes: 7, HitBytes: 1, MissBytes: 200, AheadBytes: 3, AgainBytes: 100, TooSmall: true, Restarts: 5,
	}
	if err != nil || len(d.Caches) != 1 || d.Caches[0] != want || len(d.Replicas) != 0 {
		t.Errorf("shown %+v, %+v, %v; want %+v", d.Caches, d.Replicas, err, want)
	}
}

func TestAProjectsQuotaBoundsWhatNodesHoldOfItsDatasets(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 4)
	s.AddNode("n2", 4)
	s.Project("lab", api.Quota{Datasets: 100 << 20})
	eve := s.ClientAs("eve", "lab", api.RoleMember)
	add := func(name string, bytes int64) string {
		d, err := eve.CreateDataset(t.Context(), api.DatasetRequest{Name: name, Files: []api.DatasetFile{{URLs: []string{"root://far//" + name}, Adler32: "0A1B2C3D", SizeBytes: bytes}}})
		if err != nil {
			t.Fatal(err)
		}
		return d.UID
	}
	a, b := add("a", 40<<20), add("b", 60<<20)
	add("unknown", 0)
	refused := func(what string, err error, want bool, words ...string) {
		t.Helper()
		if client.HasCode(err, "over_quota") != want || !want && err != nil {
			t.Errorf("%s: %v; want it refused: %t", what, err, want)
		}
		for _, word := range words {
			if err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v, want %q in it", what, err, word)
			}
		}
	}
	create := func(name string, datasets ...string) error {
		_, err := eve.CreateCluster(t.Context(), api.ClusterRequest{Name: name, Datasets: datasets})
		return err
	}
	replicate := func(name string, nodes ...string) error {
		_, err := eve.ReplicateDataset(t.Context(), name, nodes)
		return err
	}
	refused("both, once", create("c1", "a", "b"), false)
	refused("one on both nodes", replicate("b", "n1", "n2"), true, "120MiB", "100MiB", "evict")
	refused("one of unknown size", create("c2", "unknown"), true, "size=")
	s.Live.SayDatasets(
		plan.Node{Name: "n1", States: []dataset.State{{UID: a, HeldBytes: 40 << 20}, {UID: "gone", HeldBytes: 1 << 40}}},
		plan.Node{Name: "n2", Caches: []dataset.CacheState{{UID: b, HeldBytes: 30 << 20}}},
	)
	if p, err := eve.Project(t.Context(), "lab"); err != nil || p.Used.Datasets != 70<<20 {
		t.Errorf("the project uses %s, %v; want what replicas and caches hold", p.Used.Datasets, err)
	}
	refused("what is there", create("c3", "a"), false)
	refused("the rest of what is cached", create("c4", "b:cached"), false)
	refused("a copy of what is cached", create("c5", "b"), true, "60MiB", "70MiB")
	refused("one that is streamed", create("c6", "unknown:stream"), false)
	refused("where it is", replicate("a", "n1"), false)
	refused("where it is not", replicate("a", "n2"), true)
	s.Project("free", api.Quota{})
	if _, err := s.ClientAs("ann", "free", api.RoleMember).CreateDataset(t.Context(), api.DatasetRequest{Name: "a", Files: []api.DatasetFile{{URLs: []string{"root://far//a"}, Adler32: "0A1B2C3D"}}}); err != nil {
		t.Fatal(err)
	}
	_, err := s.ClientAs("ann", "free", api.RoleMember).CreateCluster(t.Context(), api.ClusterRequest{Name: "c", Datasets: []string{"a"}})
	refused("in a project without a quota", err, false)
}

func TestAPrivateDatasetIsReadAsACopyOrThroughACacheOfWebServers(t *testing.T) {
	s := twoProjects(t)
	ann := s.ClientAs("ann", "default", api.RoleMember)
	secret := api.DatasetRequest{
		Name: "secret", Files: []api.DatasetFile{{URLs: []string{"root://data.example//run1.root"}, Adler32: "0A1B2C3D"}}, Credential: &api.DatasetCredential{Token: "t0ken"},
	}
	if _, err := ann.CreateDataset(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	secret.Name, secret.Files = "web", []api.DatasetFile{{URLs: []string{"https://data.example/run1.root"}, Adler32: "0A1B2C3D"}}
	if _, err := ann.CreateDataset(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	for way, refused := range map[string]bool{"secret": false, "secret:stream": true, "secret:cached": true, "web:stream": true, "web:cached": false} {
		_, err := ann.CreateCluster(t.Context(), api.ClusterRequest{Name: "c" + strings.ReplaceAll(way, ":", ""), Datasets: []string{way}})
		if client.HasCode(err, "unfit_dataset") != refused {
			t.Errorf("%s: %v", way, err)
		}
	}
}
