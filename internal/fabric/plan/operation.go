package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Operation is one step of a plan. String writes it in the language of ip(8), bridge(8), nft(8) and sysctl(8), for logs and for
// tests; Drift tells what is not as it should be until the step is done.
type Operation interface {
	fmt.Stringer
	Drift() fabric.Drift
}

// LoadRules is one nftables transaction.
type LoadRules struct{ Script string }

// AddLink makes a bridge or a tunnel, with everything that belongs to it.
type AddLink struct {
	Network int
	Link    Link
}

// DeleteLink removes a link.
type DeleteLink struct {
	Network int
	Name    string
	Why     string
}

// SetLink changes one attribute of a link to that of Link. The MTU of a port is changed at both ends.
type SetLink struct {
	Network   int
	Link      Link
	Attribute string // address, mcast_snooping, master, mcast_router, mtu or state
	Want, Got string
}

// AddAddress adds an address to a bridge.
type AddAddress struct {
	Network int
	Link    string
	Address netip.Prefix
}

// DeleteAddress removes an address from a bridge.
type DeleteAddress struct {
	Network int
	Link    string
	Address netip.Prefix
}

// AddPeer makes a tunnel send frames of unknown destination to a peer, too.
type AddPeer struct {
	Network int
	Link    string
	Peer    netip.Addr
}

// DeletePeer ends that.
type DeletePeer struct {
	Network int
	Link    string
	Peer    netip.Addr
}

// ForgetMember ends that a tunnel sends frames for a member to a peer which the member doesn't live behind.
type ForgetMember struct {
	Network int
	Link    string
	Heard   Heard
}

// DeleteFilter ends that the trunk's adapter takes frames to a MAC address for a VLAN by name.
type DeleteFilter struct {
	Network int
	Link    string
	MAC     string
}

// SetForwarding switches the forwarding of IPv4 packets that come in over a link.
type SetForwarding struct {
	Network int
	Link    string
	On      bool
}

func (o LoadRules) String() string { return "nft:\n" + strings.TrimRight(o.Script, "\n") }

func (o AddLink) String() string {
	l := o.Link
	var b strings.Builder
	fmt.Fprintf(&b, "ip link add %s mtu %d", l.Name, l.MTU)
	if l.Master != "" {
		fmt.Fprintf(&b, " master %s", l.Master)
	}
	switch l.Kind {
	case KindBridge:
		fmt.Fprintf(&b, " address %s addrgenmode none %s type bridge mcast_snooping %s mcast_querier %[3]s", l.MAC, upDown(l.Up), onOff(l.Snooping))
	case KindIFB:
		fmt.Fprintf(&b, " addrgenmode none %s type ifb", upDown(l.Up))
	case KindWireGuard:
		fmt.Fprintf(&b, " addrgenmode none %s type wireguard\n%s", upDown(l.Up), SetCipher{Link: l.Name, Device: true, Cipher: l.Cipher, Peers: l.Cipher.Peers})
	case KindVLAN:
		fmt.Fprintf(&b, " addrgenmode none %s link %s type vlan id %d", upDown(l.Up), l.Trunk, l.VID)
	case KindVXLAN:
		fmt.Fprintf(&b, " addrgenmode none %s type vxlan id %d local %s dstport %d", upDown(l.Up), l.VNI, l.Local, l.Port)
	}
	for _, a := range l.Addresses {
		fmt.Fprintf(&b, "\nip address add %s dev %s", a, l.Name)
	}
	if l.MulticastRouter {
		fmt.Fprintf(&b, "\nbridge link set dev %s mcast_router 2", l.Name)
	}
	for _, p := range l.Peers {
		fmt.Fprintf(&b, "\n%s", AddPeer{Link: l.Name, Peer: p})
	}
	for _, n := range l.Neighbours {
		fmt.Fprintf(&b, "\n%s", AddNeighbour{Link: l.Name, Neighbour: n})
	}
	for _, p := range l.Placed {
		fmt.Fprintf(&b, "\n%s", PlaceMember{Link: l.Name, Heard: p.Heard})
	}
	if l.Forwarding {
		fmt.Fprintf(&b, "\n%s", SetForwarding{Link: l.Name, On: true})
	}
	return b.String()
}

func (o DeleteLink) String() string { return fmt.Sprintf("ip link delete %s # %s", o.Name, o.Why) }

func (o SetLink) String() string {
	switch {
	case o.Attribute == "state":
		return fmt.Sprintf("ip link set %s %s", o.Link.Name, o.Want)
	case o.Attribute == "mcast_snooping":
		return fmt.Sprintf("ip link set %s type bridge mcast_snooping %s mcast_querier %[2]s", o.Link.Name, o.Want)
	case o.Attribute == "mcast_router":
		return fmt.Sprintf("bridge link set dev %s mcast_router %d", o.Link.Name, multicastRouter(o.Link))
	case o.Attribute == "mtu" && o.Link.Kind == KindVeth:
		return fmt.Sprintf("ip link set %s mtu %s # and the member's end", o.Link.Name, o.Want)
	default:
		return fmt.Sprintf("ip link set %s %s %s", o.Link.Name, o.Attribute, o.Want)
	}
}

// multicastRouter is 2 for a port that takes all multicast, and 1, the kernel's default, for one that takes what its other end asks for.
func multicastRouter(l Link) int {
	if l.MulticastRouter {
		return 2
	}
	return 1
}

func (o AddAddress) String() string {
	return fmt.Sprintf("ip address add %s dev %s", o.Address, o.Link)
}

func (o DeleteAddress) String() string {
	return fmt.Sprintf("ip address delete %s dev %s", o.Address, o.Link)
}

func (o AddPeer) String() string {
	return fmt.Sprintf("bridge fdb append 00:00:00:00:00:00 dev %s dst %s self permanent", o.Link, o.Peer)
}

func (o DeletePeer) String() string {
	return fmt.Sprintf("bridge fdb delete 00:00:00:00:00:00 dev %s dst %s self", o.Link, o.Peer)
}

func (o ForgetMember) String() string {
	return fmt.Sprintf("bridge fdb delete %s dev %s dst %s self", o.Heard.MAC, o.Link, o.Heard.Peer)
}

func (o DeleteFilter) String() string {
	return fmt.Sprintf("bridge fdb delete %s dev %s self", o.MAC, o.Link)
}

func (o SetForwarding) String() string {
	on := 0
	if o.On {
		on = 1
	}
	return fmt.Sprintf("sysctl net.ipv4.conf.%s.forwarding=%d", o.Link, on)
}

// Drift implements Operation.
func (o LoadRules) Drift() fabric.Drift {
	return fabric.Drift{Object: "nftables tables " + strings.Join(tables(), ", "), Want: o.Script, Got: "something else"}
}

// Drift implements Operation.
func (o AddLink) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: string(o.Link.Kind) + " " + o.Link.Name, Want: "present", Got: "absent"}
}

// Drift implements Operation.
func (o DeleteLink) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "link " + o.Name, Want: "absent", Got: o.Why}
}

// Drift implements Operation.
func (o SetLink) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: string(o.Link.Kind) + " " + o.Link.Name + " " + o.Attribute, Want: o.Want, Got: o.Got}
}

// Drift implements Operation.
func (o AddAddress) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "address of " + o.Link, Want: o.Address.String(), Got: "absent"}
}

// Drift implements Operation.
func (o DeleteAddress) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "address of " + o.Link, Want: "absent", Got: o.Address.String()}
}

// Drift implements Operation.
func (o AddPeer) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "peer of " + o.Link, Want: o.Peer.String(), Got: "absent"}
}

// Drift implements Operation.
func (o DeletePeer) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "peer of " + o.Link, Want: "absent", Got: o.Peer.String()}
}

// Drift implements Operation.
func (o ForgetMember) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "member " + o.Heard.MAC + " of " + o.Link, Want: "forgotten", Got: "heard from " + o.Heard.Peer.String()}
}

// Drift implements Operation.
func (o DeleteFilter) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "filter " + o.MAC + " of " + o.Link, Want: "absent", Got: "present"}
}

// Drift implements Operation.
func (o SetForwarding) Drift() fabric.Drift {
	return fabric.Drift{Network: o.Network, Object: "forwarding on " + o.Link, Want: onOff(o.On), Got: onOff(!o.On)}
}
