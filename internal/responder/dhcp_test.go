package responder

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

const (
	macOfOne = "02:6e:00:01:00:02"
	macOfTwo = "02:6e:00:01:00:03"
)

// testHosts is a hosts file as package contextualization renders it.
const testHosts = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n10.64.16.2\tone-0\n10.64.16.3\tone-1\n10.64.128.4\ttwo-0.two\n" +
	"10.20.0.5\tlicence\t# record\n10.20.0.6\tlicence\t# record\n10.20.0.7\tdb.lab\t# record\n10.64.16.3\tfirst.lab\t# record\n"

func testNetwork() Network {
	n := Network{Network: fabric.Network{
		Network: api.Network{Index: 1, Prefix: netip.MustParsePrefix("10.64.16.0/20"), Gateway: netip.MustParseAddr("10.64.16.1")},
		Ports: []fabric.Port{
			{ID: "a", Address: netip.MustParseAddr("10.64.16.2"), MAC: macOfOne}, {ID: "b", Address: netip.MustParseAddr("10.64.16.3"), MAC: macOfTwo},
		},
	}}
	names := NewNames("one", []byte(testHosts), nil)
	n.Members = map[string]Member{"a": {Name: "one-0", Names: names}, "b": {Name: "one-1", Names: names}}
	return n
}

func testSubnet(change func(*Network)) *subnet {
	n := testNetwork()
	if change != nil {
		change(&n)
	}
	s := newSubnet(n)
	s.mtu = 1450
	return s
}

// message is a client's.
func message(mac string, kind dhcpv4.MessageType, change ...dhcpv4.Modifier) []byte {
	hw, _ := net.ParseMAC(mac)
	m, _ := dhcpv4.New(slices.Concat([]dhcpv4.Modifier{dhcpv4.WithHwAddr(hw), dhcpv4.WithMessageType(kind)}, change)...)
	return m.ToBytes()
}

func requested(a string) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(a)))
}

func server(a string) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.ParseIP(a)))
}

// has makes a message that of a client with an address.
func has(a string) dhcpv4.Modifier { return dhcpv4.WithClientIP(net.ParseIP(a)) }

func TestMembersGetTheirOwnAddressAndNoOther(t *testing.T) {
	const offer, ack, nak = dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak
	relayed := func(m *dhcpv4.DHCPv4) { m.GatewayIPAddr = net.IPv4(10, 64, 16, 3) }
	broadcast := func(m *dhcpv4.DHCPv4) { m.SetBroadcast() }
	for what, c := range map[string]struct {
		message []byte
		kind    dhcpv4.MessageType // none: no answer
		yours   string
		to      string
	}{
		"a client that looks for a server":                 {message(macOfOne, dhcpv4.MessageTypeDiscover), offer, "10.64.16.2", "10.64.16.2"},
		"a client that wants a broadcast answer":           {message(macOfOne, dhcpv4.MessageTypeDiscover, broadcast), offer, "10.64.16.2", "255.255.255.255"},
		"a client that looks for another address":          {message(macOfOne, dhcpv4.MessageTypeDiscover, requested("10.64.16.9")), offer, "10.64.16.2", "10.64.16.2"},
		"a client that selects the offer":                  {message(macOfOne, dhcpv4.MessageTypeRequest, requested("10.64.16.2"), server("10.64.16.1")), ack, "10.64.16.2", "10.64.16.2"},
		"a client that selects another server":             {message(macOfOne, dhcpv4.MessageTypeRequest, requested("10.64.16.2"), server("10.64.16.3")), 0, "", ""},
		"a client that selects another address":            {message(macOfOne, dhcpv4.MessageTypeRequest, requested("10.64.16.3"), server("10.64.16.1")), nak, "0.0.0.0", "255.255.255.255"},
		"a client that has rebooted":                       {message(macOfTwo, dhcpv4.MessageTypeRequest, requested("10.64.16.3")), ack, "10.64.16.3", "10.64.16.3"},
		"a client that has rebooted with a former address": {message(macOfTwo, dhcpv4.MessageTypeRequest, requested("10.64.16.8")), nak, "0.0.0.0", "255.255.255.255"},
		"a client that renews":                             {message(macOfOne, dhcpv4.MessageTypeRequest, has("10.64.16.2")), ack, "10.64.16.2", "10.64.16.2"},
		"a client that renews an address of another":       {message(macOfOne, dhcpv4.MessageTypeRequest, has("10.64.16.3")), nak, "0.0.0.0", "255.255.255.255"},
		"a client that names no address":                   {message(macOfOne, dhcpv4.MessageTypeRequest), nak, "0.0.0.0", "255.255.255.255"},
		"a client with an address of its own":              {message(macOfOne, dhcpv4.MessageTypeInform, has("10.64.16.2")), ack, "0.0.0.0", "10.64.16.2"},
		"a client with an address of another":              {message(macOfOne, dhcpv4.MessageTypeInform, has("10.64.16.3")), 0, "", ""},
		"a client that releases its address":               {message(macOfOne, dhcpv4.MessageTypeRelease, has("10.64.16.2")), 0, "", ""},
		"a client that declines its address":               {message(macOfOne, dhcpv4.MessageTypeDecline, requested("10.64.16.2")), 0, "", ""},
		"a relay":                                          {message(macOfOne, dhcpv4.MessageTypeDiscover, relayed), 0, "", ""},
		"a message without a type, as of BOOTP":            {message(macOfOne, dhcpv4.MessageTypeNone), 0, "", ""},
		"bytes that are no message":                        {[]byte("no message"), 0, "", ""},
	} {
		s := testSubnet(nil)
		mac := macOfOne
		if strings.Contains(what, "rebooted") {
			mac = macOfTwo
		}
		to, raw := s.dhcp(s.ports[mac], c.message)
		if c.kind == 0 {
			if raw != nil {
				t.Errorf("%s gets an answer", what)
			}
			continue
		}
		reply, err := dhcpv4.FromBytes(raw)
		if err != nil {
			t.Errorf("%s gets an answer that can't be read: %v", what, err)
			continue
		}
		if reply.MessageType() != c.kind || reply.YourIPAddr.String() != c.yours || to.String() != c.to {
			t.Errorf("%s gets %v of %v to %v, want %v of %s to %s", what, reply.MessageType(), reply.YourIPAddr, to, c.kind, c.yours, c.to)
		}
		if id := reply.ServerIdentifier().String(); id != "10.64.16.1" {
			t.Errorf("%s hears of the server %s, want the gateway", what, id)
		}
	}
}

func TestAMemberDoesNotAskForAnother(t *testing.T) {
	s := testSubnet(nil)
	if _, reply := s.dhcp(s.ports[macOfOne], message(macOfTwo, dhcpv4.MessageTypeDiscover)); reply != nil {
		t.Error("a member got an answer to a message in the name of another")
	}
}

func TestALeaseNamesTheNetworkAndARouterOnlyWhereThereIsAWayOut(t *testing.T) {
	for _, egress := range []bool{false, true} {
		s := testSubnet(func(n *Network) { n.Egress = egress })
		p := s.ports[macOfOne]
		classless := "\x0a\x0a\x40\x0a\x40\x10\x01" // RFC 3442: the prefix's length, its octets, the router
		p.Routes = []netip.Prefix{netip.MustParsePrefix("10.64.0.0/10")}
		if egress {
			p.Routes = append(p.Routes, netip.MustParsePrefix("0.0.0.0/0"))
			classless += "\x00\x0a\x40\x10\x01"
		}
		s.ports[macOfOne] = p
		_, raw := s.dhcp(s.ports[macOfOne], message(macOfOne, dhcpv4.MessageTypeDiscover))
		reply, err := dhcpv4.FromBytes(raw)
		if err != nil {
			t.Fatal(err)
		}
		if routes := reply.Options.Get(dhcpv4.OptionClasslessStaticRoute); string(routes) != classless {
			t.Errorf("egress %t: classless routes %x, want %x", egress, routes, classless)
		}
		if mask := net.IP(reply.SubnetMask()).String(); mask != "255.255.240.0" {
			t.Errorf("mask %s, want that of /20", mask)
		}
		if mtu := reply.Options.Get(dhcpv4.OptionInterfaceMTU); string(mtu) != "\x05\xaa" {
			t.Errorf("MTU %x, want 1450", mtu)
		}
		if dns := reply.DNS(); len(dns) != 1 || dns[0].String() != "10.64.16.1" {
			t.Errorf("DNS servers %v, want the gateway", dns)
		}
		if router := reply.Router(); (len(router) == 1 && router[0].String() == "10.64.16.1") != egress {
			t.Errorf("egress %t: routers %v", egress, router)
		}
		if got := reply.DomainName() + " " + reply.HostName(); got != "one.nearmetal.internal one-0" {
			t.Errorf("domain and name %q", got)
		}
		if search := reply.DomainSearch(); search == nil || !slices.Equal(search.Labels, []string{"one.nearmetal.internal", "nearmetal.internal"}) {
			t.Errorf("search list %v", search)
		}
		if lease := reply.IPAddressLeaseTime(0); lease < 12*time.Hour {
			t.Errorf("lease of %v: a member has to outlast an agent that is down", lease)
		}
	}
}
