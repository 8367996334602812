package node

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

var (
	testGroup6    = netip.MustParseAddr("ff05::1:3")
	testGroup6MAC = net.HardwareAddr{0x33, 0x33, 0, 1, 0, 3}
)

func TestIPv6MulticastReachesMembersThatAskedForItAndNoOthers(t *testing.T) {
	lab := newPinsLab6(t, false, false)
	// A bridge asks anew, and believes what it hears after the response interval, here 10 ms. Until then it floods.
	for i := range lab.nodes {
		lab.nodes[i].run(t, "ip link set nmbr3 type bridge mcast_query_response_interval 1 mcast_querier 0")
		apply(t, lab.nodes[i].fabric, lab.networks[i])
	}
	sender, asks, other := lab.members[0], lab.members[2], lab.members[3]
	if err := asks.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		link, err := net.InterfaceByName(memberLink)
		if err != nil {
			return err
		}
		return unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: testGroup6.As16(), Interface: uint32(link.Index)})
	}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the bridge knows who asked for the group", func() bool {
		return strings.Contains(lab.nodes[1].run(t, "bridge mdb show"), testGroup6.String())
	})
	from := netip.AddrPortFrom(sender.address6(lab.networks[0]), 9)
	frame := func(text string) []byte {
		return ethernetFrame(testGroup6MAC, sender.mac(), etherIPv6, udp6Packet(from, netip.AddrPortFrom(testGroup6, 9), []byte(text)))
	}
	waitFor(t, "the bridge no longer floods", func() bool {
		text, l := token(), other.listen(t, memberLink)
		sender.send(t, memberLink, frame(text))
		permitted, end := sender.marker(other)
		sender.send(t, memberLink, permitted)
		frames, ok := l.until(end, markerTimeout)
		return ok && !contains(frames, text)
	})
	text := token()
	mustArrive(t, sender, asks, "multicast that the member asked for", frame(text), text)
	text = token()
	mustNotArrive(t, sender, other, "multicast that the member did not ask for", frame(text), text)
	// Neighbour discovery is multicast, too: members asked for its groups when they were attached.
	sender.run(t, "ip -6 neigh flush dev eth0")
	for _, m := range lab.members[1:] {
		if !sender.reaches6(m.address6(lab.networks[0]), "", markerTimeout) {
			t.Errorf("%v does not answer once bridges no longer flood", m.address6(lab.networks[0]))
		}
	}
}

// A port with security groups hears the bridge's questions by IPv6 as well.
func TestAPortWithSecurityGroupsHearsTheQuestionsOfItsBridgeByIPv6(t *testing.T) {
	lab := newGuardLab6(t, 2)
	lab.guard(t, lab.group(t, "closed", []int{0}))
	l := lab.members[0].listen(t, memberLink)
	lab.node.run(t, "ip link set nmbr1 type bridge mcast_querier 0")
	apply(t, lab.node.fabric, lab.network) // it asks anew
	question := string([]byte{0x33, 0x33, 0, 0, 0, 1}) + string(must(net.ParseMAC("06:6e:6d:00:01:01"))) + "\x86\xdd"
	if _, ok := l.until(question, markerTimeout); !ok {
		t.Error("no question arrived")
	}
}
