package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// multicastLab is a network on two nodes, whose bridges have asked their ports: member 0 on the first node, 1 and 2 on the second.
type multicastLab struct{ underlayLab }

// What is sent to this group has this Ethernet address (RFC 1112, section 6.4).
var (
	testGroup    = netip.MustParseAddr("239.1.2.3")
	testGroupMAC = net.HardwareAddr{0x01, 0x00, 0x5e, 0x01, 0x02, 0x03}
)

func newMulticastLab(t *testing.T) multicastLab {
	t.Helper()
	lab := multicastLab{newUnderlayLab(t, false)}
	second := &lab.networks[1]
	second.Ports = append(second.Ports, testPort(*second, 4))
	lab.networks[0].Remotes = behind(lab.networks[0], underlayAddress(1), 3, 4)
	for i := range lab.nodes {
		apply(t, lab.nodes[i].fabric, lab.networks[i])
	}
	lab.members = append(lab.members, attach(t, lab.nodes[1].fabric, *second, 1))
	// A bridge floods until answers to its first question are due, 10 s by default. With a shorter time, asking begins anew.
	for i := range lab.nodes {
		lab.nodes[i].run(t, "ip link set nmbr3 type bridge mcast_query_response_interval 1 mcast_querier 0")
		apply(t, lab.nodes[i].fabric, lab.networks[i])
	}
	return lab
}

// join lets a member join the group, and returns when its node's bridge knows.
func (lab multicastLab) join(t *testing.T, node, m int) {
	t.Helper()
	if err := lab.members[m].Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		request := &unix.IPMreqn{Multiaddr: testGroup.As4()}
		link, err := net.InterfaceByName(memberLink)
		if err != nil {
			return err
		}
		request.Ifindex = int32(link.Index)
		return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, request)
	}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the bridge knows who asked for the group", func() bool {
		return strings.Contains(lab.nodes[node].run(t, "bridge mdb show"), testGroup.String())
	})
}

// toGroup is a packet of a member to the group.
func toGroup(m member, text string) []byte {
	packet := udpPacket(netip.AddrPortFrom(m.port.Address, 9), netip.AddrPortFrom(testGroup, 9), []byte(text))
	return ethernetFrame(testGroupMAC, m.mac(), etherIPv4, packet)
}

func TestMulticastReachesMembersOnAnotherNodeThatAskedForItAndNoOthers(t *testing.T) {
	lab := newMulticastLab(t)
	sender, asks, other := lab.members[0], lab.members[1], lab.members[2]
	lab.join(t, 1, 1)
	// The bridge takes its own questions for answered after the response interval, here 10 ms. Until then it floods.
	waitFor(t, "the bridge no longer floods", func() bool {
		text, l := token(), other.listen(t, memberLink)
		sender.send(t, memberLink, toGroup(sender, text))
		permitted, end := sender.marker(other)
		sender.send(t, memberLink, permitted)
		frames, ok := l.until(end, markerTimeout)
		return ok && !contains(frames, text)
	})
	text := token()
	mustArrive(t, sender, asks, "multicast that the member asked for", toGroup(sender, text), text)
	text = token()
	mustNotArrive(t, sender, other, "multicast that the member did not ask for", toGroup(sender, text), text)
}

// waitFor repeats a look that takes its own time until it is true.
func waitFor(t *testing.T, what string, look func() bool) {
	t.Helper()
	for deadline := time.Now().Add(markerTimeout); !look(); {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come about that %s", what)
		}
	}
}

// routerPacket is an IPv4 packet with the option router alert (RFC 2113) of this protocol.
func routerPacket(from, to netip.Addr, protocol byte, payload []byte) []byte {
	b := []byte{0x46, 0xc0, 0, 0, 0, 0, 0, 0, 1, protocol, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(24+len(payload)))
	b = append(append(b, from.AsSlice()...), to.AsSlice()...)
	b = append(b, 0x94, 4, 0, 0)
	binary.BigEndian.PutUint16(b[10:], checksum(b))
	return append(b, payload...)
}

// A member that passed for a multicast router would get all multicast of its network.
func TestAMemberCannotPassForAMulticastRouter(t *testing.T) {
	allSystems, allPIM := netip.MustParseAddr("224.0.0.1"), netip.MustParseAddr("224.0.0.13")
	query := []byte{0x11, 100, 0, 0, 0, 0, 0, 0} // RFC 2236
	binary.BigEndian.PutUint16(query[2:], checksum(query))
	hello := []byte{0x20, 0, 0, 0, 0, 1, 0, 2, 0, 105} // RFC 7761, section 4.9.2: a holdtime of 105 s
	binary.BigEndian.PutUint16(hello[2:], checksum(hello))
	const igmp, pim = 2, 103
	for what, frame := range map[string]func(m member) []byte{
		"a question for groups": func(m member) []byte {
			return ethernetFrame(net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}, m.mac(), etherIPv4, routerPacket(m.port.Address, allSystems, igmp, query))
		},
		"a greeting of a router": func(m member) []byte {
			return ethernetFrame(net.HardwareAddr{1, 0, 0x5e, 0, 0, 13}, m.mac(), etherIPv4, routerPacket(m.port.Address, allPIM, pim, hello))
		},
	} {
		t.Run(what, func(t *testing.T) {
			lab := newPairLab(t)
			routers := func() string {
				lab.a.send(t, memberLink, frame(lab.a))
				text := token()
				permitted := ethernetFrame(lab.b.mac(), lab.a.mac(), etherIPv4,
					udpPacket(netip.AddrPortFrom(lab.a.port.Address, 9), netip.AddrPortFrom(lab.b.port.Address, 9), []byte(text)))
				mustArrive(t, lab.a, lab.b, "a packet behind it", permitted, text)
				return lab.node.run(t, "bridge -d mdb show")
			}
			port := plan.PortName(lab.a.port.ID)
			if seen := routers(); strings.Contains(seen, "router ports") {
				t.Errorf("the member's port is a router's:\n%s", seen)
			}
			lab.node.run(t, "nft flush chain bridge nm group")
			if seen := routers(); !strings.Contains(seen, port) {
				t.Errorf("without the guard, the member's port should be a router's:\n%s", seen)
			}
			apply(t, lab.node.fabric, lab.network)
		})
	}
}

// A port with security groups has to hear the questions of its bridge: what it asked for would otherwise end after minutes.
func TestAPortWithSecurityGroupsHearsTheQuestionsOfItsBridge(t *testing.T) {
	lab := newGuardLab(t, 2)
	lab.guard(t, lab.group(t, "closed", []int{0}))
	l := lab.members[0].listen(t, memberLink)
	lab.node.run(t, "ip link set nmbr1 type bridge mcast_querier 0")
	apply(t, lab.node.fabric, lab.network) // it asks anew
	allSystems := string([]byte{224, 0, 0, 1})
	if _, ok := l.until(allSystems, markerTimeout); !ok {
		t.Error("no question arrived")
	}
}

// Programs find each other by multicast: Eclipse Cyclone DDS, without any configuration of peers.
func TestDDSParticipantsOnTwoNodesDiscoverEachOther(t *testing.T) {
	needs.Program(t, "ddsperf")
	lab := newUnderlayLab(t, false)
	configuration := fmt.Sprintf("CYCLONEDDS_URI=<General><Interfaces><NetworkInterface name=%q/></Interfaces></General>", memberLink)
	ctx, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	perf := func(m member, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "ddsperf", args...)
		cmd.Env = append(cmd.Environ(), configuration)
		return cmd
	}
	pong := perf(lab.members[1], "-D", "60", "pong")
	if err := lab.members[1].Do(pong.Start); err != nil {
		t.Fatal(err)
	}
	defer pong.Wait() //nolint:errcheck // it is killed
	defer pong.Process.Kill()
	var out []byte
	err := lab.members[0].Do(func() (err error) {
		out, err = perf(lab.members[0], "-D", "3", "-Q", "minmatch:1", "-Q", "initwait:30", "-Q", "roundtrips:10", "ping").CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("ddsperf: %v\n%s", err, out)
	}
	t.Logf("%s", out)
}
