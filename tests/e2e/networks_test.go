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

func TestANetworkOfAProjectOutlivesTheClustersThatMeetOnIt(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "3")
	clean := s.lookAtNodes()
	s.must("network", "create", "lab", "--prefix", "10.64.128.0/24")
	one, two, apart := s.cluster("one", 4, "--network", "project/lab"), s.cluster("two", 1, "--network", "project/lab"), s.cluster("apart", 1)
	if m := one.Status.Members; m[0].Node == m[3].Node || two.Status.Members[0].Node != m[3].Node {
		t.Fatalf("cluster one has to be on two nodes, and two on one of them: %+v, %+v", m, two.Status.Members)
	}
	for _, pair := range [][2]api.Cluster{{one, two}, {two, one}} {
		for _, to := range pair[1].Status.Members {
			name := to.Name + "." + pair[1].Name
			answer := s.must("run", pair[0].Name, "--", "bash", "-c", "getent hosts "+name+" && exec 3<>/dev/tcp/"+name+"/22 && head -c4 <&3")
			if !strings.Contains(answer, to.Networks[0].Address) || !strings.Contains(answer, "SSH-") {
				t.Errorf("%s does not reach %s by its name:\n%s", pair[0].Name, name, answer)
			}
		}
	}
	s.checkMeeting(one, two, apart)
	if hosts := s.must("run", "apart", "--", "cat", "/etc/hosts"); strings.Contains(hosts, ".one") || strings.Contains(hosts, ".two") {
		t.Errorf("a cluster that is not on the network knows its members:\n%s", hosts)
	}

	s.wantRefusals()
	s.must("cluster", "delete", "one", "--yes")
	if a := s.cli("network", "delete", "project/lab"); a.code != exitConflict || !strings.Contains(a.err, "(two)") {
		t.Errorf("the network is deleted with one of two clusters left: %d, %s", a.code, a.err)
	}
	s.must("cluster", "delete", "two", "apart", "--yes")
	var lab api.NetworkStatus
	if s.mustJSON(&lab, "network", "show", "project/lab"); lab.Phase != api.NetworkReady || len(lab.Ports) != 0 {
		t.Errorf("without clusters, the network is %+v, want it ready and empty", lab)
	}
	s.must("network", "delete", "project/lab")
	var networks []api.NetworkStatus
	if s.mustJSON(&networks, "network", "list"); len(networks) != 0 {
		t.Errorf("after their deletion these networks are still there: %+v", networks)
	}
	s.wantNothingOf(one.UID, clean)
	s.wantNothingOf(two.UID, clean)
}

// checkMeeting checks that members of two clusters reach each other on the project's network alone, and that the third cluster reaches neither.
func (s *site) checkMeeting(one, two, apart api.Cluster) {
	s.t.Helper()
	var questions []*question
	ask := func(from, to api.Cluster, want []string, address func(api.MemberStatus) string) {
		for _, m := range from.Status.Members {
			for _, other := range to.Status.Members {
				questions = append(questions, &question{pid: s.processAt(from, m), address: address(other), who: m.Name + " " + other.Name, want: want})
			}
		}
	}
	own := func(m api.MemberStatus) string { return m.Address }
	lab := func(m api.MemberStatus) string { return m.Networks[0].Address }
	for _, pair := range [][2]api.Cluster{{one, two}, {two, one}} {
		ask(pair[0], pair[1], []string{"TCP", "ping"}, lab)
		ask(pair[0], pair[1], nil, own)
		ask(apart, pair[0], nil, lab)
		ask(apart, pair[0], nil, own)
		ask(pair[0], apart, nil, own)
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

// wantRefusals checks that bad requests about networks are refused with the reason, and change nothing.
func (s *site) wantRefusals() {
	s.t.Helper()
	var before, after []api.NetworkStatus
	s.mustJSON(&before, "network", "list")
	for _, tt := range []struct {
		code int
		want string
		args []string
	}{
		{exitConflict, "2 clusters (one, two)", []string{"network", "delete", "project/lab"}},
		{exitConflict, "private network of cluster", []string{"network", "delete", "one"}},
		{exitNotFound, `"project/none" does not exist`, []string{"network", "delete", "project/none"}},
		{exitConflict, "already exists", []string{"network", "create", "lab"}},
		{exitConflict, `overlaps subnet 10.64.128.0/24 of network "project/lab"`, []string{"network", "create", "more", "--prefix", "10.64.128.0/25"}},
		{exitUsage, "not in this site's pool", []string{"network", "create", "more", "--prefix", "192.168.0.0/24"}},
		{exitUsage, `did you mean "project/lab"?`, []string{"cluster", "create", "c9", "--network", "project/labs"}},
		{exitUsage, "project/NAME for a network of the cluster's own project", []string{"cluster", "create", "c9", "--network", "other/lab"}},
	} {
		if a := s.cli(tt.args...); a.code != tt.code || !strings.Contains(a.err, tt.want) {
			s.t.Errorf("%v: exit code %d, %q; want %d with %q", tt.args, a.code, a.err, tt.code, tt.want)
		}
	}
	if s.mustJSON(&after, "network", "list"); len(after) != len(before) {
		s.t.Errorf("refusals changed the networks from %+v to %+v", before, after)
	}
}
