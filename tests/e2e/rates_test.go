package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestPortsWithRatesAreLimitedOnTheirNodes(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	clean := s.lookAtNodes()
	s.must("network", "create", "lab")
	c := s.cluster("c1", 3, "--network", "project/lab", "--rate", "project/lab=200Mbit-1Gbit", "--dscp", "project/lab=10")
	plain := s.cluster("c2", 1, "--network", "project/lab")
	if m := c.Status.Members; m[0].Node == m[2].Node {
		t.Fatalf("cluster c1 has to be on two nodes: %+v", m)
	}
	var lab api.NetworkStatus
	s.mustJSON(&lab, "network", "show", "project/lab")
	for _, p := range lab.Ports {
		want := api.Quality{MinRate: 2e8, MaxRate: 1e9, DSCP: "10"}
		if p.Cluster == plain.Name {
			want = api.Quality{}
		}
		if p.Quality != want {
			t.Errorf("the port of %s has the quality of service %+v, want %+v", p.Member, p.Quality, want)
		}
	}
	for _, m := range c.Status.Members { // by its class, and back to a port without rates
		s.must("run", c.Name, "--", "bash", "-c", "exec 3<>/dev/tcp/"+plain.Status.Members[0].Networks[0].Address+"/22 && head -c 4 <&3")
		classes := s.inSpaceOf(m.Node, "tc -s class show dev nmifb; tc qdisc show")
		if want := "rate 200Mbit ceil 1Gbit"; !strings.Contains(classes, want) || !strings.Contains(classes, "tbf") {
			t.Errorf("on node %s, %q or a queue to the port is not in:\n%s", m.Node, want, classes)
		}
		if m.Rank == 0 && (!strings.Contains(classes, "Sent ") || strings.Contains(classes, "root rate 1Tbit ceil 1Tbit burst 125000000b cburst 125000000b \n Sent 0 bytes")) {
			t.Errorf("on node %s, no packet took a class:\n%s", m.Node, classes)
		}
	}
	for _, tt := range []struct{ want, flag string }{
		{"minimum rate 2Gbit is above maximum rate 1Gbit", "--rate=project/lab=2Gbit-1Gbit"}, {"out of range", "--rate=project/lab=0Mbit"}, {"is not a DSCP", "--dscp=project/lab=64"},
	} {
		if a := s.cli("cluster", "create", "c9", "--network", "project/lab", tt.flag); a.code != exitUsage || !strings.Contains(a.err, tt.want) {
			t.Errorf("%s: exit code %d, %q; want %d with %q", tt.flag, a.code, a.err, exitUsage, tt.want)
		}
	}
	s.must("cluster", "delete", "c1", "c2", "--yes")
	s.must("network", "delete", "project/lab")
	s.wantNothingOf(c.UID, clean)
	for _, node := range []string{"n1", "n2"} {
		if left := s.inSpaceOf(node, "tc qdisc show; ip link"); strings.Contains(left, "htb") || strings.Contains(left, "tbf") || strings.Contains(left, "nmifb") {
			t.Errorf("left over on node %s is:\n%s", node, left)
		}
	}
}

// inSpaceOf runs a script in the network namespace of a node, and returns what it printed.
func (s *site) inSpaceOf(node, script string) string {
	s.t.Helper()
	out, err := exec.Command("nsenter", "--net="+filepath.Join(s.dir, "spaces", node, "net"), "sh", "-ec", script).CombinedOutput()
	if err != nil {
		s.t.Fatalf("on node %s: %s: %v\n%s", node, script, err, out)
	}
	return string(out)
}
