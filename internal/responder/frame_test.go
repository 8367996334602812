package responder

import (
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/dns/dnsmessage"
)

// frameOf is a datagram in a frame to the gateway.
func frameOf(s *subnet, mac string, source, target string, payload []byte) []byte {
	hw, _ := net.ParseMAC(mac)
	from := *s
	from.mac, from.Gateway = hw, netip.MustParseAddrPort(source).Addr()
	return from.packet(question{mac: s.mac}, netip.MustParseAddrPort(source).Port(), netip.MustParseAddrPort(target), payload)
}

func TestOnlyAMembersOwnQuestionsAreRead(t *testing.T) {
	s := testSubnet(nil)
	query := asked(t, "one-0.", dnsmessage.TypeA, 0)
	discover := message(macOfOne, dhcpv4.MessageTypeDiscover)
	arp := func(sender, target string) []byte {
		q := question{mac: s.mac}
		q.port.Address = netip.MustParseAddr(target)
		from := *s
		from.mac, _ = net.ParseMAC(macOfOne)
		from.Gateway = netip.MustParseAddr(sender)
		frame := from.arpReply(q)
		frame[etherBytes+7] = 1
		return frame
	}
	dns := frameOf(s, macOfOne, "10.64.16.2:999", "10.64.16.1:53", query)
	later := append([]byte{}, dns...)
	later[etherBytes+7] = 9
	for what, c := range map[string]struct {
		frame []byte
		want  bool
	}{
		"a DNS question":                        {dns, true},
		"a DNS question in the name of another": {frameOf(s, macOfOne, "10.64.16.3:999", "10.64.16.1:53", query), false},
		"a DNS question without an address":     {frameOf(s, macOfOne, "0.0.0.0:999", "10.64.16.1:53", query), false},
		"a DNS question to another address":     {frameOf(s, macOfOne, "10.64.16.2:999", "10.64.16.3:53", query), false},
		"a DNS question of a stranger":          {frameOf(s, "02:00:00:00:00:99", "10.64.16.2:999", "10.64.16.1:53", query), false},
		"a fragment":                            {later, false},
		"half a frame":                          {dns[:40], false},
		"a DHCP message without an address":     {frameOf(s, macOfOne, "0.0.0.0:68", "255.255.255.255:67", discover), true},
		"a DHCP message in the name of another": {frameOf(s, macOfOne, "10.64.16.3:68", "255.255.255.255:67", discover), false},
		"an ARP request for the gateway":        {arp("10.64.16.2", "10.64.16.1"), true},
		"an ARP request for a member":           {arp("10.64.16.2", "10.64.16.3"), false},
		"an ARP request in the name of another": {arp("10.64.16.3", "10.64.16.1"), false},
	} {
		q, ok := s.read(c.frame)
		var reply []byte
		if ok {
			reply, _ = s.answer(q)
		}
		if got := reply != nil; got != c.want {
			t.Errorf("%s is answered: %t, want %t", what, got, c.want)
		}
	}
}

// FuzzRead has the responder read whatever a member sends.
func FuzzRead(f *testing.F) {
	s := testSubnet(nil)
	f.Add(frameOf(s, macOfOne, "10.64.16.2:999", "10.64.16.1:53", asked(f, "one.nearmetal.internal.", dnsmessage.TypeA, 1232)))
	f.Add(frameOf(s, macOfOne, "0.0.0.0:68", "255.255.255.255:67", message(macOfOne, dhcpv4.MessageTypeDiscover)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		q, ok := s.read(frame)
		if !ok {
			return
		}
		reply, outside := s.answer(q)
		if outside != nil {
			t.Fatal("a question was for other servers, of which there are none")
		}
		if reply != nil && (string(reply[:6]) != string(frame[6:12]) || len(reply) > 1514) {
			t.Fatalf("the answer goes to %x and has %d bytes", reply[:6], len(reply))
		}
	})
}
