package shortcut

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
)

// Underlay is a link that carries tunnels.
type Underlay struct {
	Link string
	// Address is this node's.
	Address netip.Addr
	// MTU is that of members, in bytes: what the outer headers leave of the link's.
	MTU int
}

// peerKey is a key of the map peers.
type peerKey struct {
	Peer    [4]byte
	Network uint32
}

// peerValue is a value of the map peers; underlay_program.go reads its fields.
type peerValue struct {
	Local   [4]byte
	Network uint32
	Limit   uint32
}

// openUnderlay lets the frames of a network pass by its tunnel's device, to and from its peers.
func (t *Table) openUnderlay(tunnel Tunnel) error {
	if len(tunnel.Peers) == 0 {
		return nil
	}
	link, err := netlink.LinkByName(tunnel.Underlay.Link)
	if err != nil {
		return fmt.Errorf("finding the link of the underlay, %s: %w", tunnel.Underlay.Link, err)
	}
	if err := attach(link, t.fromUnderlay.program); err != nil {
		return err
	}
	if err := t.underlays.Put(tunnel.Underlay.Address.As4(), uint32(link.Attrs().Index)); err != nil {
		return fmt.Errorf("adding the link of the underlay: %w", err)
	}
	for _, peer := range tunnel.Peers {
		if err := t.peers.Put(tunnel.key(peer), tunnel.peer()); err != nil {
			return fmt.Errorf("adding the peer %v: %w", peer, err)
		}
	}
	return nil
}

// forgetUnderlay removes the peers of a tunnel, and the program from the underlay with the last that has it.
func (t *Table) forgetUnderlay(name string, tunnel Tunnel) error {
	for _, peer := range tunnel.Peers {
		if err := t.peers.Delete(tunnel.key(peer)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing the peer %v: %w", peer, err)
		}
	}
	if len(tunnel.Peers) == 0 {
		return nil
	}
	for other, e := range t.tunnels {
		if other != name && len(e.tunnel.Peers) > 0 && e.tunnel.Underlay.Link == tunnel.Underlay.Link {
			return nil
		}
	}
	if err := t.underlays.Delete(tunnel.Underlay.Address.As4()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing the link of the underlay: %w", err)
	}
	return detach(tunnel.Underlay.Link)
}

// wholeUnderlay reports whether the kernel has what openUnderlay wrote.
func (t *Table) wholeUnderlay(tunnel Tunnel) bool {
	if len(tunnel.Peers) == 0 {
		return true
	}
	for _, peer := range tunnel.Peers {
		var value peerValue
		if t.peers.Lookup(tunnel.key(peer), &value) != nil || value != tunnel.peer() {
			return false
		}
	}
	var index uint32
	if t.underlays.Lookup(tunnel.Underlay.Address.As4(), &index) != nil {
		return false
	}
	id, err := attached(int(index))
	return err == nil && id == t.fromUnderlay.id
}

func (t Tunnel) key(peer netip.Addr) peerKey {
	return peerKey{Peer: peer.As4(), Network: uint32(t.Network)}
}

func (t Tunnel) peer() peerValue {
	return peerValue{Local: t.Underlay.Address.As4(), Network: uint32(t.Network), Limit: uint32(t.Underlay.MTU)}
}

// Left returns the links with a program at which none of this table's shortcuts need one, of those that are given as index by name: what
// another process left there.
func (t *Table) Left(links map[string]int) ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	used := map[string]bool{}
	for _, e := range t.tunnels {
		if len(e.tunnel.Peers) > 0 {
			used[e.tunnel.Underlay.Link] = true
		}
	}
	prepared, err := prepared()
	if err != nil {
		return nil, err
	}
	var left []string
	for name, index := range links {
		if !prepared[index] || used[name] {
			continue
		}
		id, err := attached(index)
		if err != nil {
			return nil, fmt.Errorf("reading the program of %s: %w", name, err)
		}
		if id != 0 {
			left = append(left, name)
		}
	}
	return left, nil
}

// prepared returns the indexes of the links that can have programs.
func prepared() (map[int]bool, error) {
	list, err := netlink.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("reading which links can have programs: %w", err)
	}
	links := map[int]bool{}
	for _, qdisc := range list {
		if qdisc.Type() == "clsact" {
			links[qdisc.Attrs().LinkIndex] = true
		}
	}
	return links, nil
}
