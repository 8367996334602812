package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestRecordsOfANetworkAreSetAndRemovedByNameOrNothingChanges(t *testing.T) {
	s := twoProjects(t)
	c := s.Client()
	if _, err := c.CreateNetwork(t.Context(), api.NetworkRequest{Name: "lab"}); err != nil {
		t.Fatal(err)
	}
	record := func(name string, addresses ...string) api.NetworkRecord {
		return api.NetworkRecord{Name: name, Addresses: addresses}
	}
	set := func(records ...api.NetworkRecord) api.NetworkRecords { return api.NetworkRecords{Set: records} }
	must := func(change api.NetworkRecords) []api.NetworkRecord {
		t.Helper()
		n, err := c.ChangeNetworkRecords(t.Context(), "project/lab", change)
		if err != nil {
			t.Fatal(err)
		}
		return n.Records
	}
	must(set(record("Licence.", "10.20.0.5"), record("db.lab", "10.20.0.7", "FD00::7")))
	want := []api.NetworkRecord{record("db.lab", "10.20.0.7", "fd00::7"), record("licence", "10.20.0.6")}
	if diff := cmp.Diff(want, must(set(record("licence", "10.20.0.6")))); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	many := make([]api.NetworkRecord, 255)
	for i := range many {
		many[i] = record(fmt.Sprintf("r%d", i), "10.20.0.1")
	}
	for _, tt := range []struct {
		change api.NetworkRecords
		want   string
	}{
		{api.NetworkRecords{}, "set: is missing"},
		{set(record("a b", "10.20.0.5")), `"a b" is not a DNS name`},
		{set(record("x.nearmetal.internal", "10.20.0.5")), "in the domain of members and clusters"},
		{set(record("localhost", "10.20.0.5")), "always means the member itself"},
		{set(record("*.lab", "10.20.0.5")), "is not a DNS name"},
		{set(record(strings.Repeat("a.", 127), "10.20.0.5"), record(strings.Repeat("a", 64), "10.20.0.5")), "is not a DNS name"},
		{set(api.NetworkRecord{Name: "x", Addresses: []string{}}), "has 0 addresses; give 1 to 16"},
		{set(record("x", "10.20.0")), `"10.20.0" is not the address of a host`},
		{set(record("x", "127.0.0.1")), `"127.0.0.1" is not the address of a host`},
		{set(record("x", "10.20.0.5", "10.20.0.5")), "appears twice"},
		{api.NetworkRecords{Set: []api.NetworkRecord{record("x", "10.20.0.5")}, Remove: []string{"X."}}, "is also set[0].name"},
		{api.NetworkRecords{Remove: []string{"none"}}, `no record "none"`},
		{set(many...), "makes 257 records; a network has at most 256"},
	} {
		if _, err := c.ChangeNetworkRecords(t.Context(), "project/lab", tt.change); !client.HasCode(err, "invalid_request") || !strings.Contains(fmt.Sprintf("%+v", err), tt.want) {
			t.Errorf("%+v: got %v, want %q", tt.change, err, tt.want)
		}
	}
	n, err := c.Network(t.Context(), "project/lab")
	if diff := cmp.Diff(want, n.Records); diff != "" || err != nil {
		t.Errorf("%v; records after refused changes (-want +got):\n%s", err, diff)
	}
	if got := must(api.NetworkRecords{Remove: []string{"db.lab", "licence"}}); len(got) != 0 {
		t.Errorf("after all were removed, there are %v", got)
	}
	if _, err := c.ChangeNetworkRecords(t.Context(), "project/none", set(record("x", "10.20.0.5"))); !client.HasCode(err, "network_not_found") {
		t.Errorf("a network that does not exist: %v", err)
	}
	if a := send(t, s, request{method: "POST", path: "/v1/networks/project%2Flab/records", body: `{"set":[{"name":"x","addresses":[7]}]}`}); a.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("an address that is a number: %d", a.StatusCode)
	}
}
