package apiserver_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// desiredOf is a network with its ports as its only node should have it, with the rules of a group on one of them.
func desiredOf(t *testing.T, s *apiservertest.Site, name, guarded string, rules ...string) fabric.Network {
	t.Helper()
	n, err := s.Client().Network(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	desired := fabric.Network{Network: n.Network}
	group := fabric.Group{ID: "web"}
	for _, text := range rules {
		r, err := securitygroup.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		group.Rules = append(group.Rules, r)
	}
	for _, c := range s.Cache.View().Clusters {
		for a := range c.All() {
			for i := range a.Ports {
				if a.Ports[i].Network == n.UID && !a.Spare {
					desired.Ports = append(desired.Ports, fabric.PortOf(a, i))
					if a.Member == guarded {
						group.Ports = append(group.Ports, fabric.PortOf(a, i).ID)
					}
				}
			}
		}
	}
	if guarded != "" {
		desired.Groups = []fabric.Group{group}
	}
	return desired
}

// lines writes findings as text.
func lines(check api.NetworkCheck) (all []string) {
	for _, f := range check.Findings {
		all = append(all, fmt.Sprintf("%s %s %t %s", f.Node, f.Check, f.OK, f.Detail))
	}
	return all
}

func TestACheckReportsWhatTheAgentsOfANetworkFind(t *testing.T) {
	s := withNetworks(t)
	check := func() []string {
		t.Helper()
		got, err := s.Client().CheckNetwork(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		return lines(got)
	}
	if got := check(); len(got) != 0 {
		t.Errorf("no node should have the network yet: got %q, want no finding", got)
	}
	desired := desiredOf(t, s, "c1", "")
	port, peer := desired.Ports[0], netip.MustParseAddr("198.18.0.7")
	s.Networks.Set("n1", desired, nil)
	if got := check(); len(got) != 1 || !strings.Contains(got[0], "n1 in force false the node can't be checked") || !strings.Contains(got[0], "not connected") {
		t.Errorf("without the agent: got %q, want its node as wrong", got)
	}
	for name, tt := range map[string]struct {
		report agentstream.NetworkReport
		want   []string
	}{
		"all is in order": {
			agentstream.NetworkReport{Ports: 2, Meetings: []fabric.Meeting{{Peer: peer, Full: true, Small: true, FullBytes: 1500}}},
			[]string{
				"n1 in force true links, rules and peers are as they should be", "n1 ports true 2 attached", "n1 hears 198.18.0.7 true packets of 1500 bytes, unfragmented",
			},
		},
		"the newest networks are not in force": {
			agentstream.NetworkReport{Pending: "the networks can't be made: no nft"},
			[]string{"n1 in force false the networks can't be made: no nft", "n1 ports true 0 attached"},
		},
		"the kernel differs": {
			agentstream.NetworkReport{Drift: []fabric.Drift{
				{Network: 1, Object: "bridge nmbr1 mtu", Want: "1450", Got: "1400"}, {Network: 1, Object: "veth " + fabric.DeviceName(port.ID) + " mtu", Want: "1450", Got: "1500"},
			}},
			[]string{
				"n1 in force false bridge nmbr1 mtu: want 1450, got 1400",
				fmt.Sprintf("n1 in force false veth %[1]s mtu: want 1450, got 1500 (%[1]s is the port of a-0)", fabric.DeviceName(port.ID)), "n1 ports true 0 attached",
			},
		},
		"a port is gone": {
			agentstream.NetworkReport{Wrong: map[string]string{port.ID: "its network port is gone"}},
			[]string{"n1 in force true links, rules and peers are as they should be", "n1 ports false a-0: its network port is gone"},
		},
		"an MTU is too small": {
			agentstream.NetworkReport{Meetings: []fabric.Meeting{{Peer: peer, Small: true, FullBytes: 9000, Problem: "packets of 9000 bytes don't fit"}}},
			[]string{
				"n1 in force true links, rules and peers are as they should be", "n1 ports true 0 attached", "n1 sends to 198.18.0.7 false packets of 9000 bytes don't fit",
				"n1 hears 198.18.0.7 false small packets arrive, those of 9000 bytes don't: an MTU between the nodes is too small",
			},
		},
	} {
		s.Networks.Set("n1", desired, &tt.report)
		if got := check(); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got\n%s\nwant\n%s", name, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
}

func TestATraceFollowsAPacketBetweenPortsOfTheNetwork(t *testing.T) {
	s := withNetworks(t)
	s.Networks.Set("n1", desiredOf(t, s, "c1", "b-0", "in tcp 22 from 10.0.0.0/8"), nil)
	for _, tt := range []struct {
		from, to, protocol string
		port               int
		passes, answered   bool
		last               string
	}{
		{"c1/a-0", "c1/b-0", "tcp", 22, true, true, "c1/b-0"},
		{"c1/a-0", "10.64.16.11", "tcp", 22, true, true, "c1/b-0"},
		{"10.64.16.10", "c1/b-0", "tcp", 23, false, false, "no rule of its security groups (web) allows tcp 23 from 10.64.16.10; rules: in tcp 22 from 10.0.0.0/8"},
		{"c1/a-0", "c1/b-0", "icmp", 0, false, false, "allows icmp 8 from"},
		{"c1/b-0", "c1/a-0", "icmp", 0, true, true, "c1/a-0"},
		{"c1/a-0", "10.64.16.99", "icmp", 0, false, false, "no port of the network has 10.64.16.99"},
	} {
		got, err := s.Client().TracePacket(t.Context(), "c1", client.TraceRequest{From: tt.from, To: tt.to, Protocol: tt.protocol, Port: tt.port})
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		last := got.Request[len(got.Request)-1]
		if got.Passes != tt.passes || got.Answered != tt.answered || !strings.Contains(last.Detail, tt.last) {
			t.Errorf("%+v: got %+v", tt, got)
		}
	}
}

func TestATraceThatMakesNoSenseIsRefused(t *testing.T) {
	s := withNetworks(t)
	s.Networks.Set("n1", desiredOf(t, s, "c1", ""), nil)
	for _, tt := range []struct {
		network string
		request client.TraceRequest
		code    string
	}{
		{"c1", client.TraceRequest{From: "c1/a-0", To: "c1/a-0", Protocol: "icmp"}, "invalid_request"},
		{"c1", client.TraceRequest{From: "c1/a-0", To: "c1/b-0", Protocol: "tcp"}, "invalid_request"},
		{"c1", client.TraceRequest{From: "c1/a-0", To: "c1/b-0", Protocol: "icmp", Port: 256}, "invalid_request"},
		{"c1", client.TraceRequest{From: "c1/a-0", To: "c1/b-0", Protocol: "sctp", Port: 1}, "invalid_parameter"},
		{"c1", client.TraceRequest{From: "c1/nobody", To: "c1/b-0", Protocol: "icmp"}, "member_not_found"},
		{"c1", client.TraceRequest{From: "a-0", To: "c1/b-0", Protocol: "icmp"}, "member_not_found"},
		{"c1", client.TraceRequest{From: "10.64.16.99", To: "c1/b-0", Protocol: "icmp"}, "member_not_found"},
		{"c1", client.TraceRequest{From: "c1/a-0", To: "fd00::1", Protocol: "icmp"}, "invalid_request"}, // the network has no IPv6
		{"c1", client.TraceRequest{From: "c1/a-0", To: "c1/b-0", Protocol: "icmp6"}, "invalid_request"},
		{"c1", client.TraceRequest{From: "c1/a-0", To: "fd00::1", Protocol: "icmp", Port: 8}, "invalid_request"},
		{"c1:storage", client.TraceRequest{From: "c1/b-0", To: "c1/a-0", Protocol: "icmp"}, "member_not_found"},
		{"c9", client.TraceRequest{From: "c1/b-0", To: "c1/a-0", Protocol: "icmp"}, "network_not_found"},
	} {
		if got, err := s.Client().TracePacket(t.Context(), tt.network, tt.request); !client.HasCode(err, tt.code) {
			t.Errorf("%s, %+v: got %+v, %v; want %s", tt.network, tt.request, got, err, tt.code)
		}
	}
}

func TestNetworksOfOtherProjectsAreNeitherCheckedNorTraced(t *testing.T) {
	s := withNetworks(t)
	ann, eve := s.ClientAs("ann", "default", api.RoleMember), s.ClientAs("eve", "lab", api.RoleViewer)
	if got, err := ann.CheckNetwork(t.Context(), "lab.c1"); !client.HasCode(err, "network_not_found") {
		t.Errorf("a member checks a network of another project: %+v, %v", got, err)
	}
	if got, err := eve.CheckNetwork(t.Context(), "c1"); !client.HasCode(err, "forbidden") {
		t.Errorf("a viewer has agents check a network: %+v, %v", got, err)
	}
	r := client.TraceRequest{From: "lab.c1/a-0", To: "lab.c1/b-0", Protocol: "icmp"}
	if got, err := ann.TracePacket(t.Context(), "lab.c1", r); !client.HasCode(err, "network_not_found") {
		t.Errorf("a member traces a packet of another project: %+v, %v", got, err)
	}
	if got, err := ann.TracePacket(t.Context(), "c1", r); !client.HasCode(err, "member_not_found") {
		t.Errorf("a member traces from a port of another project: %+v, %v", got, err)
	}
}

func TestANetworkShowsTheCountersOfItsPorts(t *testing.T) {
	s := withNetworks(t)
	desired := desiredOf(t, s, "c1", "")
	want := api.PortCounters{SentBytes: 1, SentPackets: 2, SentDropped: 3, ReceivedBytes: 4, ReceivedPackets: 5, ReceivedDropped: 6}
	s.Networks.SetCounters(map[string]api.PortCounters{desired.Ports[0].ID: want, "another's": {}})
	n, err := s.Client().Network(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	if c := n.Ports[0].Counters; c == nil || *c != want {
		t.Errorf("the counters of %s are %+v, want %+v", n.Ports[0].Member, c, want)
	}
	if c := n.Ports[1].Counters; c != nil {
		t.Errorf("the counters of a port that no agent counted are %+v, want none", c)
	}
}

func TestATraceBeginsAtAPortThatTheTokenMaySee(t *testing.T) {
	s := apiservertest.New(t, memory.New(), nil)
	s.AddNode("n1", 8)
	if _, err := s.Client().CreateNetwork(t.Context(), api.NetworkRequest{Name: "lab"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ci-1", "prod-1"} {
		req := api.ClusterRequest{Name: name, Groups: []api.Group{{Name: "a", Size: 2, Networks: api.OnNetworks("project/lab")}}}
		if _, err := s.Client().CreateCluster(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		s.Place(name)
	}
	s.Networks.Set("n1", desiredOf(t, s, "project/lab", ""), nil)
	ci := s.ClientOf(ciTokens(s)["viewer"])
	trace := func(cluster string) error {
		_, err := ci.TracePacket(t.Context(), "project/lab", client.TraceRequest{From: cluster + "/a-0", To: cluster + "/a-1", Protocol: "icmp"})
		return err
	}
	if err := trace("ci-1"); err != nil {
		t.Errorf("a trace of the token's own cluster: %v", err)
	}
	if err := trace("prod-1"); !client.HasCode(err, "member_not_found") {
		t.Errorf("a trace of a cluster that the token may not see: %v, want member_not_found", err)
	}
}
