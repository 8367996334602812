package cli_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestCountersOfPortsAreShownOnRequest(t *testing.T) {
	f := newFake(t)
	port := func(member, address string, counters *api.PortCounters) api.NetworkPort {
		return api.NetworkPort{Cluster: "c1", Member: member, Node: "n1", Address: netip.MustParseAddr(address), Counters: counters}
	}
	f.fixed("GET /v1/networks/{name}", api.NetworkStatus{Network: api.Network{Name: "project/lab"}, Ports: []api.NetworkPort{
		port("c1-0", "10.64.128.2", &api.PortCounters{SentBytes: 11, SentPackets: 12, SentDropped: 13, ReceivedBytes: 21, ReceivedPackets: 22, ReceivedDropped: 23}),
		port("c1-1", "10.64.128.3", nil),
	}})
	has(t, f.shell().run(t, "network", "show", "project/lab", "--counters"), 0,
		"c1       c1-0    10.64.128.2  11          12            13       21              22                23\n",
		"c1       c1-1    10.64.128.3  -           -             -        -               -                 -\n")
	if got := f.shell().run(t, "network", "show", "project/lab"); strings.Contains(got.out, "BYTES SENT") {
		t.Errorf("counters are shown without a request:\n%s", got.out)
	}
}
