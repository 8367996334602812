// Package ethernettest is what the tests of switches share: a network namespace with ports, frames on their wires, and an executor for which ports have
// the names that the conformance suite uses.
//
// It is for tests. Each port is one end of a pair of links; the other end is the wire, as a machine has it. Start with NewWires.
package ethernettest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Wires are ports and the machines' ends of them, in a network namespace of their own.
type Wires struct {
	t  testing.TB
	NS netns.Handle
	// Ports are their names. The other end of p is Wire(p).
	Ports []string
	sent  int
	// sockets are by link, open until the test ends: to close one takes long.
	sockets map[string]int
}

// Wire is the machine's end of a port.
func Wire(port string) string { return "x" + port }

// NewWires makes ports, which are up at the machines' ends and down at the switch's.
func NewWires(t testing.TB, ports ...string) *Wires {
	t.Helper()
	needs.Root(t, "makes network namespaces")
	needs.Program(t, "ip")
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Close() })
	w := &Wires{t: t, NS: ns, Ports: ports, sockets: map[string]int{}}
	script := "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; "
	for _, p := range ports {
		script += fmt.Sprintf("ip link add name %s type veth peer name %s && ip link set dev %s up || exit 1; ", p, Wire(p), Wire(p))
	}
	w.Run(script)
	return w
}

// Run runs a shell script in the namespace and returns what it prints.
func (w *Wires) Run(script string) string {
	w.t.Helper()
	var out []byte
	err := w.NS.Do(func() (err error) {
		out, err = exec.CommandContext(w.t.Context(), "sh", "-c", script).CombinedOutput()
		return err
	})
	if err != nil {
		w.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// readTimeout bounds the wait for a frame that was sent.
const readTimeout = 10 * time.Second

// etherType is one for local experiments (IEEE 802).
const etherType = 0x88b5

// Heard sends a broadcast frame into a port and returns at which other ports it came out, in order. settled returns when the switch has passed on all that
// it got. A frame that is put on each wire past the switch ends the listening, so that silence needs no waiting.
func (w *Wires) Heard(from string, settled func()) []string {
	w.t.Helper()
	return w.HeardFrame(from, nil, settled)
}

// HeardFrame is Heard with bytes between the addresses and the type of the frame, such as a tag.
func (w *Wires) HeardFrame(from string, tag []byte, settled func()) []string {
	w.t.Helper()
	w.sent++
	probe, end := fmt.Sprintf("probe %d.", w.sent), fmt.Sprintf("end %d.", w.sent)
	listeners := map[string]int{}
	for _, p := range w.Ports {
		if p != from {
			listeners[p] = w.open(Wire(p))
		}
	}
	w.send(Wire(from), tag, probe)
	settled()
	var heard []string
	for p, fd := range listeners {
		if !w.send(p, nil, end) {
			continue // a port that is down
		}
		if w.listen(p, fd, probe, end) {
			heard = append(heard, p)
		}
	}
	slices.Sort(heard)
	return heard
}

// Arrives sends a frame into a port and waits until it comes in at a link of the namespace.
func (w *Wires) Arrives(from, link string) {
	w.t.Helper()
	w.sent++
	probe := fmt.Sprintf("probe %d.", w.sent)
	fd := w.open(link)
	w.send(Wire(from), nil, probe)
	w.listen(link, fd, probe, probe)
}

// open opens a packet socket on a link, once.
func (w *Wires) open(link string) int {
	w.t.Helper()
	if fd, is := w.sockets[link]; is {
		return fd
	}
	fd := -1
	err := w.NS.Do(func() error {
		on, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		wait := unix.NsecToTimeval(readTimeout.Nanoseconds())
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1), // a link's queue follows its carrier late
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: on.Index}))
	})
	if err != nil {
		w.t.Fatalf("listening on %s: %v", link, err)
	}
	w.sockets[link] = fd
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func bigEndian(n uint16) uint16 { return n<<8 | n>>8 }

// send puts a frame on a link. It reports whether the link is up.
func (w *Wires) send(link string, tag []byte, text string) bool {
	w.t.Helper()
	fd := w.open(link)
	frame := append(bytes.Repeat([]byte{0xff}, 6), 2, 0, 0, 0, 0, byte(slices.Index(w.Ports, strings.TrimPrefix(link, "x"))+1))
	frame = append(append(frame, tag...), etherType>>8, etherType&0xff)
	frame = append(append(frame, text...), make([]byte, 64)...)
	_, err := unix.Write(fd, frame)
	if err != nil && !errors.Is(err, unix.ENETDOWN) && !errors.Is(err, unix.ENOBUFS) { // the link is down, or its other end is
		w.t.Fatalf("sending on %s: %v", link, err)
	}
	return err == nil
}

// listen reads until the end comes, and reports whether the probe came before.
func (w *Wires) listen(port string, fd int, probe, end string) (heard bool) {
	w.t.Helper()
	frame := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(fd, frame, 0)
		if err != nil {
			w.t.Fatalf("nothing arrives on the wire of port %s, not even what was put there: %v", port, err)
		}
		if on, is := from.(*unix.SockaddrLinklayer); is && on.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		heard = heard || bytes.Contains(frame[:n], []byte(probe))
		if bytes.Contains(frame[:n], []byte(end)) {
			return heard
		}
	}
}

// Named is an executor for which the ports of one switch have no name of the switch before theirs.
type Named struct {
	*ethernet.Site
	Switch string
}

// Apply implements site.Site.
func (n Named) Apply(ctx context.Context, epoch lifecycle.Epoch, networks []site.Network) error {
	return n.Site.Apply(ctx, epoch, renamed(networks, func(at string) string {
		if at == "" {
			return ""
		}
		return ethernet.Place(n.Switch, at)
	}))
}

// Observe implements site.Site.
func (n Named) Observe(ctx context.Context) (site.Observation, error) {
	seen, err := n.Site.Observe(ctx)
	short := func(at string) string { return strings.TrimPrefix(at, n.Switch+"/") }
	seen.Networks = renamed(seen.Networks, short)
	unknown, managed := map[string]string{}, map[string]bool{}
	for at, why := range seen.Unknown {
		unknown[short(at)] = why
	}
	for at := range seen.Managed {
		managed[short(at)] = true
	}
	seen.Unknown, seen.Managed = unknown, managed
	return seen, err
}

func renamed(networks []site.Network, name func(string) string) []site.Network {
	var all []site.Network
	for _, n := range networks {
		ports := make([]site.Port, len(n.Ports))
		for i, p := range n.Ports {
			p.At = name(p.At)
			ports[i] = p
		}
		n.Ports = ports
		all = append(all, n)
	}
	return all
}

// TempDir is a folder with a short name: the path of a socket has 108 bytes.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nmeth")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
