package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/fabric"
)

// Public keys, which nobody has the private ones of.
const (
	ownKey   = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	peerKey  = "AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	otherKey = "AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
)

var cipherConfig = Config{Underlay: planConfig.Underlay, PublicKey: ownKey}

// encryptedNetwork has a member here, and one behind each of these peers, with its key.
func encryptedNetwork(index int, keys map[string]string) fabric.Network {
	n := testNetwork(index, 2)
	n.Encrypted = true
	host := 3
	for _, peer := range slices.Sorted(func(yield func(string) bool) {
		for peer := range keys {
			if !yield(peer) {
				return
			}
		}
	}) {
		r := behind(n, peer, host)[0]
		r.Key = keys[peer]
		n.Remotes = append(n.Remotes, r)
		host++
	}
	return n
}

// text computes a plan and writes its operations, one after the other.
func text(t *testing.T, m *machine, networks ...fabric.Network) string {
	t.Helper()
	ops, err := Compute(cipherConfig, networks, m.Observed)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, op := range ops {
		b.WriteString(op.String() + "\n")
		m.execute(op)
	}
	return b.String()
}

func TestEncryptedTunnelsAreWithinWireGuard(t *testing.T) {
	m := newMachine()
	n := encryptedNetwork(3, map[string]string{"198.18.0.2": peerKey})
	got := text(t, m, n)
	for _, want := range []string{
		"nmwg mtu 8940", "ip address add 246.18.0.1/4 dev nmwg",
		"peer " + peerKey + " endpoint 198.18.0.2:51890 allowed-ips 246.18.0.2/32",
		"nmvx3 mtu 8890", "local 246.18.0.1 ", "dst 246.18.0.2 ", "246.18.0.2 . 0x3 . ",
		"iifname \"nmwg\" udp dport 4789 accept iifname \"nmwg\" drop udp dport 4789 @th,96,24 @vnis drop",
		"oifname != \"nmwg\" udp dport 4789 @th,96,24 @vnis drop",
	} {
		if !strings.Contains(strings.Join(strings.Fields(got), " "), want) {
			t.Errorf("the plan lacks %q:\n%s", want, got)
		}
	}
	for name, s := range m.OpenShortcuts {
		if s.Underlay != "" {
			t.Errorf("the shortcut of %s takes the underlay's link: %v", name, s)
		}
	}
	if again := text(t, m, n); again != "" {
		t.Errorf("the second plan is not empty:\n%s", again)
	}
	if at, device := strings.Index(got, "table inet nm"), strings.Index(got, "ip link add nmwg"); at < 0 || device < at {
		t.Error("the device comes before the rules")
	}
	text(t, m)
	if _, left := m.Links[CipherName]; left {
		t.Error("the device is left without networks")
	}
}

func TestAPlanOfKeysChangesWhatChanged(t *testing.T) {
	m := newMachine()
	text(t, m, encryptedNetwork(3, map[string]string{"198.18.0.2": peerKey, "198.18.0.3": otherKey}))
	got := text(t, m, encryptedNetwork(3, map[string]string{"198.18.0.2": peerKey}))
	if want := "wg set nmwg peer " + otherKey + " remove\n"; !strings.Contains(got, want) {
		t.Errorf("a node that left: the plan lacks %q:\n%s", want, got)
	}
	got = text(t, m, encryptedNetwork(3, map[string]string{"198.18.0.2": otherKey}))
	if want := "wg set nmwg peer " + peerKey + " remove peer " + otherKey + " endpoint 198.18.0.2:51890 allowed-ips 246.18.0.2/32\n"; got != want {
		t.Errorf("another key: the plan is %q, want %q", got, want)
	}
}

func TestWhatCannotBeEncryptedIsRefused(t *testing.T) {
	n := encryptedNetwork(3, map[string]string{"198.18.0.2": peerKey})
	plain := testNetwork(4, 2)
	two := encryptedNetwork(4, map[string]string{"198.18.0.2": otherKey})
	same := encryptedNetwork(3, map[string]string{"198.18.0.2": peerKey, "246.18.0.2": otherKey})
	for name, tt := range map[string]struct {
		cfg      Config
		networks []fabric.Network
		want     string
	}{
		"a node without WireGuard": {planConfig, []fabric.Network{n}, "no WireGuard"},
		"a network in clear":       {cipherConfig, []fabric.Network{n, plain}, "either all are encrypted"},
		"a peer with two keys":     {cipherConfig, []fabric.Network{n, two}, "two keys"},
		"two peers of one address": {cipherConfig, []fabric.Network{same}, "one address"},
		"a peer without a key":     {cipherConfig, []fabric.Network{encryptedNetwork(3, map[string]string{"198.18.0.2": ""})}, "no public key"},
	} {
		ops, err := Compute(tt.cfg, tt.networks, newMachine().Observed)
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(ops) > 0 {
			t.Errorf("%s: got %v and %d operations, want an error with %q", name, err, len(ops), tt.want)
		}
	}
}

func TestPrivateNetworksHaveAddressesInsideToThemselves(t *testing.T) {
	seen := map[netip.Addr]string{}
	for _, text := range []string{"10.0.0.1", "10.255.255.254", "172.16.0.1", "172.31.255.254", "192.168.0.1", "192.168.255.254", "198.18.0.1", "100.64.0.1"} {
		inside := fabric.Inside(netip.MustParseAddr(text))
		if other, taken := seen[inside]; taken || !netip.MustParsePrefix("240.0.0.0/4").Contains(inside) {
			t.Errorf("%s is %v inside, as is %q", text, inside, other)
		}
		seen[inside] = text
	}
}

// volumeTunnel is a tunnel of volumes, with these peers and their keys.
func volumeTunnel(vni int, keys map[string]string) fabric.Tunnel {
	t := fabric.Tunnel{VNI: vni}
	for _, peer := range sortedKeys(keys) {
		t.Peers = append(t.Peers, fabric.TunnelPeer{Address: netip.MustParseAddr(peer), Key: keys[peer]})
	}
	return t
}

// sealed computes and carries out a plan with tunnels.
func sealed(t *testing.T, m *machine, tunnels []fabric.Tunnel, networks ...fabric.Network) string {
	t.Helper()
	cfg := cipherConfig
	cfg.Tunnels = tunnels
	ops, err := Compute(cfg, networks, m.Observed)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, op := range ops {
		b.WriteString(op.String() + "\n")
		m.execute(op)
	}
	if again, err := Compute(cfg, networks, m.Observed); err != nil || len(again) > 0 {
		t.Errorf("the second plan has %v, %v", again, err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestTunnelsOfVolumesAreWithinWireGuardWithAndWithoutNetworks(t *testing.T) {
	m := newMachine()
	tunnels := []fabric.Tunnel{volumeTunnel(0x800249, map[string]string{"198.18.0.3": otherKey})}
	got := sealed(t, m, tunnels)
	for _, want := range []string{
		"nmwg mtu 8940", "ip address add 246.18.0.1/4 dev nmwg", "peer " + otherKey + " endpoint 198.18.0.3:51890 allowed-ips 246.18.0.3/32",
		"table inet nmseal {", "add element inet nmseal vnis { 0x800249 }",
		"iifname \"nmwg\" udp dport 4789 accept iifname \"nmwg\" drop udp dport 4789 @th,96,24 @vnis drop",
		"oifname != \"nmwg\" udp dport 4789 @th,96,24 @vnis drop",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the plan lacks %q:\n%s", want, got)
		}
	}
	if rules, device := strings.Index(got, "vnis { 0x800249 }"), strings.Index(got, "ip link add nmwg"); rules < 0 || device < rules {
		t.Error("the device comes before the rules")
	}

	n := encryptedNetwork(3, map[string]string{"198.18.0.2": peerKey})
	got = sealed(t, m, tunnels, n)
	if want := "wg set nmwg peer " + peerKey + " endpoint 198.18.0.2:51890"; !strings.Contains(got, want) || strings.Contains(got, " remove") {
		t.Errorf("with a network besides, the plan lacks %q, or removes a peer:\n%s", want, got)
	}
	if got = sealed(t, m, nil, n); !strings.Contains(got, "delete table inet nmseal") || !strings.Contains(got, "wg set nmwg peer "+otherKey+" remove") {
		t.Errorf("without the tunnel the plan is\n%s", got)
	}
	sealed(t, m, tunnels, n)
	if got = sealed(t, m, tunnels); !strings.Contains(got, "wg set nmwg peer "+peerKey+" remove") || strings.Contains(got, "link delete nmwg") {
		t.Errorf("without the network the plan is\n%s", got)
	}
	got = sealed(t, m, nil)
	if rules, device := strings.Index(got, "delete table inet nmseal"), strings.Index(got, "nmwg"); device < 0 || rules < device || m.Links[CipherName].Name != "" || len(m.Rules) > 0 {
		t.Errorf("the end is\n%s", got)
	}
}

// One peer may be at several tunnels and networks, and a node without usable WireGuard still keeps packets of tunnels from the underlay.
func TestNetworksDoNotWaitForTunnelsOfVolumes(t *testing.T) {
	both := map[string]string{"198.18.0.2": peerKey}
	m := newMachine()
	sealed(t, m, []fabric.Tunnel{volumeTunnel(0x800249, both), volumeTunnel(0x80024a, both)}, encryptedNetwork(3, both))
	if peers := m.Links[CipherName].Cipher.Peers; len(peers) != 1 {
		t.Errorf("one node is %d peers: %v", len(peers), peers)
	}
	for name, cfg := range map[string]Config{"no WireGuard": {Underlay: planConfig.Underlay}, "no underlay": {PublicKey: ownKey}, "the underlay's link is gone": cipherConfig} {
		m := newMachine()
		if name == "the underlay's link is gone" {
			m.UnderlayMTU = 0
		}
		cfg.Tunnels = []fabric.Tunnel{volumeTunnel(0x800249, both)}
		n := testNetwork(3, 2)
		n.Encrypted = true
		ops, err := Compute(cfg, []fabric.Network{n}, m.Observed)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, op := range ops {
			m.execute(op)
		}
		if _, device := m.Links[CipherName]; device || m.Links[BridgeName(3)].Name == "" || !slices.Equal(m.Rules[sealTable].Sets["vnis"], []string{"0x800249"}) {
			t.Errorf("%s: the links are %v, the rules %v", name, m.Links, m.Rules[sealTable])
		}
	}
}

func TestTunnelsThatCannotBeSealedAreRefused(t *testing.T) {
	good := map[string]string{"198.18.0.2": peerKey}
	for name, tt := range map[string]struct {
		networks []fabric.Network
		tunnels  []fabric.Tunnel
		want     string
	}{
		"a network in clear":          {[]fabric.Network{testNetwork(4, 2)}, []fabric.Tunnel{volumeTunnel(1<<23, good)}, "either all are encrypted"},
		"another key than a network":  {[]fabric.Network{encryptedNetwork(3, map[string]string{"198.18.0.2": otherKey})}, []fabric.Tunnel{volumeTunnel(1<<23, good)}, "two keys"},
		"another key than a tunnel":   {nil, []fabric.Tunnel{volumeTunnel(1<<23, good), volumeTunnel(1<<23+1, map[string]string{"198.18.0.2": otherKey})}, "two keys"},
		"two peers of one address":    {nil, []fabric.Tunnel{volumeTunnel(1<<23, map[string]string{"198.18.0.2": peerKey, "246.18.0.2": otherKey})}, "one address"},
		"a peer without a key":        {nil, []fabric.Tunnel{volumeTunnel(1<<23, map[string]string{"198.18.0.2": ""})}, "no public key"},
		"a peer of IPv6":              {nil, []fabric.Tunnel{volumeTunnel(1<<23, map[string]string{"fd00::2": peerKey})}, "not an IPv4 address"},
		"a network's identifier":      {nil, []fabric.Tunnel{volumeTunnel(fabric.MaxIndex, good)}, "one of a network"},
		"an identifier that is great": {nil, []fabric.Tunnel{volumeTunnel(fabric.MaxVNI+1, good)}, "out of range"},
		"an identifier twice":         {nil, []fabric.Tunnel{volumeTunnel(1<<23, good), volumeTunnel(1<<23, good)}, "twice"},
	} {
		cfg := cipherConfig
		cfg.Tunnels = tt.tunnels
		ops, err := Compute(cfg, tt.networks, newMachine().Observed)
		if err == nil || !strings.Contains(err.Error(), tt.want) || len(ops) > 0 {
			t.Errorf("%s: got %v and %d operations, want an error with %q", name, err, len(ops), tt.want)
		}
	}
}
