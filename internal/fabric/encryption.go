package fabric

import (
	"encoding/base64"
	"fmt"
	"net/netip"

	"github.com/nearmetal/nearmetal/api"
)

// Inside returns the address of a node within the encrypted underlay: 240.0.0.0/4 with the last 28 bits of the address that the node has on the
// underlay. Nobody else uses these addresses (RFC 1112, section 4, reserves them, and Linux takes them as any others), private networks (RFC 1918)
// never share one, and nothing has to be allotted.
func Inside(underlay netip.Addr) netip.Addr {
	if !underlay.Is4() {
		return underlay
	}
	a := underlay.As4()
	a[0] |= 0xf0
	return netip.AddrFrom4(a)
}

// OverheadBytes returns what carrying a member's packet between nodes adds to it on the underlay, with encryption where it is on.
func (n Network) OverheadBytes() int {
	if n.Encrypted && !n.OnVLAN() {
		return n.Network.OverheadBytes() + api.CipherOverheadBytes
	}
	return n.Network.OverheadBytes()
}

// InsideBits is the length of the prefix that all addresses within the encrypted underlay have.
const InsideBits = 4

// Tunnel is a tunnel of something else than a network between this node and others, whose packets go through WireGuard: that of a cluster's volumes.
type Tunnel struct {
	// VNI is its VXLAN identifier, above those of networks.
	VNI   int
	Peers []TunnelPeer
}

// TunnelPeer is another node at a tunnel.
type TunnelPeer struct {
	// Address is the node's on the underlay, Key its public WireGuard key in base64.
	Address netip.Addr
	Key     string
}

// MaxVNI is the highest identifier of a tunnel (RFC 7348, section 5).
const MaxVNI = 1<<24 - 1

// ValidateTunnels checks tunnels like networks: each node that is reached has one key, also as networks have it, and one address inside to itself.
func ValidateTunnels(tunnels []Tunnel, networks []Network) error {
	if len(tunnels) == 0 {
		return nil
	}
	if len(networks) > 0 && !networks[0].Encrypted {
		return fmt.Errorf("network %d is not encrypted, and tunnel %d is to be: either all are encrypted, or none is", networks[0].Index, tunnels[0].VNI)
	}
	known := newKeys()
	for _, n := range networks {
		for _, r := range n.Remotes {
			if err := known.add(r.Peer, r.Key); err != nil {
				return fmt.Errorf("network %d: %w", n.Index, err)
			}
		}
	}
	seen := map[int]bool{}
	for _, t := range tunnels {
		if t.VNI <= MaxIndex || t.VNI > MaxVNI || seen[t.VNI] {
			return fmt.Errorf("tunnel %d is one of a network, is out of range, or appears twice", t.VNI)
		}
		seen[t.VNI] = true
		for _, p := range t.Peers {
			if !p.Address.Is4() {
				return fmt.Errorf("tunnel %d: peer %v is not an IPv4 address", t.VNI, p.Address)
			}
			if err := known.add(p.Address, p.Key); err != nil {
				return fmt.Errorf("tunnel %d: %w", t.VNI, err)
			}
		}
	}
	return nil
}

// keys are those of peers, and peers by their addresses inside.
type keys struct {
	of      map[netip.Addr]string
	outside map[netip.Addr]netip.Addr
}

func newKeys() keys { return keys{map[netip.Addr]string{}, map[netip.Addr]netip.Addr{}} }

func (k keys) add(peer netip.Addr, key string) error {
	if bytes, err := base64.StdEncoding.DecodeString(key); err != nil || len(bytes) != 32 {
		return fmt.Errorf("it is encrypted, but peer %v has the key %q, which is no public key of WireGuard", peer, key)
	}
	if other, known := k.of[peer]; known && other != key {
		return fmt.Errorf("peer %v has two keys, %s and %s", peer, other, key)
	}
	if other, known := k.outside[Inside(peer)]; known && other != peer {
		return fmt.Errorf("peers %v and %v would have one address, %v, in the encrypted underlay", other, peer, Inside(peer))
	}
	k.of[peer], k.outside[Inside(peer)] = key, peer
	return nil
}

// validateEncryption checks that all networks are encrypted or none, that each node that is reached has one key, and one address inside to itself.
func validateEncryption(networks []Network) error {
	known := newKeys()
	for _, n := range networks {
		if n.Encrypted != networks[0].Encrypted {
			return fmt.Errorf("network %d, encrypted %t, and network %d, encrypted %t, can't be on one node: either all are encrypted, or none is",
				networks[0].Index, networks[0].Encrypted, n.Index, n.Encrypted)
		}
		for _, r := range n.Remotes {
			if !n.Encrypted {
				continue
			}
			if err := known.add(r.Peer, r.Key); err != nil {
				return fmt.Errorf("network %d: %w", n.Index, err)
			}
		}
	}
	return nil
}
