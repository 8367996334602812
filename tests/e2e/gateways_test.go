package e2e

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/api"
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

func TestRoutedNetworksOfAProjectReachEachOther(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "3")
	clean := s.lookAtNodes()
	s.must("network", "create", "left", "--routed")
	s.must("network", "create", "right", "--routed")
	s.must("network", "create", "plain")
	s.must("security-group", "create", "ops")
	s.must("security-group", "create", "web", "--rule", "in tcp 22 from group ops")
	left := s.cluster("left", 3, "--network", "project/left", "--security-group", "project/left=ops")
	right := s.cluster("right", 1, "--network", "project/right")
	shut := s.cluster("shut", 1, "--network", "project/right", "--security-group", "project/right=web")
	plain := s.cluster("plain", 1, "--network", "project/plain")
	if left.Status.Members[0].Node == right.Status.Members[0].Node {
		t.Fatalf("clusters left and right have to be on two nodes: %+v, %+v", left.Status.Members, right.Status.Members)
	}
	address := func(c api.Cluster) string { return c.Status.Members[0].Networks[0].Address }
	var questions []*question
	ask := func(from, to api.Cluster, want ...string) {
		m := from.Status.Members[0]
		questions = append(questions, &question{pid: s.processAt(from, m), address: address(to), who: m.Name + " " + to.Name, want: want})
	}
	ask(left, right, "TCP", "ping")
	ask(right, left) // has a group without rules
	ask(left, shut, "TCP")
	ask(right, shut)
	ask(left, plain)
	ask(plain, right)
	var all sync.WaitGroup
	for _, q := range questions {
		all.Go(q.ask)
	}
	all.Wait()
	for _, q := range questions {
		if !slices.Equal(q.answer, q.want) || q.err != nil {
			t.Errorf("asked whether %s reaches %s: by %v, want %v (%v)", q.who, q.address, q.answer, q.want, q.err)
		}
	}
	if shown := s.must("network", "show", "project/left"); !strings.Contains(shown, "Routed:      yes") {
		t.Errorf("the network is shown as\n%s", shown)
	}
	// A clean member's proof does not wait for a network that others here are routed to.
	s.must("cluster", "delete", "right", "shut", "--yes")
	s.must("cluster", "delete", "left", "plain", "--yes")
	for _, c := range []api.Cluster{left, right, shut, plain} {
		s.wantNothingOf(c.UID, clean)
	}
}
