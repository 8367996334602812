package e2e

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestMembersHavePortsOnSeveralNetworks(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	clean := s.lookAtNodes()
	one, two := s.cluster("one", 3, "--network", "storage"), s.cluster("two", 1, "--network", "storage")
	if m := one.Status.Members; m[0].Node == m[2].Node || two.Status.Members[0].Node != m[2].Node {
		t.Fatalf("cluster one has to be on two nodes, and two on one of them: %+v, %+v", m, two.Status.Members)
	}
	for _, c := range []api.Cluster{one, two} {
		var storage api.NetworkStatus
		s.mustJSON(&storage, "network", "show", c.Name+":storage")
		for _, m := range c.Status.Members {
			if len(m.Networks) != 1 || m.Networks[0].Name != "storage" {
				t.Fatalf("member %s is on further networks %+v, want storage", m.Name, m.Networks)
			}
			if !slices.ContainsFunc(storage.Ports, func(p api.NetworkPort) bool {
				return p.Member == m.Name && p.Node == m.Node && p.Address.String() == m.Networks[0].Address
			}) {
				t.Errorf("the ports of %s are %+v, want one of %s on %s at %s", storage.Name, storage.Ports, m.Name, m.Node, m.Networks[0].Address)
			}
		}
		s.checkInterfaces(c)
	}
	s.checkReach(one, two)
	s.must("cluster", "delete", "one", "two", "--yes")
	s.wantNothingOf(one.UID, clean)
	s.wantNothingOf(two.UID, clean)
	var networks []api.NetworkStatus
	if s.mustJSON(&networks, "network", "list"); len(networks) != 0 {
		t.Errorf("after their clusters these networks are still there: %+v", networks)
	}
}

// checkInterfaces checks which addresses the interfaces of members have, and that names lead to those on the cluster's own network.
func (s *site) checkInterfaces(c api.Cluster) {
	s.t.Helper()
	look := s.must("run", c.Name, "-n", strconv.Itoa(len(c.Status.Members)), "--", "sh", "-c",
		`echo "$(hostname) $(ip -4 -o addr show eth0 | cut -d' ' -f7) $(ip -4 -o addr show eth1 | cut -d' ' -f7)"; cat /etc/hosts`)
	for _, m := range c.Status.Members {
		own, further := m.Address, m.Networks[0].Address
		if want := m.Name + " " + own + "/20 " + further + "/20\n"; !strings.Contains(look, want) {
			s.t.Errorf("the interfaces of %s: want %q in\n%s", m.Name, want, look)
		}
		if !strings.Contains(look, own+" ") && !strings.Contains(look, own+"\t") || strings.Count(look, further+"/20") != strings.Count(look, further) {
			s.t.Errorf("/etc/hosts names %s beside %s or in its place:\n%s", further, own, look)
		}
	}
}

// checkReach checks that members reach those of their own cluster over both networks, and nobody of the other.
func (s *site) checkReach(clusters ...api.Cluster) {
	s.t.Helper()
	var questions []*question
	for _, from := range clusters {
		for _, m := range from.Status.Members {
			pid := s.processAt(from, m)
			for _, to := range clusters {
				for _, other := range to.Status.Members {
					if other.Name == m.Name {
						continue
					}
					who := m.Name + " " + other.Name
					own, further := &question{pid: pid, address: other.Address, who: who}, &question{pid: pid, address: other.Networks[0].Address, who: who}
					if from.Name == to.Name {
						own.want, further.want = []string{"TCP", "ping"}, []string{"TCP", "ping"}
					}
					questions = append(questions, own, further)
				}
			}
		}
	}
	var all sync.WaitGroup
	for _, q := range questions {
		all.Go(q.ask)
	}
	all.Wait()
	for _, q := range questions {
		if !slices.Equal(q.answer, q.want) || q.err != nil {
			s.t.Errorf("asked whether %s reaches %s: by %v, want %v (%v)", q.who, q.address, q.answer, q.want, q.err)
		}
	}
}
