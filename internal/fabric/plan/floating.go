package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/wayout"
)

// floatingSets are what the rules know of floating addresses. "announced" remembers, across restarts of the agent, which addresses this product put
// on which uplinks. "leaving" are those whose connections are still to be forgotten. Pairs in "floated" are an address and the member that it leads
// to; a connection of a former pair is not among them. "tenants" are addresses of members, which nobody outside may bear. "refused" counts, by
// link, what the limits of connections dropped.
const floatingSets = `	set floating {
		type ipv4_addr
	}
	set floating_pool {
		type ipv4_addr
		flags interval
	}
	set floated {
		type ipv4_addr . ipv4_addr
	}
	set tenants {
		type ipv4_addr
		flags interval
	}
	set announced {
		type ifname . ipv4_addr
	}
	set leaving {
		type ipv4_addr
	}
	set refused {
		type ifname
		size 65535
		flags dynamic
	}
	map floating_in {
		type ipv4_addr : ipv4_addr
	}
	map floating_out {
		type ipv4_addr : ipv4_addr
	}
	map forwards {
		type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service
	}
	map projects {
		type ifname : verdict
	}
`

// floatingChains translate what comes for floating addresses, and say what of it goes on: everything of networks with egress, replies included, and
// from outside what doesn't pretend to come from a member. Members of networks without egress are pinned to addresses of tenants, too. New connections pass the limit of the project at either end first.
const floatingChains = `	chain floated {
		iifname @egress accept
		ip saddr @tenants drop
		accept
	}
	chain bounded {
		iifname vmap @projects
		oifname vmap @projects
	}
	chain refuse {
		iifname @egress update @refused { iifname counter } drop
		update @refused { oifname counter } drop
	}
	chain prerouting {
		type nat hook prerouting priority -110; policy accept;
		dnat ip to ip daddr map @floating_in
		dnat ip to ip daddr . meta l4proto . th dport map @forwards
	}
`

// floatingSources give members with a floating address of their own that address outside. A member that calls a floating address whose member is
// on this node is translated as well: the reply has to come back here.
const floatingSources = `		iifname @egress oifname != "nmbr*" snat ip to ip saddr map @floating_out
		iifname @egress oifname "nmbr*" ct status dnat ct original ip daddr @floating snat ip to ip saddr map @floating_out
		iifname @egress oifname "nmbr*" ct status dnat ct original ip daddr @floating masquerade
`

// AddFloating puts a floating address on an uplink and announces it to the neighbours.
type AddFloating struct {
	Link    string
	Address netip.Addr
}

// DeleteFloating takes a floating address off an uplink.
type DeleteFloating struct {
	Link    string
	Address netip.Addr
}

// ForgetConnections makes the node forget the connections that were translated for a floating address.
type ForgetConnections struct{ Address netip.Addr }

func (o AddFloating) String() string {
	return fmt.Sprintf("ip address add %s/32 dev %s scope link\narping -A -c 2 -I %s %s", o.Address, o.Link, o.Link, o.Address)
}

func (o DeleteFloating) String() string {
	return fmt.Sprintf("ip address delete %s/32 dev %s", o.Address, o.Link)
}

func (o ForgetConnections) String() string {
	return fmt.Sprintf("conntrack -D --orig-dst %s\nconntrack -D --reply-dst %s", o.Address, o.Address)
}

// Drift implements Operation.
func (o AddFloating) Drift() fabric.Drift {
	return fabric.Drift{Object: "floating address on " + o.Link, Want: o.Address.String(), Got: "absent"}
}

// Drift implements Operation.
func (o DeleteFloating) Drift() fabric.Drift {
	return fabric.Drift{Object: "floating address on " + o.Link, Want: "absent", Got: o.Address.String()}
}

// Drift implements Operation.
func (o ForgetConnections) Drift() fabric.Drift {
	return fabric.Drift{Object: "connections of floating address " + o.Address.String(), Want: "forgotten", Got: "known"}
}

// placed is a floating address on the uplink that bears it, and the member that it leads to.
type placed struct {
	fabric.Floating
	link   string
	member netip.Addr
}

// placeFloating chooses the uplinks of the floating addresses. It returns those that can't be on this node as well, with the reasons.
func placeFloating(networks []fabric.Network, seen Observed) (on []placed, problems []string) {
	own := announced(seen.Rules)
	for _, n := range networks {
		for _, f := range n.Floating {
			port, _ := n.PortWithID(f.Port)
			link, problem := uplinkFor(f.Address, own, seen)
			if problem != "" {
				problems = append(problems, fmt.Sprintf("floating address %s: %s", f.Address, problem))
				continue
			}
			on = append(on, placed{f, link, port.Address})
		}
	}
	return on, problems
}

// Unplaced returns the reasons why floating addresses can't be on this node.
func Unplaced(networks []fabric.Network, seen Observed) []string {
	_, problems := placeFloating(networks, seen)
	return problems
}

// uplinkFor returns the uplink for a floating address: the one in whose subnet it lies, or else the first.
func uplinkFor(address netip.Addr, own []placed, seen Observed) (link, problem string) {
	for _, uplink := range seen.Uplinks {
		for _, p := range seen.Links[uplink].Addresses {
			if p.Addr() == address && !slices.ContainsFunc(own, func(o placed) bool { return o.link == uplink && o.Address == address }) {
				return "", "somebody else put it on " + uplink + "; remove it there, or take it out of the floating pool"
			}
			if link == "" && !p.IsSingleIP() && p.Contains(address) {
				link = uplink
			}
		}
	}
	if len(seen.Uplinks) == 0 {
		return "", "this node has no default route, so no link leads outside"
	}
	return cmp.Or(link, seen.Uplinks[0]), ""
}

// announced returns the floating addresses that this product put on uplinks, as its rules remember.
func announced(rules Ruleset) []placed {
	var on []placed
	for _, element := range rules[InetTable].Sets["announced"] {
		link, text, _ := strings.Cut(element, " . ")
		if address, err := netip.ParseAddr(text); err == nil {
			on = append(on, placed{Floating: fabric.Floating{Address: address}, link: strings.Trim(link, `"`)})
		}
	}
	return on
}

// addFloating adds the elements of floating addresses.
func addFloating(networks []fabric.Network, seen Observed, inet map[string][]string) {
	for _, set := range []string{"floating", "floating_pool", "floated", "tenants", "announced", "leaving", "floating_in", "floating_out", "forwards", "projects"} {
		inet[set] = nil
	}
	tenants, pool := []netip.Prefix{fabric.Tenants()}, []netip.Prefix{}
	for _, n := range networks {
		tenants = append(tenants, n.Prefix)
		pool = append(pool, n.FloatingPool...)
	}
	for _, p := range outermost(tenants) {
		inet["tenants"] = append(inet["tenants"], p.String())
	}
	for _, p := range outermost(pool) {
		inet["floating_pool"] = append(inet["floating_pool"], elementOf(p))
	}
	on, _ := placeFloating(networks, seen)
	for _, p := range on {
		inet["floating"] = append(inet["floating"], p.Address.String())
		inet["floated"] = append(inet["floated"], fmt.Sprintf("%s . %s", p.Address, p.member))
		inet["announced"] = append(inet["announced"], fmt.Sprintf("%q . %s", p.link, p.Address))
		for _, w := range p.Forwards {
			inet["forwards"] = append(inet["forwards"], fmt.Sprintf("%s . %d . %d : %s . %d", p.Address, protocolNumber(w.Protocol), w.Port, p.member, w.MemberPort))
		}
		if len(p.Forwards) == 0 {
			inet["floating_in"] = append(inet["floating_in"], fmt.Sprintf("%s : %s", p.Address, p.member))
			inet["floating_out"] = append(inet["floating_out"], fmt.Sprintf("%s : %s", p.member, p.Address))
		}
	}
}

// elementOf writes a prefix as nft(8) prints it: a single address has no length.
func elementOf(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

// addBounds adds the limits of the projects' connections: one chain for each project, to which the links of its networks lead. A project whose
// networks say different things has the lowest limit of them.
func addBounds(networks []fabric.Network, inet map[string][]string) map[string]string {
	limits := map[string]int{}
	for _, n := range networks {
		if !n.Egress {
			continue
		}
		chain, limit := boundName(n.Project), cmp.Or(n.Connections, fabric.DefaultConnections)
		if other, ok := limits[chain]; ok {
			limit = min(limit, other)
		}
		limits[chain] = limit
		inet["projects"] = append(inet["projects"], fmt.Sprintf("%q : jump %s", BridgeName(n.Index), chain))
	}
	slices.Sort(inet["projects"])
	parts := map[string]string{}
	for chain, limit := range limits {
		parts["chain "+chain] = skeleton(fmt.Sprintf("chain %s {\nct count over %d goto refuse\n}\n", chain, limit))
	}
	return parts
}

// boundName returns the name of the chain with the limit of a project.
func boundName(project string) string {
	sum := sha256.Sum256([]byte(cmp.Or(project, api.DefaultProject)))
	return "connections_nmo" + hex.EncodeToString(sum[:5])
}

// planFloatingOff takes addresses off uplinks, before the rules forget that this product put them there.
func planFloatingOff(want Ruleset, seen Observed) []Operation {
	var ops []Operation
	stay := announced(want)
	for _, p := range announced(seen.Rules) {
		if !onUplink(stay, p.link, p.Address) && bears(seen, p.link, p.Address) {
			ops = append(ops, DeleteFloating{Link: p.link, Address: p.Address})
		}
	}
	return ops
}

// planFloatingOn puts addresses on uplinks, after the rules are in force that translate what comes for them.
func planFloatingOn(want Ruleset, seen Observed) []Operation {
	var ops []Operation
	for _, p := range announced(want) {
		if !bears(seen, p.link, p.Address) {
			ops = append(ops, AddFloating{Link: p.link, Address: p.Address})
		}
	}
	return ops
}

func onUplink(list []placed, link string, address netip.Addr) bool {
	return slices.ContainsFunc(list, func(p placed) bool { return p.link == link && p.Address == address })
}

// bears reports whether a link has an address.
func bears(seen Observed, link string, address netip.Addr) bool {
	return slices.ContainsFunc(seen.Links[link].Addresses, func(p netip.Prefix) bool { return p.Addr() == address })
}

// planRules loads the rules. Connections of addresses that lead elsewhere now are forgotten after that: they would go on as they were translated.
// Until that is done, the rules remember that it has to be.
func planRules(want Ruleset, seen Observed, forwards bool) []Operation {
	var ops []Operation
	leaving := leavingAddresses(want, seen.Rules)
	first := want
	if _, stays := want[InetTable].Sets["leaving"]; stays && len(leaving) > 0 {
		first = withLeaving(want, leaving)
	}
	if script := rulesScript(first, seen.Rules) + seen.Docker.Script(wayout.BridgeLinks, forwards); script != "" {
		ops = append(ops, LoadRules{Script: script})
	}
	for _, a := range leaving {
		ops = append(ops, ForgetConnections{Address: a})
	}
	if script := rulesScript(want, first); script != "" {
		ops = append(ops, LoadRules{Script: script})
	}
	return ops
}

// leavingAddresses are the addresses for which something else is translated than before, and those that were leaving already.
func leavingAddresses(want, seen Ruleset) []netip.Addr {
	var all []netip.Addr
	add := func(text string) {
		if a, err := netip.ParseAddr(text); err == nil {
			all = append(all, a)
		}
	}
	was, is := seen[InetTable].Sets, want[InetTable].Sets
	for _, element := range was["leaving"] {
		add(element)
	}
	for _, set := range []string{"floating_in", "floating_out", "forwards"} {
		for _, element := range without(was[set], is[set]) {
			for field := range strings.FieldsSeq(element) {
				if slices.Contains(was["floating"], field) {
					add(field)
				}
			}
		}
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// withLeaving returns rules that also remember addresses whose connections are to be forgotten.
func withLeaving(rules Ruleset, leaving []netip.Addr) Ruleset {
	next := Ruleset{}
	for name, table := range rules {
		if name == InetTable {
			sets := map[string][]string{}
			for set, elements := range table.Sets {
				sets[set] = elements
			}
			for _, a := range leaving {
				sets["leaving"] = append(sets["leaving"], a.String())
			}
			table.Sets = sortSets(sets)
		}
		next[name] = table
	}
	return next
}

// protocolNumber returns a protocol's number (RFC 5237) as nft prints it: a machine without /etc/protocols has no names.
func protocolNumber(name string) int {
	const tcp, udp = 6, 17
	if name == "tcp" {
		return tcp
	}
	return udp
}
