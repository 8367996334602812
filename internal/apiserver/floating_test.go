package apiserver_test

import (
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/floating"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// floatingSite is a site with the floating addresses 192.0.2.1 to 192.0.2.6, and two projects with a cluster web each, which has egress.
func floatingSite(t *testing.T) (s *apiservertest.Site, ann, eve *client.Client) {
	t.Helper()
	s = apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.FloatingPool = floatingPool(t) })
	s.AddNode("n1", 8)
	s.Project("lab", api.Quota{Addresses: 1})
	ann, eve = s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember)
	for name, c := range map[string]*client.Client{"web": ann, "lab.web": eve} {
		if _, err := c.CreateCluster(t.Context(), api.ClusterRequest{Name: "web", Size: 2, Egress: true}); err != nil {
			t.Fatal(err)
		}
		s.Place(name)
	}
	return s, ann, eve
}

func floatingPool(t *testing.T) floating.Pool {
	t.Helper()
	p, err := floating.NewPool([]string{"192.0.2.0/29"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func allocate(t *testing.T, c *client.Client, address string) string {
	t.Helper()
	a, err := c.AllocateAddress(t.Context(), api.AddressRequest{Address: address})
	if err != nil {
		t.Fatal(err)
	}
	return a.Address.String()
}

func TestAnAddressIsAllocatedAssignedUnassignedAndReleased(t *testing.T) {
	_, ann, _ := floatingSite(t)
	address := allocate(t, ann, "")
	if address != "192.0.2.1" || allocate(t, ann, "192.0.2.3") != "192.0.2.3" || allocate(t, ann, "") != "192.0.2.2" {
		t.Errorf("the first address is %s, want the lowest free one each time", address)
	}
	a, err := ann.AssignAddress(t.Context(), address, api.AddressAssignment{Cluster: "web", Member: "web-0"})
	if err != nil || a.State != api.AddressActive || a.Member != "web-0" || !netip.MustParsePrefix("10.64.16.0/20").Contains(a.MemberAddress) || len(a.Ports) != 0 {
		t.Fatalf("assigned %+v, %v", a, err)
	}
	a, err = ann.AssignAddress(t.Context(), address, api.AddressAssignment{Cluster: "web", Member: "web-0", Ports: []string{"tcp/80"}})
	if err != nil || !slices.Equal(a.Ports, []string{"tcp/80=80"}) {
		t.Errorf("with ports it is %+v, %v", a, err)
	}
	if err := ann.ReleaseAddress(t.Context(), address); !client.HasCode(err, "floating_address_assigned") {
		t.Errorf("an assigned address is released: %v", err)
	}
	for range 2 {
		if a, err = ann.UnassignAddress(t.Context(), address); err != nil || a.State != api.AddressFree || a.Member != "" {
			t.Errorf("unassigned %+v, %v", a, err)
		}
	}
	if err := ann.ReleaseAddress(t.Context(), address); err != nil {
		t.Error(err)
	}
	if all, err := ann.Addresses(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("the project has %+v, %v, want two addresses", all, err)
	}
}

func TestAnAddressIsUnknownToOtherProjects(t *testing.T) {
	_, ann, eve := floatingSite(t)
	address := allocate(t, ann, "")
	_, errShow := eve.Address(t.Context(), address)
	_, errAssign := eve.AssignAddress(t.Context(), address, api.AddressAssignment{Cluster: "web", Member: "web-0"})
	_, errUnassign := eve.UnassignAddress(t.Context(), address)
	for what, err := range map[string]error{"show": errShow, "assign": errAssign, "unassign": errUnassign, "release": eve.ReleaseAddress(t.Context(), address)} {
		if !client.HasCode(err, "floating_address_not_found") {
			t.Errorf("%s by a member of another project: %v", what, err)
		}
	}
	if _, err := eve.AllocateAddress(t.Context(), api.AddressRequest{Address: address}); !client.HasCode(err, "floating_address_taken") || strings.Contains(err.Error(), "default") {
		t.Errorf("an address of another project is allocated, or the error names the project: %v", err)
	}
	if _, err := ann.AssignAddress(t.Context(), address, api.AddressAssignment{Cluster: "lab.web", Member: "web-0"}); !client.HasCode(err, "cluster_not_found") {
		t.Errorf("an address leads to a member of another project: %v", err)
	}
	allocate(t, eve, "")
	if _, err := eve.AllocateAddress(t.Context(), api.AddressRequest{}); !client.HasCode(err, "over_quota") {
		t.Errorf("a second address passes the quota of one: %v", err)
	}
	if all, err := eve.Addresses(t.Context()); err != nil || len(all) != 1 || all[0].Project != "lab" {
		t.Errorf("a member of project lab sees %+v, %v", all, err)
	}
}

func TestAnAddressIsAssignedToOneMemberAndAMemberHasOneAddressOutside(t *testing.T) {
	s, ann, _ := floatingSite(t)
	one, two := allocate(t, ann, ""), allocate(t, ann, "")
	assign := func(address, member string, ports ...string) error {
		_, err := ann.AssignAddress(t.Context(), address, api.AddressAssignment{Cluster: "web", Member: member, Ports: ports})
		return err
	}
	if err := assign(one, "web-0"); err != nil {
		t.Fatal(err)
	}
	if err := assign(one, "web-1"); !client.HasCode(err, "floating_address_assigned") || !strings.Contains(err.Error(), "leads to member web-0") {
		t.Errorf("an address leads to a second member: %v", err)
	}
	if err := assign(two, "web-0"); !client.HasCode(err, "floating_address_assigned") || !strings.Contains(err.Error(), "has address "+one) {
		t.Errorf("a member has a second address outside: %v", err)
	}
	if err := assign(two, "web-0", "tcp/2222=22"); err != nil {
		t.Errorf("a port of another address is not forwarded: %v", err)
	}
	for member, code := range map[string]string{"web-7": "member_not_found", "none": "member_not_found"} {
		if err := assign(two, member); !client.HasCode(err, code) {
			t.Errorf("member %s: %v, want %s", member, err, code)
		}
	}
	if a, err := ann.Address(t.Context(), two); err != nil || a.Member != "web-0" || !slices.Equal(a.Ports, []string{"tcp/2222=22"}) {
		t.Errorf("refusals changed the address to %+v, %v", a, err)
	}
	// The end of the cluster is the end of the assignments.
	if _, err := ann.DeleteCluster(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	s.Release("web")
	s.Forget("web")
	if a, err := ann.Address(t.Context(), one); err != nil || a.State != api.AddressFree || a.Member != "" {
		t.Errorf("after its cluster ended, the address is %+v, %v", a, err)
	}
	if err := ann.ReleaseAddress(t.Context(), one); err != nil {
		t.Error(err)
	}
}

func TestBadRequestsAboutAddressesChangeNothing(t *testing.T) {
	s, ann, _ := floatingSite(t)
	address := allocate(t, ann, "")
	if _, err := ann.CreateCluster(t.Context(), api.ClusterRequest{Name: "closed"}); err != nil {
		t.Fatal(err)
	}
	s.Place("closed")
	for _, tt := range []struct{ method, path, body, want string }{
		{"POST", "", `{"address":"192.0.2.0"}`, "192.0.2.0\\\" is not an address of the floating pool 192.0.2.0/29"},
		{"POST", "", `{"address":"192.0.2.8"}`, "is not an address of the floating pool"},
		{"POST", "", `{"address":"x"}`, "is not an address of the floating pool"},
		{"POST", "", `{"address":"` + address + `"}`, "is allocated already"},
		{"PUT", "/" + address + "/assignment", `{"cluster":"web","member":"web-0","ports":["22"]}`, "is not a forwarded port"},
		{"PUT", "/" + address + "/assignment", `{"cluster":"web","member":"web-0","ports":["tcp/22","tcp/22=23"]}`, "tcp/22 is forwarded twice"},
		{"PUT", "/" + address + "/assignment", `{"cluster":"none","member":"web-0"}`, "does not exist"},
		{"PUT", "/" + address + "/assignment", `{"cluster":"closed","member":"closed-0"}`, "has no way out"},
		{"PUT", "/192.0.2.5/assignment", `{"cluster":"web","member":"web-0"}`, "is not a floating address of this token's project"},
	} {
		resp := send(t, s, request{method: tt.method, path: "/v1/addresses" + tt.path, body: tt.body})
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if resp.StatusCode < http.StatusBadRequest || !strings.Contains(text, tt.want) {
			t.Errorf("%s %s %s: %d %s, want %q", tt.method, tt.path, tt.body, resp.StatusCode, text, tt.want)
		}
	}
	if all, err := ann.Addresses(t.Context()); err != nil || len(all) != 1 || all[0].State != api.AddressFree {
		t.Errorf("refusals changed the addresses to %+v, %v", all, err)
	}
}

func TestAnAdministratorDoesNotLeadAnAddressToAnotherProject(t *testing.T) {
	s, ann, _ := floatingSite(t)
	address := allocate(t, ann, "")
	if _, err := s.Client().AssignAddress(t.Context(), address, api.AddressAssignment{Cluster: "lab.web", Member: "web-0"}); err == nil || !strings.Contains(err.Error(), `belongs to project "lab"`) {
		t.Errorf("an address of the default project leads to a member of project lab: %v", err)
	}
}
