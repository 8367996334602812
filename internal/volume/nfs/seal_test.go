package nfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	fabricnode "github.com/nearmetal/nearmetal/internal/fabric/node"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd/nfsdtest"
)

// capturePatience bounds the wait for a packet that was certainly sent.
const capturePatience = 20 * time.Second

// onTheWire returns the packets that a node sends on the underlay while f runs, without ARP.
func (s *site) onTheWire(t *testing.T, n, peer node, f func()) (packets [][]byte) {
	t.Helper()
	fd := -1
	if err := s.bridge.Do(func() error {
		link, err := net.InterfaceByName(filepath.Base(n.cfg.Dir))
		if err != nil {
			return err
		}
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index})
	}); err != nil {
		t.Fatal(err)
	}
	f()
	const end = "the end of what was sent"
	if err := n.space.Do(func() error {
		conn, err := net.Dial("udp", netip.AddrPortFrom(peer.underlay, 9).String())
		if err == nil {
			_, err = conn.Write([]byte(end))
			err = errors.Join(err, conn.Close())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	timeout := unix.NsecToTimeval(int64(capturePatience))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 1<<16)
	for deadline := time.Now().Add(capturePatience); ; {
		size, from, err := unix.Recvfrom(fd, buffer, 0)
		if err == nil && time.Now().After(deadline) { // others go on sending
			err = os.ErrDeadlineExceeded
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal("the switch heard nothing of the node:", err)
		}
		if a, ok := from.(*unix.SockaddrLinklayer); ok && a.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		switch frame := bytes.Clone(buffer[:size]); {
		case bytes.Contains(frame, []byte(end)):
			return packets
		case binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP:
			packets = append(packets, frame[14:])
		}
	}
}

// toPort are the UDP packets among packets that go to a port.
func toPort(packets [][]byte, port uint16) (all [][]byte) {
	for _, p := range packets {
		if p[9] == unix.IPPROTO_UDP && binary.BigEndian.Uint16(p[22:]) == port {
			all = append(all, p)
		}
	}
	return all
}

// secret is what nobody on the underlay may read.
const secret = "what members write"

// tell sends the secret from one namespace to a listener in another, and returns why it did not arrive.
func tell(t *testing.T, from, to netns.Handle, at netip.Addr) error {
	t.Helper()
	var l net.Listener
	text := strings.Repeat(secret, 20_000) // in packets as large as can be
	if err := to.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(at, port).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	heard := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		text, _ := io.ReadAll(conn)
		heard <- string(text)
	}()
	if err := from.Do(func() error {
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(at, port).String(), 2*time.Second)
		if err != nil {
			return err
		}
		_, err = conn.Write([]byte(text))
		return errors.Join(err, conn.Close())
	}); err != nil {
		return err
	}
	select {
	case got := <-heard:
		if got != text {
			return fmt.Errorf("%d bytes of %d arrived", len(got), len(text))
		}
		return nil
	case <-time.After(capturePatience):
		return errors.New("not all arrived")
	}
}

// sealedWith is what a node is told of cluster c, with these peers.
func sealedWith(peers ...volume.SealedPeer) volume.Sharing {
	return volume.Sharing{ClusterUID: "c", UserIDs: nfsdtest.Users, Encrypted: true, Sealed: peers}
}

// spaceOf is the namespace of cluster c on a node.
func (n node) spaceOf(t *testing.T) netns.Handle {
	t.Helper()
	space, err := n.way("c").open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	return space
}

// Whatever the host's routes say, there is no source to send from. In clear the same packets are on the wire.
func TestATunnelThatIsToBeSealedSendsNothingWithoutWireGuard(t *testing.T) {
	s := newSite(t)
	a, b := s.node(t), s.node(t)
	for _, n := range []node{a, b} {
		n.cfg.Encrypts = true
		nfsdtest.Run(t, n.space, "ip route add default dev eth0 && ip route add 240.0.0.0/4 dev eth0")
	}
	inside := inside([]netip.Addr{b.underlay})[0]
	for _, sealed := range []bool{false, true, false} {
		for n, peer := range map[*Sharer]netip.Addr{a.Sharer: b.underlay, b.Sharer: a.underlay} {
			want := volume.Sharing{ClusterUID: "c", UserIDs: nfsdtest.Users, Peers: []netip.Addr{peer}}
			if sealed {
				want = sealedWith(volume.SealedPeer{Peer: peer})
			}
			if err := n.Apply(t.Context(), want); sealed != errors.Is(err, errNotSealed) || !sealed && err != nil {
				t.Fatalf("sealed %t: %v", sealed, err)
			}
		}
		var err error
		plain := toPort(s.onTheWire(t, a, b, func() { err = tell(t, a.spaceOf(t), b.spaceOf(t), inside) }), tunnelPort)
		if (err != nil) != sealed || (len(plain) == 0) != sealed {
			t.Errorf("sealed %t: %d packets in clear, %v", sealed, len(plain), err)
		}
		if _, mtu := a.tunnel(t); mtu != underlayMTU-tunnelOverhead-map[bool]int{true: api.CipherOverheadBytes}[sealed] {
			t.Errorf("sealed %t: the tunnel's MTU is %d", sealed, mtu)
		}
	}
}

// The MTU alone does not tell: an underlay may have grown by as much as WireGuard takes.
func TestATunnelInClearGoesOnceTheUnderlayIsEncrypted(t *testing.T) {
	n := newSite(t).node(t)
	n.cfg.Encrypts = true
	if err := n.Apply(t.Context(), volume.Sharing{ClusterUID: "c", UserIDs: nfsdtest.Users}); err != nil {
		t.Fatal(err)
	}
	n.cfg.UnderlayMTU = func(context.Context) (int, error) { return underlayMTU + api.CipherOverheadBytes, nil }
	if err := n.Apply(t.Context(), sealedWith()); !errors.Is(err, errNotSealed) {
		t.Fatal(err)
	}
	if got := n.local(t); got != inside([]netip.Addr{n.underlay})[0] {
		t.Errorf("the tunnel's packets come from %v", got)
	}
}

// local is the address from which packets of a node's tunnel come.
func (n node) local(t *testing.T) (local netip.Addr) {
	t.Helper()
	if err := n.spaceOf(t).Do(func() error {
		link, err := netlink.LinkByName(tunnelName)
		if err == nil {
			local, _ = netip.AddrFromSlice(link.(*netlink.Vxlan).SrcAddr.To4())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return local
}

// tunnel is the index and the MTU of a node's tunnel.
func (n node) tunnel(t *testing.T) (index, mtu int) {
	t.Helper()
	if err := n.spaceOf(t).Do(func() error {
		link, err := netlink.LinkByName(tunnelName)
		if err == nil {
			index, mtu = link.Attrs().Index, link.Attrs().MTU
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return index, mtu
}

func TestANodeWithoutWireGuardHasNoTunnelThatIsToBeSealed(t *testing.T) {
	n := newSite(t).node(t)
	if d := n.Describe(t.Context()); d.Encrypts {
		t.Error("it says that it can encrypt")
	}
	if err := n.Apply(t.Context(), sealedWith()); err == nil || !strings.Contains(err.Error(), "no WireGuard") {
		t.Errorf("got %v", err)
	}
	if left, err := n.Observe(t.Context()); err != nil || len(left) > 0 {
		t.Errorf("there is %+v, %v", left, err)
	}
	n.cfg.Encrypts = true
	if d := n.Describe(t.Context()); !d.Encrypts {
		t.Error("a node with WireGuard does not say so")
	}
}

// What nobody names any more may have users yet. It is not known then whether the underlay is encrypted.
func TestATunnelThatNobodyNamesStaysWithoutPeersAndIsNeverMadeInClear(t *testing.T) {
	s := newSite(t)
	a, b := s.node(t), s.node(t)
	a.cfg.Encrypts = true
	if err := a.Apply(t.Context(), sealedWith(volume.SealedPeer{Peer: b.underlay})); !errors.Is(err, errNotSealed) {
		t.Fatal(err)
	}
	index, mtu := a.tunnel(t)
	unnamed := volume.Sharing{ClusterUID: "c", Reaches: []volume.Remote{{UID: "data"}}}
	if err := a.Apply(t.Context(), unnamed); err != nil {
		t.Fatal(err)
	}
	if again, now := a.tunnel(t); again != index || now != mtu {
		t.Errorf("tunnel %d of %d bytes became %d of %d", index, mtu, again, now)
	}
	if peers, err := peersIn(a.spaceOf(t)); err != nil || len(peers) > 0 {
		t.Errorf("it has peers: %v, %v", peers, err)
	}
	nfsdtest.Run(t, a.spaceOf(t), "ip link delete "+tunnelName)
	if err := a.Apply(t.Context(), unnamed); err != nil {
		t.Fatal(err)
	}
	if got := a.local(t); got != inside([]netip.Addr{a.underlay})[0] {
		t.Errorf("it was made anew from %v", got)
	}
}

// sealedNode is a node with the networks that its agent has.
type sealedNode struct {
	node
	key    wgtypes.Key
	fabric *fabricnode.Fabric
}

// sealedNode makes one.
func (s *site) sealedNode(t *testing.T) sealedNode {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		t.Fatal(err)
	}
	n := sealedNode{node: s.node(t), key: key}
	n.cfg.Encrypts = true
	n.fabric = n.open(t)
	nfsdtest.Run(t, n.space, "ip route add default dev eth0")
	return n
}

// open opens the node's networks, as an agent that starts.
func (n sealedNode) open(t *testing.T) *fabricnode.Fabric {
	t.Helper()
	var f *fabricnode.Fabric
	if err := n.space.Do(func() (err error) {
		f, err = fabricnode.New(fabricnode.Config{Config: plan.Config{Underlay: n.underlay}, PrivateKey: n.key})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// peer is the node as another is told of it.
func (n sealedNode) peer() volume.SealedPeer {
	return volume.SealedPeer{Peer: n.underlay, Key: n.key.PublicKey().String()}
}

// seal applies the tunnel of what is wanted; nil: none.
func (n sealedNode) seal(t *testing.T, f *fabricnode.Fabric, want *volume.Sharing) {
	t.Helper()
	var tunnels []fabric.Tunnel
	if want != nil {
		tunnel := fabric.Tunnel{VNI: want.VNI()}
		for _, p := range want.Sealed {
			tunnel.Peers = append(tunnel.Peers, fabric.TunnelPeer{Address: p.Peer, Key: p.Key})
		}
		tunnels = append(tunnels, tunnel)
	}
	f.Seal(tunnels)
	if err := f.Apply(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if drift, err := f.Audit(t.Context()); err != nil || len(drift) > 0 {
		t.Errorf("an audit finds %v, %v", drift, err)
	}
}

func needWireGuard(t *testing.T) {
	t.Helper()
	if err := fabricnode.CanEncrypt(); errors.Is(err, fabricnode.ErrNoWireGuard) {
		needs.Hardware(t, "%v (make test-volume-guest has one)", err)
	} else if err != nil {
		t.Fatal(err)
	}
}

func TestSealedTunnelsCrossWithinWireGuardOnly(t *testing.T) {
	needWireGuard(t)
	s := newSite(t)
	a, b, stranger := s.sealedNode(t), s.sealedNode(t), s.node(t)
	toA, toB := sealedWith(a.peer()), sealedWith(b.peer())
	for n, want := range map[*sealedNode]*volume.Sharing{&a: &toB, &b: &toA} {
		n.seal(t, n.fabric, want)
		n.apply(t, *want)
	}
	inA, inB, at := a.spaceOf(t), b.spaceOf(t), inside([]netip.Addr{b.underlay})[0]
	var err error
	check := func(when string, arrives bool) {
		t.Helper()
		packets := s.onTheWire(t, a.node, b.node, func() { err = tell(t, inA, inB, at) })
		if (err == nil) != arrives {
			t.Errorf("%s: %v", when, err)
		}
		for _, p := range packets {
			if len(toPort([][]byte{p}, 51890)) == 0 || bytes.Contains(p, []byte(secret)) {
				t.Errorf("%s: the wire carries % x", when, p[:min(len(p), 64)])
			}
		}
		if arrives && len(packets) == 0 {
			t.Errorf("%s: the wire carries nothing", when)
		}
	}
	check("at first", true)

	// An agent that starts changes nothing, and interrupts nobody.
	index, mtu := a.tunnel(t)
	if want := underlayMTU - tunnelOverhead - api.CipherOverheadBytes; mtu != want {
		t.Errorf("the tunnel's MTU is %d, want %d", mtu, want)
	}
	before := nfsdtest.Run(t, a.space, "ip -o link show nmwg; nft list table inet nmseal")
	a.fabric = a.open(t)
	a.seal(t, a.fabric, &toB)
	a.Sharer = New(a.cfg)
	a.apply(t, toB)
	if again, _ := a.tunnel(t); again != index || nfsdtest.Run(t, a.space, "ip -o link show nmwg; nft list table inet nmseal") != before {
		t.Error("an agent that started made the tunnel or its seal anew")
	}
	check("after an agent started", true)

	// The device is down: its address is still the host's, and the host's default route leads to the underlay.
	nfsdtest.Run(t, a.space, "ip link set nmwg down")
	check("while the device is down", false)
	if err := a.Apply(t.Context(), toB); !errors.Is(err, errNotSealed) {
		t.Errorf("a device that is down: %v", err)
	}
	a.seal(t, a.fabric, &toB)
	a.apply(t, toB)
	check("after a repair", true)

	// Packets of the tunnel that come in clear reach nobody.
	received := func() (packets uint64) {
		if err := inB.Do(func() error {
			link, err := netlink.LinkByName(tunnelName)
			if err == nil {
				packets = link.Attrs().Statistics.RxPackets
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return packets
	}
	count := received()
	forge(t, stranger, b.node, toB.VNI())
	if now := received(); now != count {
		t.Errorf("%d packets in clear came in", now-count)
	}

	// A peer that is no longer named is out, and the device goes with the last tunnel.
	none := sealedWith()
	a.seal(t, a.fabric, &none)
	check("without the peer", false)
	b.seal(t, b.fabric, nil)
	count = received()
	if forge(t, stranger, b.node, toB.VNI()); received() == count {
		t.Error("nothing comes in that nothing keeps out")
	}
	a.seal(t, a.fabric, nil)
	check("without a seal", false)
	if left := nfsdtest.Run(t, a.space, "ip -o link; nft list ruleset"); strings.Contains(left, "nmwg") || strings.Contains(left, "nmseal") {
		t.Errorf("left:\n%s", left)
	}
}

// forge sends packets of a tunnel to a node in clear, to both of its addresses, and waits until the node has them.
func forge(t *testing.T, from, to node, vni int) {
	t.Helper()
	nfsdtest.Run(t, from.space, "ip route replace 240.0.0.0/4 via "+to.underlay.String())
	inner := append(append(append([]byte{}, macOf(to.underlay)...), 2, 0, 0, 0, 0, 9), 0x88, 0xb5)
	packet := append(binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, uint32(vni)<<8), append(inner, make([]byte, 46)...)...)
	if err := from.space.Do(func() error {
		for _, at := range []netip.Addr{to.underlay, inside([]netip.Addr{to.underlay})[0]} {
			conn, err := net.Dial("udp", netip.AddrPortFrom(at, tunnelPort).String())
			if err != nil {
				return err
			}
			_, err = conn.Write(packet)
			if err := errors.Join(err, conn.Close()); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := from.space.Do(func() error { // behind them on the way
		_, err := net.DialTimeout("tcp", netip.AddrPortFrom(to.underlay, 9).String(), capturePatience)
		return err
	}); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatal(err)
	}
}

// NFS and its volume, between nodes of which each has a WireGuard device.
func TestAVolumeCrossesWithinWireGuard(t *testing.T) {
	needs.Request(t, "NEARMETAL_NFS", "make test-volume-guest, whose guest has a kernel with an NFS server and client, and WireGuard")
	needWireGuard(t)
	s := newSite(t)
	server, client := s.sealedNode(t), s.sealedNode(t)
	disk := server.disk(t, "data", 64)
	serves := sealedWith(client.peer())
	serves.Serves, serves.Clients = []volume.Share{{UID: "data"}}, []netip.Addr{client.underlay}
	reaches := sealedWith(server.peer())
	reaches.Reaches = []volume.Remote{{UID: "data", Server: server.underlay}}
	server.seal(t, server.fabric, &serves)
	client.seal(t, client.fabric, &reaches)
	t.Cleanup(func() {
		for _, n := range []sealedNode{client, server} {
			if err := n.End(context.Background(), "c"); err != nil {
				t.Error(err)
			}
		}
		nfsdtest.Unmount(t, disk)
	})
	file := filepath.Join(client.Dir("data", "c"), "file")
	packets := s.onTheWire(t, client.node, server.node, func() {
		server.apply(t, serves)
		client.apply(t, reaches)
		if out := nfsdtest.AsMember(t, 1000, "echo '"+secret+"' >"+file+" && dd if=/dev/zero of="+file+".big bs=1M count=4 2>/dev/null && sync "+file+" "+file+".big"); out != "" {
			t.Errorf("a member wrote: %s", out)
		}
	})
	if text, err := os.ReadFile(filepath.Join(disk, "file")); err != nil || string(text) != secret+"\n" {
		t.Errorf("the disk has %q, %v", text, err)
	}
	for _, p := range packets {
		if len(toPort([][]byte{p}, 51890)) == 0 || bytes.Contains(p, []byte(secret)) || len(p) > underlayMTU {
			t.Fatalf("the wire carries %d bytes, % x", len(p), p[:min(len(p), 64)])
		}
	}
	t.Logf("the client sent %d packets, all of WireGuard", len(packets))
	if got := server.found(t); len(got.Clients) != 1 || got.Clients[0] != client.underlay {
		t.Errorf("the server has %+v", got)
	}
}
