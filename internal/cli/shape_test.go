package cli_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestShapesAreSetListedAndAskedFor(t *testing.T) {
	f := newFake(t)
	m4 := api.NamedShape{Name: "m4", ShapeSettings: api.ShapeSettings{Cores: 4, Memory: 8 << 30, Description: "for CFD"}, UpdatedAt: t0}
	f.fixed("PUT /v1/shapes/m4", m4)
	f.fixed("GET /v1/shapes", api.List[api.NamedShape]{Items: []api.NamedShape{m4}})
	f.fixed("GET /v1/shapes/m4", m4)
	f.mux.HandleFunc("DELETE /v1/shapes/m4", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	s := f.shell()
	has(t, s.run(t, "shape", "set", "m4", "--cores", "4", "--memory", "8GiB", "--description", "for CFD"), 0, "Cores:        4\n", "Set:          90s ago")
	has(t, s.run(t, "shape", "list"), 0, "NAME  CORES  MEMORY  DESCRIPTION\nm4    4      8GiB    for CFD\n")
	has(t, s.run(t, "shape", "show", "m4"), 0, "Memory:       8GiB")
	has(t, s.run(t, "shape", "delete", "m4"), 0, "shape m4 deleted\n")
	if got, want := f.requests()[0], `PUT /v1/shapes/m4 {"description":"for CFD","cores":4,"memory":"8GiB"}`; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	has(t, s.run(t, "shape", "set", "m4", "--cores", "4"), cli.ExitUsage, "give --cores and --memory")
	has(t, s.run(t, "shape", "set", "m4", "--cores", "0", "--memory", "8GiB"), cli.ExitUsage, "0 is not possible")
	has(t, s.run(t, "shape", "set", "m4", "--cores", "4", "--memory", "much"), cli.ExitUsage, "--memory")

	// What is not given on the command line is the shape's.
	f = newFake(t)
	f.fixed("POST /v1/clusters", api.Cluster{Name: "c1", Spec: api.ClusterSpec{Groups: []api.Group{{Name: "c1", Size: 1, ShapeName: "m4", Shape: api.Shape{Cores: 4, Memory: 8 << 30}}}}})
	has(t, f.shell().run(t, "cluster", "create", "c1", "--shape", "m4", "--no-wait"), 0, "SHAPE", "m4     4      8GiB")
	has(t, f.shell().run(t, "cluster", "create", "c1", "--shape", "m4", "--cores", "2", "--no-wait"), 0)
	first, second := f.requests()[0], f.requests()[1]
	if !strings.Contains(first, `"shape":"m4"`) || strings.Contains(first, "cores") || strings.Contains(first, "memory") || !strings.Contains(second, `"cores":2`) {
		t.Errorf("asked\n%s\n%s", first, second)
	}
	has(t, f.shell().run(t, "cluster", "create", "c1", "--shape", "M4", "--no-wait"), cli.ExitUsage, "--shape")
}
