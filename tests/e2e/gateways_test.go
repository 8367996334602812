package e2e

import (
	"strings"
	"testing"
)

func TestAProjectsNetworkWithEgressLeadsOut(t *testing.T) {
	program(t, ordinary)
	needOwnNetwork(t)
	nothingLeft(t)
	outside := newOutside(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	s.must("network", "create", "out", "--egress")
	s.must("network", "create", "more", "--egress")
	if a := s.cli("cluster", "create", "x", "--network", "project/out", "--network", "project/more"); a.code != exitUsage || !strings.Contains(a.err, "a group can be on one such network only") {
		t.Errorf("two ways out: exit code %d, %s", a.code, a.err)
	}
	shut, open := s.cluster("shut", 1), s.cluster("open", 2, "--network", "project/out")
	targets := map[string]string{"the outside": outside, "a member of the other cluster": member(shut, 0) + ":22"}
	if got := s.probe(open.Name, targets); !got[outside] || len(got) != 1 {
		t.Errorf("from a network with egress, %v of %v are reached, want the outside alone", got, targets)
	}
	if got := s.probe(shut.Name, map[string]string{"the outside": outside}); len(got) != 0 {
		t.Errorf("without egress, the outside is reached")
	}
	if shown := s.must("network", "show", "project/out"); !strings.Contains(shown, "Egress:      yes") {
		t.Errorf("the network is shown as\n%s", shown)
	}
}
