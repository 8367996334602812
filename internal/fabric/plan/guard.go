package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// Ports with security groups are guarded: the maps guards_out and guards_in lead their packets to chains of their own. Those look into
// sets of the port, which the packets that it sends fill, and into sets of its groups, which a plan fills. No rule tracks connections: many
// kernels can't do that for bridged frames. Decision 054 has the reasons.
//
// Fields are raw offsets from the IPv4 header, so that one set serves packets in both directions and packets quoted in ICMP errors. The
// offsets hold for headers without options; chains look for those, and for fragments, first.
const (
	source      = "@nh,96,32"
	destination = "@nh,128,32"
	protocol    = "@nh,72,8"
	sourcePort  = "@nh,160,16"
	targetPort  = "@nh,176,16"
	// message is type and code of an ICMP message, and identifier that of an echo (RFC 792).
	message    = "@nh,160,16"
	identifier = "@nh,192,16"
	// An ICMP error quotes the header and the first 8 bytes of a packet, 8 bytes into the message.
	quotedStart       = "@nh,224,8"
	quotedProtocol    = "@nh,296,8"
	quotedSource      = "@nh,320,32"
	quotedDestination = "@nh,352,32"
	quotedSourcePort  = "@nh,384,16"
	quotedTargetPort  = "@nh,400,16"
	quotedIdentifier  = "@nh,416,16"
)

// What a port may keep open, in elements. A port that has more open gets no replies to the rest; no other port notices. Each element costs
// the node kernel memory, and time whenever it reads its rules back.
const (
	maxFlows   = 2048
	maxClosing = 2048
	maxEchoes  = 256
	// maxAdmitted is for speed alone: packets of flows that have no place here are looked up in the sets of rules each time.
	maxAdmitted = 1024
	// maxAskers is as many as a network of 4,094 addresses can need, with one element for each of three protocols.
	maxAskers = 16384
)

// view says where a packet has what rules are about: the other end's address, and the port or the ICMP type that they name.
type view struct{ remote, protocol, port string }

var (
	arriving       = view{source, protocol, targetPort}
	arrivingICMP   = view{source, protocol, message}
	leaving        = view{destination, protocol, targetPort}
	leavingICMP    = view{destination, protocol, message}
	answering      = view{destination, protocol, sourcePort}
	quotedAnswer   = view{quotedDestination, quotedProtocol, quotedSourcePort}
	everyDirection = []securitygroup.Direction{securitygroup.In, securitygroup.Out}
)

// guard is a port with its security groups.
type guard struct {
	network fabric.Network
	port    fabric.Port
	groups  []fabric.Group
	name    string // of the port's link
}

// groupName returns the name that a group's sets have.
func groupName(n fabric.Network, id string) string {
	sum := sha256.Sum256([]byte(strconv.Itoa(n.Index) + "/" + id))
	return "nmg" + hex.EncodeToString(sum[:5])
}

// addGuards adds what leads from and to the ports of a network, and what its groups need, to the bridge's table. Where the kernel can't enforce
// groups, their ports are closed.
func addGuards(n fabric.Network, can bool, parts map[string]string, sets map[string][]string) {
	needed := map[string]bool{}
	for _, p := range n.Ports {
		g := guard{n, p, n.GroupsOf(p.ID), PortName(p.ID)}
		into, out := "accept", "goto pinned"
		if len(g.groups) > 0 {
			into, out = "drop", "drop"
		}
		for _, group := range g.groups {
			needed[group.ID] = true
		}
		if can && len(g.groups) > 0 {
			into, out = "goto in_"+g.name, "goto out_"+g.name
			g.addChains(parts)
			g.addSets(parts)
		}
		sets["guards_in"] = append(sets["guards_in"], fmt.Sprintf("%q : %s", g.name, into))
		sets["guards_out"] = append(sets["guards_out"], fmt.Sprintf("%q . %s . ip . %s : %s", g.name, fabric.NormalMAC(p.MAC), number(p.Address), out))
	}
	for _, g := range n.Groups {
		if can && needed[g.ID] {
			addGroup(n, g, parts, sets)
		}
	}
}

// addGroup adds the sets of a group's rules, and those of the members of the groups that the rules name.
func addGroup(n fabric.Network, g fabric.Group, parts map[string]string, sets map[string][]string) {
	name := groupName(n, g.ID)
	add := func(set, typeof string, elements []string) {
		if len(elements) > 0 {
			parts["set "+set] = block("set "+set, "typeof "+typeof, "flags interval")
			sets[set] = elements
		}
	}
	for _, d := range everyDirection {
		add(fmt.Sprintf("%s_%s", d, name), source+" . "+protocol+" . "+targetPort, boxElements(g.Rules, d))
		add(fmt.Sprintf("any_%s_%s", d, name), source, addressElements(g.Rules, d))
		for _, id := range g.Named(d) {
			add(fmt.Sprintf("%s_%s_%s", d, name, groupName(n, id)), protocol+" . "+targetPort, rangeElements(g.Rules, d, id))
			addMembers(n, id, parts, sets)
		}
	}
}

// addMembers adds the addresses of a group that rules name.
func addMembers(n fabric.Network, id string, parts map[string]string, sets map[string][]string) {
	set := "of_" + groupName(n, id)
	i := slices.IndexFunc(n.Groups, func(g fabric.Group) bool { return g.ID == id })
	if _, done := parts["set "+set]; done || i < 0 {
		return
	}
	parts["set "+set], sets[set] = block("set "+set, "typeof "+source), nil
	for _, a := range n.Groups[i].Members {
		sets[set] = append(sets[set], number(a))
	}
}

// number writes an IPv4 address as nft(8) prints one of a raw field.
func number(address netip.Addr) string {
	four := address.As4()
	return fmt.Sprintf("0x%x", binary.BigEndian.Uint32(four[:]))
}

func boxElements(rules []securitygroup.Rule, d securitygroup.Direction) []string {
	var elements []string
	for _, b := range securitygroup.Boxes(rules, d) {
		ports := portElement(b.Protocol, b.Ports)
		elements = append(elements, fmt.Sprintf("%s . 0x%x . %s", between(b.Addresses.First, b.Addresses.Last), b.Protocol, ports))
	}
	return elements
}

func addressElements(rules []securitygroup.Rule, d securitygroup.Direction) []string {
	var elements []string
	for _, a := range securitygroup.Anything(rules, d) {
		elements = append(elements, between(a.First, a.Last))
	}
	return elements
}

func rangeElements(rules []securitygroup.Rule, d securitygroup.Direction, group string) []string {
	var elements []string
	for _, p := range []securitygroup.Protocol{securitygroup.TCP, securitygroup.UDP, securitygroup.ICMP} {
		number, _ := p.Number()
		for _, r := range securitygroup.Ranges(rules, d, group, p) {
			elements = append(elements, fmt.Sprintf("0x%x . %s", number, portElement(number, r)))
		}
	}
	return elements
}

// portElement writes a range of ports, or of ICMP messages of any code.
func portElement(protocol uint8, r securitygroup.Range) string {
	if icmp, _ := securitygroup.ICMP.Number(); protocol == icmp {
		return between(uint32(r.First)<<8, uint32(r.Last)<<8|0xff)
	}
	return between(uint32(r.First), uint32(r.Last))
}

// between writes a range as nft(8) prints it.
func between(first, last uint32) string {
	if first == last {
		return fmt.Sprintf("0x%x", first)
	}
	return fmt.Sprintf("0x%x-0x%x", first, last)
}

// allowed are the rules with a verdict for packets that the groups' rules for single protocols allow.
func (g guard) allowed(d securitygroup.Direction, v view, verdict string) []string {
	var lines []string
	for _, group := range g.groups {
		name := groupName(g.network, group.ID)
		if len(securitygroup.Boxes(group.Rules, d)) > 0 {
			lines = append(lines, fmt.Sprintf("%s . %s . %s @%s_%s %s", v.remote, v.protocol, v.port, d, name, verdict))
		}
		for _, id := range group.Named(d) {
			other := groupName(g.network, id)
			if len(rangeElements(group.Rules, d, id)) > 0 {
				lines = append(lines, fmt.Sprintf("%s @of_%s %s . %s @%s_%s_%s %s", v.remote, other, v.protocol, v.port, d, name, other, verdict))
			}
		}
	}
	return lines
}

// anything are the rules with a verdict for packets that the groups' rules for any protocol allow.
func (g guard) anything(d securitygroup.Direction, remote, verdict string) []string {
	var lines []string
	for _, group := range g.groups {
		if len(securitygroup.Anything(group.Rules, d)) > 0 {
			lines = append(lines, fmt.Sprintf("%s @any_%s_%s %s", remote, d, groupName(g.network, group.ID), verdict))
		}
		for _, id := range group.Named(d) {
			if len(securitygroup.Ranges(group.Rules, d, id, securitygroup.Any)) > 0 {
				lines = append(lines, fmt.Sprintf("%s @of_%s %s", remote, groupName(g.network, id), verdict))
			}
		}
	}
	return slices.Compact(lines)
}

// restricted reports whether a group has rules for what the port sends.
func (g guard) restricted() bool {
	return slices.ContainsFunc(g.groups, func(group fabric.Group) bool {
		return slices.ContainsFunc(group.Rules, func(r securitygroup.Rule) bool { return r.Direction == securitygroup.Out })
	})
}

// GuardProbe returns the text of a table that a kernel takes if it can enforce security groups. It is for a check only.
func GuardProbe() string {
	const index, group = 1, "probe"
	base := netip.AddrFrom4([4]byte{192, 0, 2, 0})
	rule := func(d securitygroup.Direction, p securitygroup.Protocol, group string) securitygroup.Rule {
		r := securitygroup.Rule{Direction: d, Protocol: p, Ports: securitygroup.Range{Last: 255}, Group: group}
		if group == "" {
			r.Prefix = netip.PrefixFrom(base, 24)
		}
		return r
	}
	n := fabric.Network{Ports: []fabric.Port{{ID: group, MAC: "02:00:00:00:00:01", Address: base.Next()}}}
	n.Index, n.Gateway = index, base
	n.Groups = []fabric.Group{{ID: group, Ports: []string{group}, Members: []netip.Addr{base.Next()}}}
	for _, d := range everyDirection {
		n.Groups[0].Rules = append(n.Groups[0].Rules, rule(d, securitygroup.TCP, ""), rule(d, securitygroup.Any, ""), rule(d, securitygroup.UDP, group))
	}
	want := Table{Text: skeleton(strings.ReplaceAll(bridgeRules, bridgeTable, probeTable)), Sets: map[string][]string{}, Parts: map[string]string{}}
	addGuards(n, true, want.Parts, want.Sets)
	return newTable(probeTable, want)
}

// probeTable is the name of a table that is never made.
const probeTable = "bridge nm_probe"
