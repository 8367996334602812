package fabric

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

func TestANetworkWithSecurityGroupsIsReadFromJSONAsItWasWritten(t *testing.T) {
	rule, err := securitygroup.Parse("in tcp 22 from group admin")
	if err != nil {
		t.Fatal(err)
	}
	want := Network{Groups: []Group{{ID: "web", Rules: []securitygroup.Rule{rule}, Members: []netip.Addr{netip.MustParseAddr("10.64.16.2")}, Ports: []string{"uid.c-0.1"}}}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"in tcp 22 from group admin"`) {
		t.Errorf("a rule is not its text in %s", text)
	}
	var got Network
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

func TestThePortsOfOtherNodesHaveNoGroupsHere(t *testing.T) {
	n := Network{Ports: []Port{{ID: "here"}}, Groups: []Group{{ID: "web", Ports: []string{"here", "elsewhere"}}, {ID: "db", Ports: []string{"elsewhere"}}}}
	if groups := n.GroupsOf("here"); len(groups) != 1 || groups[0].ID != "web" {
		t.Errorf("the groups of a port are %v, want web", groups)
	}
	if n.Guarded("another") {
		t.Error("a port in no group is guarded")
	}
}
