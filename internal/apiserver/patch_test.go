package apiserver_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// gpus are so many slices of GPUs, and 3 virtual functions.
func gpus(slices int64) map[string]int64 { return map[string]int64{"gpu/slices": slices, "nic/vf": 3} }

// lab is a project with every setting.
func lab(t *testing.T, s *apiservertest.Site) {
	t.Helper()
	_, err := s.Client().CreateProject(t.Context(), api.ProjectRequest{
		Name: "lab", Description: "CFD", Quota: api.Quota{Cores: 16, Memory: 1 << 30, Members: 8, Devices: gpus(14)}, Shares: 2,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAPutThatOmitsASettingOfAProjectIsRefusedAndResetsNothing(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	lab(t, s)
	before := *s.Cache.View().Project("lab")
	for body, missing := range map[string][]string{
		`{"shares":3}`:                     {"description", "quota"},
		`{"quota":{},"description":""}`:    {"shares"},
		`{"name":"lab"}`:                   {"description", "quota", "shares"},
		`{"shares":3,"quota":{"cores":1}}`: {"description"},
	} {
		p := problemOf(t, send(t, s, request{method: "PUT", path: "/v1/projects/lab", body: body}))
		var got []string
		for _, e := range p.Errors {
			got = append(got, e.Location)
		}
		if diff := cmp.Diff(missing, got); p.Code != "invalid_request" || diff != "" || !strings.Contains(p.Detail, "send PATCH") {
			t.Errorf("PUT %s: %s %q\n%s", body, p.Code, p.Detail, diff)
		}
	}
	if diff := cmp.Diff(before, *s.Cache.View().Project("lab")); diff != "" {
		t.Errorf("the project changed:\n%s", diff)
	}
}

func TestAPutWithAUseThatNoProjectHasIsRefused(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	lab(t, s)
	for body, at := range map[string]string{
		`{"description":"","quota":{},"shares":3,"used":{"cores":-5}}`:          "used.cores",
		`{"description":"","quota":{},"shares":3,"used":{"devices":{"a b":1}}}`: "used.devices.a b",
	} {
		p := problemOf(t, send(t, s, request{method: "PUT", path: "/v1/projects/lab", body: body}))
		if p.Code != "invalid_request" || len(p.Errors) != 1 || p.Errors[0].Location != at {
			t.Errorf("PUT %s: %s %+v", body, p.Code, p.Errors)
		}
	}
	if p := s.Cache.View().Project("lab"); p.Shares != 2 {
		t.Errorf("the project changed: %+v", p)
	}
}

func TestWhatAGetOfAProjectReturnedCanBePut(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	lab(t, s)
	read, err := io.ReadAll(send(t, s, request{method: "GET", path: "/v1/projects/lab"}).Body)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(read), `"shares":2`, `"shares":5`, 1)
	if resp := send(t, s, request{method: "PUT", path: "/v1/projects/lab", body: changed}); resp.StatusCode != http.StatusOK {
		t.Fatalf("PUT %s: %s", changed, resp.Status)
	}
	if p := s.Cache.View().Project("lab"); p.Shares != 5 || p.Quota.Cores != 16 || p.Description != "CFD" {
		t.Errorf("the project is %+v", p)
	}
}

func TestAMergePatchChangesWhatItNames(t *testing.T) {
	tests := []struct {
		name, contentType, body string
		want                    api.ProjectSettings
	}{
		{"shares only", "application/merge-patch+json", `{"shares": 3}`, api.ProjectSettings{Description: "CFD", Quota: api.Quota{Cores: 16, Memory: 1 << 30, Members: 8, Devices: gpus(14)}, Shares: 3}},
		{"one bound of the quota", "application/json", `{"quota": {"cores": 4}}`, api.ProjectSettings{Description: "CFD", Quota: api.Quota{Cores: 4, Memory: 1 << 30, Members: 8, Devices: gpus(14)}, Shares: 2}},
		{"null removes one bound", "", `{"quota": {"memory": null}}`, api.ProjectSettings{Description: "CFD", Quota: api.Quota{Cores: 16, Members: 8, Devices: gpus(14)}, Shares: 2}},
		{
			"one counter of devices", "", `{"quota": {"devices": {"gpu/slices": 7}}}`,
			api.ProjectSettings{Description: "CFD", Quota: api.Quota{Cores: 16, Memory: 1 << 30, Members: 8, Devices: gpus(7)}, Shares: 2},
		},
		{
			"null and 0 remove bounds of devices", "", `{"quota": {"devices": {"gpu/slices": null, "nic/vf": 0}}}`,
			api.ProjectSettings{Description: "CFD", Quota: api.Quota{Cores: 16, Memory: 1 << 30, Members: 8}, Shares: 2},
		},
		{"null removes the quota", "", `{"quota": null}`, api.ProjectSettings{Description: "CFD", Shares: 2}},
		{"null resets shares to their default", "", `{"shares": null, "description": null}`, api.ProjectSettings{Quota: api.Quota{Cores: 16, Memory: 1 << 30, Members: 8, Devices: gpus(14)}, Shares: 1}},
		{"nothing", "", `{}`, api.ProjectSettings{Description: "CFD", Quota: api.Quota{Cores: 16, Memory: 1 << 30, Members: 8, Devices: gpus(14)}, Shares: 2}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := apiservertest.New(t, memory.New(), nil)
			lab(t, s)
			r := request{method: "PATCH", path: "/v1/projects/lab", body: tt.body}
			if tt.contentType != "" {
				r.header = map[string]string{"Content-Type": tt.contentType}
			}
			answered := answer[api.ProjectStatus](t, send(t, s, r))
			p := s.Cache.View().Project("lab")
			got := api.ProjectSettings{Description: p.Description, Quota: p.Quota, Shares: p.Shares}
			if diff := cmp.Diff(tt.want, got); diff != "" || answered.Shares != got.Shares {
				t.Errorf("after PATCH %s (-want +got):\n%s", tt.body, diff)
			}
		})
	}
}

func TestAPatchIsCheckedAsAPutIs(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	lab(t, s)
	for body, want := range map[string]string{
		"{\n\"shares\": 0}":                           "line 2: shares: 0 is not a weight",
		`{"quota": {"cors": 1}}`:                      `did you mean "cores"?`,
		`{"name": "other"}`:                           "name: is not a field",
		`{"quota": {"devices": {"slices": 1}}}`:       `"slices" is not a counter of devices; write CLASS/COUNTER`,
		`{"quota": {"devices": {"gpu/slices": -1}}}`:  "quota.devices.gpu/slices: -1 is not a quota",
		`{"quota": {"devices": {"gpu/slices": 1.5}}}`: "quota.devices.gpu/slices:",
		`[]`: "is a list",
	} {
		p := problemOf(t, send(t, s, request{method: "PATCH", path: "/v1/projects/lab", body: body}))
		if p.Status != http.StatusUnprocessableEntity || !strings.Contains(p.Detail, want) {
			t.Errorf("PATCH %s: %d %q, want %q", body, p.Status, p.Detail, want)
		}
	}
	merge := map[string]string{"Content-Type": "application/merge-patch+json"}
	if resp := send(t, s, request{method: "POST", path: "/v1/projects", header: merge, body: `{"name": "x"}`}); resp.StatusCode != http.StatusUnsupportedMediaType {
		t.Errorf("a merge patch as a new project: %s", resp.Status)
	}
}

func TestAMergePatchOfAMachineKeepsWhatItDoesNotName(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	enroll := `{"name": "n1", "password": "secret", "spec": {"macs": ["52:54:00:00:00:01"], "console": "tcp://10.9.2.1:5000", "labels": {"rack": "r1", "row": "2"},
		"power": {"kind": "redfish", "address": "https://10.9.1.1", "user": "u", "certificate_sha256": "` + strings.Repeat("ab", 32) + `"}}}`
	if resp := send(t, s, request{method: "POST", path: "/v1/nodes", body: enroll}); resp.StatusCode != http.StatusCreated {
		t.Fatal(resp.Status)
	}
	before := s.Cache.View().Machine("n1").Intent
	patch := func(body string) api.MachineIntent {
		t.Helper()
		if resp := send(t, s, request{method: "PATCH", path: "/v1/nodes/n1", body: body}); resp.StatusCode != http.StatusOK {
			data, _ := io.ReadAll(resp.Body)
			t.Fatalf("PATCH %s: %s", body, data)
		}
		return s.Cache.View().Machine("n1").Intent
	}
	want := before.Spec
	want.Labels = map[string]string{"row": "2", "new": "x"}
	after := patch(`{"spec": {"labels": {"rack": null, "new": "x"}}}`)
	if diff := cmp.Diff(want, after.Spec); diff != "" || string(after.Sealed) != string(before.Sealed) {
		t.Errorf("after a patch of labels (-want +got):\n%s", diff)
	}
	if len(before.Spec.Labels) != 2 {
		t.Errorf("the shared view was changed: %v", before.Spec.Labels)
	}
	if after = patch(`{"password": null}`); len(after.Sealed) != 0 {
		t.Error("the password is still there")
	}
	if p := problemOf(t, send(t, s, request{method: "PATCH", path: "/v1/nodes/n1", body: `{"spec": {"macs": ["52:54:00:00:00:09"]}}`})); !strings.Contains(p.Detail, "can't be changed") {
		t.Errorf("a patch of MACs: %q", p.Detail)
	}
}

func TestAPutThatOmitsASettingOfAMachineIsRefused(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.Enroll("n1", 1)
	p := problemOf(t, send(t, s, request{method: "PUT", path: "/v1/nodes/n1", body: `{"name": "n1", "spec": {"macs": ["52:54:00:00:00:01"], "power": {"kind": "wol"}}}`}))
	for _, field := range []string{"spec.console: is missing", "spec.firmware: is missing", "spec.labels: is missing"} {
		if !strings.Contains(p.Detail, field) {
			t.Errorf("%q lacks %q", p.Detail, field)
		}
	}
}

func TestAQueryThatIsNotDocumentedIsRefused(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	for path, want := range map[string]string{
		"/v1/clusters?x=1":                       "query.x: is not a parameter; this path takes none",
		"/v1/nodes/n1?forse=true":                `did you mean "force"?`,
		"/v1/nodes/n1?force=null":                "query.force: is neither true nor false",
		"/v1/nodes/n1?force=1":                   "query.force: is neither true nor false",
		"/v1/nodes/n1?force=true&force=false":    "query.force: is given 2 times",
		"/v1/nodes/n1?force=%zz":                 "query: can't be parsed",
		"/v1/environments/inspect?force=":        "query.force: is neither true nor false",
		"/v1/enroll-tokens/abc?force=true&b=%20": "query.b: is not a parameter",
	} {
		method := "DELETE"
		if strings.HasPrefix(path, "/v1/clusters") {
			method = "GET"
		}
		if p := problemOf(t, send(t, s, request{method: method, path: path})); p.Status != http.StatusBadRequest || !strings.Contains(p.Detail, want) {
			t.Errorf("%s %s: %d %q, want 400 and %q", method, path, p.Status, p.Detail, want)
		}
	}
	if resp := send(t, s, request{method: "GET", path: "/healthz?probe=1"}); resp.StatusCode != http.StatusOK {
		t.Errorf("a health check with a query: %s", resp.Status)
	}
}
