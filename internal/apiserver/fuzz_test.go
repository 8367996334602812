package apiserver_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// FuzzEnrollment has the server read whatever somebody without a token asks for as a node, and whatever a node asks for as its renewal: it answers by a
// problem, and nobody is enrolled.
func FuzzEnrollment(f *testing.F) {
	for _, seed := range []string{
		`{"name":"n1","request":"-----BEGIN CERTIFICATE REQUEST-----\nMAA=\n-----END CERTIFICATE REQUEST-----\n","token":"nm1.x.y"}`,
		`{"name":"../n1","request":"","token":""}`, `{"name":"n1","name":"n2"}`, `{"request":"x"}`, `{"unknown":1}`, `{} {}`, `[]`, `null`, ``,
	} {
		f.Add(seed)
	}
	s := apiservertest.New(f, memory.New(), nil)
	node := &http.Client{Transport: &http.Transport{TLSClientConfig: s.NodeTLS("known"), ForceAttemptHTTP2: true}}
	f.Fuzz(func(t *testing.T, body string) {
		for path, c := range map[string]*http.Client{"/agent/v1/enrollment": node, "/agent/v1/renewal": node} {
			resp := sendBy(t, c, "https://"+s.Addr, request{method: "POST", path: path, body: body})
			var problem api.Problem
			if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || resp.StatusCode < 400 || resp.StatusCode >= 500 || problem.Code == "" {
				t.Fatalf("%s of %q: %s, %+v, %v", path, body, resp.Status, problem, err)
			}
		}
		if nodes := s.Cache.View().Nodes; len(nodes) != 1 || nodes[0].Name != "known" || nodes[0].Identity.Next != "" {
			t.Fatalf("%q enrolls or renews somebody: %+v", body, nodes)
		}
	})
}
