package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

func TestAClusterKeepsWhatItsShapeWasWhenItWasMade(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 8)
	c, ctx := s.Client(), t.Context()
	set := func(cores int, memory api.Bytes) {
		t.Helper()
		if _, err := c.SetShape(ctx, "m4", api.ShapeSettings{Cores: cores, Memory: memory}); err != nil {
			t.Fatal(err)
		}
	}
	set(4, 2<<30)
	made, err := c.CreateCluster(ctx, api.ClusterRequest{Name: "c1", ShapeName: "m4"})
	if err != nil {
		t.Fatal(err)
	}
	want := api.Group{Name: "c1", Size: 1, ShapeName: "m4", Shape: api.Shape{Cores: 4, Memory: 2 << 30}, Stack: api.StackContainer, Environment: "local"}
	wantGroup := func(what string, cl api.Cluster, want api.Group) {
		t.Helper()
		if got := cl.Spec.Groups[0]; got.ShapeName != want.ShapeName || got.Shape != want.Shape {
			t.Errorf("%s: the group is %+v, want %+v", what, got, want)
		}
	}
	wantGroup("made with a shape", made, want)
	set(1, 1<<30)
	s.Place("c1")
	s.MakeReady("c1")
	// The same file changes nothing, though its shape is another by now.
	result, err := c.ApplyCluster(ctx, "c1", api.ClusterRequest{Name: "c1", ShapeName: "m4"}, false)
	if err != nil || result.Applied {
		t.Fatalf("applying the same file: %+v, %v", result, err)
	}
	wantGroup("after its shape was changed", *result.Cluster, want)
	// A new group gets what the shape is now; what is given goes before it.
	made, err = c.CreateCluster(ctx, api.ClusterRequest{Name: "c2", Groups: []api.Group{{Name: "a", ShapeName: "m4"}, {Name: "b", ShapeName: "m4", Shape: api.Shape{Cores: 2}}}})
	if err != nil {
		t.Fatal(err)
	}
	wantGroup("made later", made, api.Group{ShapeName: "m4", Shape: api.Shape{Cores: 1, Memory: 1 << 30}})
	if got := made.Spec.Groups[1].Shape; got != (api.Shape{Cores: 2, Memory: 1 << 30}) {
		t.Errorf("a group with its own number of cores is %+v", got)
	}
	if err := c.DeleteShape(ctx, "m4"); err != nil {
		t.Fatal(err)
	}
	if result, err = c.ApplyCluster(ctx, "c1", api.ClusterRequest{Name: "c1", ShapeName: "m4"}, false); err != nil || result.Applied {
		t.Errorf("applying the same file when its shape is gone: %+v, %v", result, err)
	}
	if _, err := c.CreateCluster(ctx, api.ClusterRequest{Name: "c3", ShapeName: "m4"}); !client.HasCode(err, "unknown_shape") || !strings.Contains(err.Error(), "it has none") {
		t.Errorf("a shape that is gone: %v", err)
	}
}

func TestShapesAreListedAndSetByAdministrators(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	ann, root, ctx := s.ClientAs("ann", "default", api.RoleMember), s.Client(), t.Context()
	if _, err := ann.SetShape(ctx, "m4", api.ShapeSettings{Cores: 4, Memory: 1 << 30}); !client.HasCode(err, "forbidden") {
		t.Errorf("a member sets a shape: %v", err)
	}
	for _, name := range []string{"m8", "m4"} {
		if _, err := root.SetShape(ctx, name, api.ShapeSettings{Cores: 4, Memory: 1 << 30, Description: "for CFD"}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := ann.Shapes(ctx)
	if err != nil || len(all) != 2 || all[0].Name != "m4" || all[0].Cores != 4 || all[0].Description != "for CFD" {
		t.Errorf("listed: %+v, %v", all, err)
	}
	if one, err := ann.Shape(ctx, "m8"); err != nil || one.Memory != 1<<30 {
		t.Errorf("shown: %+v, %v", one, err)
	}
	s.AddNode("n1", 4)
	_, err = ann.CreateCluster(ctx, api.ClusterRequest{Name: "c1", ShapeName: "m44"})
	if !client.HasCode(err, "unknown_shape") || !strings.Contains(err.Error(), `its shapes: "m4", "m8"; did you mean "m4"?`) {
		t.Errorf("an unknown shape: %v", err)
	}
}

// shapeErrors makes the errors about shapes occur.
func shapeErrors(t *testing.T, s *apiservertest.Site) []errorCase {
	t.Helper()
	do := func(method, path, body string) func() *http.Response {
		return func() *http.Response { return send(t, s, request{method: method, path: path, body: body}) }
	}
	return []errorCase{
		{"shape_not_found", `"nix"`, do("GET", "/v1/shapes/nix", "")},
		{"shape_not_found", `"nix"`, do("DELETE", "/v1/shapes/nix", "")},
		{"shape_not_found", `"A"`, do("PUT", "/v1/shapes/A", `{"cores": 1, "memory": "1GiB"}`)},
		{"invalid_request", "cores: is missing", do("PUT", "/v1/shapes/m4", `{"memory": "1GiB"}`)},
		{"invalid_request", "memory: is missing", do("PUT", "/v1/shapes/m4", `{"cores": 1}`)},
		{"invalid_request", "memory: 1MiB is too small", do("PUT", "/v1/shapes/m4", `{"cores": 1, "memory": "1MiB"}`)},
		{"unknown_shape", "groups[0].shape: is not a shape of this site", do("POST", "/v1/clusters", `{"name": "c9", "groups": [{"name": "a", "shape": "m44"}]}`)},
		{"invalid_cluster", "conflicts with groups", do("POST", "/v1/clusters", `{"name": "c9", "shape": "m44", "groups": [{"name": "a"}]}`)},
		{"invalid_cluster", "shape", do("POST", "/v1/clusters", `{"name": "c9", "shape": ""}`)},
	}
}
