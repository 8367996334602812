package e2e

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// mpiSum is an MPI program: all ranks add up 1, 2, 3, ... and each prints the sum and where it ran.
const mpiSum = `#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv) {
	int rank, mine, sum, length; char host[MPI_MAX_PROCESSOR_NAME];
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Get_processor_name(host, &length);
	mine = rank + 1;
	MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	printf("%s %d\n", host, sum);
	MPI_Finalize();
}
`

// Addresses of the test's own outside, from a range for documentation (RFC 5737).
const (
	hostSide    = "203.0.113.1/24"
	outsideSide = "203.0.113.2/24"
)

func TestClustersOnSeveralNodesReachThemselvesAndNothingElse(t *testing.T) {
	program(t, ordinary)
	needOwnNetwork(t)
	nothingLeft(t)
	outside := newOutside(t)
	s := startSite(t, 3, "--nodes", "3", "--node-cores", "4")
	a, b, e := s.spanning("a", 5), s.spanning("b", 5), s.cluster("e", 2, "--egress")

	t.Run("names and SSH", func(t *testing.T) { s.as(t).checkNamesAndSSH(a, b) })
	t.Run("MPI", func(t *testing.T) { s.as(t).checkMPI(a) })

	// Everything below listens, so what is not reached was kept away.
	own := map[string]string{"a member of its own on another node": member(a, 4) + ":22"}
	forbidden := s.listenOnNodes()
	maps.Copy(forbidden, s.serverAddresses())
	for _, m := range b.Status.Members {
		forbidden["member "+m.Name+" on node "+m.Node] = m.Address + ":22"
	}
	for _, test := range []struct {
		cluster string
		reached []map[string]string
		kept    []map[string]string
	}{
		{"a", []map[string]string{own}, []map[string]string{forbidden, {"the outside": outside}}},
		{
			"e",
			[]map[string]string{{"a member of its own": member(e, 1) + ":22", "the outside": outside}},
			[]map[string]string{forbidden, {"a member of cluster a": member(a, 0) + ":22"}},
		},
	} {
		t.Run("who cluster "+test.cluster+" reaches", func(t *testing.T) {
			s := s.as(t)
			targets := map[string]string{}
			for _, m := range append(slices.Clone(test.reached), test.kept...) {
				maps.Copy(targets, m)
			}
			got := s.probe(test.cluster, targets)
			for _, m := range test.reached {
				for what, address := range m {
					if !got[address] {
						t.Errorf("%s (%s) is not reached", what, address)
					}
				}
			}
			for _, m := range test.kept {
				for what, address := range m {
					if got[address] {
						t.Errorf("%s (%s) is reached", what, address)
					}
				}
			}
		})
	}
}

// cluster makes a cluster and returns it once it is ready.
func (s *site) cluster(name string, size int, args ...string) api.Cluster {
	s.t.Helper()
	s.must(append([]string{"cluster", "create", name, "--size", strconv.Itoa(size), "--cores", "1", "--memory", "128MiB"}, args...)...)
	return s.waitReady(name)
}

// spanning makes a cluster that is too large for one node.
func (s *site) spanning(name string, size int) api.Cluster {
	s.t.Helper()
	c := s.cluster(name, size)
	if first, last := c.Status.Members[0].Node, c.Status.Members[size-1].Node; first == last {
		s.t.Fatalf("the first and the last of %d members are both on node %s; the test needs them on two", size, first)
	}
	return c
}

func member(c api.Cluster, rank int) string { return c.Status.Members[rank].Address }

func (s *site) checkNamesAndSSH(a, b api.Cluster) {
	for _, m := range a.Status.Members {
		if got := s.must("run", a.Name, "--", "getent", "hosts", m.Name); !strings.HasPrefix(got, m.Address+" ") {
			s.t.Errorf("%s resolves to %q, want %s", m.Name, got, m.Address)
		}
		// Plain ssh as a user types it; standard input is empty, so a prompt would fail.
		for _, to := range []string{m.Name, m.Address} {
			if got := strings.TrimSpace(s.must("run", a.Name, "--", "ssh", to, "hostname")); got != m.Name {
				s.t.Errorf("ssh %s hostname: %q, want %q and nothing else", to, got, m.Name)
			}
		}
	}
	if got := s.cli("run", a.Name, "--", "getent", "hosts", b.Status.Members[0].Name); got.code == 0 {
		s.t.Errorf("a member of another cluster resolves: %s", got.out)
	}
}

func (s *site) checkMPI(c api.Cluster) {
	needs.Program(s.t, "mpicc")
	s.must("run", c.Name, "--", "sh", "-c", fmt.Sprintf("cat > sum.c <<'END'\n%sEND\nmpicc -o sum sum.c", mpiSum))
	ranks := len(c.Status.Members)
	printed := openMPIWarning.ReplaceAllString(s.must("run", c.Name, "-n", strconv.Itoa(ranks), "--", "./sum"), "")
	out := strings.Split(strings.TrimSpace(printed), "\n")
	var want []string
	for _, m := range c.Status.Members {
		want = append(want, fmt.Sprintf("%s %d", m.Name, ranks*(ranks+1)/2))
	}
	slices.Sort(out)
	if !slices.Equal(out, want) {
		s.t.Errorf("the sum on all members: %q, want %q", out, want)
	}
}

// probe tells which addresses the first member of a cluster can connect to.
func (s *site) probe(cluster string, targets map[string]string) map[string]bool {
	s.t.Helper()
	script := "probe() { timeout 3 bash -c \"exec 3<>/dev/tcp/$1/$2\" 2>/dev/null && echo $1:$2; }\n"
	for _, address := range targets {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			s.t.Fatal(err)
		}
		script += "probe " + host + " " + port + " &\n"
	}
	reached := map[string]bool{}
	for _, address := range strings.Fields(s.must("run", cluster, "--", "bash", "-c", script+"wait; true")) {
		reached[address] = true
	}
	return reached
}

// listenOnNodes listens on every node, as a service of the machine would, and returns all addresses of the nodes with it.
func (s *site) listenOnNodes() map[string]string {
	s.t.Helper()
	targets := map[string]string{}
	pins, err := filepath.Glob(filepath.Join(s.dir, "spaces", "*", "net"))
	if err != nil || len(pins) == 0 {
		s.t.Fatalf("no nodes: %v", err)
	}
	for _, pin := range pins {
		node := filepath.Base(filepath.Dir(pin))
		space, err := netns.Open(pin)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, address := range listenEverywhere(s.t, space) {
			targets["node "+node+" at "+address] = address
		}
		if err := space.Close(); err != nil {
			s.t.Error(err)
		}
	}
	return targets
}

// serverAddresses are those of the server that are not the loopback's.
func (s *site) serverAddresses() map[string]string {
	s.t.Helper()
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	targets := map[string]string{}
	here, err := netns.Current()
	if err != nil {
		s.t.Fatal(err)
	}
	defer here.Close()
	for _, address := range listenEverywhere(s.t, here) {
		host, _, _ := net.SplitHostPort(address)
		if !strings.HasPrefix(host, "203.0.113.") { // members with egress may talk to the host as to anybody outside
			targets["the server at "+host] = net.JoinHostPort(host, port)
			targets["the host at "+host] = address
		}
	}
	return targets
}

// listenEverywhere listens in a network namespace until the test ends, and returns its addresses with the port.
func listenEverywhere(t *testing.T, space netns.Handle) []string {
	t.Helper()
	var found []string
	err := space.Do(func() error {
		l, err := net.Listen("tcp4", "0.0.0.0:0")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go answerAll(l)
		addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
		for _, a := range addresses {
			if !a.IP.IsLoopback() {
				found = append(found, fmt.Sprintf("%s:%d", a.IP, l.Addr().(*net.TCPAddr).Port))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func answerAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "here\n")
		_ = c.Close()
	}
}

// newOutside makes a machine beyond the host that answers, and returns its address.
func newOutside(t *testing.T) string {
	t.Helper()
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Close() })
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "outside"
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "host", PeerNamespace: netlink.NsFd(space.FD())}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(pair); err != nil {
			t.Error(err)
		}
	})
	setUp := func(name, address string) error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		prefix := netip.MustParsePrefix(address)
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), 32)}}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}
	if err := setUp("outside", hostSide); err != nil {
		t.Fatal(err)
	}
	if err := space.Do(func() error { return setUp("host", outsideSide) }); err != nil {
		t.Fatal(err)
	}
	// The outside is where the default route leads.
	if err := netlink.RouteAdd(&netlink.Route{Gw: netip.MustParsePrefix(outsideSide).Addr().AsSlice()}); err != nil {
		t.Fatal(err)
	}
	return listenEverywhere(t, space)[0]
}

// needOwnNetwork skips a test that makes links where it would make them on a host's network, which has more than a loopback.
func needOwnNetwork(t *testing.T) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	if len(links) != 1 {
		needs.Missing(t, "this is not a network of the test's own (make e2e makes one)")
	}
}

// TestAnAddressThatMovedToAnotherNodeIsReachedAtOnce gives a member the address that another one had on another node. Bridges and
// tunnels remember for minutes where they heard it last, and a member that nobody has spoken to says nothing by itself.
func TestAnAddressThatMovedToAnotherNodeIsReachedAtOnce(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 3, "--nodes", "3", "--node-cores", "3")
	c := s.cluster("c", 5)
	place := func(c api.Cluster, name string) (node, address string) {
		return placed(c)[name].Node, placed(c)[name].Address
	}
	from, _ := place(c, "c-0")
	there, _ := place(c, "c-3")
	if node, _ := place(c, "c-4"); from == there || node != there {
		t.Fatalf("c-3 and c-4 should share a node that c-0 is not on: %+v", c.Status.Members)
	}
	hear := func() {
		s.must("run", "c", "-n", "5", "--", "hostname")
		s.must("run", "c", "--", "ssh", "c-3", "ssh", "c-1", "hostname")
	}
	hear()
	moved := func(name string, change ...[]string) (node string) {
		t.Helper()
		oldNode, oldAddress := place(c, name)
		for _, args := range change {
			s.must(args...)
		}
		c = s.waitMembers("c", first(5, "c"))
		node, address := place(c, name)
		if node == oldNode || address != oldAddress {
			t.Fatalf("%s was on %s at %s and is on %s at %s; the test needs it on another node at the same address", name, oldNode, oldAddress, node, address)
		}
		for _, way := range [][]string{{"ssh", address, "hostname"}, {"ssh", "c-3", "ssh", address, "hostname"}} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			a := s.run(ctx, append([]string{"run", "c", "--"}, way...)...)
			cancel()
			if strings.TrimSpace(a.out) != name {
				t.Errorf("%s, now on %s, is not reached within 10 s by %v: %q %s", name, node, way, a.out, a.err)
			}
		}
		return node
	}
	// The node it was on stays a peer: c-3 is there.
	third := moved("c-4", []string{"node", "drain", there}, []string{"cluster", "scale", "c", "--size", "4"}, []string{"cluster", "scale", "c", "--size", "5"})
	hear()
	// It comes to a node that heard it from elsewhere before.
	if node := moved("c-1", []string{"node", "undrain", there}, []string{"node", "drain", from}, []string{"node", "drain", third},
		[]string{"cluster", "scale", "c", "--remove", "c-1"}, []string{"cluster", "scale", "c", "--size", "5"}); node != there {
		t.Fatalf("c-1 is on %s, the test needs it on %s with c-3", node, there)
	}
}
