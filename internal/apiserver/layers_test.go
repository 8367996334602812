package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestALayerIsAddedToARunningClusterOrRefusedWithTheReason(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2, Cores: 1, Memory: 512 << 20})
	digest := s.AddImage("foam", 0, api.StackContainer)
	s.AddImage("more", 0, api.StackContainer)
	s.AddDisk("other")
	makeVolume(t, c, api.VolumeRequest{Name: "data", Size: gib})
	change := func(change func(*api.ClusterIntent)) {
		t.Helper()
		if _, _, err := s.Repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error { change(in); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, l api.Layer, code, says string) {
		t.Helper()
		if _, err := c.AddLayer(t.Context(), "c1", l); !client.HasCode(err, code) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, code, says)
		}
	}
	refused("no such environment", api.Layer{Environment: "none"}, "environment_not_found", `"none"`)
	refused("the nodes' own system", api.Layer{Environment: "local"}, "cant_add_layer", "belongs to the nodes and has no image")
	refused("the disk of another system", api.Layer{Environment: "other"}, "cant_add_layer", "has no layer")
	refused("the system", api.Layer{Environment: "foam", Path: "/usr/lib"}, "invalid_request", "would hide a part of the member's system; add the layer elsewhere, such as at /layers/foam")
	refused("the home", api.Layer{Environment: "foam", Path: "/home/x"}, "invalid_request", "is the home, or below it")
	refused("an image of the user's choice", api.Layer{Environment: "foam", Digest: digest}, "invalid_request", "can't be chosen")
	change(func(in *api.ClusterIntent) { in.Spec.Groups[0].Stack = api.StackVM })
	refused("virtual machines", api.Layer{Environment: "foam"}, "cant_add_layer", `run on stack "vm", whose members have no layers`)
	change(func(in *api.ClusterIntent) { in.Spec.Groups[0].Stack = api.StackContainer })

	var cl api.Cluster
	var err error
	for range 2 { // again changes nothing
		if cl, err = c.AddLayer(t.Context(), "c1", api.Layer{Environment: "foam"}); err != nil {
			t.Fatal(err)
		}
	}
	want := api.LayerStatus{Layer: api.Layer{Environment: "foam", Path: "/layers/foam", Digest: digest}, State: api.LayerAdding, Waiting: 2}
	if got := cl.Status.Layers; len(got) != 1 || got[0] != want {
		t.Errorf("its layers are %+v, want %+v", got, want)
	}
	refused("another path", api.Layer{Environment: "foam", Path: "/opt/foam"}, "cant_add_layer", `has layer "foam" already, at /layers/foam; remove it first: nearmetal cluster layer remove c1 foam`)
	refused("below another layer", api.Layer{Environment: "more", Path: "/layers/foam/more"}, "invalid_request", `at, above or below the path of layer "foam"`)
	if _, err := c.AttachVolume(t.Context(), "c1", api.VolumeAttachment{Name: "data", Path: "/layers"}); !client.HasCode(err, "cant_attach") || !strings.Contains(err.Error(), `have layer "foam" at /layers/foam`) {
		t.Errorf("a volume over a layer: %v", err)
	}
	if err := c.DeleteEnvironment(t.Context(), "foam", false); !client.HasCode(err, "environment_in_use") || !strings.Contains(err.Error(), "cluster c1") {
		t.Errorf("its environment was deleted: %v", err)
	}
	for a := range s.Cache.Cluster("c1").Held() {
		s.Live.SetLayers(a.ID, 1)
		if a.Member == "c1-0" {
			s.Live.SetUnmounted(a.ID, "it is in use")
		}
	}
	s.ChangeRecord("c1", func(r *api.ClusterRecord) { r.LayersNumber = 1 })
	if cl, err = c.Cluster(t.Context(), "c1"); err != nil || cl.Status.Layers[0].State != api.LayerReady {
		t.Errorf("once all members have it: %+v (%v)", cl.Status.Layers, err)
	}

	for range 2 { // again changes nothing
		if cl, err = c.RemoveLayer(t.Context(), "c1", "foam"); err != nil {
			t.Fatal(err)
		}
	}
	if got := cl.Status.Layers; len(got) != 1 || got[0].State != api.LayerRemoving || got[0].Waiting != 2 || got[0].Message != "c1-0: it is in use" {
		t.Errorf("while members have it: %+v", got)
	}
	refused("its place", api.Layer{Environment: "more", Path: "/layers/foam"}, "cant_add_layer", `layer "foam" at /layers/foam is still being removed`)
	if err := c.DeleteEnvironment(t.Context(), "foam", false); !client.HasCode(err, "environment_in_use") {
		t.Errorf("its environment was deleted while members have it: %v", err)
	}
	s.ChangeRecord("c1", func(r *api.ClusterRecord) { r.LayersNumber = 2 })
	if cl, err = c.Cluster(t.Context(), "c1"); err != nil || len(cl.Status.Layers) != 0 {
		t.Errorf("once no member has it: %+v (%v)", cl.Status.Layers, err)
	}
	if _, err := c.RemoveLayer(t.Context(), "c1", "foam"); !client.HasCode(err, "layer_not_found") {
		t.Errorf("removed once more: %v", err)
	}
	if err := c.DeleteEnvironment(t.Context(), "foam", false); err != nil {
		t.Errorf("its environment can't be deleted after that: %v", err)
	}
	if _, err := c.AddLayer(t.Context(), "c1", api.Layer{Environment: "more", Path: "/layers/foam"}); err != nil {
		t.Errorf("another one in its place: %v", err)
	}
}

func TestALayerOfAnotherProjectIsNotKnown(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 1, Cores: 1, Memory: 512 << 20})
	digest := s.AddImage("theirs", 0, api.StackContainer)
	s.Project("other", api.Quota{})
	if _, err := s.Repo.SetEnvironment(t.Context(), api.EnvironmentRecord{Name: "theirs", Digest: digest, Project: "other"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AddLayer(t.Context(), "c1", api.Layer{Environment: "theirs"}); !client.HasCode(err, "environment_not_found") {
		t.Errorf("a layer of another project: %v", err)
	}
}
