package plan

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Routed networks of one project are connected by the stack of each node that has a member on one of them (decision 057). A packet leaves its
// network at the sender's node: it comes to the bridge's MAC address from a pinned port, is routed to the bridge of the other network, and goes
// from there to the receiver like a frame of that network. No packet is routed that comes out of a tunnel.
//
// The node knows the MAC address and the peer of each member, so it neither asks by ARP nor floods.

// Neighbour is a member of a routed network as the node's stack knows it: a permanent entry of the bridge.
type Neighbour struct {
	Address netip.Addr
	MAC     string
}

// Compare orders neighbours by address, then by MAC.
func (n Neighbour) Compare(other Neighbour) int {
	return cmp.Or(n.Address.Compare(other.Address), cmp.Compare(n.MAC, other.MAC))
}

// Placed is a member on another node, in the tables of a tunnel and of its bridge: frames that are routed to it go to its peer alone. Partial: one of
// the two tables lacks it.
type Placed struct {
	Heard
	Partial bool
}

// routedRules are the sets, and the chain, of routed networks in the node's own table. Pairs in "routes" are of two bridges. Packets to nobody are
// refused before the node looks for their receiver. In "subnets" are the routed networks: connections between members are not tracked.
const (
	routedSets = `	set routed {
		typeof ip saddr . @th,96,24 . @th,176,48 . @th,336,32
	}
	set same {
		type ifname . ifname
	}
	set routes {
		type ifname . ifname
	}
	set members {
		type ipv4_addr
	}
	set subnets {
		type ipv4_addr
		flags interval
	}
`
	routedChain = `	chain between {
		ip daddr @members accept
		reject with icmpx host-unreachable
	}
`
	// routedPins take frames that a peer has routed into a tunnel from members of other networks that live behind it. Their source is the MAC
	// address of the peer's router. See tunnelPins for the offsets.
	routedPins = `		udp dport 4789 @th,224,16 0x800 ip saddr . @th,96,24 . @th,176,48 . @th,336,32 @routed accept
`
)

// inetRoutedRules are inetRules with ways between routed networks, and none out.
const inetRoutedRules = `table inet nm {
	set remotes {
		typeof ip saddr . @th,96,24 . @th,176,48 . @th,336,32
	}
	set vnis {
		typeof @th,96,24
	}
` + routedSets + `	chain untracked_in {
		type filter hook prerouting priority -310; policy accept;
		iifname "nmbr*" ip daddr @subnets notrack
	}
	chain input {
		type filter hook input priority -10; policy accept;
` + tunnelPins + routedPins + `		udp dport 4789 @th,96,24 @vnis drop
		iifname "nmbr*" drop
	}
	chain forward {
		type filter hook forward priority -10; policy accept;
		iifname . oifname @routes goto between
		iifname . oifname @same accept
		iifname "nmbr*" drop
		oifname "nmbr*" drop
	}
` + routedChain + `	chain output {
		type filter hook output priority -10; policy accept;
		oifname "nmbr*" icmp type { destination-unreachable, time-exceeded } accept
		oifname "nmbr*" drop
	}
}
`

// connected returns the networks that packets of a network are routed to.
func connected(n fabric.Network, networks []fabric.Network) []fabric.Network {
	var others []fabric.Network
	for _, other := range networks {
		if fabric.Connected(n.Network, other.Network) {
			others = append(others, other)
		}
	}
	return others
}

// sources returns the members of other networks that send to the ports of a network from other nodes.
func sources(n fabric.Network, networks []fabric.Network) []fabric.Remote {
	var all []fabric.Remote
	if len(n.Ports) > 0 {
		for _, other := range connected(n, networks) {
			all = append(all, other.Remotes...)
		}
	}
	return all
}

// hasTunnel reports whether frames of a network come from other nodes, or go there.
func hasTunnel(n fabric.Network, networks []fabric.Network) bool {
	return !n.OnVLAN() && len(n.Remotes) > 0 || len(sources(n, networks)) > 0
}

// isTransit reports whether this node has a network only to route to it.
func isTransit(n fabric.Network) bool { return n.Routed && len(n.Ports) == 0 }

// neighboursOf returns the members of a routed network, in order.
func neighboursOf(n fabric.Network) []Neighbour {
	if !n.Routed {
		return nil
	}
	var all []Neighbour
	for _, p := range n.Ports {
		all = append(all, Neighbour{p.Address, fabric.NormalMAC(p.MAC)})
	}
	for _, r := range n.Remotes {
		all = append(all, Neighbour{r.Address, fabric.NormalMAC(r.MAC)})
	}
	slices.SortFunc(all, Neighbour.Compare)
	return slices.Compact(all)
}

// placedOf returns the members of a routed network on other nodes whose place is certain, in order. One that moves is looked for as on any other
// network.
func placedOf(n fabric.Network) []Placed {
	if !n.Routed {
		return nil
	}
	var all []Placed
	for _, r := range settled(n) {
		all = append(all, Placed{Heard: Heard{MAC: fabric.NormalMAC(r.MAC), Peer: r.Peer}})
	}
	slices.SortFunc(all, func(a, b Placed) int { return a.compare(b.Heard) })
	return all
}

// routersOf returns from where the routers of other nodes may be heard on a network.
func routersOf(n fabric.Network, networks []fabric.Network) []Heard {
	var all []Heard
	for _, r := range sources(n, networks) {
		all = append(all, Heard{MAC: fabric.RouterMAC(r.Peer), Peer: r.Peer})
	}
	return all
}

// addRouteElements adds what routed networks need to the sets.
func addRouteElements(cfg Config, networks []fabric.Network, bridge, inet map[string][]string) {
	for _, set := range []string{"routed", "same", "routes", "members", "subnets"} {
		inet[set] = nil
	}
	for _, n := range networks {
		name := BridgeName(n.Index)
		inet["same"] = append(inet["same"], fmt.Sprintf("%q . %q", name, name))
		for _, other := range connected(n, networks) {
			inet["routes"] = append(inet["routes"], fmt.Sprintf("%q . %q", name, BridgeName(other.Index)))
		}
		for _, r := range sources(n, networks) {
			inet["routed"] = append(inet["routed"], fmt.Sprintf("%s . 0x%x . %s . %s", r.Peer, n.Index, macNumber(fabric.RouterMAC(r.Peer)), number(r.Address)))
		}
		for _, m := range neighboursOf(n) {
			inet["members"] = append(inet["members"], m.Address.String())
		}
		if n.Routed {
			// Without the gateway: for members of other networks, the node itself calls floating addresses from there.
			inet["subnets"] = append(inet["subnets"], fmt.Sprintf("%s-%s", n.Gateway.Next(), last(n.Prefix)))
		}
		if n.Routed && len(n.Remotes) > 0 {
			bridge["routers"] = append(bridge["routers"], fmt.Sprintf("%q : %s", TunnelName(n.Index), fabric.RouterMAC(cfg.Underlay)))
		}
	}
}

// last returns the last address of an IPv4 prefix.
func last(p netip.Prefix) netip.Addr {
	first := p.Masked().Addr().As4()
	number := binary.BigEndian.Uint32(first[:]) | uint32(1<<(32-p.Bits())-1)
	binary.BigEndian.PutUint32(first[:], number)
	return netip.AddrFrom4(first)
}

// AddNeighbour makes the node's stack know a member of a routed network.
type AddNeighbour struct {
	Network   int
	Link      string
	Neighbour Neighbour
}

// DeleteNeighbour ends that.
type DeleteNeighbour struct {
	Network   int
	Link      string
	Neighbour Neighbour
}

// PlaceMember makes a tunnel and its bridge send frames for a member to its peer alone.
type PlaceMember struct {
	Network int
	Link    string
	Heard   Heard
}

// UnplaceMember ends that.
type UnplaceMember struct {
	Network int
	Link    string
	Placed  Placed
}

// planRoutes makes the members of a routed network known to a bridge or a tunnel.
func planRoutes(index int, want, seen Link) []Operation {
	var ops []Operation
	if want.MAC != seen.MAC {
		seen.Neighbours = nil // the kernel forgets them with the address
	}
	for _, n := range seen.Neighbours {
		if _, stays := slices.BinarySearchFunc(want.Neighbours, n, Neighbour.Compare); !stays {
			ops = append(ops, DeleteNeighbour{index, want.Name, n})
		}
	}
	for _, n := range want.Neighbours {
		if !slices.Contains(seen.Neighbours, n) {
			ops = append(ops, AddNeighbour{index, want.Name, n})
		}
	}
	for _, p := range seen.Placed {
		if !slices.Contains(want.Placed, p) {
			ops = append(ops, UnplaceMember{index, want.Name, p})
		}
	}
	for _, p := range want.Placed {
		if !slices.Contains(seen.Placed, p) {
			ops = append(ops, PlaceMember{index, want.Name, p.Heard})
		}
	}
	return ops
}

func (o AddNeighbour) String() string {
	return fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", o.Neighbour.Address, o.Neighbour.MAC, o.Link)
}

func (o DeleteNeighbour) String() string {
	return fmt.Sprintf("ip neigh delete %s dev %s", o.Neighbour.Address, o.Link)
}

func (o PlaceMember) String() string {
	return fmt.Sprintf("bridge fdb replace %s dev %s dst %s self master static", o.Heard.MAC, o.Link, o.Heard.Peer)
}

func (o UnplaceMember) String() string {
	return fmt.Sprintf("bridge fdb delete %s dev %s self master", o.Placed.MAC, o.Link)
}

func (n Neighbour) String() string { return fmt.Sprintf("%s at %s", n.Address, n.MAC) }

// Drift implements Operation.
func (o AddNeighbour) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "neighbour of " + o.Link, Want: o.Neighbour.String(), Got: "absent"}
}

// Drift implements Operation.
func (o DeleteNeighbour) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "neighbour of " + o.Link, Want: "absent", Got: o.Neighbour.String()}
}

// Drift implements Operation.
func (o PlaceMember) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "member " + o.Heard.MAC + " of " + o.Link, Want: "behind " + o.Heard.Peer.String(), Got: "absent"}
}

// Drift implements Operation.
func (o UnplaceMember) Drift() fabric.Drift {
	got := "behind " + o.Placed.Peer.String()
	if o.Placed.Partial {
		got = "in one table of two"
	}
	return fabric.Drift{Network: o.Network, Object: "member " + o.Placed.MAC + " of " + o.Link, Want: "absent", Got: got}
}
