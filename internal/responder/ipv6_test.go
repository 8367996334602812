package responder

import (
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

const hosts6 = testHosts + "fd12:3456:789a:1::2\tone-0.one\nfd12:3456:789a:1::4\ttwo-0.two\n"

func TestIPv6AddressesAreAnsweredFromTheHostsFile(t *testing.T) {
	s := testSubnet(func(n *Network) {
		n.Prefix6 = netip.MustParsePrefix("fd12:3456:789a:1::/64")
		n.Members = map[string]Member{"a": {Name: "one-0", Names: NewNames("one", []byte(hosts6), nil)}}
	})
	const zeros = "0.0.0.0.0.0.0.0.0.0.0.0.0.0.0."
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		want string
	}{
		{"one-0.one.nearmetal.internal.", dnsmessage.TypeAAAA, "Success aa fd12:3456:789a:1::2"},
		{"one-0.", dnsmessage.TypeAAAA, "Success aa fd12:3456:789a:1::2"},
		{"one-0.", dnsmessage.TypeA, "Success aa 10.64.16.2"},
		{"one-1.", dnsmessage.TypeAAAA, "Success aa"},
		{"two-0.two.", dnsmessage.TypeAAAA, "Success aa fd12:3456:789a:1::4"},
		{"two.nearmetal.internal.", dnsmessage.TypeAAAA, "Success aa fd12:3456:789a:1::4"},
		{"two-0.two.", dnsmessage.TypeALL, "Success aa fd12:3456:789a:1::4 10.64.128.4"},
		{"2." + zeros + "1.0.0.0.a.9.8.7.6.5.4.3.2.1.d.f.ip6.arpa.", dnsmessage.TypePTR, "Success aa one-0.one.nearmetal.internal."},
		{"9." + zeros + "1.0.0.0.a.9.8.7.6.5.4.3.2.1.d.f.ip6.arpa.", dnsmessage.TypePTR, "NameError aa"},
		{"9." + zeros + "2.0.0.0.a.9.8.7.6.5.4.3.2.1.d.f.ip6.arpa.", dnsmessage.TypePTR, "Refused"},
		{"9.ip6.arpa.", dnsmessage.TypePTR, "Refused"},
	} {
		reply, outside := s.dns(s.ports[macOfOne], asked(t, c.name, c.kind, 0))
		if outside != nil {
			t.Errorf("%s %v is asked of other servers", c.name, c.kind)
			continue
		}
		if got := text(t, reply); got != c.want {
			t.Errorf("%s %v: got %s, want %s", c.name, c.kind, got, c.want)
		}
	}
}
