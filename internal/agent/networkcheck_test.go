package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

func TestAnAgentReportsWhatANetworkHasOtherwise(t *testing.T) {
	s := newSite(t)
	one, two := s.node("n1", 1), s.node("n2", 1)
	s.create("c", 2, 1)
	c := s.awaitPhase("c", api.ClusterReady)
	index := s.cache.View().Network(c.Record.Networks[0].UID).Index
	report, err := s.agent.CheckNetwork(t.Context(), "n1", index, 7)
	if err != nil || report.Pending != "" || len(report.Drift) > 0 || len(report.Wrong) > 0 || report.Ports != 1 {
		t.Errorf("got %+v, %v; want one port, and nothing wrong", report, err)
	}
	if len(report.Meetings) != 1 || report.Meetings[0].Peer != netip.MustParseAddr("198.18.0.2") || !report.Meetings[0].Full {
		t.Errorf("got %+v, want the other node heard", report.Meetings)
	}

	own, shared := fabric.Drift{Network: index, Object: "bridge", Want: "up", Got: "down"}, fabric.Drift{Object: "nftables table bridge nm", Want: "present", Got: "absent"}
	one.fabric.SetDrift(own, fabric.Drift{Network: index + 1, Object: "bridge of others"}, fabric.Drift{Object: "link of others"}, shared)
	report, err = s.agent.CheckNetwork(t.Context(), "n1", index, 8)
	if err != nil || len(report.Drift) != 2 || report.Drift[0] != own || report.Drift[1] != shared {
		t.Errorf("got %+v, %v; want the network's own drift and that of shared rules", report.Drift, err)
	}

	two.fabric.Fail("Audit", errors.New("no nft"))
	if report, err := s.agent.CheckNetwork(t.Context(), "n2", index, 9); err == nil || !strings.Contains(err.Error(), "no nft") {
		t.Errorf("got %+v, %v; want the reason why there is no audit", report, err)
	}
	if report, err := s.agent.CheckNetwork(t.Context(), "n1", index+1, 10); err == nil || !strings.Contains(err.Error(), "not among those") {
		t.Errorf("a network that the node does not have: got %+v, %v", report, err)
	}
	s.ends("c", one, two)
}

func TestACheckReportsThatTheNewestNetworksAreNotInForce(t *testing.T) {
	s := newSite(t)
	one := s.node("n1", 2)
	s.create("c", 1, 1)
	c := s.awaitPhase("c", api.ClusterReady)
	index := s.cache.View().Network(c.Record.Networks[0].UID).Index
	one.fabric.Fail("Apply", errors.New("no bridges"))
	s.create("d", 1, 1)
	for {
		report, err := s.agent.CheckNetwork(t.Context(), "n1", index, 7)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(report.Pending, "the networks can't be made: no bridges") {
			break
		}
	}
	one.fabric.Fail("Apply", nil)
	s.awaitPhase("d", api.ClusterReady)
	if report, err := s.agent.CheckNetwork(t.Context(), "n1", index, 8); err != nil || report.Pending != "" {
		t.Errorf("got %+v, %v; want the newest networks in force", report, err)
	}
}

func TestAnAgentSendsTheCountersOfItsPorts(t *testing.T) {
	s := newSite(t)
	one := s.node("n1", 1)
	s.create("c", 1, 1)
	c := s.awaitPhase("c", api.ClusterReady)
	id := ""
	for a := range c.Held() {
		id = a.ID
	}
	want := api.PortCounters{SentBytes: 7, ReceivedPackets: 8}
	one.fabric.SetCounters(id, want)
	one.restart(1) // a new stream begins with all counters
	s.awaitReports(func() bool { return s.agent.PortCounters("n1")[id] == want }, func() string { return fmt.Sprint(s.agent.PortCounters("n1")) })
	one.stop()
	s.awaitReported("n1", false)
	if got := s.agent.PortCounters("n1"); len(got) > 0 {
		t.Errorf("the counters of a node without an agent are %v, want none", got)
	}
}
