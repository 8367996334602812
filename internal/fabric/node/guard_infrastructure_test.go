package node

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// Security groups allow what members do among themselves. No rule makes a member a DHCP server or a multicast router.
func TestNoSecurityGroupLetsAMemberPassForInfrastructure(t *testing.T) {
	for what, rules := range map[string][]string{
		"an open port":       {"in udp 67 from 0.0.0.0/0"},
		"a restricted port":  {"in udp 67 from 0.0.0.0/0", "out any to 0.0.0.0/0"},
		"a port for anybody": {"in any from 0.0.0.0/0"},
	} {
		t.Run(what, func(t *testing.T) {
			lab := newGuardLab(t, 2)
			lab.guard(t, lab.group(t, "some", []int{0}, rules...))
			lab.mustPass(t, "a request", udp(1, 0, 70, 67))
			lab.mustStop(t, "an answer as of a DHCP server", udp(0, 1, 67, 68))
			lab.mustPass(t, "another packet", udp(0, 1, 69, 68))
			query := []byte{0x11, 100, 0, 0, 0, 0, 0, 0} // IGMP (RFC 2236)
			binary.BigEndian.PutUint16(query[2:], checksum(query))
			m := lab.members[0]
			packet := routerPacket(m.port.Address, netip.MustParseAddr("224.0.0.1"), 2, query)
			m.send(t, memberLink, ethernetFrame(net.HardwareAddr{1, 0, 0x5e, 0, 0, 1}, m.mac(), etherIPv4, packet))
			lab.mustPass(t, "a packet behind it", udp(0, 1, 9, 9))
			if seen := lab.node.run(t, "bridge -d mdb show"); strings.Contains(seen, "router ports") {
				t.Errorf("the member's port is a router's:\n%s", seen)
			}
		})
	}
}
