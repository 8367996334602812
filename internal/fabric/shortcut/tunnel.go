package shortcut

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// Tunnel is what the program needs to know of a network that spans nodes.
type Tunnel struct {
	Network int
	// Prefix holds the addresses of all members of the network.
	Prefix netip.Prefix
	// Here are the addresses of the network that are on this node, the gateway's included: frames from a tunnel are never taken for theirs.
	Here []netip.Addr
	// Underlay is the link that frames may take without the tunnel's device; the zero value: none.
	Underlay Underlay
	// Peers are the nodes that are reached over Underlay without a router.
	Peers []netip.Addr
}

// TunnelState is the kernel's state of the shortcut through a tunnel.
type TunnelState struct {
	Tunnel Tunnel
	// Broken: as in State.
	Broken bool
}

// tunnelEntry is what this process wrote about the link of a tunnel.
type tunnelEntry struct {
	index  uint32
	tunnel Tunnel
}

// mouthValue is a value of the map mouths; tunnel_program.go reads its fields.
type mouthValue struct {
	Prefix  [4]byte
	Network uint32
	Mask    [4]byte
}

// remoteValue is a value of the map remotes; both programs read its fields. Network 0 marks an address that is on this node.
type remoteValue struct {
	Heard   uint32 // the kernel's jiffies when a frame last took the bridge
	Network uint32
	MAC     [6]byte
	_       [2]byte
	Peer    [4]byte // the node that it was heard from, zero for not known
}

// OpenTunnel opens the shortcut through the tunnel with this link, which is on the bridge of its network. Load comes first.
func (t *Table) OpenTunnel(name string, tunnel Tunnel) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	if !tunnel.Prefix.IsValid() || !tunnel.Prefix.Addr().Is4() {
		return fmt.Errorf("the shortcut through %s needs an IPv4 subnet, not %v", name, tunnel.Prefix)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.forgetTunnel(name); err != nil {
		return err
	}
	index := uint32(link.Attrs().Index)
	t.tunnels[name] = tunnelEntry{index: index, tunnel: tunnel}
	for _, address := range tunnel.Here {
		if err := t.remotes.Put(address.As4(), remoteValue{}); err != nil {
			return fmt.Errorf("adding %v of this node: %w", address, err)
		}
	}
	if err := t.mouths.Put(index, tunnel.mouth()); err != nil {
		return fmt.Errorf("adding the network of %s: %w", name, err)
	}
	if err := attach(link, t.fromTunnels.program); err != nil {
		return err
	}
	if err := t.exits.Put(uint32(tunnel.Network), index); err != nil {
		return fmt.Errorf("adding the tunnel %s: %w", name, err)
	}
	return t.openUnderlay(tunnel)
}

// ChangeTunnel changes which addresses of its network the open shortcut of this tunnel takes for those of this node: new ones at once, whatever
// was learned of them. An address that is on this node no longer may be learned. What else was learned stays.
func (t *Table) ChangeTunnel(name string, here []netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, open := t.tunnels[name]
	if !open {
		return fmt.Errorf("the shortcut through %s is not open", name)
	}
	former := e.tunnel.Here
	e.tunnel.Here = slices.Clone(here)
	t.tunnels[name] = e // if anything fails from here on, it is read back as not whole
	for _, address := range here {
		if err := t.remotes.Put(address.As4(), remoteValue{}); err != nil {
			return fmt.Errorf("adding %v of this node: %w", address, err)
		}
	}
	for _, address := range former {
		if slices.Contains(here, address) {
			continue
		}
		if err := t.remotes.Delete(address.As4()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing %v, which was on this node: %w", address, err)
		}
	}
	return nil
}

// forgetTunnel removes the entries of a tunnel: nothing is exchanged with peers any more, then nothing sent into it, then nothing taken out
// of it, and what was learned of its members is forgotten.
func (t *Table) forgetTunnel(name string) error {
	e, open := t.tunnels[name]
	if !open {
		return nil
	}
	if err := t.forgetUnderlay(name, e.tunnel); err != nil {
		return err
	}
	network := uint32(e.tunnel.Network)
	var index uint32
	err := t.exits.Lookup(network, &index)
	if err == nil && index == e.index {
		err = t.exits.Delete(network)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing the tunnel %s: %w", name, err)
	}
	if err := t.mouths.Delete(e.index); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing the network of %s: %w", name, err)
	}
	if err := t.forgetRemotes(e.tunnel); err != nil {
		return fmt.Errorf("forgetting what was learned through %s: %w", name, err)
	}
	delete(t.tunnels, name)
	return nil
}

// forgetRemotes removes what is known of the addresses of a network.
func (t *Table) forgetRemotes(tunnel Tunnel) error {
	var address [4]byte
	var value remoteValue
	var gone [][4]byte
	entries := t.remotes.Iterate()
	for entries.Next(&address, &value) {
		if tunnel.Prefix.Contains(netip.AddrFrom4(address)) {
			gone = append(gone, address)
		}
	}
	if err := entries.Err(); err != nil {
		return err
	}
	for _, address := range gone {
		if err := t.remotes.Delete(address); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
	}
	return nil
}

// ReadTunnels returns the shortcuts through the tunnels with these links, given as index by name, and of links that are gone but were not
// shut, by name.
func (t *Table) ReadTunnels(links map[string]int) (map[string]TunnelState, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	states := map[string]TunnelState{}
	for name, e := range t.tunnels {
		states[name] = TunnelState{Tunnel: e.tunnel, Broken: !t.wholeTunnel(e) || links[name] != int(e.index)}
	}
	for name, index := range links {
		id, err := attached(index)
		if err != nil {
			return nil, fmt.Errorf("reading the program of %s: %w", name, err)
		}
		if _, open := states[name]; id != t.fromTunnels.id && (open || id != 0) {
			states[name] = TunnelState{Broken: true}
		}
	}
	return states, nil
}

// wholeTunnel reports whether the maps hold what this process wrote.
func (t *Table) wholeTunnel(e tunnelEntry) bool {
	var mouth mouthValue
	var index uint32
	return t.mouths.Lookup(e.index, &mouth) == nil && mouth == e.tunnel.mouth() &&
		t.exits.Lookup(uint32(e.tunnel.Network), &index) == nil && index == e.index && t.wholeUnderlay(e.tunnel) &&
		!slices.ContainsFunc(e.tunnel.Here, func(address netip.Addr) bool {
			var here remoteValue
			return t.remotes.Lookup(address.As4(), &here) != nil || here != remoteValue{}
		})
}

// mouth returns the tunnel as the program reads it.
func (t Tunnel) mouth() mouthValue {
	return mouthValue{Prefix: t.Prefix.Masked().Addr().As4(), Network: uint32(t.Network), Mask: t.mask()}
}

func (t Tunnel) mask() [4]byte {
	mask := ^uint32(0) << (32 - t.Prefix.Bits())
	return [4]byte{byte(mask >> 24), byte(mask >> 16), byte(mask >> 8), byte(mask)}
}
