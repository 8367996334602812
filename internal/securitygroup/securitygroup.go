// Package securitygroup is the language of security groups: the rules that say which packets a network port may receive and send.
//
// A rule is one line of text, such as "in tcp 22 from 10.1.0.0/16" or "out udp 53 to group resolvers". Rules only allow. A port takes
// what a rule of one of its groups allows, and replies to what it sent. A port may send anything, unless one of its groups has a rule for
// "out". The package is pure. It must never know how rules are enforced: package fabric/plan renders them. Start with Parse; Boxes turns
// rules by prefix into ranges that don't overlap.
package securitygroup

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Direction says whether a rule is about packets to a port or from it.
type Direction string

// The directions of packets.
const (
	In  Direction = "in"
	Out Direction = "out"
)

// Protocol is the protocol that a rule is about.
type Protocol string

// The protocols that rules name. Rules by group for TCP, UDP and Any are about IPv4 and IPv6. A rule for Any is the only kind that allows other protocols, fragments, and packets with IP options.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	ICMP Protocol = "icmp"
	// ICMP6 is ICMP for IPv6 (RFC 4443). Neighbour discovery needs no rule.
	ICMP6 Protocol = "icmp6"
	Any   Protocol = "any"
)

// Number returns the protocol's number in IP headers, and false for Any.
func (p Protocol) Number() (number uint8, one bool) {
	switch p {
	case ICMP:
		return 1, true
	case TCP:
		return 6, true
	case UDP:
		return 17, true
	case ICMP6:
		return 58, true
	default:
		return 0, false
	}
}

// last returns the highest port of a protocol, or type of ICMP messages.
func (p Protocol) last() uint16 {
	if p == ICMP || p == ICMP6 {
		return 255
	}
	return 65535
}

// Range is a range of destination ports, or of types of ICMP messages (RFC 792). Both ends belong to it.
type Range struct{ First, Last uint16 }

// Rule allows packets of one kind. The other end of the packets is in Prefix, or has an address of Group.
type Rule struct {
	Direction Direction
	Protocol  Protocol
	Ports     Range
	Prefix    netip.Prefix
	// Group is the ID of a group, "" for a rule by prefix.
	Group string
}

// usage ends errors about the text of a rule.
const usage = `write a rule such as "in tcp 8000-8100 from 10.1.0.0/16", "in icmp 8 from group web" or "out any to 10.2.0.0/16"`

// Parse reads a rule.
func Parse(text string) (Rule, error) {
	r, err := parse(strings.Fields(text))
	if err != nil {
		return Rule{}, fmt.Errorf("security group rule %q: %w; %s", text, err, usage)
	}
	return r, nil
}

func parse(words []string) (Rule, error) {
	if len(words) < 4 {
		return Rule{}, errors.New("the rule is not complete")
	}
	r := Rule{Direction: Direction(words[0]), Protocol: Protocol(words[1])}
	if r.Direction != In && r.Direction != Out {
		return Rule{}, fmt.Errorf("direction %q is neither in nor out", words[0])
	}
	if _, one := r.Protocol.Number(); !one && r.Protocol != Any {
		return Rule{}, fmt.Errorf("protocol %q is not one of tcp, udp, icmp, icmp6 and any", words[1])
	}
	r.Ports = Range{Last: r.Protocol.last()}
	words = words[2:]
	if words[0] != r.Direction.word() {
		ports, err := parseRange(words[0])
		if err != nil {
			return Rule{}, err
		}
		r.Ports, words = ports, words[1:]
		if r.Protocol == Any {
			return Rule{}, errors.New("a rule for any protocol has no ports")
		}
	}
	if len(words) == 0 || words[0] != r.Direction.word() {
		return Rule{}, fmt.Errorf("direction %s needs the word %q before the other end", r.Direction, r.Direction.word())
	}
	switch end := words[1:]; {
	case len(end) == 2 && end[0] == "group":
		r.Group = end[1]
	case len(end) == 1:
		prefix, err := netip.ParsePrefix(end[0])
		if err != nil {
			return Rule{}, fmt.Errorf("%q is not a prefix", end[0])
		}
		r.Prefix = prefix
	default:
		return Rule{}, fmt.Errorf("the other end %q is neither a prefix nor a group", strings.Join(end, " "))
	}
	return r, r.Validate()
}

func parseRange(text string) (Range, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	b, errLast := strconv.ParseUint(last, 10, 16)
	if err != nil || errLast != nil {
		return Range{}, fmt.Errorf("%q is no port or range of ports from 0 to 65535", text)
	}
	return Range{uint16(a), uint16(b)}, nil
}

// word introduces the other end.
func (d Direction) word() string {
	if d == Out {
		return "to"
	}
	return "from"
}

// Validate reports what is wrong with a rule.
func (r Rule) Validate() error {
	_, one := r.Protocol.Number()
	switch {
	case r.Direction != In && r.Direction != Out:
		return fmt.Errorf("direction %q is neither in nor out", r.Direction)
	case !one && r.Protocol != Any:
		return fmt.Errorf("protocol %q is not one of tcp, udp, icmp, icmp6 and any", r.Protocol)
	case r.Ports.First > r.Ports.Last:
		return fmt.Errorf("range %d-%d ends before it begins", r.Ports.First, r.Ports.Last)
	case r.Ports.Last > r.Protocol.last():
		return fmt.Errorf("%s types end at %d, not at %d", r.Protocol, r.Protocol.last(), r.Ports.Last)
	case r.Protocol == Any && r.Ports != (Range{Last: Any.last()}):
		return errors.New("a rule for any protocol has no ports")
	case r.Group != "" && r.Prefix.IsValid():
		return fmt.Errorf("the other end is group %q and prefix %v; a rule has one other end", r.Group, r.Prefix)
	case r.Group != "":
		return nil
	case !r.Prefix.IsValid() || r.Prefix.Addr().Is4In6():
		return fmt.Errorf("prefix %v is neither an IPv4 prefix nor an IPv6 prefix", r.Prefix)
	case r.Protocol == ICMP && !r.Prefix.Addr().Is4():
		return fmt.Errorf("protocol icmp is that of IPv4, and prefix %v is one of IPv6; write icmp6", r.Prefix)
	case r.Protocol == ICMP6 && r.Prefix.Addr().Is4():
		return fmt.Errorf("protocol icmp6 is that of IPv6, and prefix %v is one of IPv4; write icmp", r.Prefix)
	case r.Prefix != r.Prefix.Masked():
		return fmt.Errorf("prefix %v has host bits; the prefix is %v", r.Prefix, r.Prefix.Masked())
	}
	return nil
}

// String writes the rule as Parse reads it.
func (r Rule) String() string {
	text := string(r.Direction) + " " + string(r.Protocol)
	if r.Ports != (Range{Last: r.Protocol.last()}) {
		text += fmt.Sprintf(" %d", r.Ports.First)
		if r.Ports.Last != r.Ports.First {
			text += fmt.Sprintf("-%d", r.Ports.Last)
		}
	}
	text += " " + r.Direction.word() + " "
	if r.Group != "" {
		return text + "group " + r.Group
	}
	return text + r.Prefix.String()
}

// MarshalText writes the rule as Parse reads it.
func (r Rule) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads the rule as Parse does.
func (r *Rule) UnmarshalText(text []byte) (err error) {
	*r, err = Parse(string(text))
	return err
}

// covers reports whether every packet that other allows is allowed by r.
func (r Rule) covers(other Rule) bool {
	switch {
	case r.Direction != other.Direction, r.Group != other.Group:
		return false
	case r.Group == "" && (r.Prefix.Bits() > other.Prefix.Bits() || !r.Prefix.Contains(other.Prefix.Addr())):
		return false
	case r.Protocol == Any:
		return true
	}
	return r.Protocol == other.Protocol && r.Ports.First <= other.Ports.First && other.Ports.Last <= r.Ports.Last
}

// Validate reports what is wrong with the rules of one group: a rule that is invalid, and a rule that another covers. The latter would keep
// allowing packets after somebody removed the former.
func Validate(rules []Rule) error {
	for i, r := range rules {
		if err := r.Validate(); err != nil {
			return fmt.Errorf("rule %d: %w", i+1, err)
		}
		for j, other := range rules {
			if i != j && other.covers(r) {
				return fmt.Errorf("rule %d (%s) changes nothing, because rule %d (%s) covers it; remove one of them", i+1, r, j+1, other)
			}
		}
	}
	return nil
}
