package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
)

// With encryption, tunnels run from node to node within a WireGuard device (decision 066). Each node has an address inside, and a peer's allowed
// IPs are its address inside alone, so the kernel takes packets with that source from the holder of the peer's key and from nobody else. All that
// is planned for tunnels then has addresses inside in place of those on the underlay.

const (
	cipherPort = 51890
)

// Cipher is the configuration of a WireGuard device: the node's public key, the UDP port, and the peers in order of their keys.
type Cipher struct {
	PublicKey string
	Port      int
	Peers     []CipherPeer
}

// CipherPeer is another node. Allowed is the only source, and the only destination, of packets within; Others are allowed besides, of a device
// that is not as it should be.
type CipherPeer struct {
	PublicKey string
	Endpoint  netip.AddrPort
	Allowed   netip.Prefix
	Others    int
}

// inside returns what a plan is computed from when networks are encrypted: their peers, and this node, by the addresses that they have inside. No
// frame may take the underlay's link without the tunnel's device.
func inside(cfg Config, networks []fabric.Network, seen Observed) (Config, []fabric.Network, Observed) {
	if len(networks) == 0 || !networks[0].Encrypted || !cfg.Underlay.IsValid() {
		return cfg, networks, seen
	}
	cfg.Underlay, seen.UnderlayRules = fabric.Inside(cfg.Underlay), true
	networks = slices.Clone(networks)
	for i := range networks {
		remotes := slices.Clone(networks[i].Remotes)
		for j := range remotes {
			remotes[j].Peer = fabric.Inside(remotes[j].Peer)
		}
		networks[i].Remotes = remotes
	}
	return cfg, networks, seen
}

// cipherLink returns the WireGuard device that the networks and other tunnels need, if any. Its peers are those of both. All addresses given are those on the underlay.
func cipherLink(cfg Config, networks []fabric.Network, seen Observed) ([]Link, error) {
	var peers []CipherPeer
	needed := false
	for _, n := range networks {
		needed = needed || n.Encrypted && hasTunnel(n, networks)
		for _, r := range n.Remotes {
			if n.Encrypted {
				peers = append(peers, cipherPeer(r.Peer, r.Key))
			}
		}
	}
	for _, t := range cfg.Tunnels {
		for _, p := range t.Peers {
			peers = append(peers, cipherPeer(p.Address, p.Key))
		}
	}
	usable := cfg.PublicKey != "" && cfg.Underlay.IsValid() && seen.UnderlayMTU >= leastCipher
	if !needed && (len(cfg.Tunnels) == 0 || !usable) { // networks are not to wait for others' tunnels, of which nothing is sent without the device
		return nil, nil
	}
	if cfg.PublicKey == "" {
		return nil, fmt.Errorf("the site's underlay is encrypted, but this node's kernel has no WireGuard: load its module (modprobe wireguard), or boot a kernel that has it (Linux 5.6 or later), and restart the agent; until then the node carries no members of networks with members on other nodes")
	}
	slices.SortFunc(peers, CipherPeer.Compare)
	return []Link{{
		Name: CipherName, Kind: KindWireGuard, MTU: seen.UnderlayMTU - api.CipherOverheadBytes, Up: true,
		Addresses: []netip.Prefix{netip.PrefixFrom(fabric.Inside(cfg.Underlay), fabric.InsideBits)},
		Cipher:    Cipher{PublicKey: cfg.PublicKey, Port: cipherPort, Peers: slices.Compact(peers)},
	}}, nil
}

// leastCipher is the least MTU in bytes of an underlay that carries tunnels within WireGuard: hosts take packets of 576 bytes (RFC 791, section 3.1).
const leastCipher = api.CipherOverheadBytes + 50 + 576

func cipherPeer(peer netip.Addr, key string) CipherPeer {
	return CipherPeer{PublicKey: key, Endpoint: netip.AddrPortFrom(peer, cipherPort), Allowed: netip.PrefixFrom(fabric.Inside(peer), 32)}
}

// Compare orders peers by their keys.
func (p CipherPeer) Compare(other CipherPeer) int {
	return cmp.Or(cmp.Compare(p.PublicKey, other.PublicKey), p.Endpoint.Compare(other.Endpoint), p.Allowed.Addr().Compare(other.Allowed.Addr()))
}

// planCipher mends the configuration of a WireGuard device. Peers that stay keep their sessions.
func planCipher(want, seen Link) []Operation {
	w, s := want.Cipher, seen.Cipher
	op := SetCipher{Link: want.Name, Device: w.PublicKey != s.PublicKey || w.Port != s.Port, Cipher: w, Got: s}
	kept := map[string]bool{}
	for _, p := range w.Peers {
		kept[p.PublicKey] = true
		if !slices.Contains(s.Peers, p) {
			op.Peers = append(op.Peers, p)
		}
	}
	for _, p := range s.Peers {
		if !kept[p.PublicKey] {
			op.Former = append(op.Former, p.PublicKey)
		}
	}
	if !op.Device && len(op.Peers)+len(op.Former) == 0 {
		return nil
	}
	return []Operation{op}
}

// SetCipher configures a WireGuard device: its key and port if Device is set, peers that are missing or differ, and former peers to remove.
type SetCipher struct {
	Link   string
	Device bool
	Cipher Cipher
	Peers  []CipherPeer
	Former []string
	Got    Cipher
}

// String writes the operation in the language of wg(8). The private key is the executor's.
func (o SetCipher) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "wg set %s", o.Link)
	if o.Device {
		fmt.Fprintf(&b, " listen-port %d private-key FILE", o.Cipher.Port)
	}
	for _, key := range o.Former {
		fmt.Fprintf(&b, " peer %s remove", key)
	}
	for _, p := range o.Peers {
		fmt.Fprintf(&b, " peer %s endpoint %v allowed-ips %v", p.PublicKey, p.Endpoint, p.Allowed)
	}
	return b.String()
}

// Drift implements Operation.
func (o SetCipher) Drift() fabric.Drift {
	return fabric.Drift{Object: "wireguard " + o.Link, Want: o.Cipher.String(), Got: o.Got.String()}
}

// String writes a configuration for logs.
func (c Cipher) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "key %s, port %d", c.PublicKey, c.Port)
	for _, p := range c.Peers {
		fmt.Fprintf(&b, ", peer %s at %v allowed %v", p.PublicKey, p.Endpoint, p.Allowed)
		if p.Others > 0 {
			fmt.Fprintf(&b, " and %d more", p.Others)
		}
	}
	return b.String()
}

// sealRules keep tunnels of our networks inside WireGuard, whatever routes say, and everything else of its peers out of the node.
const sealRules = `	chain sealed_in {
		type filter hook input priority -20; policy accept;
		iifname "nmwg" udp dport 4789 accept
		iifname "nmwg" drop
		udp dport 4789 @th,96,24 @vnis drop
	}
	chain sealed_forward {
		type filter hook forward priority -20; policy accept;
		iifname "nmwg" drop
		oifname "nmwg" drop
	}
	chain sealed_out {
		type filter hook output priority -20; policy accept;
		oifname != "nmwg" udp dport 4789 @th,96,24 @vnis drop
	}
`

// sealTable has the same rules for the tunnels that are no networks', by identifiers of their own. It needs no networks.
const sealTable = "inet nmseal"

// sealOf are the rules for tunnels; none without any.
func sealOf(tunnels []fabric.Tunnel) Ruleset {
	if len(tunnels) == 0 {
		return Ruleset{}
	}
	sets := map[string][]string{"vnis": nil}
	for _, t := range tunnels {
		sets["vnis"] = append(sets["vnis"], fmt.Sprintf("0x%x", t.VNI))
	}
	text := "table " + sealTable + " {\n\tset vnis {\n\t\ttypeof @th,96,24\n\t}\n" + sealRules + "}\n"
	return Ruleset{sealTable: {Text: skeleton(text), Sets: sortSets(sets)}}
}

// addSeal adds these rules to the node's own table when networks are encrypted.
func addSeal(text string, networks []fabric.Network) string {
	if !networks[0].Encrypted {
		return text
	}
	return strings.TrimSuffix(text, "}\n") + sealRules + "}\n"
}
