package responder

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// asked is a query for a name; edns is the size that it allows, 0 for no EDNS.
func asked(t testing.TB, name string, kind dnsmessage.Type, edns int) []byte {
	t.Helper()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: 7, RecursionDesired: true})
	q, err := dnsmessage.NewName(name)
	if err != nil {
		t.Fatal(err)
	}
	_ = b.StartQuestions()
	_ = b.Question(dnsmessage.Question{Name: q, Type: kind, Class: dnsmessage.ClassINET})
	if edns > 0 {
		_ = b.StartAdditionals()
		var h dnsmessage.ResourceHeader
		_ = h.SetEDNS0(edns, 0, false)
		_ = b.OPTResource(h, dnsmessage.OPTResource{})
	}
	raw, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// text is an answer as one line.
func text(t testing.TB, raw []byte) string {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(raw); err != nil {
		t.Fatalf("the answer can't be read: %v", err)
	}
	if !m.Response || m.ID != 7 {
		t.Errorf("the answer is none to this question: %+v", m.Header)
	}
	parts := []string{strings.TrimPrefix(m.RCode.String(), "RCode")}
	if m.Authoritative {
		parts = append(parts, "aa")
	}
	for _, r := range m.Answers {
		switch body := r.Body.(type) {
		case *dnsmessage.AResource:
			parts = append(parts, netip.AddrFrom4(body.A).String())
		case *dnsmessage.PTRResource:
			parts = append(parts, body.PTR.String())
		case *dnsmessage.AAAAResource:
			parts = append(parts, netip.AddrFrom16(body.AAAA).String())
		default:
			parts = append(parts, r.GoString())
		}
	}
	return strings.Join(parts, " ")
}

func TestNamesAreAnsweredFromTheHostsFile(t *testing.T) {
	const a, aaaa, ptr = dnsmessage.TypeA, dnsmessage.TypeAAAA, dnsmessage.TypePTR
	for _, c := range []struct {
		name string
		kind dnsmessage.Type
		want string
	}{
		{"one-0.one.nearmetal.internal.", a, "Success aa 10.64.16.2"},
		{"ONE-0.One.NearMetal.Internal.", a, "Success aa 10.64.16.2"},
		{"one-1.", a, "Success aa 10.64.16.3"},
		{"one-1.one.", a, "Success aa 10.64.16.3"},
		{"two-0.two.nearmetal.internal.", a, "Success aa 10.64.128.4"},
		{"two-0.two.", a, "Success aa 10.64.128.4"},
		{"two.nearmetal.internal.", a, "Success aa 10.64.128.4"},
		{"one.nearmetal.internal.", a, "Success aa 10.64.16.3 10.64.16.2"},
		{"one-0.one.nearmetal.internal.", aaaa, "Success aa"},
		{"one-0.one.nearmetal.internal.", dnsmessage.TypeALL, "Success aa 10.64.16.2"},
		{"nearmetal.internal.", a, "Success aa"},
		{"one-9.one.nearmetal.internal.", a, "NameError aa"},
		{"licence.", a, "Success aa 10.20.0.6 10.20.0.5"},
		{"Licence.one.nearmetal.internal.", a, "Success aa 10.20.0.6 10.20.0.5"},
		{"licence.nearmetal.internal.", a, "NameError aa"},
		{"db.lab.", a, "Success aa 10.20.0.7"},
		{"db.lab.", aaaa, "Success aa"},
		{"db.lab.nearmetal.internal.", a, "NameError aa"},
		{"5.0.20.10.in-addr.arpa.", ptr, "Success aa licence.one.nearmetal.internal."},
		{"7.0.20.10.in-addr.arpa.", ptr, "Success aa db.lab."},
		{"two-0.", a, "NameError aa"},
		{"two-0.one.nearmetal.internal.", a, "NameError aa"},
		{"2.16.64.10.in-addr.arpa.", ptr, "Success aa one-0.one.nearmetal.internal."},
		{"3.16.64.10.in-addr.arpa.", ptr, "Success aa one-1.one.nearmetal.internal."}, // a record has the address, too
		{"4.128.64.10.in-addr.arpa.", ptr, "Success aa two-0.two.nearmetal.internal."},
		{"9.16.64.10.in-addr.arpa.", ptr, "NameError aa"},
		{"8.8.8.8.in-addr.arpa.", ptr, "Refused"},
		{"example.com.", a, "Refused"},
		{"nearmetal.internal.example.com.", a, "Refused"},
		{".", a, "Refused"},
	} {
		s := testSubnet(nil)
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

func TestOnlyNamesOfTheOutsideAreAskedOfOtherServers(t *testing.T) {
	s := testSubnet(func(n *Network) {
		names := NewNames("one", []byte(testHosts), []byte("nameserver 192.0.2.53\nsearch x\nnameserver nonsense\n"))
		n.Members = map[string]Member{"a": {Name: "one-0", Names: names}}
	})
	for name, want := range map[string]bool{
		"example.com.": true, "4.4.8.8.in-addr.arpa.": true,
		"one-0.one.nearmetal.internal.": false, "nobody.nearmetal.internal.": false, "nobody.": false, "9.16.64.10.in-addr.arpa.": false,
	} {
		_, outside := s.dns(s.ports[macOfOne], asked(t, name, dnsmessage.TypeA, 0))
		if got := outside != nil; got != want {
			t.Errorf("%s is asked of other servers: %t, want %t", name, got, want)
		}
	}
	// The other port's member is being released and knows no names.
	if reply, outside := s.dns(s.ports[macOfTwo], asked(t, "example.com.", dnsmessage.TypeA, 0)); outside != nil || text(t, reply) != "Refused" {
		t.Error("a port without names is not refused")
	}
}

func TestAnAnswerFitsTheAskersLimit(t *testing.T) {
	var hosts strings.Builder
	for i := range 250 {
		fmt.Fprintf(&hosts, "10.64.16.%d\tone-%d\n", i+2, i)
	}
	s := testSubnet(func(n *Network) {
		n.Members["a"] = Member{Name: "one-0", Names: NewNames("one", []byte(hosts.String()), nil)}
	})
	for edns, want := range map[int]struct{ bytes, addresses int }{0: {512, 27}, 100: {512, 27}, 800: {800, 40}, 1232: {1232, 60}, 65535: {1232, 60}} {
		reply, _ := s.dns(s.ports[macOfOne], asked(t, "one.nearmetal.internal.", dnsmessage.TypeA, edns))
		if got := len(strings.Fields(text(t, reply))) - 2; len(reply) > want.bytes || got < want.addresses {
			t.Errorf("EDNS %d: %d bytes with %d addresses, want at most %d with at least %d", edns, len(reply), got, want.bytes, want.addresses)
		}
	}
}

func TestMessagesThatAreNoQuestionAreNotAnsweredOrGetAnError(t *testing.T) {
	s := testSubnet(nil)
	question := asked(t, "one-0.", dnsmessage.TypeA, 0)
	change := func(at int, to byte) []byte {
		changed := append([]byte{}, question...)
		changed[at] = to
		return changed
	}
	for what, c := range map[string]struct {
		raw  []byte
		want string
	}{
		"a response":             {change(2, 0x81), ""},
		"nothing":                {nil, ""},
		"half a header":          {question[:7], ""},
		"an update":              {change(2, 5<<3), "NotImplemented"},
		"no question":            {append(append([]byte{}, question[:4]...), 0, 0, 0, 0, 0, 0, 0, 0), "FormatError"},
		"half a question":        {question[:len(question)-3], "FormatError"},
		"a question of Chaosnet": {change(len(question)-1, 3), "Refused"},
	} {
		reply, outside := s.dns(s.ports[macOfOne], c.raw)
		got := ""
		if reply != nil {
			got = text(t, reply)
		}
		if got != c.want || outside != nil {
			t.Errorf("%s: got %q, want %q", what, got, c.want)
		}
	}
}

func TestAResponseOfAnotherServerHasToAnswerTheQuestion(t *testing.T) {
	query := asked(t, "example.com.", dnsmessage.TypeA, 0)
	good := append([]byte{}, query...)
	good[2] |= 0x80
	otherNumber := append([]byte{}, good...)
	otherNumber[0]++
	otherName := asked(t, "example.org.", dnsmessage.TypeA, 0)
	otherName[2] |= 0x80
	for what, c := range map[string]struct {
		response []byte
		want     bool
	}{"its response": {good, true}, "the query itself": {query, false}, "a response with another number": {otherNumber, false}, "a response to another question": {otherName, false}, "nothing": {nil, false}} {
		if got := answers(c.response, query); got != c.want {
			t.Errorf("%s is taken: %t, want %t", what, got, c.want)
		}
	}
	if short := truncated(append(good, make([]byte, 2000)...)); len(short) != len(query) || short[2]&2 == 0 {
		t.Errorf("a response that is too large becomes %x, want the question, marked as truncated", short)
	}
}
