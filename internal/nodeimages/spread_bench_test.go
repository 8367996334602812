package nodeimages_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/nodeimages"
)

// The shaped links of the benchmark: each node has one of this rate each way to one switch, the server a multiple of it.
const (
	linkMegabits = 100
	linkBytes    = linkMegabits * 1e6 / 8
	spreadSize   = 16 << 20
)

// wires are machines of a network of their own: a switch, and namespaces with one shaped link to it each.
type wires struct {
	b      *testing.B
	fabric netns.Handle
	count  int
}

func newWires(b *testing.B) *wires {
	b.Helper()
	needs.Root(b, "makes networks")
	w := &wires{b: b, fabric: newSpace(b)}
	w.do(w.fabric, "ip link add switch type bridge", "ip link set switch up")
	return w
}

func newSpace(b *testing.B) netns.Handle {
	b.Helper()
	space, err := netns.New()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = space.Close() })
	return space
}

func (w *wires) do(space netns.Handle, commands ...string) {
	w.b.Helper()
	for _, command := range commands {
		err := space.Do(func() error {
			words := strings.Fields(command)
			out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", command, err, out)
			}
			return nil
		})
		if err != nil {
			w.b.Fatal(err)
		}
	}
}

// machine makes a namespace with a link, and returns it with its address.
func (w *wires) machine(megabits int) (netns.Handle, string) {
	w.b.Helper()
	w.count++
	space, address := newSpace(w.b), fmt.Sprintf("10.200.0.%d", w.count)
	// A descriptor under /proc names the namespace to ip(8).
	port := fmt.Sprintf("port%d", w.count)
	w.do(w.fabric, fmt.Sprintf("ip link add %s type veth peer name eth0 netns %s", port, space.Path()),
		fmt.Sprintf("ip link set %s master switch up", port), shape(port, megabits))
	w.do(space, "ip link set lo up", "ip link set eth0 up", "ip address add "+address+"/24 dev eth0", shape("eth0", megabits))
	return space, address
}

func shape(link string, megabits int) string {
	return fmt.Sprintf("tc qdisc add dev %s root tbf rate %dmbit burst 64kb latency 100ms", link, megabits)
}

func listenIn(b *testing.B, space netns.Handle, address string) net.Listener {
	b.Helper()
	var listen net.Listener
	err := space.Do(func() (err error) {
		listen, err = (&net.ListenConfig{}).Listen(b.Context(), "tcp", address+":0")
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return listen
}

// clientIn makes requests from a namespace.
func clientIn(space netns.Handle) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = space.Do(func() error {
			conn, err = (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}}}
}

// BenchmarkSpread measures how long it takes until N nodes that begin at once hold an image, from the server alone and with each other's
// help, over links of one rate, to a
// server whose own is a multiple of it. Where the second is faster, peers are worth naming.
func BenchmarkSpread(b *testing.B) {
	for _, uplink := range []int{1, 4} {
		for _, nodes := range []int{1, 2, 3, 4, 6, 8, 12, 16} {
			for _, peers := range []bool{false, true} {
				b.Run(fmt.Sprintf("uplink=%dx/nodes=%d/peers=%t", uplink, nodes, peers), func(b *testing.B) {
					for b.Loop() {
						spread(b, uplink*linkMegabits, nodes, peers)
					}
				})
			}
		}
	}
}

func spread(b *testing.B, uplink, count int, withPeers bool) {
	w := newWires(b)
	s := newSite(b)
	s.server.Close()
	space, address := w.machine(uplink)
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.server.Listener = listenIn(b, space, address)
	s.server.Start()
	defer s.server.Close()
	want := s.image("spread", s.root(1, spreadSize))
	nodes := make([]*node, count)
	var urls []string
	for i := range nodes {
		space, address := w.machine(linkMegabits)
		n := s.node(b, func(c *nodeimages.Config) { c.Client, c.Peers = clientIn(space), clientIn(space) })
		n.serveAt(listenIn(b, space, address), nodeimages.PeerConfig{})
		nodes[i], urls = n, append(urls, n.url)
	}
	began := time.Now()
	var took sync.WaitGroup
	times := make([]float64, count)
	for i, n := range nodes {
		mine := want
		if withPeers {
			mine.Peers = slices.Delete(slices.Clone(urls), i, i+1)
		}
		n.Want(s.public(), []nodeimages.Wanted{mine})
		took.Go(func() {
			n.whole(want)
			times[i] = time.Since(began).Seconds()
		})
	}
	took.Wait()
	b.ReportMetric(slices.Max(times), "s/last")
	b.ReportMetric(float64(s.sent.Load())/spreadSize, "images-from-server")
	b.ReportMetric(slices.Max(times)/(float64(spreadSize)/linkBytes), "x-one-image")
	for _, n := range nodes {
		n.stop()
		if _, err := n.Image(string(want.Digest)); err != nil {
			b.Error(err)
		}
	}
}
