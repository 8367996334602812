package nfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/shaper"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/volume"
	"github.com/nearmetal/nearmetal/internal/volume/nfsd/nfsdtest"
)

const underlayMTU = 1500

// site is a bridge, the underlay, with nodes on it.
type site struct {
	dir    string
	bridge netns.Handle
	nodes  int
}

// node is a node with a Sharer in a network namespace, and what its pool has mounted.
type node struct {
	*Sharer
	space    netns.Handle
	underlay netip.Addr
	roots    string
}

func newSite(t testing.TB) *site {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("network namespaces need root")
	}
	dir := nfsdtest.Dir(t)
	s := &site{dir: dir, bridge: nfsdtest.Space(t)}
	nfsdtest.Run(t, s.bridge, "ip link add name underlay type bridge && ip link set underlay up")
	return s
}

func (s *site) node(t testing.TB) node {
	t.Helper()
	s.nodes++
	name, underlay := fmt.Sprintf("n%d", s.nodes), netip.AddrFrom4([4]byte{192, 168, 0, byte(s.nodes)})
	n := node{space: nfsdtest.Space(t), underlay: underlay, roots: filepath.Join(s.dir, name+"-roots")}
	nfsdtest.Run(t, s.bridge, fmt.Sprintf("ip link add %s type veth peer name eth0 netns /proc/%d/fd/%d && ip link set %s master underlay up", name, os.Getpid(), n.space.FD(), name))
	nfsdtest.Run(t, n.space, "ip addr add "+underlay.String()+"/24 dev eth0 && ip link set eth0 up && ip link set lo up")
	n.Sharer = New(Config{
		Dir: filepath.Join(s.dir, name), Host: n.space, Underlay: underlay, UnderlayMTU: func(context.Context) (int, error) { return underlayMTU, nil },
		SetPeers: shaper.SetPeers, Root: func(uid string) string { return filepath.Join(n.roots, uid) },
	})
	t.Cleanup(func() {
		if err := n.End(context.Background(), "c"); err != nil {
			t.Error(err)
		}
		if left, err := n.Observe(context.Background()); err != nil || len(left) > 0 {
			t.Errorf("after the end there is %+v, %v", left, err)
		}
	})
	return n
}

// disk makes a file system where the node's pool would have mounted a volume.
func (n node) disk(t testing.TB, uid string, mebibytes int) string {
	t.Helper()
	dir := filepath.Join(n.roots, uid)
	nfsdtest.Disk(t, dir, mebibytes)
	return dir
}

// apply brings a node to what is wanted of cluster c, twice, which must be harmless.
func (n node) apply(t testing.TB, want volume.Sharing) {
	t.Helper()
	want.ClusterUID, want.UserIDs = "c", nfsdtest.Users
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for range 2 {
		if err := n.Apply(ctx, want); err != nil {
			t.Fatal(err)
		}
	}
}

// found is what is on a node of cluster c.
func (n node) found(t *testing.T) volume.SharingState {
	t.Helper()
	all, err := n.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].ClusterUID != "c" {
		t.Fatalf("found %+v, want one of cluster c", all)
	}
	return all[0]
}

func TestTheWayBetweenNodesCarriesPeersOnly(t *testing.T) {
	s := newSite(t)
	a, b, stranger := s.node(t), s.node(t), s.node(t)
	ways := map[string]netns.Handle{}
	open := func(n node, peers ...netip.Addr) netns.Handle {
		w := n.wayOf(volume.Sharing{ClusterUID: "c", UserIDs: nfsdtest.Users}, underlayMTU)
		if err := os.MkdirAll(filepath.Dir(w.pin), 0o711); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			space, err := w.ensure(peers)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { space.Close() })
			ways[n.underlay.String()] = space
		}
		return ways[n.underlay.String()]
	}
	reach := func(from netns.Handle, to netip.Addr) error {
		return from.Do(func() error {
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, port).String(), time.Second)
			if err == nil {
				err = conn.Close()
			}
			return err
		})
	}
	inA, inB, inStranger := open(a, b.underlay), open(b, a.underlay), open(stranger, a.underlay, b.underlay)
	for _, n := range []node{a, b} {
		if err := ways[n.underlay.String()].Do(func() error {
			l, err := net.Listen("tcp", netip.AddrPortFrom(inside([]netip.Addr{n.underlay})[0], port).String())
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := reach(inA, inside([]netip.Addr{b.underlay})[0]); err != nil {
		t.Errorf("a peer is not reached: %v", err)
	}
	if err := reach(inStranger, inside([]netip.Addr{a.underlay})[0]); err == nil {
		t.Error("a node is answered that is no peer")
	}
	if err := reach(a.space, inside([]netip.Addr{b.underlay})[0]); err == nil {
		t.Error("the host of a node reaches what only the way should")
	}
	peers, err := peersIn(inA)
	if want := map[netip.Addr]netip.Addr{inside([]netip.Addr{b.underlay})[0]: b.underlay}; err != nil || !maps.Equal(peers, want) {
		t.Errorf("the peers are %v (%v), want %v", peers, err, want)
	}
	open(a) // without peers
	if err := reach(inB, inside([]netip.Addr{a.underlay})[0]); err == nil {
		t.Error("a node is answered that is no peer any more")
	}
}

func TestWhatIsSentToAPeerIsHeldToItsRate(t *testing.T) {
	s := newSite(t)
	a, b := s.node(t), s.node(t)
	open := func(n, peer node) netns.Handle {
		w := n.wayOf(volume.Sharing{ClusterUID: "c", UserIDs: nfsdtest.Users}, underlayMTU)
		if err := os.MkdirAll(filepath.Dir(w.pin), 0o711); err != nil {
			t.Fatal(err)
		}
		space, err := w.ensure([]netip.Addr{peer.underlay})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { space.Close() })
		return space
	}
	inA, inB := open(a, b), open(b, a)
	to := inside([]netip.Addr{b.underlay})[0]
	for _, rates := range [][]volume.PeerRate{{{Peer: b.underlay, BytesPerSecond: 1 << 30}}, {{Peer: b.underlay, BytesPerSecond: 8 << 20}}} {
		if err := a.limit(inA, volume.Sharing{Rates: rates}); err != nil {
			t.Fatal(err)
		}
	}
	const sent = 1 << 20
	passed := func() (bytes uint64) {
		if err := inA.Do(func() error {
			link, err := netlink.LinkByName(tunnelName)
			if err != nil {
				return err
			}
			classes, err := netlink.ClassList(link, 0)
			for _, c := range classes {
				bytes += c.Attrs().Statistics.Basic.Bytes
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	received := make(chan int64, 1)
	if err := inB.Do(func() error {
		l, err := net.Listen("tcp", netip.AddrPortFrom(to, port).String())
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n, _ := io.Copy(io.Discard, conn)
			received <- n
		}()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	before := passed()
	if err := inA.Do(func() error {
		conn, err := net.Dial("tcp", netip.AddrPortFrom(to, port).String())
		if err == nil {
			_, err = conn.Write(make([]byte, sent))
			err = errors.Join(err, conn.Close())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := <-received; got != sent {
		t.Errorf("the peer received %d bytes, want %d", got, sent)
	}
	if after := passed(); after-before < sent {
		t.Errorf("%d bytes passed the queue of the peer, want those that were sent to it", after-before)
	}
	if err := a.limit(inA, volume.Sharing{}); err != nil {
		t.Fatal(err)
	}
	if after := passed(); after != 0 {
		t.Errorf("without a rate, the queue of the peer is still there, and passed %d bytes", after)
	}
}

func TestWhatABootLeftOnTheDiskIsRemoved(t *testing.T) {
	s := newSite(t)
	n := s.node(t)
	for _, dir := range []string{n.Dir("data", "c"), n.dir("c", "served/volumes"), n.dir("c", "served/control")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(n.dir("c", namePin), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := n.found(t); len(got.Serves)+len(got.Clients)+len(got.Reaches) > 0 {
		t.Errorf("found %+v, want nothing that works", got)
	}
	for range 2 {
		if err := n.End(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAVolumeCrossesToAnotherNodeUntilItIsShutOut(t *testing.T) {
	needs.Request(t, "NEARMETAL_NFS", "make test-volume-guest, whose guest has a kernel with an NFS server and client")
	s := newSite(t)
	server, client, other := s.node(t), s.node(t), s.node(t)
	disk := server.disk(t, "data", 64)
	if d := server.Describe(t.Context()); d != (api.VolumeSharing{Blocks: true}) {
		t.Fatalf("the node can't carry volumes: %+v", d)
	}
	serves := []volume.Share{{UID: "data"}}
	peers := []netip.Addr{client.underlay, other.underlay}
	server.apply(t, volume.Sharing{Peers: peers, Serves: serves, Clients: peers, Rates: []volume.PeerRate{{Peer: client.underlay, BytesPerSecond: 64 << 20}}})
	if got := server.found(t); !slices.Equal(got.Serves, []string{"data"}) || !slices.Equal(got.Clients, peers) {
		t.Errorf("the server has %+v, want clients %v", got, peers)
	}
	for _, n := range []node{client, other} {
		n.apply(t, volume.Sharing{Peers: []netip.Addr{server.underlay}, Reaches: []volume.Remote{{UID: "data", Server: server.underlay}}})
		if got := n.found(t); !slices.Equal(got.Reaches, []string{"data"}) {
			t.Errorf("a client has %+v", got)
		}
	}
	file := filepath.Join(client.Dir("data", "c"), "file")
	if out := nfsdtest.AsMember(t, 1000, "echo one >"+file+" && sync "+file+" && stat -c %u "+file); out != "1000\n" {
		t.Errorf("a member wrote a file: %q", out)
	}
	if text, err := os.ReadFile(filepath.Join(disk, "file")); err != nil || string(text) != "one\n" {
		t.Errorf("the disk has %q, %v", text, err)
	}
	if out := nfsdtest.AsMember(t, 1000, "cat "+filepath.Join(other.Dir("data", "c"), "file")); out != "one\n" {
		t.Errorf("another node reads %q", out)
	}

	// The client is cut off. A file that it has open takes no more, also once it is connected again; the other node goes on.
	nfsdtest.Run(t, client.space, "ip link set eth0 down")
	server.apply(t, volume.Sharing{Peers: []netip.Addr{other.underlay}, Serves: serves, Clients: []netip.Addr{other.underlay}})
	if got := server.found(t); !slices.Equal(got.Clients, []netip.Addr{other.underlay}) {
		t.Errorf("after a client was shut out, these are let in: %v", got.Clients)
	}
	nfsdtest.Run(t, client.space, "ip link set eth0 up")
	if out := nfsdtest.AsMember(t, 1000, "echo two >>"+filepath.Join(other.Dir("data", "c"), "file")+"; timeout -s KILL 5 sh -c 'echo three >>"+file+"; sync "+file+"' || echo refused"); !strings.Contains(out, "refused") {
		t.Errorf("a client that was shut out wrote: %q", out)
	}
	if text, err := os.ReadFile(filepath.Join(disk, "file")); err != nil || string(text) != "one\ntwo\n" {
		t.Errorf("the disk has %q, %v", text, err)
	}

	// All ends, the client's side, too, though its server does not answer it.
	for _, n := range []node{client, other, server} {
		if err := n.End(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
	}
	nfsdtest.Unmount(t, disk)
	if _, err := os.Stat(filepath.Join(server.cfg.Dir, "c")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of the cluster: %v", err)
	}
}

func TestAServerIsFoundAgainAndStartsAnewWhereAVolumeIsTakenBack(t *testing.T) {
	needs.Request(t, "NEARMETAL_NFS", "make test-volume-guest, whose guest has a kernel with an NFS server and client")
	s := newSite(t)
	server, client := s.node(t), s.node(t)
	for _, uid := range []string{"a", "b"} {
		disk := server.disk(t, uid, 16)
		t.Cleanup(func() { nfsdtest.Unmount(t, disk) })
	}
	t.Cleanup(func() { // before the disks are unmounted
		for _, n := range []node{client, server} {
			if err := n.End(context.Background(), "c"); err != nil {
				t.Error(err)
			}
		}
	})
	peers := []netip.Addr{client.underlay}
	server.apply(t, volume.Sharing{Peers: peers, Serves: []volume.Share{{UID: "a"}, {UID: "b"}}, Clients: peers})
	reaches := []volume.Remote{{UID: "a", Server: server.underlay}, {UID: "b", Server: server.underlay}}
	client.apply(t, volume.Sharing{Peers: []netip.Addr{server.underlay}, Reaches: reaches})
	again := node{Sharer: New(server.cfg), space: server.space, underlay: server.underlay} // as after a restart of the agent
	if got := again.found(t); !slices.Equal(got.Serves, []string{"a", "b"}) || !slices.Equal(got.Clients, peers) {
		t.Errorf("another process finds %+v", got)
	}
	client.apply(t, volume.Sharing{Peers: []netip.Addr{server.underlay}, Reaches: reaches[:1]})
	again.apply(t, volume.Sharing{Peers: peers, Serves: []volume.Share{{UID: "a"}}, Clients: peers})
	if got := again.found(t); !slices.Equal(got.Serves, []string{"a"}) {
		t.Errorf("after one was taken back there is %+v", got)
	}
	file := filepath.Join(client.Dir("a", "c"), "file")
	if out := nfsdtest.AsMember(t, 1000, "echo x >"+file+" && cat "+file); out != "x\n" {
		t.Errorf("the other volume: %q", out)
	}
}
