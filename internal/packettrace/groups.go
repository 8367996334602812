package packettrace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// restricted reports whether security groups have rules for what a port sends.
func restricted(groups []fabric.Group) bool {
	return slices.ContainsFunc(groups, func(g fabric.Group) bool {
		return slices.ContainsFunc(g.Rules, func(r securitygroup.Rule) bool { return r.Direction == securitygroup.Out })
	})
}

// names lists security groups.
func names(groups []fabric.Group) string {
	var all []string
	for _, g := range groups {
		all = append(all, g.ID)
	}
	return strings.Join(all, ", ")
}

// ruleFor returns the first rule of a port's groups that allows packets in a direction, and its group.
func ruleFor(e End, d securitygroup.Direction, other netip.Addr, p Packet) (rule, group string, found bool) {
	for _, g := range e.Network.GroupsOf(e.Port.ID) {
		for _, r := range g.Rules {
			if r.Direction == d && concerns(r, p) && isAbout(e.Network, r, other) {
				return r.String(), g.ID, true
			}
		}
	}
	return "", "", false
}

// concerns reports whether a rule is for packets of a kind.
func concerns(r securitygroup.Rule, p Packet) bool {
	return r.Protocol == securitygroup.Any || r.Protocol == p.Protocol && r.Ports.First <= p.Port && p.Port <= r.Ports.Last
}

// isAbout reports whether an address is the other end that a rule names.
func isAbout(n fabric.Network, r securitygroup.Rule, other netip.Addr) bool {
	if r.Group == "" {
		return r.Prefix.Contains(other)
	}
	member := func(a netip.Addr) bool { return a == other || other.Is6() && n.Address6(a) == other }
	return slices.ContainsFunc(n.Groups, func(g fabric.Group) bool { return g.ID == r.Group && slices.ContainsFunc(g.Members, member) })
}

// judge is the hop of a packet that has to match a rule.
func judge(e End, place Place, d securitygroup.Direction, other netip.Addr, p Packet) Hop {
	groups := e.Network.GroupsOf(e.Port.ID)
	if rule, group, ok := ruleFor(e, d, other, p); ok {
		return Hop{e.Node, place, true, fmt.Sprintf("rule %q of %s", rule, group)}
	}
	var rules []string
	for _, g := range groups {
		for _, r := range g.Rules {
			if r.Direction == d {
				rules = append(rules, r.String())
			}
		}
	}
	word := "from"
	if d == securitygroup.Out {
		word = "to"
	}
	return Hop{e.Node, place, false, fmt.Sprintf("stopped at the port of %s: no rule of its security groups (%s) allows %s %s %v; rules: %s",
		e.Member, names(groups), p, word, other, sentence(rules))}
}

// groupsOut is what the sender's groups say about the packet.
func (w walk) groupsOut() Hop {
	groups := w.from.Network.GroupsOf(w.from.Port.ID)
	if hop, open := sendsAnything(w.from, groups); open {
		return hop
	}
	// The node answers questions for names whatever the rules.
	if !w.six && w.to.Port.Address == w.from.Network.Gateway && w.packet == (Packet{securitygroup.UDP, 53}) {
		return Hop{w.from.Node, GroupsOut, true, "questions for names to the node always pass"}
	}
	return judge(w.from, GroupsOut, securitygroup.Out, w.addressOf(w.to), w.packet)
}

// sendsAnything reports whether groups leave open what a port sends, with the hop.
func sendsAnything(e End, groups []fabric.Group) (Hop, bool) {
	switch {
	case len(groups) == 0:
		return Hop{e.Node, GroupsOut, true, "the port has none"}, true
	case !restricted(groups):
		return Hop{e.Node, GroupsOut, true, fmt.Sprintf("%s: no rules for out, so everything passes", names(groups))}, true
	}
	return Hop{}, false
}

// groupsIn is what the receiver's groups say about the packet.
func (w walk) groupsIn() Hop {
	if !w.to.Network.Guarded(w.to.Port.ID) {
		return Hop{w.to.Node, GroupsIn, true, "the port has none"}
	}
	return judge(w.to, GroupsIn, securitygroup.In, w.addressOf(w.from), w.packet)
}

// answerOut is what the groups of the port that answers say about the answer. It goes to an address that sent a packet, from a port that
// rules open to that address; an answer to an echo request needs the request only.
func (w walk) answerOut() Hop {
	groups := w.from.Network.GroupsOf(w.from.Port.ID)
	if hop, open := sendsAnything(w.from, groups); open {
		return hop
	}
	if w.packet.isICMP() {
		return Hop{w.from.Node, GroupsOut, true, fmt.Sprintf("answer to an echo request of %s", w.to.Member)}
	}
	rule, group, ok := ruleFor(w.from, securitygroup.In, w.addressOf(w.to), w.packet)
	if !ok {
		return judge(w.from, GroupsOut, securitygroup.In, w.addressOf(w.to), w.packet)
	}
	return Hop{w.from.Node, GroupsOut, true, fmt.Sprintf("answer by rule %q of %s", rule, group)}
}

// answerIn is what the groups of the port that asked say about the answer: it was noted with the packet that the port sent.
func (w walk) answerIn() Hop {
	if !w.to.Network.Guarded(w.to.Port.ID) {
		return Hop{w.to.Node, GroupsIn, true, "the port has none"}
	}
	return Hop{w.to.Node, GroupsIn, true, fmt.Sprintf("answer to what %s sent", w.to.Member)}
}
