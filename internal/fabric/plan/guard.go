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
// A port of a network with IPv6 has the same chains and sets for both families, see family.

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

var everyDirection = []securitygroup.Direction{securitygroup.In, securitygroup.Out}

// guard is a port with its security groups, for packets of one family.
type guard struct {
	*family
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
		g := guard{&ipv4, n, p, n.GroupsOf(p.ID), PortName(p.ID)}
		for _, group := range g.groups {
			needed[group.ID] = true
		}
		for _, f := range familiesOf(n) {
			g.family = f
			g.addWays(can, parts, sets)
		}
	}
	for _, g := range n.Groups {
		if can && needed[g.ID] {
			for _, f := range familiesOf(n) {
				f.addGroup(n, g, parts, sets)
			}
		}
	}
}

// addGroup adds the sets of a group's rules, and those of the members of the groups that the rules name.
func (f *family) addGroup(n fabric.Network, g fabric.Group, parts map[string]string, sets map[string][]string) {
	name := groupName(n, g.ID)
	add := func(set, typeof string, elements []string) {
		if len(elements) > 0 {
			parts["set "+set] = block("set "+set, "typeof "+typeof, "flags interval")
			sets[set] = elements
		}
	}
	for _, d := range everyDirection {
		add(fmt.Sprintf("%s%s_%s", d, f.suffix, name), f.source+" . "+f.protocol+" . "+f.targetPort, f.boxElements(g.Rules, d))
		add(fmt.Sprintf("any%s_%s_%s", f.suffix, d, name), f.source, f.addressElements(g.Rules, d))
		for _, id := range g.Named(d) {
			add(fmt.Sprintf("%s%s_%s_%s", d, f.suffix, name, groupName(n, id)), f.protocol+" . "+f.targetPort, f.rangeElements(g.Rules, d, id))
			f.addMembers(n, id, parts, sets)
		}
	}
}

// addMembers adds the addresses of a group that rules name.
func (f *family) addMembers(n fabric.Network, id string, parts map[string]string, sets map[string][]string) {
	set := "of" + f.suffix + "_" + groupName(n, id)
	i := slices.IndexFunc(n.Groups, func(g fabric.Group) bool { return g.ID == id })
	if _, done := parts["set "+set]; done || i < 0 {
		return
	}
	parts["set "+set], sets[set] = block("set "+set, "typeof "+f.source), nil
	for _, a := range n.Groups[i].Members {
		if own := f.of(n, a); own.IsValid() {
			sets[set] = append(sets[set], f.number(own))
		}
	}
}

// number writes an IPv4 address as nft(8) prints one of a raw field.
func number(address netip.Addr) string {
	four := address.As4()
	return fmt.Sprintf("0x%x", binary.BigEndian.Uint32(four[:]))
}

func (f *family) boxElements(rules []securitygroup.Rule, d securitygroup.Direction) []string {
	var elements []string
	for _, b := range securitygroup.Boxes(rules, d, f.version) {
		ports := portElement(b.Protocol, b.Ports)
		elements = append(elements, fmt.Sprintf("%s . 0x%x . %s", f.betweenAddresses(b.Addresses), b.Protocol, ports))
	}
	return elements
}

func (f *family) addressElements(rules []securitygroup.Rule, d securitygroup.Direction) []string {
	var elements []string
	for _, a := range securitygroup.Anything(rules, d, f.version) {
		elements = append(elements, f.betweenAddresses(a))
	}
	return elements
}

func (f *family) rangeElements(rules []securitygroup.Rule, d securitygroup.Direction, group string) []string {
	var elements []string
	for _, p := range []securitygroup.Protocol{securitygroup.TCP, securitygroup.UDP, f.icmp} {
		number, _ := p.Number()
		for _, r := range securitygroup.Ranges(rules, d, group, p) {
			elements = append(elements, fmt.Sprintf("0x%x . %s", number, portElement(number, r)))
		}
	}
	return elements
}

// portElement writes a range of ports, or of ICMP messages of any code.
func portElement(protocol uint8, r securitygroup.Range) string {
	icmp, _ := securitygroup.ICMP.Number()
	if icmp6, _ := securitygroup.ICMP6.Number(); protocol == icmp || protocol == icmp6 {
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
		if len(securitygroup.Boxes(group.Rules, d, g.version)) > 0 {
			lines = append(lines, fmt.Sprintf("%s . %s . %s @%s%s_%s %s", v.remote, v.protocol, v.port, d, g.suffix, name, verdict))
		}
		for _, id := range group.Named(d) {
			other := groupName(g.network, id)
			if len(g.rangeElements(group.Rules, d, id)) > 0 {
				lines = append(lines, fmt.Sprintf("%s @of%s_%s %s . %s @%s%s_%s_%s %s", v.remote, g.suffix, other, v.protocol, v.port, d, g.suffix, name, other, verdict))
			}
		}
	}
	return lines
}

// anything are the rules with a verdict for packets that the groups' rules for any protocol allow.
func (g guard) anything(d securitygroup.Direction, remote, verdict string) []string {
	var lines []string
	for _, group := range g.groups {
		if len(securitygroup.Anything(group.Rules, d, g.version)) > 0 {
			lines = append(lines, fmt.Sprintf("%s @any%s_%s_%s %s", remote, g.suffix, d, groupName(g.network, group.ID), verdict))
		}
		for _, id := range group.Named(d) {
			if len(securitygroup.Ranges(group.Rules, d, id, securitygroup.Any)) > 0 {
				lines = append(lines, fmt.Sprintf("%s @of%s_%s %s", remote, g.suffix, groupName(g.network, id), verdict))
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
