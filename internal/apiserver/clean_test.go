package apiserver_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// cleanErrors makes the errors about cleanings and quarantines occur.
func cleanErrors(t *testing.T) []errorCase {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Provisioning = apiservertest.Provisioning(4) })
	s.AddNode("agent", 2)
	s.Enroll("n1", 1)
	s.Enroll("n2", 2)
	s.AddImage("e", 1<<30, api.StackMetal)
	s.AddImage("inspect", 0, api.StackMetal)
	s.SetMachine("n2", func(rec *api.MachineRecord) {
		rec.Quarantine = &api.MachineQuarantine{Reason: "its cleaning failed: sda is not clean"}
	})
	without := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Provisioning = apiservertest.Provisioning(4) })
	without.Enroll("n1", 1)
	do := func(s *apiservertest.Site, path, body string) func() *http.Response {
		return func() *http.Response { return send(t, s, request{method: "POST", path: path, body: body}) }
	}
	return []errorCase{
		{"machine_quarantined", "sda is not clean; clean it (nearmetal node clean n2)", do(s, "/v1/nodes/n2/power", `{"action": "on", "environment": "e"}`)},
		{"machine_quarantined", "nearmetal node release n2", do(s, "/v1/power", `{"nodes": ["n2"], "action": "cycle", "environment": "e"}`)},
		{"maintenance_not_found", `no maintenance window "w1"`, func() *http.Response {
			return send(t, s, request{method: "DELETE", path: "/v1/nodes/n1/maintenance/w1"})
		}},
		{"machine_not_quarantined", `"n1" is not in quarantine`, do(s, "/v1/nodes/n1/hold", `{"action": "release"}`)},
		{"empty_selection", "names no node", do(s, "/v1/clean", `{"nodes": []}`)},
		{"node_not_found", "nX", do(s, "/v1/clean", `{"nodes": ["n1", "nX"]}`)},
		{"not_a_machine", "agent", do(s, "/v1/clean", `{"nodes": ["agent"]}`)},
		{"unknown_environment", "nearmetal env build inspect", do(without, "/v1/clean", `{"nodes": ["n1"]}`)},
		{"invalid_request", "say why nobody may get the machine", do(s, "/v1/nodes/n1/hold", `{"action": "quarantine"}`)},
		{"invalid_request", "use quarantine or release", do(s, "/v1/nodes/n1/hold", `{"action": "keep"}`)},
		{"invalid_request", "at most 500", do(s, "/v1/nodes/n1/hold", `{"action": "quarantine", "reason": "`+strings.Repeat("x", 501)+`"}`)},
	}
}

func TestMachinesAreAskedToBeCleanedTogether(t *testing.T) {
	s := apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.Provisioning = apiservertest.Provisioning(4) })
	s.Enroll("n1", 1)
	s.Enroll("n2", 2)
	s.AddImage("inspect", 0, api.StackMetal)
	list := answer[api.List[api.Node]](t, send(t, s, request{method: "POST", path: "/v1/clean", body: `{"nodes": ["n2", "n1", "n2"], "dry_run": true}`}))
	if len(list.Items) != 2 {
		t.Fatalf("%d nodes are in the answer", len(list.Items))
	}
	for _, n := range list.Items {
		if c := n.Machine.Clean; c.Number != 1 || !c.DryRun || c.By == "" {
			t.Errorf("node %s: request %+v", n.Name, c)
		}
	}
	// One that waits comes first: whoever asked for a dry run gets no erasure in its place.
	if p := problemOf(t, send(t, s, request{method: "POST", path: "/v1/clean", body: `{"nodes": ["n1"]}`})); p.Code != "power_conflict" || !strings.Contains(p.Detail, "dry run") {
		t.Errorf("a second request: %+v", p)
	}
	n := answer[api.Node](t, send(t, s, request{method: "POST", path: "/v1/nodes/n1/hold", body: `{"action": "quarantine", "reason": "noise"}`}))
	if h := n.Machine.Hold; h.Number != 1 || h.Action != api.HoldQuarantine || h.Reason != "noise" || h.By == "" {
		t.Errorf("request %+v", h)
	}
}
