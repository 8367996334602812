package node

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// floatingLab is two nodes on one wire, with a client outside that is also their router. Nodes have one network in common: its members 2 and 3 are on
// the first node, 4 is on the second.
type floatingLab struct {
	nodes    []node
	client   namespace
	network  fabric.Network // without ports
	networks []fabric.Network
	members  []member
}

// The addresses outside: of the client, beyond it, and two floating ones.
const (
	clientAddress = "192.0.2.2"
	floatingOne   = "192.0.2.101"
	floatingTwo   = "192.0.2.102"
)

func newFloatingLab(t testing.TB) *floatingLab {
	t.Helper()
	needRoot(t)
	sw := newSpace(t)
	sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw up")
	join := func(space namespace, i int, address string) {
		sw.run(t, fmt.Sprintf("ip link add p%d type veth peer name up0 netns %s; ip link set p%d master sw up", i, space.Path(), i))
		space.run(t, "ip link set lo up; ip link set up0 up; ip address add "+address+"/24 dev up0")
		_, _ = space.try("echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables")
	}
	lab := &floatingLab{client: newSpace(t)}
	join(lab.client, 9, clientAddress)
	lab.client.run(t, "ip address add "+internet+"/32 dev lo")
	for i := range 2 {
		space, address := newSpace(t), fmt.Sprintf("192.0.2.1%d", i)
		join(space, i, address)
		space.run(t, "ip route add default via "+clientAddress)
		lab.nodes = append(lab.nodes, node{space, newFabric(t, space, Config{Config: plan.Config{Underlay: netip.MustParseAddr(address)}})})
	}
	lab.network = testNetwork(3)
	lab.network.Egress, lab.network.FloatingPool = true, []netip.Prefix{netip.MustParsePrefix("192.0.2.96/27")}
	for i, hosts := range [][]int{{2, 3}, {4}} {
		n := lab.network
		for _, h := range hosts {
			n.Ports = append(n.Ports, testPort(n, h))
		}
		other := [][]int{{4}, {2, 3}}[i]
		n.Remotes = behind(n, netip.MustParseAddr(fmt.Sprintf("192.0.2.1%d", 1-i)), other...)
		lab.networks = append(lab.networks, n)
		apply(t, lab.nodes[i].fabric, n)
		for at := range n.Ports {
			m := attach(t, lab.nodes[i].fabric, n, at)
			lab.members = append(lab.members, m)
			m.serve(t)
		}
	}
	return lab
}

// float makes a node have these floating addresses, ADDRESS for the port with the number at.
func (lab *floatingLab) float(t testing.TB, node int, floating ...fabric.Floating) {
	t.Helper()
	n := lab.networks[node]
	n.Floating = floating
	apply(t, lab.nodes[node].fabric, n)
}

func floatingTo(address string, port fabric.Port, forwards ...fabric.Forward) fabric.Floating {
	return fabric.Floating{Address: netip.MustParseAddr(address), Port: port.ID, Forwards: forwards}
}

// serve answers TCP connections to port 22 with the member's own address and that of the caller, until the test ends.
func (m member) serve(t testing.TB) {
	t.Helper()
	m.namespace.serve(t, m.address())
}

// serve answers TCP connections to port 22 with a name and the address of the caller, until the test ends.
func (n namespace) serve(t testing.TB, name string) {
	t.Helper()
	var l net.Listener
	if err := n.Do(func() (err error) {
		l, err = net.Listen("tcp4", ":22")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			from, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			fmt.Fprintf(conn, "%s sees %s", name, from)
			conn.Close()
		}
	}()
}

// call returns what a server says over TCP, or the error.
func (n namespace) call(to string, wait time.Duration) string {
	answer := ""
	err := n.Do(func() error {
		conn, err := net.DialTimeout("tcp4", to, wait)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		text, err := io.ReadAll(conn)
		answer = string(text)
		return err
	})
	if err != nil {
		return err.Error()
	}
	return answer
}

// mustHear calls a server until the answer is this one.
func (n namespace) mustHear(t testing.TB, what, to, want string) {
	t.Helper()
	got := ""
	for deadline := time.Now().Add(markerTimeout); time.Now().Before(deadline); {
		if got = n.call(to, time.Second); got == want {
			return
		}
	}
	t.Errorf("%s: %s answers %q, want %q", what, to, got, want)
}

// mustNotHear expects that nothing answers.
func (n namespace) mustNotHear(t testing.TB, what, to string) {
	t.Helper()
	if got := n.call(to, 400*time.Millisecond); strings.Contains(got, " sees ") {
		t.Errorf("%s: %s answers %q, and must not", what, to, got)
	}
}

func TestAFloatingAddressLeadsToItsMemberAndIsTheMembersAddressOutside(t *testing.T) {
	lab := newFloatingLab(t)
	m := lab.members[0]
	lab.client.serve(t, "client")
	lab.client.mustNotHear(t, "before the address is assigned", floatingOne+":22")
	lab.float(t, 0, floatingTo(floatingOne, m.port))
	lab.client.mustHear(t, "from outside", floatingOne+":22", m.address()+" sees "+clientAddress)
	m.mustHear(t, "the member outside", internet+":22", "client sees "+floatingOne)
	lab.members[1].mustHear(t, "a member without a floating address outside", internet+":22", "client sees 192.0.2.10")
	mustReach(t, lab.client, "the floating address", floatingOne)
	lab.float(t, 0)
	lab.client.mustNotHear(t, "when the address is unassigned", floatingOne+":22")
	m.mustHear(t, "the member outside, afterwards", internet+":22", "client sees 192.0.2.10")
}

func TestMembersReachFloatingAddressesFromEverywhere(t *testing.T) {
	for _, routed := range []bool{false, true} {
		t.Run(fmt.Sprintf("routed %v", routed), func(t *testing.T) {
			lab := newFloatingLab(t)
			for i := range lab.networks {
				lab.networks[i].Routed, lab.networks[i].Pool = routed, netip.MustParsePrefix("10.64.0.0/10")
			}
			here, beside, elsewhere := lab.members[0], lab.members[1], lab.members[2]
			lab.float(t, 0, floatingTo(floatingOne, here.port))
			beside.mustHear(t, "a member on the same node", floatingOne+":22", here.address()+" sees "+lab.network.Gateway.String())
			elsewhere.mustHear(t, "a member on another node", floatingOne+":22", here.address()+" sees 192.0.2.11")
			here.mustHear(t, "the member itself", floatingOne+":22", here.address()+" sees "+floatingOne)
			lab.float(t, 1, floatingTo(floatingTwo, elsewhere.port))
			elsewhere.mustHear(t, "a member with a floating address on another node", floatingOne+":22", here.address()+" sees "+floatingTwo)
			here.mustHear(t, "the way back", floatingTwo+":22", elsewhere.address()+" sees "+floatingOne)
		})
	}
}

func TestOnlyForwardedPortsLeadToAMember(t *testing.T) {
	lab := newFloatingLab(t)
	m, beside := lab.members[0], lab.members[1]
	lab.client.serve(t, "client")
	lab.float(t, 0, floatingTo(floatingOne, m.port, fabric.Forward{Protocol: "tcp", Port: 2222, MemberPort: 22}))
	lab.client.mustHear(t, "a forwarded port", floatingOne+":2222", m.address()+" sees "+clientAddress)
	lab.client.mustNotHear(t, "a port that is not forwarded", floatingOne+":22")
	mustNotReach(t, lab.client, "an address of which only ports are forwarded", floatingOne)
	beside.mustHear(t, "a member on the same node", floatingOne+":2222", m.address()+" sees "+lab.network.Gateway.String())
	m.mustHear(t, "the member outside", internet+":22", "client sees 192.0.2.10")
}

// TestAMovedAddressIsReachedAtOnce moves an address while the client knows it by the MAC address of the former node, and would for long.
func TestAMovedAddressIsReachedAtOnce(t *testing.T) {
	lab := newFloatingLab(t)
	before, after := lab.members[0], lab.members[2]
	lab.client.run(t, "for i in all default up0; do echo 3600000 > /proc/sys/net/ipv4/neigh/up0/base_reachable_time_ms; done")
	lab.float(t, 0, floatingTo(floatingOne, before.port))
	lab.client.mustHear(t, "at the first node", floatingOne+":22", before.address()+" sees "+clientAddress)
	if mac := lab.nodes[0].macOf(t); !lab.client.knows(t, floatingOne, mac) {
		t.Fatalf("the client doesn't know the address by the MAC address of the first node, %s", mac)
	}
	lab.float(t, 0)
	lab.float(t, 1, floatingTo(floatingOne, after.port))
	if mac := lab.nodes[1].macOf(t); !lab.client.knows(t, floatingOne, mac) { // before it sends anything there
		t.Errorf("the client doesn't know the address by the MAC address of the second node, %s", mac)
	}
	if got := lab.client.call(floatingOne+":22", time.Second); got != after.address()+" sees "+clientAddress {
		t.Errorf("the first call after the move: %q", got)
	}
}

// macOf is the MAC address of an uplink.
func (n namespace) macOf(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(n.run(t, `ip -o link show up0 | sed 's/.*link.ether \([0-9a-f:]*\) .*/\1/'`))
}

// knows waits until a neighbour is known by a MAC address.
func (n namespace) knows(t *testing.T, address, mac string) bool {
	t.Helper()
	for deadline := time.Now().Add(markerTimeout); time.Now().Before(deadline); {
		if strings.Contains(n.run(t, "ip neigh show "+address), "lladdr "+mac) {
			return true
		}
	}
	return false
}

func TestNothingForAFloatingAddressComesToTheNodeItself(t *testing.T) {
	lab := newFloatingLab(t)
	lab.float(t, 0, floatingTo(floatingOne, lab.members[0].port, fabric.Forward{Protocol: "tcp", Port: 2222, MemberPort: 22}))
	heard := lab.nodes[0].hear(t, "0.0.0.0")
	text, end := token(), token()
	lab.client.tell(t, floatingOne, text)
	lab.client.tell(t, "192.0.2.10", end)
	if heard(text, end) {
		t.Error("a packet for the floating address came to a program of the node")
	}
	lab.nodes[0].serve(t, "node")
	lab.client.mustHear(t, "the node's own address", "192.0.2.10:22", "node sees "+clientAddress)
	lab.client.mustNotHear(t, "the node at the floating address", floatingOne+":22")
}

// TestNobodyOutsideBearsTheAddressOfAMember lets the client send as a member of the network to the floating address.
func TestNobodyOutsideBearsTheAddressOfAMember(t *testing.T) {
	lab := newFloatingLab(t)
	m := lab.members[0]
	lab.float(t, 0, floatingTo(floatingOne, m.port))
	heard := m.hear(t, m.address())
	forged := lab.members[1].address()
	lab.client.run(t, "ip address add "+forged+"/32 dev lo")
	text, end := token(), token()
	lab.client.tellAs(t, forged, floatingOne, text)
	lab.client.tell(t, floatingOne, end)
	if heard(text, end) {
		t.Error("a packet from outside with the address of a member arrived")
	}
}

// tellAs sends a datagram from an address of its own.
func (n namespace) tellAs(t *testing.T, from, to, text string) {
	t.Helper()
	if err := n.Do(func() error {
		conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)}, &net.UDPAddr{IP: net.ParseIP(to), Port: 7777})
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte(text))
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAnOpenConnectionEndsWhenItsAddressIsAnotherMembers(t *testing.T) {
	lab := newFloatingLab(t)
	first, second := lab.members[0], lab.members[1]
	lab.float(t, 0, floatingTo(floatingOne, first.port))
	heard := lab.client.hear(t, internet)
	var conn *net.UDPConn
	if err := first.Do(func() (err error) {
		conn, err = net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.ParseIP(internet), Port: 7777})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	say := func(text string) {
		t.Helper()
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	opened := token()
	say(opened)
	if !heard(opened, opened) || !strings.Contains(lab.tracked(t, 0), "dst="+floatingOne+" ") {
		t.Fatalf("the connection is not known as one of the address:\n%s", lab.tracked(t, 0))
	}
	lab.float(t, 0, floatingTo(floatingOne, second.port))
	for line := range strings.Lines(lab.tracked(t, 0)) {
		if strings.Contains(line, "src="+first.address()+" ") && strings.Contains(line, "dst="+floatingOne+" ") {
			t.Errorf("a connection of the former member is still translated: %s", line)
		}
	}
}

// tracked lists the tracked connections of a node.
func (lab *floatingLab) tracked(t *testing.T, node int) string {
	t.Helper()
	var text []byte
	if err := lab.nodes[node].Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/nf_conntrack")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSecurityGroupsSeeTheAddressOutside restricts the member of a floating address to one address outside.
func TestSecurityGroupsSeeTheAddressOutside(t *testing.T) {
	lab := newFloatingLab(t)
	m := lab.members[0]
	for from, allowed := range map[string]bool{clientAddress: true, "192.0.2.77": false} {
		rule, err := securitygroup.Parse("in tcp 22 from " + from + "/32")
		if err != nil {
			t.Fatal(err)
		}
		lab.networks[0].Groups = []fabric.Group{{ID: "web", Rules: []securitygroup.Rule{rule}, Ports: []string{m.port.ID}, Members: []netip.Addr{m.port.Address}}}
		lab.float(t, 0, floatingTo(floatingOne, m.port))
		if allowed {
			lab.client.mustHear(t, "a client that a rule allows", floatingOne+":22", m.address()+" sees "+clientAddress)
		} else {
			lab.client.mustNotHear(t, "a client that no rule allows", floatingOne+":22")
		}
	}
}

// TestAProjectThatFloodsLeavesOthersConnections lets one project fill its share, whose limit is low here. The other one's networks say the same limit.
func TestAProjectThatFloodsLeavesOthersConnections(t *testing.T) {
	lab := newFloatingLab(t)
	lab.client.serve(t, "client")
	const limit = 50
	flooding, other := lab.networks[0], testNetwork(5, 2)
	flooding.Project, flooding.Connections = "flood", limit
	other.Project, other.Connections, other.Egress = "calm", limit, true
	apply(t, lab.nodes[0].fabric, flooding, other)
	calm := attach(t, lab.nodes[0].fabric, other, 0)
	flood := func(m member, count int) {
		t.Helper()
		if err := m.Do(func() error {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			to := unix.SockaddrInet4{Addr: netip.MustParseAddr(internet).As4()}
			for i := range count {
				to.Port = 20000 + i
				if err := unix.Sendto(fd, []byte("x"), 0, &to); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	flood(lab.members[0], 10*limit)
	if got := strings.Count(lab.tracked(t, 0), "src="+lab.members[0].address()+" "); got > limit+1 || got < limit {
		t.Errorf("the project that floods has %d connections, want its limit of %d", got, limit)
	}
	lab.members[1].mustNotHear(t, "another member of the project that floods", internet+":22")
	calm.mustHear(t, "another project", internet+":22", "client sees 192.0.2.10")
	refused := lab.nodes[0].run(t, "nft list set inet nm refused")
	if !strings.Contains(refused, `"nmbr3" counter packets`) || strings.Contains(refused, `"nmbr5"`) {
		t.Errorf("the node counts as refused:\n%s", refused)
	}
	// Without limits of their own, one project takes as much as it likes.
	flooding.Connections = 0
	apply(t, lab.nodes[0].fabric, flooding, other)
	lab.members[1].mustHear(t, "with the default limit", internet+":22", "client sees 192.0.2.10")
}
