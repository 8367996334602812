package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/wayout"
)

// Two nftables tables carry the isolation of all networks of a node. Their rules are fixed text; what differs from node to node
// is in sets, so that a packet's cost does not grow with the number of networks, and so that a new network only adds
// elements: adding takes about a millisecond, whereas anything that deletes waits for an RCU grace period.
//
// The text is written as `nft -y -p list ruleset` prints it, and is compared with that.
const (
	bridgeTable = "bridge nm"
	// InetTable is the table of the node's own stack.
	InetTable = "inet nm"
)

// isTable reports whether rules are made in a table of this name.
func isTable(name string) bool { return slices.Contains(tables(), name) }

// tables are the names of all tables in which rules are made.
func tables() []string { return []string{bridgeTable, InetTable, sealTable} }

// bridgeRules see every frame of every member. Members send IPv4 and ARP under their own address and nothing else; the stack of
// the node is out of reach except for the gateway of a network that is routed or has egress. The gateway's address is the node's own in each network, and the
// responder answers DHCP and DNS there: no request for it leaves through a tunnel. A DHCP client has no address yet. Its messages go to the
// gateway's MAC address instead of to all, marked as for another machine, which hides them from the node's stack. Frames to single members go into
// a tunnel only if the member is on another node now. A VLAN's frames come from trunks without such pins, as nobody can tell which node sent them: the
// bridge takes those of any member that lives elsewhere. Gateways' addresses and what nodes route never go there. What comes out of a tunnel has passed the pins of remotes, see inetRules. The maps of guards
// lead to the chains of ports with security groups, see guard.go: packets from a port once it is certain who sent them, packets to a port wherever
// they come from. What the node has routed goes into tunnels of routed networks, under the MAC address of its router.
//
// Each expression of a rule costs a frame 10 to 30 ns, and each name of a link that is read 60 ns. So the commonest frames leave first: those of
// a pinned sender by one look-up of all that is pinned, and those to a port here by one more. A tag changes the type of a frame, so that no tagged
// frame is in the map.
const bridgeRules = `table bridge nm {
	set pins {
		type ifname . ether_addr . ipv4_addr
	}
	set gateways {
		type ifname . ipv4_addr
	}
	set services {
		type ifname . ether_addr
	}
	set egress {
		type ifname . ether_addr
	}
	set anycast {
		type ifname . ipv4_addr
	}
	set remotes {
		type ifname . ether_addr
	}
	map routers {
		type ifname : ether_addr
	}
	map clients {
		type ifname . ether_addr : ether_addr
	}
	map guards_in {
		type ifname : verdict
	}
	map guards_out {
		typeof iifname . ether saddr . ether type . @nh,96,32 : verdict
	}
	chain prerouting {
		type filter hook prerouting priority -250; policy accept;
		iifname "nmp*" goto member
		iifname "nmvx*" udp sport 67 drop
		iifname "nmvl*" goto trunk
	}
	chain trunk {
		ether type 8021q drop
		ether type 8021ad drop
		iifname . ether saddr . ip saddr @pins goto pinned
		iifname . ether saddr . arp saddr ip @pins iifname . arp saddr ether . arp saddr ip @pins accept
		drop
	}
	chain member {
		iifname . ether saddr . ether type . @nh,96,32 vmap @guards_out
		ether type 8021q drop
		ether type 8021ad drop
		udp sport 67-68 jump dhcp
		iifname . ether saddr . arp saddr ip @pins iifname . arp saddr ether . arp saddr ip @pins accept
		drop
	}
	chain group {
		ip protocol 2 igmp type membership-query drop
		ip protocol 103 drop
	}
	chain dhcp {
		udp sport 67 drop
		udp dport != 67 return
		meta pkttype set other ether daddr set iifname . ether saddr map @clients accept
		drop
	}
	chain pinned {
` + fromMember + `		accept
	}
	chain input {
		type filter hook input priority -250; policy accept;
		iifname . ether daddr @egress ether type ip accept
		iifname . arp daddr ip @gateways accept
		iifname . ether daddr @services udp dport { 53, 67 } accept
		iifname "nmp*" drop
		iifname "nmvx*" drop
		iifname "nmvl*" drop
	}
	chain forward {
		type filter hook forward priority -250; policy accept;
		oifname vmap @guards_in
		oifname "nmvx*" goto leaving
		oifname "nmvl*" goto leaving
	}
	chain leaving {
		oifname . arp daddr ip @anycast drop
		oifname . ether daddr @remotes accept
		ether daddr & 01:00:00:00:00:00 == 01:00:00:00:00:00 accept
		drop
	}
	chain output {
		type filter hook output priority -250; policy accept;
		oifname "nmvx*" goto routed
		oifname "nmvl*" drop
		ip protocol 2 igmp type membership-query accept
		oifname vmap @guards_in
	}
	chain routed {
		oifname . ether daddr @remotes ether type ip ether saddr set oifname map @routers accept
		drop
	}
}
`

// fromMember is what members may not send under their own address either: messages of multicast routers and DHCP servers.
const fromMember = `		meta pkttype multicast jump group
		udp sport 67-68 jump dhcp
`

// tunnelPins take tunnel packets of our networks only from members that live behind the peer: those are the pins of frames out of tunnels, and
// this is the only place where both the peer and the frame are seen. Offsets are bits from the UDP header (RFC 7348, section 5): the network
// identifier is at 96, and the inner frame begins at 128 with its destination, followed by its source at 176 and its type at 224. The source
// of an IPv4 packet (type 0x800) is at 336. ARP for IPv4 over Ethernet (RFC 826) is known by the 64 bits from the type on; its sender's MAC is at
// 304 and its address at 352. Members send nothing else. Inner headers are never elsewhere: the kernel puts outer fragments together before these
// rules, and merges only packets whose inner headers are alike.
const tunnelPins = `		udp dport 4789 @th,224,16 0x800 ip saddr . @th,96,24 . @th,176,48 . @th,336,32 @remotes accept
		udp dport 4789 @th,224,64 0x806000108000604 ip saddr . @th,96,24 . @th,176,48 . @th,352,32 @remotes ip saddr . @th,96,24 . @th,304,48 . @th,352,32 @remotes accept
`

// inetRules hold the pins of tunnels.
const inetRules = `table inet nm {
	set remotes {
		typeof ip saddr . @th,96,24 . @th,176,48 . @th,336,32
	}
	set vnis {
		typeof @th,96,24
	}
	chain input {
		type filter hook input priority -10; policy accept;
` + tunnelPins + `		udp dport 4789 @th,96,24 @vnis drop
	}
}
`

// inetEgressRules are inetRules with a way out for the networks in "egress". Pairs in "same" are bridged packets, which pass here
// when br_netfilter is loaded. Links in "switched" had forwarding off before it was switched on for egress: nobody outside may
// profit from that, and it is switched off again with the last network that needs it; see package wayout. The site's own
// addresses are in "protected". Of what the node itself
// sends, members get only what path MTU discovery (RFC 1191) and traceroute need.
const inetEgressRules = `table inet nm {
	set remotes {
		typeof ip saddr . @th,96,24 . @th,176,48 . @th,336,32
	}
	set vnis {
		typeof @th,96,24
	}
` + routedSets + `	set egress {
		type ifname
	}
	set switched {
		type ifname
	}
	set protected {
		type ipv4_addr
		flags interval
	}
	set private {
		type ipv4_addr
		flags interval
	}
	set open {
		type ipv4_addr
		flags interval
	}
` + floatingSets + `	chain untracked_in {
		type filter hook prerouting priority -310; policy accept;
		udp dport 4789 @th,96,24 @vnis notrack
		iifname "nmbr*" ip daddr @subnets notrack
	}
	chain untracked_out {
		type filter hook output priority -310; policy accept;
		udp dport 4789 @th,96,24 @vnis notrack
	}
	chain input {
		type filter hook input priority -10; policy accept;
		ip daddr @floating drop
` + tunnelPins + routedPins + `		udp dport 4789 @th,96,24 @vnis drop
		iifname "nmbr*" drop
	}
	chain forward {
		type filter hook forward priority -10; policy accept;
		ct state new jump bounded
		iifname . oifname @same accept
		ct status dnat ct original ip daddr . ct reply ip saddr @floated goto floated
		iifname . oifname @routes goto between
		iifname @switched oifname != "nmbr*" oifname != "nmu*" goto unasked
		iifname @egress oifname != "nmbr*" ip daddr @floating_pool accept
		iifname @egress oifname != "nmbr*" ip daddr != @protected jump outward
		oifname @egress ct state established,related accept
		iifname @egress oifname != "nmbr*" reject with icmpx admin-prohibited
		iifname "nmbr*" drop
		oifname "nmbr*" drop
	}
	chain outward {
		ip daddr @open accept
		ip daddr != @private accept
	}
` + wayout.Unasked + routedChain + floatingChains + `	chain output {
		type filter hook output priority -10; policy accept;
		oifname "nmbr*" icmp type { destination-unreachable, time-exceeded } accept
		oifname "nmbr*" drop
	}
	chain postrouting {
		type nat hook postrouting priority 90; policy accept;
` + floatingSources + `		iifname @egress oifname != "nmbr*" masquerade
	}
}
`

// Table is one nftables table: its text without set elements (as skeleton writes it), and the elements by set or map, sorted. Sets that
// packets fill have no elements here.
type Table struct {
	Text string
	Sets map[string][]string
	// Parts are the texts of the sets and chains of single ports and groups, by "set NAME" or "chain NAME". They are not in Text, because
	// they come and go while the rest stays.
	Parts map[string]string
}

// Ruleset holds this product's tables by family and name; a table that is not there has no entry.
type Ruleset map[string]Table

// desiredRules renders the tables that the networks and other tunnels need: none without them, and one for the node's own stack only with
// tunnels or egress.
func desiredRules(cfg Config, networks []fabric.Network, seen Observed) Ruleset {
	rules := sealOf(cfg.Tunnels)
	if len(networks) == 0 {
		return rules
	}
	bridge := map[string][]string{}
	for _, set := range []string{"pins", "gateways", "services", "egress", "anycast", "remotes", "routers", "clients", "guards_in", "guards_out"} {
		bridge[set] = nil
	}
	if anyIPv6(networks) {
		bridge["pins6"], bridge["guards6_in"], bridge["guards6_out"] = nil, nil, nil
	}
	parts := map[string]string{}
	inet := map[string][]string{"remotes": nil, "vnis": nil}
	egress, routed := false, false
	for _, n := range networks {
		addNetworkElements(n, hasTunnel(n, networks), bridge, inet)
		addPins6(n, hasTunnel(n, networks), bridge)
		addVLANElements(n, bridge)
		addGuards(n, seen.CanGuard, parts, bridge)
		egress, routed = egress || n.Egress, routed || n.Routed
	}
	if egress || routed {
		addRouteElements(cfg, networks, bridge, inet)
	}
	rules[bridgeTable] = Table{Text: skeleton(bridgeText(networks)), Sets: sortSets(bridge), Parts: parts}
	switch {
	case egress:
		addEgressElements(cfg, networks, seen, inet)
		addFloating(networks, seen, inet)
		text := addMarks(inetText(inetEgressRules, networks, inet), marked(networks, seen), inet)
		rules[InetTable] = Table{Text: skeleton(addSeal(text, networks)), Sets: sortSets(inet), Parts: addBounds(networks, inet)}
	case routed:
		text := addMarks(inetText(inetRoutedRules, networks, inet), marked(networks, seen), inet)
		rules[InetTable] = Table{Text: skeleton(addSeal(text, networks)), Sets: sortSets(inet)}
	case len(inet["vnis"]) > 0:
		text := addMarks(inetText(inetRules, networks, inet), marked(networks, seen), inet)
		rules[InetTable] = Table{Text: skeleton(addSeal(text, networks)), Sets: sortSets(inet)}
	}
	return rules
}

// addNetworkElements adds what one network contributes to the sets.
func addNetworkElements(n fabric.Network, tunnel bool, bridge, inet map[string][]string) {
	if tunnel {
		vni := fmt.Sprintf("0x%x", n.Index)
		inet["vnis"] = append(inet["vnis"], vni)
		for _, r := range n.Remotes {
			inet["remotes"] = append(inet["remotes"], fmt.Sprintf("%s . %s . %s . %s", r.Peer, vni, macNumber(r.MAC), number(r.Address)))
			bridge["remotes"] = append(bridge["remotes"], fmt.Sprintf("%q . %s", TunnelName(n.Index), fabric.NormalMAC(r.MAC)))
		}
		bridge["anycast"] = append(bridge["anycast"], fmt.Sprintf("%q . %s", TunnelName(n.Index), n.Gateway))
	}
	gateway := GatewayMAC(n.Index)
	for _, p := range n.Ports {
		port, mac := PortName(p.ID), fabric.NormalMAC(p.MAC)
		bridge["pins"] = append(bridge["pins"], fmt.Sprintf("%q . %s . %s", port, mac, p.Address))
		bridge["gateways"] = append(bridge["gateways"], fmt.Sprintf("%q . %s", port, n.Gateway))
		bridge["services"] = append(bridge["services"], fmt.Sprintf("%q . %s", port, gateway))
		bridge["clients"] = append(bridge["clients"], fmt.Sprintf("%q . %s : %s", port, mac, gateway))
		if n.HasGateway() {
			bridge["egress"] = append(bridge["egress"], fmt.Sprintf("%q . %s", port, gateway))
		}
	}
}

// macNumber writes a MAC address as nft(8) prints one of a raw field.
func macNumber(mac string) string {
	digits := strings.TrimLeft(strings.ReplaceAll(fabric.NormalMAC(mac), ":", ""), "0")
	return "0x" + cmp.Or(digits, "0")
}

// addEgressElements adds what egress as a whole needs.
func addEgressElements(cfg Config, networks []fabric.Network, seen Observed, inet map[string][]string) {
	inet["egress"], inet["switched"] = nil, nil
	inet["private"], inet["open"] = nil, nil
	for _, prefix := range fabric.PrivateRanges() {
		inet["private"] = append(inet["private"], prefix.String())
	}
	protected, open := slices.Concat(fabric.ProtectedRanges(), cfg.Protected), []netip.Prefix{}
	if seen.Underlay.IsValid() {
		protected = append(protected, seen.Underlay)
	}
	for _, n := range networks {
		open = append(open, n.Open...)
		if n.Egress {
			inet["egress"] = append(inet["egress"], fmt.Sprintf("%q", BridgeName(n.Index)))
		}
	}
	for _, prefix := range outermost(protected) {
		inet["protected"] = append(inet["protected"], prefix.String())
	}
	for _, prefix := range outermost(open) {
		inet["open"] = append(inet["open"], elementOf(prefix))
	}
	for _, link := range desiredSwitched(networks, seen) {
		inet["switched"] = append(inet["switched"], fmt.Sprintf("%q", link))
		inet["same"] = append(inet["same"], fmt.Sprintf("%q . %q", link, link))
	}
}

// outermost drops the prefixes that lie in others: an interval set refuses overlapping elements.
func outermost(prefixes []netip.Prefix) []netip.Prefix {
	var kept []netip.Prefix
	sorted := slices.Clone(prefixes)
	slices.SortFunc(sorted, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	for _, p := range sorted {
		p = p.Masked()
		if p.Addr().Is4() && !slices.ContainsFunc(kept, p.Overlaps) {
			kept = append(kept, p)
		}
	}
	return kept
}

// without returns the elements of list that are not in other; both are sorted.
func without(list, other []string) []string {
	var rest []string
	for _, e := range list {
		if _, found := slices.BinarySearch(other, e); !found {
			rest = append(rest, e)
		}
	}
	return rest
}

func sortSets(sets map[string][]string) map[string][]string {
	for name := range sets {
		slices.Sort(sets[name])
		sets[name] = slices.Compact(sets[name])
	}
	return sets
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
