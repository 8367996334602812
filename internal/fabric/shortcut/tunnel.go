package shortcut

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// Tunnel is what the programs need to know of a network that spans nodes.
type Tunnel struct {
	Network int
	// Remotes are the members on other nodes. The programs take frames from and to these, and no others.
	Remotes []Remote
	// Underlay is the link that frames may take without the tunnel's device; the zero value: none.
	Underlay Underlay
	// Peers are the nodes that are reached over Underlay without a router.
	Peers []netip.Addr
}

// Remote is a member on another node, Peer being the underlay address of the node.
type Remote struct {
	Address netip.Addr
	MAC     string
	Peer    netip.Addr
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
	_       [4]byte
	Network uint32
}

// remoteValue is a value of the map remotes; the programs read its fields.
type remoteValue struct {
	Heard   uint32 // the kernel's jiffies when a frame of the member last took the bridge
	Network uint32
	MAC     [6]byte
	_       [2]byte
	Peer    [4]byte
}

// OpenTunnel opens the shortcut through the tunnel with this link, which is on the bridge of its network. Load comes first.
func (t *Table) OpenTunnel(name string, tunnel Tunnel) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.forgetTunnel(name); err != nil {
		return err
	}
	index := uint32(link.Attrs().Index)
	t.tunnels[name] = tunnelEntry{index: index, tunnel: tunnel}
	if err := t.addRemotes(tunnel.Network, tunnel.Remotes); err != nil {
		return err
	}
	if err := t.mouths.Put(index, mouthValue{Network: uint32(tunnel.Network)}); err != nil {
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

// ChangeTunnel changes which members on other nodes the open shortcut of this tunnel leads to and from. Entries of members that stay are not touched.
func (t *Table) ChangeTunnel(name string, remotes []Remote) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, open := t.tunnels[name]
	if !open {
		return fmt.Errorf("the shortcut through %s is not open", name)
	}
	before := e.tunnel.Remotes
	e.tunnel.Remotes = slices.Clone(remotes)
	t.tunnels[name] = e // if anything fails from here on, it is read back as not whole
	if err := t.removeRemotes(without(before, remotes)); err != nil {
		return err
	}
	return t.addRemotes(e.tunnel.Network, without(remotes, before))
}

// without returns the remotes that are not among others.
func without(remotes, others []Remote) []Remote {
	among := make(map[Remote]bool, len(others))
	for _, r := range others {
		among[r] = true
	}
	return slices.DeleteFunc(slices.Clone(remotes), func(r Remote) bool { return among[r] })
}

func (t *Table) addRemotes(network int, remotes []Remote) error {
	for _, r := range remotes {
		value, err := r.value(network)
		if err != nil {
			return err
		}
		if err := t.remotes.Put(r.Address.As4(), value); err != nil {
			return fmt.Errorf("adding member %v behind %v: %w", r.Address, r.Peer, err)
		}
	}
	return nil
}

func (t *Table) removeRemotes(remotes []Remote) error {
	for _, r := range remotes {
		if err := t.remotes.Delete(r.Address.As4()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing member %v behind %v: %w", r.Address, r.Peer, err)
		}
	}
	return nil
}

// value returns a remote as the programs read it before they heard it.
func (r Remote) value(network int) (remoteValue, error) {
	mac, err := net.ParseMAC(r.MAC)
	if err != nil || len(mac) != 6 || !r.Address.Is4() || !r.Peer.Is4() {
		return remoteValue{}, fmt.Errorf("a member on another node needs an Ethernet and two IPv4 addresses, not %q, %v and %v", r.MAC, r.Address, r.Peer)
	}
	return remoteValue{Network: uint32(network), MAC: [6]byte(mac), Peer: r.Peer.As4()}, nil
}

// forgetTunnel removes the entries of a tunnel: nothing is exchanged with peers any more, then nothing sent into it, then nothing taken out
// of it, and its members on other nodes are forgotten.
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
	if err := t.removeRemotes(e.tunnel.Remotes); err != nil {
		return err
	}
	delete(t.tunnels, name)
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
	return t.mouths.Lookup(e.index, &mouth) == nil && mouth.Network == uint32(e.tunnel.Network) &&
		t.exits.Lookup(uint32(e.tunnel.Network), &index) == nil && index == e.index && t.wholeUnderlay(e.tunnel) &&
		!slices.ContainsFunc(e.tunnel.Remotes, func(r Remote) bool {
			var got remoteValue
			want, err := r.value(e.tunnel.Network)
			if err != nil || t.remotes.Lookup(r.Address.As4(), &got) != nil {
				return true
			}
			want.Heard = got.Heard
			return got != want
		})
}
