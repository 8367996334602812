package securitygroup

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestARuleIsWrittenAsItIsRead(t *testing.T) {
	for _, text := range []string{
		"in tcp 22 from 10.1.0.0/16",
		"in udp 5000-5100 from group workers",
		"in udp from 0.0.0.0/0",
		"in icmp 8 from 192.0.2.1/32",
		"in any from group web",
		"in tcp 22 from fd12:3456:789a:1::/64",
		"in icmp6 128 from ::/0",
		"out any to 10.2.0.0/16",
		"out tcp 0-1023 to group web",
	} {
		r, err := Parse(text)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := r.String(); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
}

func TestARuleThatMakesNoSenseIsRefusedWithItsReason(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "not complete"},
		{"in tcp 22", "not complete"},
		{"into tcp 22 from 10.1.0.0/16", `direction "into" is neither in nor out`},
		{"in sctp 22 from 10.1.0.0/16", `protocol "sctp" is not one of`},
		{"in tcp 22 to 10.1.0.0/16", `needs the word "from"`},
		{"out tcp 22 from 10.1.0.0/16", `needs the word "to"`},
		{"in tcp ssh from 10.1.0.0/16", `"ssh" is no port or range`},
		{"in tcp 65536 from 10.1.0.0/16", `"65536" is no port or range`},
		{"in tcp 80- from 10.1.0.0/16", `"80-" is no port or range`},
		{"in tcp 90-80 from 10.1.0.0/16", "range 90-80 ends before it begins"},
		{"in icmp 256 from 10.1.0.0/16", "icmp types end at 255, not at 256"},
		{"in any 80 from 10.1.0.0/16", "has no ports"},
		{"in tcp 80 from 10.1.0.0", `"10.1.0.0" is not a prefix`},
		{"in tcp 80 from 10.1.0.1/16", "has host bits; the prefix is 10.1.0.0/16"},
		{"in tcp 80 from ::ffff:10.0.0.0/104", "is neither an IPv4 prefix nor an IPv6 prefix"},
		{"in icmp 8 from fd00::/8", "write icmp6"},
		{"in icmp6 128 from 10.0.0.0/8", "write icmp"},
		{"in icmp6 256 from fd00::/8", "icmp6 types end at 255, not at 256"},
		{"in tcp 80 from fd00::1/8", "has host bits; the prefix is fd00::/8"},
		{"in tcp 80 from group", `"group" is not a prefix`},
		{"in tcp 80 from group web db", "neither a prefix nor a group"},
	} {
		if _, err := Parse(tt.text); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want an error with %q", tt.text, err, tt.want)
		}
	}
}

func parseAll(t testing.TB, texts ...string) []Rule {
	t.Helper()
	var rules []Rule
	for _, text := range texts {
		r, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	return rules
}

func TestARuleThatAnotherCoversIsRefused(t *testing.T) {
	for _, tt := range []struct {
		rules []string
		want  string // part of the error, "" for none
	}{
		{[]string{"in tcp 80 from 10.1.0.0/16", "in tcp 80 from 10.1.0.0/16"}, "covers it"},
		{[]string{"in tcp 80 from 10.1.0.0/16", "in tcp 80-90 from 10.1.0.0/16"}, "rule 1 (in tcp 80 from 10.1.0.0/16) changes nothing"},
		{[]string{"in tcp from 10.0.0.0/8", "in tcp 80 from 10.1.0.0/16"}, "rule 2 (in tcp 80 from 10.1.0.0/16) changes nothing"},
		{[]string{"in any from 10.0.0.0/8", "in icmp from 10.1.0.0/16"}, "covers it"},
		{[]string{"in any from group web", "in icmp from group web"}, "covers it"},
		{[]string{"in any from group web", "in icmp from group db"}, ""},
		{[]string{"in any from 10.0.0.0/8", "out any to 10.0.0.0/8"}, ""},
		{[]string{"in tcp 80 from 10.0.0.0/8", "in udp 80 from 10.0.0.0/8"}, ""},
		{[]string{"in tcp 80 from ::/0", "in tcp 80 from 10.0.0.0/8"}, ""},
		{[]string{"in any from 0.0.0.0/0", "in tcp 80 from fd00::/8"}, ""},
		{[]string{"in tcp 80 from ::/0", "in tcp 80 from fd00::/8"}, "covers it"},
		{[]string{"in tcp 80-90 from 10.0.0.0/8", "in tcp 85-95 from 10.1.0.0/16"}, ""},
	} {
		err := Validate(parseAll(t, tt.rules...))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: got %v, want an error with %q", tt.rules, err, tt.want)
		}
	}
}

// drawRules draws rules by prefixes that lie next to and within each other.
func drawRules(t *rapid.T) []Rule {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Rule {
		bits := rapid.SampledFrom([]int{0, 1, 28, 29, 30, 31, 32}).Draw(t, "bits")
		last := rapid.SampledFrom([]byte{0, 3, 4, 7, 8, 255}).Draw(t, "address")
		first := rapid.SampledFrom([]byte{0, 10, 255}).Draw(t, "first byte")
		prefix, protocols := netip.PrefixFrom(netip.AddrFrom4([4]byte{first, first, first, last}), bits).Masked(), []Protocol{TCP, UDP, ICMP, Any}
		if rapid.Bool().Draw(t, "IPv6") {
			six := bytes.Repeat([]byte{first}, 16)
			six[15] = last
			prefix, protocols = netip.PrefixFrom(netip.AddrFrom16([16]byte(six)), bits*4).Masked(), []Protocol{TCP, UDP, ICMP6, Any}
		}
		r := Rule{Direction: In, Protocol: rapid.SampledFrom(protocols).Draw(t, "protocol"), Prefix: prefix}
		r.Ports.Last = r.Protocol.last()
		if r.Protocol != Any {
			r.Ports.First = rapid.Uint16Range(0, 5).Draw(t, "first port")
			r.Ports.Last = rapid.SampledFrom([]uint16{r.Ports.First, 5, 6, r.Protocol.last()}).Draw(t, "last port")
		}
		return r
	}), 0, 8).Draw(t, "rules")
}

func TestBoxesHoldWhatTheRulesAllowAndDoNotOverlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rules := drawRules(t)
		boxes := append(Boxes(rules, In, IPv4), Boxes(rules, In, IPv6)...)
		anything := append(Anything(rules, In, IPv4), Anything(rules, In, IPv6)...)
		for _, a := range []netip.Addr{
			netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("0.0.0.4"), netip.MustParseAddr("10.10.10.3"), netip.MustParseAddr("10.10.10.4"),
			netip.MustParseAddr("10.10.10.9"), netip.MustParseAddr("127.255.255.255"), netip.MustParseAddr("128.0.0.0"), netip.MustParseAddr("255.255.255.255"),
			netip.MustParseAddr("::"), netip.MustParseAddr("::4"), netip.MustParseAddr("a0a:a0a:a0a:a0a:a0a:a0a:a0a:a03"),
			netip.MustParseAddr("a0a:a0a:a0a:a0a:a0a:a0a:a0a:a07"), netip.MustParseAddr("a0a:a0a:a0a:a0a:a0a:a0a:a0b::"),
			netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
		} {
			in := func(r Addresses) bool { return r.First.Is4() == a.Is4() && !a.Less(r.First) && !r.Last.Less(a) }
			within := 0
			for _, r := range anything {
				if in(r) {
					within++
				}
			}
			compareHits(t, "any", within, rules, func(r Rule) bool { return r.Protocol == Any && r.Prefix.Contains(a) })
			for _, p := range []Protocol{TCP, UDP, ICMP, ICMP6} {
				number, _ := p.Number()
				for _, port := range []uint16{0, 3, 5, 6, 7, 255, 256, 65535} {
					within := 0
					for _, b := range boxes {
						if b.Protocol == number && in(b.Addresses) && b.Ports.First <= port && port <= b.Ports.Last {
							within++
						}
					}
					compareHits(t, p, within, rules, func(r Rule) bool {
						return r.Protocol == p && r.Prefix.Contains(a) && r.Ports.First <= port && port <= r.Ports.Last
					})
				}
			}
		}
	})
}

// compareHits reports a packet that is in none or in several ranges though rules allow it, or in one though none does.
func compareHits(t *rapid.T, what Protocol, within int, rules []Rule, allows func(Rule) bool) {
	want := 0
	for _, r := range rules {
		if allows(r) {
			want = 1
		}
	}
	if within != want {
		t.Fatalf("%s: a packet is in %d ranges, want %d, by %v", what, within, want, rules)
	}
}

func TestRangesOfAGroupAreMerged(t *testing.T) {
	rules := parseAll(t, "in tcp 80-90 from group web", "in tcp 85-99 from group web", "in tcp 100 from group web", "in tcp 22 from group web",
		"in tcp 1 from group db", "in udp 2 from group web", "out tcp 3 to group web")
	got := Ranges(rules, In, "web", TCP)
	if len(got) != 2 || got[0] != (Range{22, 22}) || got[1] != (Range{80, 100}) {
		t.Errorf("got %v, want 22 and 80-100", got)
	}
}
