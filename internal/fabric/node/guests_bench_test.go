package node

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/testbed/guest"
)

// guestSides are compared between two guests. Each has a link of its own between the same two guests; all links are alike.
var guestSides = []string{"shortcut", "bridge", "bare"}

// guestExchange is a ping-pong.
type guestExchange struct {
	UDP bool
	// Poll: both ends ask again and again, as MPI's ranks do, instead of sleeping until there is something to read.
	Poll bool
	Size int // in bytes
	// Count is how many round trips are timed together.
	Count int
}

func (e guestExchange) String() string {
	network, how := "tcp", "sleeping"
	if e.UDP {
		network = "udp"
	}
	if e.Poll {
		how = "polling"
	}
	return fmt.Sprintf("%s, %s, %d B", network, how, e.Size)
}

// Datagrams longer than a packet would pass the bridge in pieces, so none are measured.
var guestExchanges = []guestExchange{
	{Size: 8, Count: 40},
	{Size: 1 << 10, Count: 40},
	{Size: 64 << 10, Count: 4},
	{Size: 1 << 20, Count: 1},
	{Size: 8, Count: 40, UDP: true},
	{Size: 1 << 10, Count: 40, UDP: true},
	{Size: 8, Count: 40, Poll: true},
	{Size: 1 << 10, Count: 40, Poll: true},
	{Size: 64 << 10, Count: 4, Poll: true},
	{Size: 1 << 20, Count: 1, Poll: true},
}

// What the test hands to the guests, and what it takes from them.
const (
	guestRole      = "NEARMETAL_TEST_GUEST_NODE"
	guestRounds    = "NEARMETAL_TEST_GUEST_ROUNDS"
	guestRoundsNow = 101
	guestTook      = "took %d %d %f\n"   // exchange, side, µs of one way
	guestDevice    = "device %d %d %d\n" // node, side, frames that passed the device of the tunnel
	guestPort      = 7000
	guestPatience  = 20 * time.Minute
)

// What TCP and UDP take between two members of two nodes that are Debian guests, by shortcuts, by bridges, and between processes of the
// guests themselves over a link of the same kind, in turn within each round, of which there are NEARMETAL_TEST_GUEST_ROUNDS or else 101:
//
//	NEARMETAL_GUESTS=1 go test -run '^$' -bench PathBetweenGuests -benchtime 1x -timeout 30m -exec $PWD/setup/asroot.sh ./internal/fabric/node
//
// QEMU emulates the guests' processors and their cards in software, each slower than real ones by a factor of its own.
func BenchmarkPathBetweenGuests(b *testing.B) {
	needs.Request(b, "NEARMETAL_GUESTS", "see the comment of BenchmarkPathBetweenGuests")
	needRoot(b)
	image, err := guest.EnsureImage(b.Context(), guest.CacheDir, guest.NodePackages())
	if err != nil {
		b.Fatal(err)
	}
	took := exchangeBetweenGuests(b, image)
	for i, e := range guestExchanges {
		b.Run(e.String(), func(b *testing.B) { reportPaths(b, guestSides, took[i]) })
	}
}

// exchangeBetweenGuests returns what one way took in µs, by exchange, side and round.
func exchangeBetweenGuests(b *testing.B, image guest.Image) [][][]float64 {
	b.Helper()
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	var links [2][]guest.Link
	for side := range guestSides {
		ends, err := guest.NewLink(fmt.Sprintf("52:54:00:00:%02x:01", side), fmt.Sprintf("52:54:00:00:%02x:02", side))
		if err != nil {
			b.Fatal(err)
		}
		links[0], links[1] = append(links[0], ends[0]), append(links[1], ends[1])
	}
	ctx, cancel := context.WithTimeout(b.Context(), guestPatience)
	defer cancel()
	lines, output := io.Pipe()
	outputs := [2]io.Writer{output, b.Output()} // the second answers, and has nothing to tell unless it fails
	var machines []*guest.Machine
	for i := range links {
		m, err := guest.Start(ctx, guest.Config{
			Image: image, CPUs: 1, MemoryMiB: 768, Shares: []string{filepath.Dir(self)}, Links: links[i], Output: outputs[i],
			Env:     []string{fmt.Sprintf("%s=%d", guestRole, i), guestRounds + "=" + os.Getenv(guestRounds)},
			Command: []string{self, "-test.run", "^TestANodeThatIsAGuest$", "-test.v"},
		})
		if err != nil {
			b.Fatal(err)
		}
		machines = append(machines, m)
	}
	defer func() {
		for _, m := range machines {
			m.Cut()
			_, _ = m.Wait()
		}
	}()
	go func() {
		_, err := machines[0].Wait()
		_ = output.CloseWithError(err)
	}()

	took := make([][][]float64, len(guestExchanges))
	for i := range took {
		took[i] = make([][]float64, len(guestSides))
	}
	frames := map[[2]int]int{}
	var said strings.Builder
	scanner := bufio.NewScanner(lines)
	for scanner.Scan() {
		var exchange, side, node, count int
		var µs float64
		if n, _ := fmt.Sscanf(scanner.Text(), guestTook, &exchange, &side, &µs); n == 3 {
			took[exchange][side] = append(took[exchange][side], µs)
		} else if n, _ := fmt.Sscanf(scanner.Text(), guestDevice, &node, &side, &count); n == 3 {
			frames[[2]int{node, side}] = count
		} else {
			fmt.Fprintln(&said, scanner.Text())
		}
	}
	const shortcut, bridge = 0, 1
	if shorter, longer := frames[[2]int{0, shortcut}], frames[[2]int{0, bridge}]; longer == 0 || shorter > longer/20 {
		b.Fatalf("%d frames passed the tunnel's device with shortcuts, and %d by the bridge; the guests printed\n%s", shorter, longer, &said)
	}
	return took
}

// TestANodeThatIsAGuest is what the guests run: the first asks, and the second answers.
func TestANodeThatIsAGuest(t *testing.T) {
	needs.Child(t, guestRole)
	self, err := strconv.Atoi(os.Getenv(guestRole))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("modprobe", "virtio_net").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	runtime.GOMAXPROCS(2 * len(guestSides)) // an end that sleeps in the kernel keeps its place
	var devices []node
	var ends []guestEnd
	for side, name := range guestSides {
		n := node{namespace: newSpace(t)}
		mustRunHere(t, fmt.Sprintf("ip link set eth%d netns %s", side, n.Path()))
		n.run(t, fmt.Sprintf("ip link set lo up; ip link set eth%d up; ip address add %s/24 dev eth%[1]d", side, underlayAddress(self)))
		end := guestEnd{space: n.namespace, own: underlayAddress(self), other: underlayAddress(1 - self)}
		if name != "bare" {
			cfg := Config{NoShortcuts: name == "bridge", Config: plan.Config{Underlay: underlayAddress(self)}}
			n.fabric = newFabric(t, n.namespace, cfg)
			network := testNetwork(3)
			network.Remotes = behind(network, underlayAddress(1-self), 3-self)
			network.Ports = []fabric.Port{testPort(network, 2+self)}
			apply(t, n.fabric, network)
			if name == "shortcut" && !n.fabric.shortcutting {
				t.Fatal("this kernel can't make shortcuts")
			}
			m := attach(t, n.fabric, network, 0)
			end = guestEnd{space: m.namespace, own: m.port.Address, other: testPort(network, 3-self).Address}
			devices = append(devices, n)
		}
		ends = append(ends, end)
	}
	if self == 1 {
		answerAll(t, ends)
		return
	}
	for i := range ends {
		if err := ends[i].ask(); err != nil {
			t.Fatalf("%s: %v", guestSides[i], err)
		}
	}
	exchangeAll(t, ends)
	for side, n := range devices {
		if err := n.Do(func() error {
			link, err := netlink.LinkByName(plan.TunnelName(3))
			if err == nil {
				fmt.Printf(guestDevice, self, side, link.Attrs().Statistics.RxPackets+link.Attrs().Statistics.TxPackets)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// mustRunHere runs a shell script in the namespace of the process.
func mustRunHere(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// exchangeAll measures all exchanges on all sides in turn, and prints what they took.
func exchangeAll(t *testing.T, ends []guestEnd) {
	rounds, err := strconv.Atoi(os.Getenv(guestRounds))
	if err != nil {
		rounds = guestRoundsNow
	}
	buffer := make([]byte, 1<<20)
	for round := range rounds + 1 {
		for i, e := range guestExchanges {
			for turn := range ends {
				side := (turn + round) % len(ends) // each is first, and after each, as often as the others
				µs, err := ends[side].measure(e, buffer)
				if err != nil {
					t.Fatalf("%s, %v: %v", guestSides[side], e, err)
				}
				if round > 0 { // the first is for connections to find their pace
					fmt.Printf(guestTook, i, side, µs)
				}
			}
		}
	}
}

// guestEnd is one end of a connection and of a pair of UDP sockets.
type guestEnd struct {
	space         namespace
	own, other    netip.Addr
	tcp, datagram int
}

func (g *guestEnd) socket(kind int, bound bool) (fd int, err error) {
	err = g.space.Do(func() error {
		if fd, err = unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if !bound {
			return nil
		}
		return unix.Bind(fd, &unix.SockaddrInet4{Addr: g.own.As4(), Port: guestPort})
	})
	return fd, err
}

// pair makes the UDP socket.
func (g *guestEnd) pair() (err error) {
	if g.datagram, err = g.socket(unix.SOCK_DGRAM, true); err != nil {
		return err
	}
	const enough = 8 << 20 // no datagram is lost on this link, as long as there is room for it
	if err := unix.SetsockoptInt(g.datagram, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, enough); err != nil {
		return err
	}
	return unix.Connect(g.datagram, &unix.SockaddrInet4{Addr: g.other.As4(), Port: guestPort})
}

// ask connects to the other guest, which may still be booting.
func (g *guestEnd) ask() (err error) {
	if err := g.pair(); err != nil {
		return err
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for deadline := time.Now().Add(guestPatience); ; <-again.C {
		if g.tcp, err = g.socket(unix.SOCK_STREAM, false); err != nil {
			return err
		}
		err = unix.Connect(g.tcp, &unix.SockaddrInet4{Addr: g.other.As4(), Port: guestPort})
		if err == nil {
			return unix.SetsockoptInt(g.tcp, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		}
		if err = errors.Join(err, unix.Close(g.tcp)); time.Now().After(deadline) {
			return err
		}
	}
}

// measure returns what one way took, in µs.
func (g *guestEnd) measure(e guestExchange, buffer []byte) (float64, error) {
	warm := max(1, e.Count/4)
	order := make([]byte, 12)
	if e.UDP {
		order[0] = 1
	}
	if e.Poll {
		order[1] = 1
	}
	binary.BigEndian.PutUint32(order[4:], uint32(e.Size))
	binary.BigEndian.PutUint32(order[8:], uint32(warm+e.Count))
	if err := pass(g.tcp, order, true, false, false); err != nil {
		return 0, err
	}
	if err := pass(g.tcp, order[:1], false, false, false); err != nil { // the other end is ready
		return 0, err
	}
	fd := g.tcp
	if e.UDP {
		fd = g.datagram
	}
	var begun time.Time
	for i := range warm + e.Count {
		if i == warm {
			begun = time.Now()
		}
		if err := errors.Join(pass(fd, buffer[:e.Size], true, e.Poll, e.UDP), pass(fd, buffer[:e.Size], false, e.Poll, e.UDP)); err != nil {
			return 0, err
		}
	}
	return time.Since(begun).Seconds() * 1e6 / float64(2*e.Count), nil
}

// answerAll answers on all sides until the machine is cut off.
func answerAll(t *testing.T, ends []guestEnd) {
	failed := make(chan error)
	for i := range ends {
		go func() { failed <- ends[i].answer() }()
	}
	t.Fatal(<-failed)
}

func (g *guestEnd) answer() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := g.pair(); err != nil {
		return err
	}
	listening, err := g.socket(unix.SOCK_STREAM, true)
	if err != nil {
		return err
	}
	if err := unix.Listen(listening, 1); err != nil {
		return err
	}
	if g.tcp, _, err = unix.Accept(listening); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(g.tcp, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	order, buffer := make([]byte, 12), make([]byte, 1<<20)
	for {
		if err := errors.Join(pass(g.tcp, order, false, false, false), pass(g.tcp, order[:1], true, false, false)); err != nil {
			return err
		}
		fd, udp, poll := g.tcp, order[0] == 1, order[1] == 1
		if udp {
			fd = g.datagram
		}
		message := buffer[:binary.BigEndian.Uint32(order[4:])]
		for range binary.BigEndian.Uint32(order[8:]) {
			if err := errors.Join(pass(fd, message, false, poll, udp), pass(fd, message, true, poll, udp)); err != nil {
				return err
			}
		}
	}
}

// pass sends or receives a message. The kernel is called without Go's scheduler, whose wakening of threads would count.
func pass(fd int, message []byte, send, poll, datagram bool) error {
	call, flags := uintptr(unix.SYS_RECVFROM), 0
	if send {
		call, flags = unix.SYS_SENDTO, unix.MSG_NOSIGNAL
	}
	if poll {
		flags |= unix.MSG_DONTWAIT
	}
	for len(message) > 0 {
		n, _, errno := unix.RawSyscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&message[0])), uintptr(len(message)), uintptr(flags), 0, 0)
		switch {
		case errno == unix.EAGAIN && poll, errno == unix.EINTR:
		case errno != 0:
			return errno
		case n == 0:
			return io.ErrUnexpectedEOF
		case datagram && int(n) != len(message):
			return fmt.Errorf("a datagram of %d bytes instead of %d", n, len(message))
		default:
			message = message[n:]
		}
	}
	return nil
}
