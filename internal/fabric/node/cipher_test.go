package node

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// cipherOverhead is what WireGuard takes of the underlay's packets, and cipherPort its UDP port.
const (
	cipherOverhead = 60
	cipherPort     = 51890
)

func needWireGuard(t *testing.T) {
	t.Helper()
	needRoot(t)
	if err := CanEncrypt(); errors.Is(err, ErrNoWireGuard) {
		needs.Hardware(t, "%v (make test-network-guest has one)", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

// cipherLab is a switch with nodes on it, a member of one encrypted network on each.
type cipherLab struct {
	underlayLab
	keys []wgtypes.Key
}

func newKey(t *testing.T) wgtypes.Key {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newCipherLab has this many nodes, and a stranger on the switch.
func newCipherLab(t *testing.T, nodes int, encrypted bool) *cipherLab {
	t.Helper()
	needWireGuard(t)
	lab := &cipherLab{}
	lab.sw = newSpace(t)
	lab.sw.run(t, "ip link add sw type bridge mcast_snooping 0; ip link set sw mtu 9000 up")
	for i := range nodes {
		space, key := newSpace(t), newKey(t)
		plugIn(t, lab.sw, space, i, underlayMTUInTests)
		lab.keys = append(lab.keys, key)
		lab.nodes = append(lab.nodes, node{space, newFabric(t, space, Config{Config: plan.Config{Underlay: underlayAddress(i)}, PrivateKey: key})})
	}
	lab.stranger = newSpace(t)
	plugIn(t, lab.sw, lab.stranger, nodes, underlayMTUInTests)
	for i := range nodes {
		lab.networks = append(lab.networks, lab.network(i, encrypted))
		apply(t, lab.nodes[i].fabric, lab.networks[i])
		lab.members = append(lab.members, attach(t, lab.nodes[i].fabric, lab.networks[i], 0))
	}
	return lab
}

// network is the network as node i should have it, with the nodes' keys of now.
func (lab *cipherLab) network(i int, encrypted bool) fabric.Network {
	n := testNetwork(3, 2+i)
	n.Encrypted = encrypted
	for j, key := range lab.keys {
		if j == i {
			continue
		}
		r := behind(n, underlayAddress(j), 2+j)[0]
		if encrypted {
			r.Key = key.PublicKey().String()
		}
		n.Remotes = append(n.Remotes, r)
	}
	return n
}

// etherTest is the type of frames that no protocol has (IEEE 802, local experimental).
const etherTest = 0x88b5

// onTheWire returns what node 0 sends to the switch while f runs.
func (lab *cipherLab) onTheWire(t *testing.T, f func()) [][]byte {
	t.Helper()
	l := lab.sw.listen(t, "p0")
	f()
	end := token()
	lab.nodes[0].send(t, "under0", ethernetFrame(broadcast, net.HardwareAddr{2, 0, 0, 0, 0, 1}, etherTest, []byte(end)))
	frames, ok := l.until(end, markerTimeout)
	if !ok {
		t.Fatal("the switch heard nothing of node 0")
	}
	return frames[:len(frames)-1]
}

func TestWithEncryptionTheWireCarriesWireGuardOnly(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		lab := newCipherLab(t, 2, encrypted)
		a, b := lab.members[0], lab.members[1]
		frame, text := a.marker(b)
		big := udpPacket(netip.AddrPortFrom(a.port.Address, 9), netip.AddrPortFrom(b.port.Address, 9), append(make([]byte, underlayMTUInTests-cipherOverhead-vxlanOverhead-28-len("the end")), "the end"...))
		sent := lab.onTheWire(t, func() {
			mustReach(t, a.namespace, "a member on another node", b.address())
			mustArrive(t, a, b, "a packet", frame, text)
			if encrypted {
				mustArrive(t, a, b, "the biggest packet", ethernetFrame(b.mac(), a.mac(), etherIPv4, big), "the end")
			}
		})
		if got := contains(sent, text); got == encrypted {
			t.Errorf("encrypted %t: the wire carries a member's packet in clear: %t", encrypted, got)
		}
		if !encrypted {
			continue
		}
		if got, want := mtuOf(t, a), underlayMTUInTests-cipherOverhead-vxlanOverhead; got != want {
			t.Errorf("MTU of a member: got %d, want %d", got, want)
		}
		ciphers, largest := 0, 0
		for _, frame := range sent {
			if kind := binary.BigEndian.Uint16(frame[12:]); kind != etherIPv4 {
				continue // ARP for the nodes' own addresses
			}
			packet := frame[14:]
			if packet[9] != 17 || binary.BigEndian.Uint16(packet[22:]) != cipherPort {
				t.Errorf("the wire carries a packet that is not WireGuard: % x", packet[:min(64, len(packet))])
			}
			ciphers, largest = ciphers+1, max(largest, len(packet))
		}
		t.Logf("node 0 sent %d packets, all of them WireGuard, the largest of %d bytes", ciphers, largest)
		if ciphers < 3 || largest > underlayMTUInTests {
			t.Errorf("the wire carries %d packets of WireGuard, the largest of %d bytes", ciphers, largest)
		}
	}
}

// vxlanPacket is a frame of network 3 in a tunnel between two addresses.
func vxlanPacket(from, to netip.Addr, inner []byte) []byte {
	header := binary.BigEndian.AppendUint32([]byte{0x08, 0, 0, 0}, 3<<8)
	return udpPacket(netip.AddrPortFrom(from, 40000), netip.AddrPortFrom(to, vxlanPort), append(header, inner...))
}

func (n namespace) linkMAC(t *testing.T, link string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(strings.TrimSpace(n.run(t, "ip -o link show "+link+" | sed 's/.*ether \\([^ ]*\\).*/\\1/'")))
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func TestPlainTunnelPacketsReachNobodyWithEncryption(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		lab := newCipherLab(t, 2, encrypted)
		a, b := lab.members[0], lab.members[1]
		to := lab.nodes[0].linkMAC(t, "under0")
		l := a.listen(t, memberLink)
		var texts []string
		for _, source := range []netip.Addr{underlayAddress(1), fabric.Inside(underlayAddress(1))} {
			for _, destination := range []netip.Addr{underlayAddress(0), fabric.Inside(underlayAddress(0))} {
				inner, text := b.marker(a)
				texts = append(texts, text)
				lab.stranger.send(t, "under0", ethernetFrame(to, net.HardwareAddr{2, 0, 0, 0, 0, 9}, etherIPv4, vxlanPacket(source, destination, inner)))
			}
		}
		mustReach(t, lab.stranger, "the node", underlayAddress(0).String()) // behind them on the way
		permitted, end := b.marker(a)
		b.send(t, memberLink, permitted)
		frames, ok := l.until(end, markerTimeout)
		if !ok {
			t.Fatal("a frame of the peer did not arrive")
		}
		arrived := slices.DeleteFunc(texts, func(text string) bool { return !contains(frames, text) })
		if encrypted && len(arrived) > 0 || !encrypted && len(arrived) != 1 {
			t.Errorf("encrypted %t: %d forged packets arrived from the underlay", encrypted, len(arrived))
		}
	}
}

func TestNoPeerSpeaksForAnotherWithEncryption(t *testing.T) {
	lab := newCipherLab(t, 3, true)
	a, b, c := lab.members[0], lab.members[1], lab.members[2]
	mustReach(t, c.namespace, "a member on another node", a.address())
	l := a.listen(t, memberLink)
	inner, forged := b.marker(a)
	lab.nodes[2].send(t, plan.CipherName, vxlanPacket(fabric.Inside(underlayAddress(1)), fabric.Inside(underlayAddress(0)), inner))
	inner, own := c.marker(a)
	lab.nodes[2].send(t, plan.CipherName, vxlanPacket(fabric.Inside(underlayAddress(2)), fabric.Inside(underlayAddress(0)), inner))
	frames, ok := l.until(own, markerTimeout)
	if !ok {
		t.Fatal("what the peer sent under its own address did not arrive")
	}
	if contains(frames, forged) {
		t.Error("a peer spoke for a member on another peer")
	}
	// Nothing but tunnels comes out of the device, and the node forwards nothing for it.
	mustNotReach(t, lab.nodes[2].namespace, "the node's address inside", fabric.Inside(underlayAddress(0)).String())
}

func TestAKeyMayChangeAndAWrongOneReachesNobody(t *testing.T) {
	lab := newCipherLab(t, 2, true)
	a, b := lab.members[0], lab.members[1]
	mustReach(t, a.namespace, "a member on another node", b.address())
	lab.keys[1] = newKey(t)
	changed := newFabric(t, lab.nodes[1].namespace, Config{Config: plan.Config{Underlay: underlayAddress(1)}, PrivateKey: lab.keys[1]})
	apply(t, changed, lab.network(1, true))
	mustNotReach(t, b.namespace, "a member on a node that doesn't know the new key", a.address())
	apply(t, lab.nodes[0].fabric, lab.network(0, true))
	mustReach(t, b.namespace, "a member on a node that knows the new key", a.address())
	mustReach(t, a.namespace, "a member behind the new key", b.address())
}

func TestDriftOfEncryptionIsRepaired(t *testing.T) {
	lab := newCipherLab(t, 2, true)
	a, b, n := lab.members[0], lab.members[1], lab.nodes[0]
	configure := func(cfg wgtypes.Config) func() {
		return func() {
			if err := n.Do(func() error {
				client, err := wgctrl.New()
				if err != nil {
					return err
				}
				defer client.Close()
				return client.ConfigureDevice(plan.CipherName, cfg)
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	peer, other, port := lab.keys[1].PublicKey(), newKey(t), 7
	all := []net.IPNet{{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}}
	for name, spoil := range map[string]func(){
		"the device is gone":         func() { n.run(t, "ip link delete nmwg") },
		"the device is down":         func() { n.run(t, "ip link set nmwg down") },
		"the address is gone":        func() { n.run(t, "ip address flush dev nmwg") },
		"the MTU is another":         func() { n.run(t, "ip link set nmwg mtu 1400") },
		"the key is another":         configure(wgtypes.Config{PrivateKey: &other}),
		"the port is another":        configure(wgtypes.Config{ListenPort: &port}),
		"the peer is gone":           configure(wgtypes.Config{ReplacePeers: true}),
		"a stranger is a peer":       configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: other.PublicKey(), AllowedIPs: all}}}),
		"the peer may say all":       configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: peer, AllowedIPs: all}}}),
		"the peer is elsewhere":      configure(wgtypes.Config{Peers: []wgtypes.PeerConfig{{PublicKey: peer, Endpoint: &net.UDPAddr{IP: net.IPv4(198, 18, 0, 9), Port: 9}}}}),
		"the rules are not in force": func() { n.run(t, "nft delete chain inet nm sealed_in") },
	} {
		spoil()
		drifts, err := n.fabric.Audit(context.Background())
		if err != nil || len(drifts) == 0 {
			t.Errorf("%s: an audit finds %v, %v", name, drifts, err)
		}
		apply(t, n.fabric, lab.networks[0])
		if drifts, err := n.fabric.Audit(context.Background()); err != nil || len(drifts) > 0 {
			t.Errorf("%s: after the repair an audit finds %v, %v", name, drifts, err)
		}
		if !a.canReach(b.address(), markerTimeout) {
			t.Errorf("%s: after the repair the members don't reach each other", name)
		}
	}
}

func TestProbesPassTheEncryption(t *testing.T) {
	lab := newCipherLab(t, 2, true)
	met := make(chan []fabric.Meeting, 2)
	for i := range lab.nodes {
		go func() {
			m, err := lab.nodes[i].fabric.Meet(context.Background(), 3, 77)
			if err != nil {
				t.Error(err)
			}
			met <- m
		}()
	}
	for range lab.nodes {
		m := <-met
		if len(m) != 1 || !m[0].Small || !m[0].Full || m[0].FullBytes != underlayMTUInTests || m[0].Problem != "" {
			t.Errorf("the meeting is %+v", m)
		}
	}
}

func TestNothingOfTheEncryptionIsLeft(t *testing.T) {
	needWireGuard(t)
	lab := newCipherLab(t, 2, true)
	apply(t, lab.nodes[0].fabric)
	if left := lab.nodes[0].run(t, "ip -o link; ip route; nft list ruleset"); strings.Contains(left, "nm") || strings.Contains(left, "240.") {
		t.Errorf("left:\n%s", left)
	}
}

// A node that can't encrypt has no tunnel at all. It is also what a machine without WireGuard shows.
func TestANodeThatCannotEncryptReachesNoOtherNode(t *testing.T) {
	needRoot(t)
	for name, key := range map[string]wgtypes.Key{"no key": {}, "a key": newKey(t)} {
		if name == "a key" && CanEncrypt() == nil {
			continue
		}
		space := newSpace(t)
		space.run(t, "ip link set lo up; ip link add under0 type dummy 2>/dev/null || ip link add under0 type bridge; ip link set under0 up; ip address add 198.18.0.1/24 dev under0")
		f := newFabric(t, space, Config{Config: plan.Config{Underlay: underlayAddress(0)}, PrivateKey: key})
		n := testNetwork(3, 2)
		n.Encrypted, n.Remotes = true, behind(testNetwork(3), underlayAddress(1), 3)
		n.Remotes[0].Key = newKey(t).PublicKey().String()
		err := f.Apply(context.Background(), []fabric.Network{n})
		if err == nil || !strings.Contains(err.Error(), "no WireGuard") {
			t.Errorf("%s: applying an encrypted network returned %v", name, err)
		}
		if links := space.run(t, "ip -o link"); strings.Contains(links, "nmvx") || strings.Contains(links, "nmp") {
			t.Errorf("%s: the node has links of the network:\n%s", name, links)
		}
		n.Remotes = nil
		apply(t, f, n) // members of this node alone need no encryption
	}
}
