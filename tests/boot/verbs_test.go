package boot

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
)

// softRoCE makes a verbs device of a machine's first interface: RoCE version 2, UDP port 4791, by the kernel's rdma_rxe.
const softRoCE = "sudo modprobe -a rdma_rxe rdma_ucm && sudo rdma link add rxe0 type rxe netdev eth0 && rdma link"

// received is how many packets a machine's verbs device has received.
const received = "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/rcvd_pkts"

// Members of a cluster reach each other's queue pairs, by rping, perftest and MPI, from node to node. A machine of another tenant does not,
// also with the routes and neighbors that its root can set.
func TestMembersTalkByVerbsAndOtherTenantsDoNot(t *testing.T) {
	needs.Program(t, "mpicc")
	s := newNodes(t, "--nodes", "2", "--node-cores", "3")
	s.awaitNode("n2")
	s.run("env", "build", "-f", "testdata/verbs.yaml", "--quiet")
	clusters := []string{"a", "b"}
	t.Cleanup(func() { // a test that failed leaves no machines, either
		for _, name := range clusters {
			if _, err := s.try("cluster", "show", name); err == nil {
				s.run("cluster", "delete", name, "--yes")
			}
		}
	})
	s.run("cluster", "create", "a", "--stack", "vm", "--size", "2", "--cores", "2", "--memory", "640MiB", "--env", "debian-verbs")
	s.run("cluster", "create", "b", "--stack", "vm", "--memory", "512MiB", "--env", "debian-verbs")
	members := s.cluster("a").Status.Members
	if members[0].Node == members[1].Node {
		t.Fatalf("both members of a are on node %s, want one on each", members[0].Node)
	}
	for _, m := range [][2]string{{"a", "a-0"}, {"a", "a-1"}, {"b", "b-0"}} {
		if links := s.in(m[0], m[1], softRoCE); !strings.Contains(links, "link rxe0/1 state ACTIVE") {
			t.Fatalf("%s has the verbs devices %q", m[1], links)
		}
	}
	address := members[0].Address

	t.Log("members of a cluster")
	s.serve("rping -s -P")
	if out := s.in("a", "a-1", patient("rping -c -v -C 3 -a "+address)); strings.Count(out, "rdma-ping-") != 3 {
		t.Errorf("rping between members printed %q", out)
	}
	s.serve("ib_write_lat -d rxe0 -x 1 -n 100")
	if out := s.in("a", "a-1", patient("ib_write_lat -d rxe0 -x 1 -n 100 a-0")); !strings.Contains(out, "t_typical[usec]") {
		t.Errorf("ib_write_lat between members printed %q", out)
	}
	s.wantMPIByVerbs()

	t.Log("a machine of another tenant, whose root sets routes and neighbors")
	s.serve("ib_write_lat -d rxe0 -x 1 -n 5")
	before := s.in("a", "a-0", received)
	mac := strings.TrimSpace(s.in("a", "a-0", "cat /sys/class/net/eth0/address"))
	s.in("b", "b-0", "sudo ip route add "+address+"/32 dev eth0 && sudo ip neigh replace "+address+" lladdr "+mac+" dev eth0 nud permanent")
	for _, attempt := range []string{"rping -c -v -C 1 -a ", "ib_write_lat -d rxe0 -x 1 -n 5 "} {
		if out, err := s.try("cluster", "ssh", "b", "b-0", "--", "timeout 20 "+attempt+address); err == nil {
			t.Errorf("a machine of another tenant reached a queue pair by %s: %q", attempt, out)
		}
	}
	if after := s.in("a", "a-0", received); after != before {
		t.Errorf("member a-0 had received %s packets, and %s after those of another tenant", strings.TrimSpace(before), strings.TrimSpace(after))
	}
	if out := s.in("a", "a-1", patient("ib_write_lat -d rxe0 -x 1 -n 5 a-0")); !strings.Contains(out, "t_typical[usec]") {
		t.Errorf("the server that the other tenant did not reach tells a member %q", out)
	}
	for _, name := range clusters {
		s.run("cluster", "delete", name, "--yes")
	}
}

// in runs a shell's words in a member.
func (s *site) in(cluster, member, words string) string {
	s.t.Helper()
	return s.run("cluster", "ssh", cluster, member, "--", words)
}

// patient repeats a command until the server that it talks to listens.
func patient(words string) string { return "timeout 120 sh -c 'until " + words + "; do sleep 1; done'" }

// serve starts a server in member a-0 that lives on.
func (s *site) serve(words string) {
	s.t.Helper()
	s.in("a", "a-0", "nohup "+words+" >server.log 2>&1 </dev/null &")
}

// wantMPIByVerbs runs two ranks, one on each member of a, whose messages go by verbs alone.
func (s *site) wantMPIByVerbs() {
	s.t.Helper()
	binary := filepath.Join(s.t.TempDir(), "pingpong")
	if out, err := exec.Command("mpicc", "-O1", "-o", binary, "testdata/pingpong.c").CombinedOutput(); err != nil {
		s.t.Fatalf("mpicc: %v: %s", err, out)
	}
	content, err := os.ReadFile(binary)
	must(s.t, err)
	put := s.command("cluster", "ssh", "a", "a-0", "--", "cat >pingpong && chmod +x pingpong")
	put.Stdin = strings.NewReader(string(content))
	if out, err := put.CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	count := func() int {
		n, err := strconv.Atoi(strings.TrimSpace(s.in("a", "a-1", received)))
		must(s.t, err)
		return n
	}
	before, began := count(), time.Now()
	// libfabric connects queue pairs by the connection manager of RDMA. UCX and Open MPI's own code connect theirs by unreliable datagrams, whose clocks
	// emulated processors outrun. The universe bounds a completion queue, of which rdma_rxe has short ones only.
	out := s.in("a", "a-0", "FI_UNIVERSE_SIZE=2 mpirun --map-by node -n 2 -x FI_UNIVERSE_SIZE --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs ./pingpong")
	if !strings.Contains(out, "exchanged 100 messages") {
		s.t.Errorf("MPI by verbs printed %q", out)
	}
	if got := count() - before; got < 100 {
		s.t.Errorf("MPI exchanged 200 messages, and the verbs device of a-1 received %d packets", got)
	}
	s.t.Logf("measured: 100 round trips by MPI over verbs took %.0f s, start included", time.Since(began).Seconds())
}
