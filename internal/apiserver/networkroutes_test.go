package apiserver_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// routedSite has a cluster c1 of project default with two members. a-0 is on network front, which is routed and has egress; b-0 is on data, which is
// routed, and on apart, which is not. Address 192.0.2.1 leads to a-0 by port 2222, and 192.0.2.2 nowhere. Project lab has cluster c1 on a network
// of its own.
func routedSite(t *testing.T) (s *apiservertest.Site, ann, eve *client.Client) {
	t.Helper()
	s = apiservertest.New(t, memory.New(), func(c *apiserver.Config) { c.FloatingPool = floatingPool(t) })
	s.AddNode("n1", 8)
	s.Project("lab", api.Quota{})
	ann, eve = s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleMember)
	for _, n := range []struct {
		client *client.Client
		api.NetworkRequest
	}{
		{ann, api.NetworkRequest{Name: "front", Prefix: "10.64.32.0/24", Routed: true, Egress: true}},
		{ann, api.NetworkRequest{Name: "data", Prefix: "10.64.48.0/24", Routed: true}},
		{ann, api.NetworkRequest{Name: "apart", Prefix: "10.64.64.0/24"}},
		{eve, api.NetworkRequest{Name: "front", Prefix: "10.64.80.0/24", Routed: true}},
	} {
		if _, err := n.client.CreateNetwork(t.Context(), n.NetworkRequest); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		client *client.Client
		name   string
		groups []api.Group
	}{
		{ann, "c1", []api.Group{{Name: "a", Size: 1, Networks: api.OnNetworks("project/front")}, {Name: "b", Size: 1, Networks: api.OnNetworks("project/data", "project/apart")}}},
		{eve, "lab.c1", []api.Group{{Name: "a", Size: 1, Networks: api.OnNetworks("project/front")}}},
	} {
		if _, err := c.client.CreateCluster(t.Context(), api.ClusterRequest{Name: "c1", Groups: c.groups}); err != nil {
			t.Fatal(err)
		}
		s.Place(c.name)
	}
	front, data := desiredOf(t, s, "project/front", ""), desiredOf(t, s, "project/data", "b-0", "in tcp 22 from 10.64.32.0/24")
	for _, n := range []*fabric.Network{&front, &data} {
		n.Pool, n.FloatingPool = netip.MustParsePrefix("10.64.0.0/10"), []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29")}
	}
	address := allocate(t, ann, "")
	if _, err := ann.AssignAddress(t.Context(), address, api.AddressAssignment{Cluster: "c1", Member: "a-0", Ports: []string{"tcp/2222=22"}}); err != nil {
		t.Fatal(err)
	}
	allocate(t, ann, "")
	front.Floating = []fabric.Floating{{Address: netip.MustParseAddr(address), Port: front.Ports[0].ID, Forwards: []fabric.Forward{{Protocol: "tcp", Port: 2222, MemberPort: 22}}}}
	s.Networks.Set("n1", front, nil)
	s.Networks.Set("n1", data, nil)
	return s, ann, eve
}

func TestATraceGoesOnBeyondTheNetwork(t *testing.T) {
	_, ann, _ := routedSite(t)
	for _, tt := range []struct {
		network  string
		request  client.TraceRequest
		passes   bool
		to, last string
	}{
		{"project/front", client.TraceRequest{From: "c1/a-0", To: "c1/b-0", Protocol: "tcp", Port: 22}, true, "c1/b-0", "c1/b-0"},
		{"project/front", client.TraceRequest{From: "10.64.32.10", To: "10.64.48.11", Protocol: "tcp", Port: 22}, true, "c1/b-0", "c1/b-0"},
		{"project/front", client.TraceRequest{From: "c1/a-0", To: "c1/b-0", Protocol: "tcp", Port: 23}, false, "c1/b-0", "allows tcp 23 from 10.64.32.10"},
		{"project/front", client.TraceRequest{From: "c1/a-0", To: "10.64.48.99", Protocol: "icmp"}, false, "10.64.48.99", "no member of subnet 10.64.48.0/24 has 10.64.48.99"},
		{"project/front", client.TraceRequest{From: "c1/a-0", To: "10.64.80.10", Protocol: "icmp"}, false, "10.64.80.10", "no member on a routed network of the project has 10.64.80.10"},
		{"project/front", client.TraceRequest{From: "c1/a-0", To: "203.0.113.5", Protocol: "tcp", Port: 443}, true, "203.0.113.5", "then out by the uplink"},
		{"project/front", client.TraceRequest{From: "c1/a-0", To: "192.168.7.7", Protocol: "tcp", Port: 443}, false, "192.168.7.7", "private range 192.168.0.0/16"},
		{"project/data", client.TraceRequest{From: "c1/b-0", To: "203.0.113.5", Protocol: "tcp", Port: 443}, false, "203.0.113.5", "the network has no egress"},
		{"project/front", client.TraceRequest{From: "203.0.113.5", To: "192.0.2.1", Protocol: "tcp", Port: 2222}, true, "192.0.2.1", "c1/a-0"},
		{"project/front", client.TraceRequest{From: "203.0.113.5", To: "192.0.2.1", Protocol: "tcp", Port: 22}, false, "192.0.2.1", "leads to c1/a-0 by these ports only: tcp/2222=22"},
		{"project/front", client.TraceRequest{From: "c1/a-0", To: "192.0.2.1", Protocol: "tcp", Port: 2222}, true, "192.0.2.1", "c1/a-0"},
	} {
		got, err := ann.TracePacket(t.Context(), tt.network, tt.request)
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		last := got.Request[len(got.Request)-1]
		if got.Passes != tt.passes || got.Answered != tt.passes || got.To != tt.to || !strings.Contains(last.Detail, tt.last) {
			t.Errorf("%+v: got %+v", tt, got)
		}
	}
}

func TestAnEndThatATraceCanNotBeginOrEndAtIsRefused(t *testing.T) {
	_, ann, eve := routedSite(t)
	for _, tt := range []struct {
		client     *client.Client
		network    string
		from, to   string
		code, want string
	}{
		{ann, "project/front", "c1/b-0", "c1/a-0", "member_not_found", `c1/b-0 has no port on network "project/front", where the packet begins; it has one on "project/`},
		{ann, "project/apart", "c1/b-0", "c1/a-0", "member_not_found", `c1/a-0 has no port on network "project/apart", or on one that it is routed to; it has one on "project/front"`},
		{ann, "project/front", "c1/a-0", "lab.c1/a-0", "member_not_found", `lab.c1/a-0 has no port on network "project/front"; 'nearmetal network show'`},
		{ann, "project/front", "10.64.48.11", "c1/a-0", "member_not_found", `it has one on "project/data"`},
		{ann, "project/front", "203.0.113.5", "c1/a-0", "invalid_request", "packets from outside (203.0.113.5) reach members by those only"},
		{ann, "project/front", "203.0.113.5", "203.0.113.6", "invalid_request", "is no floating address of this project"},
		{ann, "project/data", "203.0.113.5", "192.0.2.1", "invalid_request", "leads to a member on network project/front; trace the packet on that network"},
		{ann, "project/front", "203.0.113.5", "192.0.2.2", "invalid_request", "leads to no member on a node now; see 'nearmetal address show 192.0.2.2'"},
		{ann, "project/front", "fd00::5", "192.0.2.1", "invalid_request", "of IPv4 and of IPv6"},
		{eve, "project/front", "203.0.113.5", "192.0.2.1", "invalid_request", "is no floating address of this project"},
		{eve, "project/front", "10.64.48.11", "c1/a-0", "invalid_request", "is no floating address of this project"},
	} {
		got, err := tt.client.TracePacket(t.Context(), tt.network, client.TraceRequest{From: tt.from, To: tt.to, Protocol: "tcp", Port: 22})
		if !client.HasCode(err, tt.code) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s from %s to %s: got %+v, %v; want %s with %q", tt.network, tt.from, tt.to, got, err, tt.code, tt.want)
		}
	}
}

func TestATraceOfAnotherProjectsFloatingAddressEndsOutside(t *testing.T) {
	s, _, eve := routedSite(t)
	n := desiredOf(t, s, "project/lab.front", "")
	n.Egress, n.FloatingPool = true, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/29")}
	s.Networks.Set("n1", n, nil)
	got, err := eve.TracePacket(t.Context(), "project/front", client.TraceRequest{From: "c1/a-0", To: "192.0.2.1", Protocol: "tcp", Port: 2222})
	if err != nil || !got.Passes || slices.ContainsFunc(got.Request, func(h api.TraceHop) bool { return strings.Contains(h.Detail, "2222=22") || h.Place == "uplink" }) {
		t.Errorf("got %+v, %v; want it to end outside", got, err)
	}
}
