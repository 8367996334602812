package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestACheckOfANetworkNamesWhatSomebodyChangedAndATraceNamesTheRule(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	clean := s.lookAtNodes()
	s.must("network", "create", "lab", "--prefix6", "fd12:3456:789a:1::/64")
	s.must("security-group", "create", "web", "--rule", "in tcp 22 from 0.0.0.0/0")
	one := s.cluster("one", 2, "--network", "project/lab")
	two := s.cluster("two", 2, "--network", "project/lab", "--security-group", "project/lab=web")
	near, far := one.Status.Members[0], two.Status.Members[1]
	if near.Node == far.Node {
		t.Fatalf("the members have to be on two nodes: %+v, %+v", near, far)
	}
	s.wantCheck(0, near.Node+"    hears "+far.Node+"  ok", far.Node+"    hears "+near.Node+"  ok")
	s.wantTrace(one, two)
	s.wantCounters(far)
	s.wantIPv6(one, two)

	var lab api.NetworkStatus
	s.mustJSON(&lab, "network", "show", "project/lab")
	bridge := fmt.Sprintf("nmbr%d", lab.Index)
	s.wantDrift(far.Node, "bridge "+bridge+" mtu: want ", "ip link set "+bridge+" mtu 1300")
	s.wantDrift(near.Node, "of set pins of table bridge nm: want present, got absent", "nft flush set bridge nm pins")
	s.nft(far.Node, "table inet site {\nchain input { type filter hook input priority 0; udp dport 4789 drop; }\n}\n")
	s.wantCheck(1, far.Node+"    hears "+near.Node+"  wrong   nothing arrives from", near.Node+"    hears "+far.Node+"  ok")
	s.nft(far.Node, "delete table inet site\n")

	s.must("cluster", "delete", "one", "two", "--yes")
	s.must("security-group", "delete", "web")
	s.must("network", "delete", "project/lab")
	s.wantNothingOf(one.UID, clean)
	s.wantNothingOf(two.UID, clean)
}

// wantCheck waits until a check of the network ends with a code and finds all of this.
func (s *site) wantCheck(code int, findings ...string) {
	s.t.Helper()
	var last answer
	s.eventually(20*time.Second, "a check with these findings: "+strings.Join(findings, ", "), func() bool {
		last = s.cli("network", "check", "project/lab")
		all := last.code == code
		for _, f := range findings {
			all = all && strings.Contains(last.out, f)
		}
		return all
	})
	if s.t.Failed() {
		s.t.Logf("exit code %d: %s%s", last.code, last.out, last.err)
	}
}

// wantDrift changes something on a node by hand, and requires that a check names it. The node's agent may repair it before, so it is tried again.
func (s *site) wantDrift(node, want, change string) {
	s.t.Helper()
	s.eventually(20*time.Second, "a check that names "+want, func() bool {
		cmd := exec.Command("nsenter", "--net="+filepath.Join(s.dir, "spaces", node, "net"), "sh", "-ec", change)
		if out, err := cmd.CombinedOutput(); err != nil {
			s.t.Fatalf("on node %s: %s: %v\n%s", node, change, err, out)
		}
		a := s.cli("network", "check", "project/lab")
		return a.code == 1 && strings.Contains(a.out, want)
	})
}

// wantCounters waits until the network shows that a member's port has counted packets in both directions.
func (s *site) wantCounters(m api.MemberStatus) {
	s.t.Helper()
	s.eventually(20*time.Second, "counters of "+m.Name, func() bool {
		var lab api.NetworkStatus
		s.mustJSON(&lab, "network", "show", "project/lab")
		return slices.ContainsFunc(lab.Ports, func(p api.NetworkPort) bool {
			return p.Member == m.Name && p.Counters != nil && p.Counters.SentPackets > 0 && p.Counters.ReceivedBytes > 0
		})
	})
}

// wantTrace checks that packets of members of one cluster to all members of the other are traced as they go.
func (s *site) wantTrace(from, to api.Cluster) {
	s.t.Helper()
	sender := from.Name + "/" + from.Status.Members[0].Name
	for _, m := range to.Status.Members {
		receiver := to.Name + "/" + m.Name
		for _, tt := range []struct {
			code int
			want string
			args []string
		}{
			{0, "passes, and so does the answer", []string{"--protocol", "tcp", "--port", "22"}},
			{1, "no rule of its security groups (web) allows tcp 80 from " + from.Status.Members[0].Networks[0].Address + "; rules: in tcp 22 from 0.0.0.0/0", []string{"--protocol", "tcp", "--port", "80"}},
			{1, "allows icmp 8 from", nil},
		} {
			a := s.cli(append([]string{"network", "check", "project/lab", "--from", sender, "--to", receiver}, tt.args...)...)
			if a.code != tt.code || !strings.Contains(a.out, tt.want) {
				s.t.Errorf("%s to %s %v: exit code %d, %s%s; want %d with %q", sender, receiver, tt.args, a.code, a.out, a.err, tt.code, tt.want)
			}
		}
	}
	q := &question{pid: s.processAt(from, from.Status.Members[0]), address: to.Status.Members[1].Networks[0].Address}
	q.ask()
	if q.err != nil || strings.Join(q.answer, ",") != "TCP" {
		s.t.Errorf("the receiver is reached by %v (%v), want TCP alone, as traced", q.answer, q.err)
	}
}
