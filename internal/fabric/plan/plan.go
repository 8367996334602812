// Package plan computes the differences between a node's kernel and the networks that should be on the node.
//
// The package is pure. From the desired networks and the kernel's state as read, it lists the missing operations in order, and renders
// the isolation rules as text. Its operations are data that package node carries out. The package must never read or change the kernel.
// It must never decide which members are connected: the given networks say that. Start with Compute; the isolation rules are in
// rules.go.
package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/wayout"
)

// vxlanPort is the port that IANA assigned (RFC 7348, section 5).
const vxlanPort = 4789

// Config is what a plan has to know about its node.
type Config struct {
	// Underlay is this node's address in the network that carries the tunnels; the zero value means that there is none, and
	// networks with peers are refused.
	Underlay netip.Addr
	// UnderlayMTU in bytes; 0 means the MTU of the link that bears Underlay. It must be the same on all nodes.
	UnderlayMTU int
	// UplinkRate is what the node's uplink carries, in bits per second: ports with rates share it. 0 means the speed of the link that bears
	// Underlay, as far as the kernel knows it.
	UplinkRate int64
	// Protected are networks that members never reach through egress, besides all tenant networks, the underlay and the
	// node's own addresses: management networks, for instance.
	Protected []netip.Prefix
	// PublicKey is this node's WireGuard key, in base64; "" means that the node can't encrypt, and encrypted networks with members on other
	// nodes are refused.
	PublicKey string
	// Tunnels are of something else than networks, and go within WireGuard.
	Tunnels []fabric.Tunnel
	// Trunk is the link whose sub-interfaces carry VLANs; "" means that there is none, and networks on VLANs with members on other nodes are refused.
	Trunk string
}

// Kind is what kind of link the kernel says a link is.
type Kind string

// The kinds of links a plan knows.
const (
	KindBridge Kind = "bridge"
	KindVXLAN  Kind = "vxlan"
	KindVeth   Kind = "veth"
	KindTAP    Kind = "tuntap"
	KindIFB    Kind = "ifb"

	KindWireGuard Kind = "wireguard"
	KindVLAN      Kind = "vlan"
)

// Link is a link as it should be, or as the kernel has it.
type Link struct {
	Name   string
	Kind   Kind
	MTU    int
	MAC    string // of bridges only
	Master string // name of the bridge, "" for none
	Up     bool
	// Addresses of a bridge.
	Addresses []netip.Prefix
	// Snooping of multicast, by a bridge that also asks its ports what they want; off, multicast is flooded.
	Snooping bool
	// MulticastRouter: a tunnel takes all multicast of its bridge, since the bridges at its other ends know what their ports want.
	MulticastRouter bool
	// Forwarding of IPv4 packets that come in here, by the node.
	Forwarding bool
	// VNI, Local, Port, Learning and Peers of a VXLAN tunnel. Peers get every frame whose destination is not known yet
	// (head-end replication).
	VNI      int
	Local    netip.Addr
	Port     int
	Learning bool
	Peers    []netip.Addr
	// Learned are single members by the peers that they were heard from: frames to them still go there.
	Learned []Heard
	// Neighbours are the members that the node's stack knows at a bridge, and Placed those that a tunnel sends to their peers, in order.
	Neighbours []Neighbour
	Placed     []Placed
	// Cipher is the configuration of a WireGuard device.
	Cipher Cipher
	// VID of a VLAN (IEEE 802.1Q), and the name of the link that bears it.
	VID   int
	Trunk string
	// Filters are the MAC addresses that the trunk's adapter takes for a VLAN by name, and those that it may take: of members with a standby while their
	// function is parked. Executors add them as they park.
	Filters []string
	// Away: the other end of a veth pair is in another network namespace.
	Away bool
}

// Heard is a MAC address and the peer that it was heard from.
type Heard struct {
	MAC  string
	Peer netip.Addr
}

// Observed is the kernel's state as far as it concerns a plan.
type Observed struct {
	// Links by name: all of this product, and the uplinks.
	Links map[string]Link
	// Uplinks are the names of the links that a default route leads over, sorted.
	Uplinks []string
	// Underlay is the subnet of the link that bears Config.Underlay, and UnderlayMTU its MTU in bytes.
	Underlay    netip.Prefix
	UnderlayMTU int
	// TrunkMTU is the MTU of the link Config.Trunk in bytes, 0 if there is no such link.
	TrunkMTU int
	Rules    Ruleset
	// Router: forwarding is on for the node as a whole. Forwarding are the links for which it is on, without ours and without uplinks.
	Router     bool
	Forwarding []string
	// OthersSwitched are the links that other sites on this machine say were switched on for sites alone.
	OthersSwitched []string
	// Docker is our part of Docker's chain.
	Docker wayout.Docker
	// CanGuard: this node's kernel can enforce security groups.
	CanGuard bool
	// CanShortcut: this node's kernel can take frames past bridges.
	CanShortcut bool
	// BridgeRules: others have rules for bridged frames.
	BridgeRules bool
	// UnderlayLink is the link that bears Config.Underlay, "" when it is none of Ethernet. UnderlayRules: others have rules or policies for what
	// this node sends and receives, which frames that pass the node's stack by would escape.
	UnderlayLink  string
	UnderlayRules bool
	// IPv6: this node's kernel has it.
	IPv6 bool
	// CanShape: this node's kernel can hold ports to rates and mark packets. UplinkRate is Config.UplinkRate, or what the kernel says of the
	// underlay's link, in bits per second; 0: nobody knows. Limits are those of ports.
	CanShape   bool
	UplinkRate int64
	Limits     Limits
	// OpenShortcuts by name of link, which may be gone.
	OpenShortcuts map[string]Shortcut
}

// Compute lists what has to be done, in order, for the kernel to be as the networks want it; nothing to do is an empty plan. Rules
// come before the links they watch, and links go before the rules that watched them, so that a plan that breaks off anywhere has
// opened nothing: the members of a node that was fenced off reach nobody through a tunnel that is still there. Shortcuts, which pass the
// rules by, go first and come last.
func Compute(cfg Config, networks []fabric.Network, seen Observed) ([]Operation, error) {
	if err := fabric.Validate(networks); err != nil {
		return nil, err
	}
	if err := fabric.ValidateTunnels(cfg.Tunnels, networks); err != nil {
		return nil, err
	}
	networks = slices.Clone(fabric.OnBridges(networks))
	slices.SortFunc(networks, func(a, b fabric.Network) int { return a.Index - b.Index })
	cipher, cipherErr := cipherLink(cfg, networks, seen)
	cfg, networks, seen = inside(cfg, networks, seen)
	links, err := desiredLinks(cfg, networks, seen)
	if err != nil {
		return nil, err
	}
	if cipherErr != nil {
		return nil, cipherErr
	}
	links = append(cipher, links...)
	forwards := slices.ContainsFunc(networks, func(n fabric.Network) bool { return n.HasGateway() })
	want := desiredRules(cfg, networks, seen)

	var ops []Operation
	remove, change := planLinks(networks, links, seen)
	shut, open := planShortcuts(cfg, networks, seen, change)
	clearing, setting := planLimits(networks, seen)
	ops = append(ops, shut...)
	ops = append(ops, clearing...)
	ops = append(ops, planForwardingOff(want, seen)...)
	ops = append(ops, planFloatingOff(want, seen)...)
	ops = append(ops, remove...)
	ops = append(ops, planRules(want, seen, forwards)...)
	ops = append(ops, change...)
	ops = append(ops, setting...)
	ops = append(ops, planForwardingOn(want, seen)...)
	ops = append(ops, planFloatingOn(want, seen)...)
	ops = append(ops, open...)
	return ops, nil
}

// desiredLinks are the device of rates, and the bridges, VLANs and tunnels of all networks, in order of making.
func desiredLinks(cfg Config, networks []fabric.Network, seen Observed) ([]Link, error) {
	var links []Link
	if seen.CanShape && AnyShaped(networks) {
		links = append(links, Link{Name: ShaperName, Kind: KindIFB, MTU: api.MaxMTU, Up: true})
	}
	for _, n := range networks {
		mtu := MTU(n, carrierMTU(n, seen))
		bridge := Link{
			Name: BridgeName(n.Index), Kind: KindBridge, MTU: mtu, MAC: GatewayMAC(n.Index),
			Up: true, Snooping: true, Forwarding: n.HasGateway(), Neighbours: neighboursOf(n),
		}
		if n.HasGateway() {
			bridge.Addresses = []netip.Prefix{netip.PrefixFrom(n.Gateway, n.Prefix.Bits())}
		}
		if seen.IPv6 {
			bridge.Addresses = append(bridge.Addresses, querierOf(n)...)
		}
		links = append(links, bridge)
		vlan, err := vlanLink(cfg, n, mtu, seen)
		if err != nil {
			return nil, err
		}
		links = append(links, vlan...)
		if !hasTunnel(n, networks) {
			continue
		}
		if !cfg.Underlay.IsValid() {
			return nil, fmt.Errorf("network %d has members on other nodes (%v), but this node has no underlay address: restart its agent with --underlay", n.Index, n.Peers())
		}
		if seen.UnderlayMTU < leastUnderlay(n) {
			return nil, fmt.Errorf("network %d has members on other nodes, but the link of the underlay address %v was not found or has too small an MTU (%d bytes)", n.Index, cfg.Underlay, seen.UnderlayMTU)
		}
		links = append(links, Link{
			Name: TunnelName(n.Index), Kind: KindVXLAN, MTU: mtu, Master: bridge.Name, Up: true,
			VNI: n.Index, Local: cfg.Underlay, Port: vxlanPort, Learning: true, MulticastRouter: true, Peers: n.Peers(),
			Learned: heardOf(n, networks), Placed: placedOf(n),
		})
	}
	return links, nil
}

// heardOf returns from where the members of a network on other nodes may be heard, in order.
func heardOf(n fabric.Network, networks []fabric.Network) []Heard {
	heard := make([]Heard, 0, len(n.Remotes))
	for _, r := range n.Remotes {
		heard = append(heard, Heard{MAC: fabric.NormalMAC(r.MAC), Peer: r.Peer})
	}
	heard = append(heard, routersOf(n, networks)...)
	slices.SortFunc(heard, Heard.compare)
	return slices.Compact(heard)
}

func (h Heard) compare(other Heard) int {
	return cmp.Or(cmp.Compare(h.MAC, other.MAC), h.Peer.Compare(other.Peer))
}

// planLinks removes what is too much or can't be mended; then makes and mends bridges and tunnels, then mends ports.
// Missing ports are not made: that is what Attach is for.
func planLinks(networks []fabric.Network, want []Link, seen Observed) (remove, change []Operation) {
	wanted := map[string]bool{}
	gone := map[string]bool{}
	for _, w := range want {
		wanted[w.Name] = true
		index, _ := OwnLink(w.Name)
		s, exists := seen.Links[w.Name]
		if why := unmendable(w, s); exists && why != "" {
			remove = append(remove, DeleteLink{Network: index, Name: w.Name, Why: why})
			gone[w.Name] = true
			exists = false
		}
		if !exists {
			change = append(change, AddLink{Network: index, Link: w})
			continue
		}
		change = append(change, planLink(index, w, s, gone[s.Master])...)
	}
	for _, n := range networks {
		bridge := wantedLink(want, BridgeName(n.Index))
		for _, p := range n.Ports {
			name := PortName(p.ID)
			wanted[name] = true
			if s, exists := seen.Links[name]; exists {
				w := Link{Name: name, Kind: KindVeth, MTU: bridge.MTU, Master: bridge.Name, Up: true}
				change = append(change, planLink(n.Index, w, s, gone[s.Master])...)
			}
		}
	}
	for _, name := range sortedKeys(seen.Links) {
		if index, own := OwnLink(name); own && !wanted[name] {
			remove = append(remove, DeleteLink{Network: index, Name: name, Why: "not wanted"})
		}
	}
	return remove, change
}

func wantedLink(links []Link, name string) Link {
	i := slices.IndexFunc(links, func(l Link) bool { return l.Name == name })
	return links[i]
}

// unmendable says why a link has to be made anew, "" if it need not.
func unmendable(want, seen Link) string {
	switch {
	case want.Kind != seen.Kind:
		return fmt.Sprintf("it is of kind %s", seen.Kind)
	case want.Kind == KindVXLAN && (want.VNI != seen.VNI || want.Local != seen.Local || want.Port != seen.Port || want.Learning != seen.Learning):
		return fmt.Sprintf("it is tunnel %d from %v, port %d, learning %t", seen.VNI, seen.Local, seen.Port, seen.Learning)
	case want.Kind == KindVLAN && (want.VID != seen.VID || want.Trunk != seen.Trunk):
		return fmt.Sprintf("it is VLAN %d of link %s", seen.VID, seen.Trunk)
	}
	return ""
}

// planLink mends one link; masterGone is true when the plan removes the bridge it is on.
func planLink(index int, want, seen Link, masterGone bool) []Operation {
	var ops []Operation
	set := func(attribute, w, s string) {
		if w != s {
			ops = append(ops, SetLink{Network: index, Link: want, Attribute: attribute, Want: w, Got: s})
		}
	}
	if masterGone {
		seen.Master = ""
	}
	if want.Kind == KindBridge {
		set("address", want.MAC, seen.MAC)
		set("mcast_snooping", onOff(want.Snooping), onOff(seen.Snooping))
	}
	set("master", want.Master, seen.Master)
	if want.Kind == KindVXLAN || want.Kind == KindVLAN {
		set("mcast_router", onOff(want.MulticastRouter), onOff(seen.MulticastRouter && seen.Master == want.Master))
	}
	set("mtu", fmt.Sprint(want.MTU), fmt.Sprint(seen.MTU))
	set("state", upDown(want.Up), upDown(seen.Up))
	for _, a := range seen.Addresses {
		if !slices.Contains(want.Addresses, a) {
			ops = append(ops, DeleteAddress{Network: index, Link: want.Name, Address: a})
		}
	}
	for _, a := range want.Addresses {
		if !slices.Contains(seen.Addresses, a) {
			ops = append(ops, AddAddress{Network: index, Link: want.Name, Address: a})
		}
	}
	for _, p := range seen.Peers {
		if !slices.Contains(want.Peers, p) {
			ops = append(ops, DeletePeer{Network: index, Link: want.Name, Peer: p})
		}
	}
	for _, mac := range seen.Filters {
		if !slices.Contains(want.Filters, mac) {
			ops = append(ops, DeleteFilter{Network: index, Link: want.Name, MAC: mac})
		}
	}
	for _, h := range seen.Learned {
		// A member may have come up elsewhere; its announcement was kept out until now.
		if _, stays := slices.BinarySearchFunc(want.Learned, h, Heard.compare); !stays {
			ops = append(ops, ForgetMember{Network: index, Link: want.Name, Heard: h})
		}
	}
	for _, p := range want.Peers {
		if !slices.Contains(seen.Peers, p) {
			ops = append(ops, AddPeer{Network: index, Link: want.Name, Peer: p})
		}
	}
	ops = append(ops, planCipher(want, seen)...)
	ops = append(ops, planRoutes(index, want, seen)...)
	if want.Kind == KindBridge && want.Forwarding != seen.Forwarding {
		ops = append(ops, SetForwarding{Network: index, Link: want.Name, On: want.Forwarding})
	}
	return ops
}

// WayOut returns what was observed as far as forwarding goes.
func (seen Observed) WayOut() wayout.Seen {
	s := wayout.Seen{
		Uplinks: seen.Uplinks, Router: seen.Router, Own: switchedLinks(seen.Rules), Others: seen.OthersSwitched,
		Forwarding: slices.Clone(seen.Forwarding),
	}
	for _, uplink := range seen.Uplinks {
		if seen.Links[uplink].Forwarding {
			s.Forwarding = append(s.Forwarding, uplink)
		}
	}
	return s
}

// desiredSwitched are the uplinks that the rules name as switched on for egress; the rules remember them across restarts of the agent.
func desiredSwitched(networks []fabric.Network, seen Observed) []string {
	if !slices.ContainsFunc(networks, func(n fabric.Network) bool { return n.Egress }) {
		return nil
	}
	return seen.WayOut().Switched()
}

// switchedLinks are the links on which this product switched forwarding on.
func switchedLinks(rules Ruleset) []string {
	var links []string
	for _, element := range rules[InetTable].Sets["switched"] {
		links = append(links, strings.Trim(element, `"`))
	}
	return links
}

// planForwardingOff comes before the rules that remember what to switch off.
func planForwardingOff(want Ruleset, seen Observed) []Operation {
	var ops []Operation
	for _, link := range seen.WayOut().Off(switchedLinks(want)) {
		ops = append(ops, SetForwarding{Link: link, On: false})
	}
	return ops
}

// planForwardingOn comes after the rules that remember what was switched on.
func planForwardingOn(want Ruleset, seen Observed) []Operation {
	var ops []Operation
	for _, link := range switchedLinks(want) {
		if !seen.Links[link].Forwarding {
			ops = append(ops, SetForwarding{Link: link, On: true})
		}
	}
	return ops
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func upDown(up bool) string {
	if up {
		return "up"
	}
	return "down"
}
