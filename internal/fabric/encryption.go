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

// validateEncryption checks that all networks are encrypted or none, that each node that is reached has one key, and one address inside to itself.
func validateEncryption(networks []Network) error {
	keys, outside := map[netip.Addr]string{}, map[netip.Addr]netip.Addr{}
	for _, n := range networks {
		if n.Encrypted != networks[0].Encrypted {
			return fmt.Errorf("network %d, encrypted %t, and network %d, encrypted %t, can't be on one node: either all are encrypted, or none is",
				networks[0].Index, networks[0].Encrypted, n.Index, n.Encrypted)
		}
		for _, r := range n.Remotes {
			if !n.Encrypted {
				continue
			}
			if key, err := base64.StdEncoding.DecodeString(r.Key); err != nil || len(key) != 32 {
				return fmt.Errorf("network %d is encrypted, but peer %v has the key %q, which is no public key of WireGuard", n.Index, r.Peer, r.Key)
			}
			if key, known := keys[r.Peer]; known && key != r.Key {
				return fmt.Errorf("network %d: peer %v has two keys, %s and %s", n.Index, r.Peer, key, r.Key)
			}
			if other, known := outside[Inside(r.Peer)]; known && other != r.Peer {
				return fmt.Errorf("network %d: peers %v and %v would have one address, %v, in the encrypted underlay", n.Index, other, r.Peer, Inside(r.Peer))
			}
			keys[r.Peer], outside[Inside(r.Peer)] = r.Key, r.Peer
		}
	}
	return nil
}
