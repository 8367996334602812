package node

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// egressLab is a node with a bridge for an uplink, two machines outside on it, and a management network.
type egressLab struct {
	node           node
	outside, other namespace
	management     namespace
	networks       []fabric.Network // 1 with egress, 2 with egress, 3 without
	members        []member
}

const internet = "203.0.113.1" // beyond the outside machine, whose link has an MTU of 1500 bytes

func newEgressLab(t *testing.T) egressLab {
	t.Helper()
	needRoot(t)
	lab := egressLab{node: newNode(t, Config{Config: plan.Config{Underlay: netip.MustParseAddr("192.0.2.1")}}), outside: newSpace(t), other: newSpace(t), management: newSpace(t)}
	lab.node.run(t, `ip link set lo up; ip link add up0 type bridge mcast_snooping 0; ip link set up0 up; ip address add 192.0.2.1/24 dev up0
		ip link add o1 type veth peer name eth0 netns `+lab.outside.Path()+`; ip link set o1 master up0 up
		ip link add o2 type veth peer name eth0 netns `+lab.other.Path()+`; ip link set o2 master up0 up
		ip link add o3 type veth peer name eth0 netns `+lab.management.Path()+`; ip link set o3 up; ip address add 198.51.100.1/24 dev o3
		ip route add default via 192.0.2.2`)
	lab.outside.run(t, "ip link set lo up; ip link set eth0 up; ip address add 192.0.2.2/24 dev eth0; ip address add "+internet+"/32 dev lo")
	lab.other.run(t, "ip link set lo up; ip link set eth0 up; ip address add 192.0.2.3/24 dev eth0")
	lab.management.run(t, "ip link set lo up; ip link set eth0 up; ip address add 198.51.100.2/24 dev eth0; ip route add default via 198.51.100.1")
	for i := 1; i <= 3; i++ {
		n := testNetwork(i)
		if i == 2 { // a site whose tenants have a pool of their own
			n.Prefix, n.Gateway = netip.MustParsePrefix("172.30.0.0/20"), netip.MustParseAddr("172.30.0.1")
		}
		n.Egress = i < 3
		n.Ports = []fabric.Port{testPort(n, 2), testPort(n, 3)}
		lab.networks = append(lab.networks, n)
	}
	apply(t, lab.node.fabric, lab.networks...)
	for _, n := range lab.networks {
		lab.members = append(lab.members, attach(t, lab.node.fabric, n, 0))
	}
	return lab
}

func TestEgressLetsMembersOut(t *testing.T) {
	lab := newEgressLab(t)
	mustReach(t, lab.members[0].namespace, "the outside", internet)
	mustReach(t, lab.members[1].namespace, "the outside", internet)
	mustNotReach(t, lab.members[2].namespace, "the outside, from a network without egress,", internet)
	lab.members[2].run(t, "ip route add default dev eth0; ip neigh replace "+internet+" lladdr "+plan.GatewayMAC(3)+" nud permanent dev eth0")
	mustNotReach(t, lab.members[2].namespace, "the outside, by force, from a network without egress,", internet)
}

// routes are a member's routes through gateways.
func (m member) routes(t *testing.T) string {
	t.Helper()
	return strings.TrimSpace(m.run(t, "ip -o route | grep via | cut -d' ' -f1-5 || true"))
}

func TestAMembersWayOutIsByTheNetworkOfItsProject(t *testing.T) {
	lab := newEgressLab(t)
	own, project := lab.networks[0], lab.networks[1]
	project.Name = "project/out"
	first, second := testPort(own, 5), testPort(project, 5)
	first.ID, second.ID = "uid.m.1", "uid.m.1+1"
	first.Interface, second.Interface = "eth0", "eth1"
	own.Ports, project.Ports = append(slices.Clone(own.Ports), first), append(slices.Clone(project.Ports), second)
	apply(t, lab.node.fabric, own, project)
	m := member{newSpace(t), first}
	for _, port := range []fabric.Port{first, second} {
		if err := lab.node.fabric.Attach(t.Context(), port, m.place()); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.routes(t); got != "default via 172.30.0.1 dev eth1" {
		t.Errorf("the member's routes are %q, want one by its project's network", got)
	}
	mustReach(t, m.namespace, "the outside", internet)
}

func TestEgressDoesNotLeadToTheNodeTheUnderlayOrOtherNetworks(t *testing.T) {
	lab := newEgressLab(t)
	from := lab.members[0].namespace
	mustNotReach(t, from, "the gateway itself", lab.networks[0].Gateway.String())
	mustNotReach(t, from, "the node's own address", "192.0.2.1")
	mustNotReach(t, from, "the node's management address", "198.51.100.1")
	mustNotReach(t, from, "a machine on the underlay", "192.0.2.3")
	mustNotReach(t, from, "a member of another network", lab.members[1].address())
	mustNotReach(t, from, "the gateway of another network", lab.networks[1].Gateway.String())
}

// TestEgressLeadsToPrivateRangesOnlyWhereTheyAreOpen has a machine outside with addresses of private ranges: nobody's world, but perhaps a site's
// storage or the metadata service of a cloud.
func TestEgressLeadsToPrivateRangesOnlyWhereTheyAreOpen(t *testing.T) {
	lab := newEgressLab(t)
	from := lab.members[0].namespace
	private := []string{"10.20.0.5", "10.20.0.6", "100.64.0.9", "172.16.3.4", "192.168.7.9", "198.19.0.1"}
	for _, a := range private {
		lab.outside.run(t, "ip address add "+a+"/32 dev lo")
		mustNotReach(t, from, "a private address", a)
	}
	if got := from.call("10.20.0.5:22", markerTimeout); !strings.Contains(got, "no route to host") { // EHOSTUNREACH, of administratively prohibited
		t.Errorf("a connection to a private address ends with %q, want it refused at once", got)
	}
	for i := range lab.networks {
		lab.networks[i].Open = []netip.Prefix{netip.MustParsePrefix("10.20.0.5/32"), netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("172.30.0.0/20")}
	}
	apply(t, lab.node.fabric, lab.networks...)
	for i, open := range []bool{true, false, false, false, true, false} {
		if open {
			mustReach(t, from, "a private address that is open", private[i])
		} else {
			mustNotReach(t, from, "a private address", private[i])
		}
	}
	mustNotReach(t, from, "the underlay in an open range", "192.0.2.3")
	mustNotReach(t, from, "a member of another network in an open range", lab.members[1].address())
	mustReach(t, from, "the outside", internet)
}

// tell sends a datagram.
func (n namespace) tell(t *testing.T, address, text string) {
	t.Helper()
	if err := n.Do(func() error {
		conn, err := net.Dial("udp4", net.JoinHostPort(address, "7777"))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte(text))
		return err
	}); err != nil && !errors.Is(err, unix.EPERM) { // EPERM: a rule of the sender's own
		t.Fatal(err)
	}
}

// hear returns a function that tells whether text came to an address before end did.
func (n namespace) hear(t *testing.T, address string) func(text, end string) bool {
	t.Helper()
	var socket net.PacketConn
	if err := n.Do(func() (err error) {
		socket, err = net.ListenPacket("udp4", net.JoinHostPort(address, "7777"))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return func(text, end string) bool {
		t.Helper()
		if err := socket.SetDeadline(time.Now().Add(markerTimeout)); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 1500)
		for heard := false; ; {
			count, _, err := socket.ReadFrom(buffer)
			if err != nil {
				t.Fatal(err)
			}
			heard = heard || string(buffer[:count]) == text
			if string(buffer[:count]) == end {
				return heard
			}
		}
	}
}

func TestNoPacketOfAMemberComesToItsNode(t *testing.T) {
	lab := newEgressLab(t)
	heard := lab.node.hear(t, "192.0.2.1")
	text, end := token(), token()
	lab.members[0].tell(t, "192.0.2.1", text)
	mustReach(t, lab.members[0].namespace, "the outside", internet)
	lab.outside.tell(t, "192.0.2.1", end)
	if heard(text, end) {
		t.Error("a packet of a member came to its node")
	}
}

func TestNobodyOutsideReachesMembers(t *testing.T) {
	lab := newEgressLab(t)
	m := lab.members[0]
	l := m.listen(t, memberLink)
	text := token()
	lab.outside.run(t, "ip route add default via 192.0.2.1")
	lab.outside.tell(t, m.address(), text)
	mustReach(t, m.namespace, "the outside", internet) // comes behind it, on the same way
	second := attach(t, lab.node.fabric, lab.networks[0], 1)
	frame, end := second.marker(m)
	second.send(t, memberLink, frame)
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatal("a permitted frame did not arrive")
	}
	if contains(frames, text) {
		t.Error("a packet from outside that answers nothing arrived")
	}
}

func TestTheNodeDoesNotReachMembers(t *testing.T) {
	lab := newEgressLab(t)
	m := lab.members[0]
	l := m.listen(t, memberLink)
	text := token()
	lab.node.tell(t, m.address(), text)
	second := attach(t, lab.node.fabric, lab.networks[0], 1)
	mustReach(t, m.namespace, "the outside", internet)
	frame, end := second.marker(m)
	second.send(t, memberLink, frame)
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatal("a permitted frame did not arrive")
	}
	if contains(frames, text) {
		t.Error("a packet of the node arrived")
	}
}

func TestForwardingForEgressIsForNothingElse(t *testing.T) {
	lab := newEgressLab(t)
	heard := lab.management.hear(t, "198.51.100.2")
	text, end := token(), token()
	lab.outside.run(t, "ip route add default via 192.0.2.1")
	lab.outside.tell(t, "198.51.100.2", text)
	mustReach(t, lab.outside, "the node", "192.0.2.1")
	lab.node.tell(t, "198.51.100.2", end)
	if heard(text, end) {
		t.Error("a packet from outside came to the management network")
	}
	if got := lab.node.run(t, "cat /proc/sys/net/ipv4/ip_forward /proc/sys/net/ipv4/conf/o3/forwarding"); got != "0\n0\n" {
		t.Errorf("forwarding in general and on the management link: got %q, want off", got)
	}
}

func TestTheUplinkGoesOnBridgingWhenBridgedPacketsPassTheRulesOfIP(t *testing.T) {
	lab := newEgressLab(t)
	if _, err := lab.node.try("echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil {
		needs.Hardware(t, "the kernel has no br_netfilter, which passes bridged packets to the rules of IP")
	}
	mustReach(t, lab.outside, "a neighbour on the bridge that is the node's uplink", "192.0.2.3")
}

func TestAMemberLearnsThatTheOutsideTakesSmallerPackets(t *testing.T) {
	lab := newEgressLab(t)
	m := lab.members[0]
	err := m.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := unix.SockaddrInet4{Port: 9, Addr: netip.MustParseAddr(internet).As4()}
		if err := unix.Connect(fd, &to); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO); err != nil {
			return err
		}
		for deadline := time.Now().Add(markerTimeout); time.Now().Before(deadline); {
			_, err := unix.Write(fd, make([]byte, 5000))
			if errors.Is(err, unix.EMSGSIZE) {
				return nil
			}
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLERR}}
			_, _ = unix.Poll(poll, 100)
		}
		return errors.New("no news of the smaller MTU")
	})
	if err != nil {
		t.Error(err)
	}
}

func TestForwardingIsAsBeforeWhenEgressEnds(t *testing.T) {
	lab := newEgressLab(t)
	forwarding := func() string { return lab.node.run(t, "cat /proc/sys/net/ipv4/conf/up0/forwarding") }
	if got := forwarding(); got != "1\n" {
		t.Fatalf("with egress: got %q", got)
	}
	// Another process of the agent, which has to find what the first one did.
	restarted := newFabric(t, lab.node.namespace, Config{Config: plan.Config{Underlay: netip.MustParseAddr("192.0.2.1")}})
	apply(t, restarted, lab.networks...)
	apply(t, restarted, lab.networks[2])
	if got := forwarding(); got != "0\n" {
		t.Errorf("it was off before, and is %q", got)
	}
	lab.node.run(t, "echo 1 > /proc/sys/net/ipv4/conf/up0/forwarding")
	apply(t, restarted, lab.networks...)
	mustReach(t, attach(t, restarted, lab.networks[0], 0).namespace, "the outside, again,", internet)
	apply(t, restarted)
	if got := forwarding(); got != "1\n" {
		t.Errorf("it was on before, and is %q", got)
	}
}
