package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
)

func fabricErrors(t *testing.T, s *apiservertest.Site) []errorCase {
	t.Helper()
	do := func(method, path, body string) func() *http.Response {
		return func() *http.Response { return send(t, s, request{method: method, path: path, body: body}) }
	}
	return []errorCase{
		{"fabric_not_found", `"ib7" does not exist; the site has: ethernet`, do("GET", "/v1/fabrics/ib7", "")},
		{"fabric_not_found", `"ib7"`, do("GET", "/v1/fabrics/ib7/topology", "")},
		{"fabric_not_found", `"ib7"`, do("GET", "/v1/fabrics/ib7/audit", "")},
		{"fabric_unaudited", "nearmetal network check NAME", do("GET", "/v1/fabrics/ethernet/audit", "")},
		{"invalid_cluster", "is not the technology of a fabric", do("POST", "/v1/clusters", `{"name": "c9", "interconnect": {"technology": "myrinet"}}`)},
	}
}
