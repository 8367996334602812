package node

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// What TCP takes between two members of a node by the shortcut, by the bridge, and between two sockets over loopback, in turn within each
// round:
//
//	go test -run '^$' -bench Path -benchtime 301x -exec $PWD/setup/asroot.sh ./internal/fabric/node
//
// "one thread" holds both ends: what it takes is the way of the messages, without waiting for anybody to be scheduled. "two threads" poll,
// each on a core of its own, as MPI's ranks do.
func BenchmarkPath(b *testing.B) {
	comparePaths(b, []string{"shortcut", "bridge", "loopback"}, newWays)
}

// What TCP takes between two members of two nodes by shortcuts, by bridges, and between two sockets of the nodes themselves over the same
// kind of link:
//
//	go test -run '^$' -bench PathBetweenNodes -benchtime 301x -exec $PWD/setup/asroot.sh ./internal/fabric/node
func BenchmarkPathBetweenNodes(b *testing.B) {
	comparePaths(b, []string{"shortcut", "bridge", "bare"}, newWaysBetweenNodes)
}

// What TCP takes between two members of two nodes by bridges with pins of tunnels, with a check of peers in their place, and between two sockets
// of the nodes themselves:
//
//	go test -run '^$' -bench Pins -benchtime 301x -exec $PWD/setup/asroot.sh ./internal/fabric/node
func BenchmarkPins(b *testing.B) {
	comparePaths(b, []string{"pins", "peers", "bare"}, func(b *testing.B) []way {
		b.Helper()
		needRoot(b)
		bare := newNodesAtASwitch(b, Config{NoShortcuts: true})
		return []way{
			newWayBetweenNodes(b, true, ""), newWayBetweenNodes(b, true, peersOnly),
			connect(b, bare[0].namespace, bare[1].namespace, underlayAddress(1).As4()),
		}
	})
}

// peersOnly makes a node take all frames of a peer, and send frames to anybody.
const peersOnly = `nft 'add set inet nm peers { typeof ip saddr . @th,96,24; }; add element inet nm peers { 198.18.0.1 . 0x3, 198.18.0.2 . 0x3 }; flush chain inet nm input
	add rule inet nm input udp dport 4789 ip saddr . @th,96,24 @peers accept; add rule inet nm input udp dport 4789 @th,96,24 @vnis drop
	flush chain bridge nm leaving; add rule bridge nm leaving accept; flush chain bridge nm prerouting; add rule bridge nm prerouting iifname "nmp*" goto member'`

// comparePaths measures three ways in turn.
func comparePaths(b *testing.B, sides []string, newWays func(b *testing.B) []way) {
	b.Helper()
	for _, mode := range []string{"one thread", "two threads"} {
		for _, size := range []int{8, 1 << 10, 64 << 10, 4 << 20} {
			b.Run(fmt.Sprintf("%s/%d B", mode, size), func(b *testing.B) {
				ways := newWays(b)
				took := make([][]float64, len(sides))
				for round := range b.N {
					for i := range sides {
						side := (i + round) % len(sides)
						took[side] = append(took[side], ways[side].roundTrips(b, size, mode == "two threads"))
					}
				}
				reportPaths(b, sides, took)
			})
		}
	}
}

// reportPaths reports what each of three sides took, by round, and how they compare within rounds.
func reportPaths(b *testing.B, sides []string, took [][]float64) {
	b.Helper()
	for side, name := range sides {
		b.ReportMetric(measure.Median(took[side]), name+"-µs")
		b.ReportMetric(measure.Quantile(took[side], 0.25), name+"-µs-q1")
		b.ReportMetric(measure.Quantile(took[side], 0.75), name+"-µs-q3")
	}
	for _, pair := range [][2]int{{1, 0}, {2, 0}, {2, 1}} {
		ratios := make([]float64, len(took[0]))
		for i := range ratios {
			ratios[i] = took[pair[0]][i] / took[pair[1]][i]
		}
		name := sides[pair[0]] + "/" + sides[pair[1]]
		e := measure.MedianInterval(ratios, 0.95)
		b.ReportMetric(e.Value, name)
		b.ReportMetric(e.Low, name+"-low")
		b.ReportMetric(e.High, name+"-high")
	}
	b.ReportMetric(0, "ns/op")
}

// newWaysBetweenNodes connects two members of two nodes by shortcuts, two by bridges alone, and two nodes.
func newWaysBetweenNodes(b *testing.B) []way {
	b.Helper()
	needRoot(b)
	bare := newNodesAtASwitch(b, Config{NoShortcuts: true})
	return []way{
		newWayBetweenNodes(b, false, ""), newWayBetweenNodes(b, true, ""),
		connect(b, bare[0].namespace, bare[1].namespace, underlayAddress(1).As4()),
	}
}

// newWayBetweenNodes connects two members of two nodes, on which a script runs before.
func newWayBetweenNodes(b *testing.B, bridged bool, script string) way {
	b.Helper()
	var members []member
	for i, n := range newNodesAtASwitch(b, Config{NoShortcuts: bridged}) {
		network := testNetwork(3)
		network.Remotes = behind(network, underlayAddress(1-i), 3-i)
		network.Ports = []fabric.Port{testPort(network, 2+i)}
		apply(b, n.fabric, network)
		if !bridged {
			needShortcuts(b, n.fabric)
		}
		members = append(members, attach(b, n.fabric, network, 0))
		if script != "" {
			n.run(b, script)
		}
	}
	return connect(b, members[0].namespace, members[1].namespace, members[1].port.Address.As4())
}

// newNodesAtASwitch makes two nodes with the MTU that the nodes of nearmetal dev have.
func newNodesAtASwitch(b *testing.B, cfg Config) []node {
	b.Helper()
	const mtu = 65535
	sw := newSpace(b)
	sw.run(b, fmt.Sprintf("ip link add sw type bridge mcast_snooping 0; ip link set sw mtu %d up", mtu))
	var nodes []node
	for i := range 2 {
		space := newSpace(b)
		plugIn(b, sw, space, i, mtu)
		cfg.Underlay = underlayAddress(i)
		nodes = append(nodes, node{space, newFabric(b, space, cfg)})
	}
	return nodes
}

// way is a TCP connection: two sockets that do not block.
type way struct{ from, to int }

// newWays connects two members by a shortcut, two by a bridge alone, and two sockets of one namespace.
func newWays(b *testing.B) []way {
	b.Helper()
	needRoot(b)
	var ways []way
	for _, bridged := range []bool{false, true} {
		n := newNode(b, Config{NoShortcuts: bridged})
		network := testNetwork(1, 2, 3)
		apply(b, n.fabric, network)
		if !bridged {
			needShortcuts(b, n.fabric)
		}
		one, two := attach(b, n.fabric, network, 0), attach(b, n.fabric, network, 1)
		ways = append(ways, connect(b, one.namespace, two.namespace, two.port.Address.As4()))
	}
	alone := newSpace(b)
	alone.run(b, "ip link set lo up")
	return append(ways, connect(b, alone, alone, [4]byte{127, 0, 0, 1}))
}

func connect(b *testing.B, client, server namespace, address [4]byte) way {
	b.Helper()
	var listening int
	var w way
	socket := func() (int, error) { return unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0) }
	err := server.Do(func() (err error) {
		if listening, err = socket(); err != nil {
			return err
		}
		return errors.Join(unix.Bind(listening, &unix.SockaddrInet4{Addr: address}), unix.Listen(listening, 1))
	})
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(listening)
	at, err := unix.Getsockname(listening)
	if err != nil {
		b.Fatal(err)
	}
	err = client.Do(func() (err error) {
		if w.from, err = socket(); err != nil {
			return err
		}
		return unix.Connect(w.from, at)
	})
	if err != nil {
		b.Fatal(err)
	}
	if w.to, _, err = unix.Accept(listening); err != nil {
		b.Fatal(err)
	}
	for _, fd := range []int{w.from, w.to} {
		b.Cleanup(func() { unix.Close(fd) })
		if err := errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetNonblock(fd, true)); err != nil {
			b.Fatal(err)
		}
	}
	return w
}

// roundTrips returns what one way of a message takes, in µs: half the mean round trip of about 2 ms of them after half as many to warm up.
func (w way) roundTrips(b *testing.B, size int, two bool) float64 {
	b.Helper()
	count := max(1, min(200, 1<<20/size))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pin(0)
	answered := make(chan struct{})
	if two {
		go func() {
			defer close(answered)
			runtime.LockOSThread() // the thread ends with its goroutine, and its pin with it
			pin(1)
			buffer := make([]byte, size)
			for range count + count/2 {
				transfer(-1, w.to, buffer)
				transfer(w.to, -1, buffer)
			}
		}()
	}
	buffer := make([]byte, size)
	var begun time.Time
	for i := range count + count/2 {
		if i == count/2 {
			begun = time.Now()
		}
		if two {
			transfer(w.from, -1, buffer)
			transfer(-1, w.from, buffer)
		} else {
			transfer(w.from, w.to, buffer)
			transfer(w.to, w.from, buffer)
		}
	}
	took := time.Since(begun)
	if two {
		<-answered
	}
	return took.Seconds() * 1e6 / float64(2*count)
}

// transfer sends a message at one end, unless that is -1, and receives one at the other, polling.
func transfer(from, to int, buffer []byte) {
	sent, received := 0, 0
	if from == -1 {
		sent = len(buffer)
	}
	if to == -1 {
		received = len(buffer)
	}
	for sent < len(buffer) || received < len(buffer) {
		if sent < len(buffer) {
			if n, err := unix.SendmsgN(from, buffer[sent:], nil, nil, 0); err == nil {
				sent += n
			}
		}
		if received < len(buffer) {
			if n, _, err := unix.Recvfrom(to, buffer[received:], 0); err == nil {
				received += n
			}
		}
	}
}

// pin keeps the thread on a core.
func pin(core int) {
	var set unix.CPUSet
	set.Set(core)
	_ = unix.SchedSetaffinity(0, &set)
}
