package node

import (
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	sides := []string{"shortcut", "bridge", "loopback"}
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
				for side, name := range sides {
					b.ReportMetric(measure.Median(took[side]), name+"-µs")
					b.ReportMetric(measure.Quantile(took[side], 0.25), name+"-µs-q1")
					b.ReportMetric(measure.Quantile(took[side], 0.75), name+"-µs-q3")
				}
				for _, pair := range []struct {
					name               string
					numerator, divisor int
				}{{"bridge/shortcut", 1, 0}, {"loopback/shortcut", 2, 0}, {"loopback/bridge", 2, 1}} {
					ratios := make([]float64, b.N)
					for i := range ratios {
						ratios[i] = took[pair.numerator][i] / took[pair.divisor][i]
					}
					e := measure.MedianInterval(ratios, 0.95)
					b.ReportMetric(e.Value, pair.name)
					b.ReportMetric(e.Low, pair.name+"-low")
					b.ReportMetric(e.High, pair.name+"-high")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
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
