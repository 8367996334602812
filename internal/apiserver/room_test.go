package apiserver_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/diskspace"
	"github.com/nearmetal/nearmetal/internal/store/memory"
	"github.com/nearmetal/nearmetal/internal/trust"
)

func TestAFullDiskRefusesWhatGrowsAndServesReadsAndDeletes(t *testing.T) {
	var full atomic.Bool
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.Room = func() error {
			if full.Load() {
				return &diskspace.FullError{Dir: "/state", FreeBytes: 5 << 20, KeptBytes: 128 << 20, Fullest: "there /state/images take 4.0 GiB"}
			}
			return nil
		}
	})
	s.AddNode("n1", 8)
	c := s.Client()
	for _, name := range []string{"c1", "c2"} {
		if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: name, Size: 2}); err != nil {
			t.Fatal(err)
		}
		s.Place(name)
		s.MakeReady(name)
	}
	resp := send(t, s, request{method: "POST", path: "/v1/clusters/c1/jobs", body: `{"command": ["sleep"]}`})
	job := answer[api.Job](t, resp)
	full.Store(true)
	type call struct{ method, path, body string }
	for _, r := range []call{
		{"POST", "/v1/clusters", `{"name": "c3"}`},
		{"PUT", "/v1/clusters/c1", `{"name": "c1", "size": 2}`},
		{"POST", "/v1/clusters/c1/scale", `{"size": 3}`},
		{"POST", "/v1/clusters/c1/labels", `{"labels": {"a": "b"}}`},
		{"POST", "/v1/clusters/c1/pause", ""},
		{"POST", "/v1/clusters/c1/jobs", `{"command": ["true"]}`},
		{"POST", "/v1/projects", `{"name": "p"}`},
		{"POST", "/v1/tokens", `{"user": "u", "role": "viewer"}`},
	} {
		p := problemOf(t, send(t, s, request{method: r.method, path: r.path, body: r.body}))
		if p.Code != "no_space" || p.Status != 507 {
			t.Errorf("%s %s: %d %s, want 507 no_space", r.method, r.path, p.Status, p.Code)
		}
		for _, says := range []string{"nothing was changed", "5 MiB are free for /state", "/state/images take 4.0 GiB"} {
			if !strings.Contains(p.Detail, says) {
				t.Errorf("%s %s: the detail does not say %q: %s", r.method, r.path, says, p.Detail)
			}
		}
	}
	for _, r := range []call{
		{"GET", "/v1/clusters", ""},
		{"GET", "/v1/nodes", ""},
		{"POST", "/v1/clusters/c1/scale", `{"size": 1}`},
		{"POST", "/v1/jobs/" + job.ID + "/cancel", ""},
		{"POST", "/v1/nodes/n1/drain", ""},
		{"DELETE", "/v1/clusters/c2", ""},
	} {
		if resp := send(t, s, request{method: r.method, path: r.path, body: r.body}); resp.StatusCode/100 != 2 {
			t.Errorf("%s %s: %s, want it to be served", r.method, r.path, resp.Status)
		}
	}
	var refused *client.Error
	if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c3"}); !errors.As(err, &refused) || refused.Code != "no_space" {
		t.Errorf("create: %v, want no_space", err)
	}
	full.Store(false)
	if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "c3"}); err != nil {
		t.Errorf("create once there is room: %v", err)
	}
}

// TestEveryOperationThatWritesAsksForRoom sends an empty request to each operation: the room is asked for before anything in it is looked at.
func TestEveryOperationThatWritesAsksForRoom(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) {
		c.Room = func() error { return &diskspace.FullError{} }
	})
	without := map[string]bool{
		"POST /v1/jobs/{id}/cancel": true, "POST /v1/builds/{id}/cancel": true, "POST /v1/clusters/{name}/scale": true,
		"POST /v1/nodes/{name}/drain": true, "POST /v1/nodes/{name}/undrain": true, "POST /v1/nodes/{name}/untrust": true, "POST /v1/nodes/{name}/power": true, "POST /v1/power": true,
		"POST /v1/clusters/{name}/certificate": true, "POST /agent/v1/renewal": true, "POST /v1/nodes/{name}/approve": true, "POST /v1/nodes/{name}/revoke": true,
		"POST /v1/volumes/{name}/content": true, // a node stores it
	}
	asked := 0
	for _, op := range s.Server.Operations() {
		if op.Access == apiserver.AccessAgent || op.Method == "GET" || op.Method == "DELETE" {
			continue
		}
		p := problemOf(t, sendTCP(t, s, trust.RoleAdmin, request{
			method: op.Method, path: strings.NewReplacer("{name}", "x1", "{id}", "x1").Replace(op.Path), body: "{}",
		}))
		refused := p.Code == "no_space"
		if name := op.Method + " " + op.Path; refused == without[name] {
			t.Errorf("%s: %s (%s); want no_space: %t", name, p.Code, p.Detail, !without[name])
		}
		asked++
	}
	if asked < len(without)+8 {
		t.Errorf("only %d operations write", asked)
	}
}
