package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// needRoot skips a test that makes namespaces when it may not.
func needRoot(t testing.TB) {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	needs.Program(t, "nft")
}

// namespace is a network namespace that lasts as long as the test.
type namespace struct{ netns.Handle }

func newSpace(t testing.TB) namespace {
	t.Helper()
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	if err := space.Do(func() error { // the kernel copies it from the machine's first namespace
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0o644)
	}); err != nil {
		t.Fatal(err)
	}
	return namespace{space}
}

// run runs a shell script inside, and fails the test when the script fails.
func (n namespace) run(t testing.TB, script string) string {
	t.Helper()
	out, err := n.try(script)
	if err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

func (n namespace) try(script string) (string, error) {
	var out []byte
	err := n.Do(func() (err error) {
		out, err = exec.Command("sh", "-ec", script).CombinedOutput()
		return err
	})
	return string(out), err
}

// node is a namespace with a fabric.
type node struct {
	namespace
	fabric *Fabric
}

func newNode(t testing.TB, cfg Config) node {
	t.Helper()
	space := newSpace(t)
	return node{space, newFabric(t, space, cfg)}
}

// newFabric is a fabric in a namespace. All tests but those about shortcuts pass without them, too:
//
//	NEARMETAL_TEST_NO_SHORTCUTS=1 go test -exec $PWD/setup/asroot.sh ./internal/fabric/node
func newFabric(t testing.TB, space namespace, cfg Config) *Fabric {
	t.Helper()
	cfg.NoShortcuts = cfg.NoShortcuts || os.Getenv("NEARMETAL_TEST_NO_SHORTCUTS") != ""
	var f *Fabric
	err := space.Do(func() (err error) {
		f, err = New(cfg)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// What VXLAN takes of the underlay's frames, in bytes, and its port (RFC 7348, section 5), and the MTU of networks that stay on
// their node.
const (
	vxlanOverhead = 50
	vxlanPort     = 4789
	localMTU      = 65521
)

// testNetwork is network index with ports for members of these host numbers.
func testNetwork(index int, hosts ...int) fabric.Network {
	base := netip.AddrFrom4([4]byte{10, byte(64 + index>>4), byte(index << 4), 0})
	n := fabric.Network{Network: api.Network{Index: index, Prefix: netip.PrefixFrom(base, 20), Gateway: base.Next()}}
	for _, host := range hosts {
		n.Ports = append(n.Ports, testPort(n, host))
	}
	return n
}

func testPort(n fabric.Network, host int) fabric.Port {
	a := n.Prefix.Addr().As4()
	a[2] += byte(host >> 8)
	a[3] += byte(host)
	return fabric.Port{
		ID:      fmt.Sprintf("uid%d.c-%d.1", n.Index, host),
		Address: netip.AddrFrom4(a),
		MAC:     net.HardwareAddr{0x02, 0, byte(n.Index >> 8), byte(n.Index), byte(host >> 8), byte(host)}.String(),
	}
}

// behind are members of these host numbers behind a peer.
func behind(n fabric.Network, peer netip.Addr, hosts ...int) []fabric.Remote {
	var remotes []fabric.Remote
	for _, host := range hosts {
		p := testPort(n, host)
		remotes = append(remotes, fabric.Remote{Peer: peer, Address: p.Address, MAC: p.MAC})
	}
	return remotes
}

// member is a namespace on a port.
type member struct {
	namespace
	port fabric.Port
}

// place is where the member's port goes.
func (m member) place() fabric.Place { return fabric.Namespace(m.Path()) }

func (m member) address() string { return m.port.Address.String() }

// attach makes a namespace for port i of a network and attaches it.
func attach(t testing.TB, f *Fabric, n fabric.Network, i int) member {
	t.Helper()
	m := member{newSpace(t), n.Ports[i]}
	if err := f.Attach(context.Background(), m.port, m.place()); err != nil {
		t.Fatal(err)
	}
	return m
}

func apply(t testing.TB, f *Fabric, networks ...fabric.Network) {
	t.Helper()
	if err := f.Apply(context.Background(), networks); err != nil {
		t.Fatal(err)
	}
}

// snapshot is everything about a network namespace that a fabric could leave behind.
func (n namespace) snapshot(t testing.TB) string {
	t.Helper()
	return n.run(t, `ip -d -o link | sed 's/[a-z_]*_timer *[0-9.]*//g'; ip -o address; ip rule; ip route show table all; bridge fdb; ip neigh show nud permanent; nft list ruleset; tc qdisc show
		for f in $(find /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/bridge -type f -perm -0400 | sort); do echo "$f $(cat $f 2>/dev/null)"; done`)
}

// canReach tells whether an ICMP echo request (RFC 792) is answered within the time.
func (n namespace) canReach(address string, wait time.Duration) bool {
	answered := false
	_ = n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := unix.SockaddrInet4{Addr: netip.MustParseAddr(address).As4()}
		request := []byte{8, 0, 0, 0, 'n', 'm', 0, 1}
		binary.BigEndian.PutUint16(request[2:], checksum(request))
		deadline := time.Now().Add(wait)
		for !answered && time.Now().Before(deadline) {
			if err := unix.Sendto(fd, request, 0, &to); err != nil {
				return err
			}
			answered = echoReply(fd, to.Addr, time.Now().Add(200*time.Millisecond))
		}
		return nil
	})
	return answered
}

// echoReply reads from a raw socket until a reply from that address comes.
func echoReply(fd int, from [4]byte, deadline time.Time) bool {
	packet := make([]byte, 2048)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		timeout := unix.NsecToTimeval(int64(left))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return false
		}
		count, sender, err := unix.Recvfrom(fd, packet, 0)
		if err != nil {
			return false
		}
		if s, ok := sender.(*unix.SockaddrInet4); ok && s.Addr == from && count >= 28 && packet[20] == 0 && packet[24] == 'n' {
			return true
		}
	}
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func mustReach(t *testing.T, from namespace, what, address string) {
	t.Helper()
	if !from.canReach(address, markerTimeout) {
		t.Errorf("%s (%s) does not answer", what, address)
	}
}

func mustNotReach(t *testing.T, from namespace, what, address string) {
	t.Helper()
	if from.canReach(address, 300*time.Millisecond) {
		t.Errorf("%s (%s) answers, but must not", what, address)
	}
}

// testNetwork6 is testNetwork with an IPv6 subnet.
func testNetwork6(index int, hosts ...int) fabric.Network {
	n := testNetwork(index, hosts...)
	n.Prefix6 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x12, 0x34, 0x56, 0x78, 0x9a, byte(index >> 8), byte(index)}), 64)
	return n
}
