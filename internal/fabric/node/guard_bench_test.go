package node

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// guardedWay is a TCP connection and a pair of UDP sockets between two members.
type guardedWay struct{ stream, datagrams way }

// manyRules are rules by this many prefixes for TCP, and as many for UDP. The last of either is about all members.
func manyRules(b *testing.B, prefixes int) []securitygroup.Rule {
	b.Helper()
	var texts []string
	for i := range prefixes - 1 {
		for _, protocol := range []string{"tcp", "udp"} {
			texts = append(texts, fmt.Sprintf("in %s %d-%d from 172.16.%d.%d/32", protocol, 1000+i, 2000+2*i, i>>8, i&0xff))
		}
	}
	for _, protocol := range []string{"tcp", "udp"} {
		texts = append(texts, "in "+protocol+" 1024-65535 from 10.64.0.0/10")
	}
	return parsedRules(b, texts...)
}

func connectBoth(b *testing.B, from, to namespace, address netip.Addr) tenantWay {
	b.Helper()
	if !from.canReachPort(b, to, address) {
		b.Fatal("the members don't reach each other")
	}
	return guardedWay{stream: connect(b, from, to, address.As4()), datagrams: connectDatagrams(b, from, to, address.As4())}
}

// canReachPort reports whether a datagram comes through, for which links have to be up and ARP has to be answered.
func (n namespace) canReachPort(b *testing.B, to namespace, address netip.Addr) bool {
	b.Helper()
	w := connectDatagrams(b, n, to, address.As4())
	buffer := make([]byte, 64)
	for deadline := time.Now().Add(markerTimeout); time.Now().Before(deadline); runtime.Gosched() {
		_, _ = unix.Write(w.from, buffer)
		if count, _, err := unix.Recvfrom(w.to, buffer, 0); err == nil && count == len(buffer) {
			return true
		}
	}
	return false
}

// connectDatagrams connects a UDP socket to another. Neither blocks.
func connectDatagrams(b *testing.B, from, to namespace, address [4]byte) way {
	b.Helper()
	var w way
	socket := func(fd *int) func() error {
		return func() (err error) {
			*fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			return err
		}
	}
	if err := to.Do(socket(&w.to)); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Close(w.to) })
	if err := from.Do(socket(&w.from)); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Close(w.from) })
	if err := unix.Bind(w.to, &unix.SockaddrInet4{Addr: address}); err != nil {
		b.Fatal(err)
	}
	at, err := unix.Getsockname(w.to)
	if err != nil {
		b.Fatal(err)
	}
	if err := unix.Connect(w.from, at); err != nil {
		b.Fatal(err)
	}
	return w
}

// perDatagram returns what sending and receiving a datagram takes, in µs: the mean of about 2 ms of them, after some to warm up.
func (w way) perDatagram(b *testing.B) float64 {
	b.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pin(0)
	const batches, batch = 24, 32
	buffer := make([]byte, 64)
	var begun time.Time
	for i := range batches + 4 {
		if i == 4 {
			begun = time.Now()
		}
		for range batch {
			if _, err := unix.Write(w.from, buffer); err != nil {
				b.Fatal(err)
			}
		}
		for received := 0; received < batch; {
			if _, _, err := unix.Recvfrom(w.to, buffer, 0); err == nil {
				received++
			}
		}
	}
	return time.Since(begun).Seconds() * 1e6 / (batches * batch)
}

// What the node takes when a member more joins a group of 1,000, which 1,000 rules by prefix stand beside:
//
//	go test -run '^$' -bench GroupGrows -benchtime 51x -exec $PWD/setup/asroot.sh ./internal/fabric/node
func BenchmarkGroupGrows(b *testing.B) {
	needRoot(b)
	n := newNode(b, Config{})
	network := testNetwork(1, 2, 3)
	g := fabric.Group{ID: "bench", Ports: []string{network.Ports[0].ID, network.Ports[1].ID}, Rules: append(manyRules(b, 500), parsedRules(b, "in any from group bench")...)}
	for a := network.Ports[0].Address; len(g.Members) < 1000; a = a.Next() {
		g.Members = append(g.Members, a)
	}
	more := g
	more.Members = append(more.Members[:1000:1000], netip.MustParseAddr("10.64.31.1"))
	var took []float64
	for range b.N {
		network.Groups = []fabric.Group{g}
		apply(b, n.fabric, network)
		network.Groups = []fabric.Group{more}
		begun := time.Now()
		apply(b, n.fabric, network)
		took = append(took, time.Since(begun).Seconds()*1e3)
	}
	b.ReportMetric(measure.Median(took), "ms")
	b.ReportMetric(measure.Quantile(took, 0.25), "ms-q1")
	b.ReportMetric(measure.Quantile(took, 0.75), "ms-q3")
	b.ReportMetric(0, "ns/op")
}
