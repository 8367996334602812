package node

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/measure"
)

// What ports with rates carry, in Mbit/s; and what TCP takes for a port without rates, beside one with them and
// with no such port on its node:
//
//	go test -run '^$' -bench Limits -benchtime 5x -exec $PWD/setup/asroot.sh ./internal/fabric/node
func BenchmarkLimits(b *testing.B) {
	b.Run("maximum 100 Mbit", func(b *testing.B) {
		lab := newRateLab(b, 0, api.Quality{MaxRate: 1e8}, api.Quality{})
		var from, to []float64
		for range b.N {
			from = append(from, lab.carry(b, [][2]int{{0, 1}})[0])
			to = append(to, lab.carry(b, [][2]int{{1, 0}})[0])
		}
		b.ReportMetric(measure.Median(from), "from-Mbit/s")
		b.ReportMetric(measure.Median(to), "to-Mbit/s")
		b.ReportMetric(0, "ns/op")
	})
	b.Run("minimums 300 and 100 of 400 Mbit", func(b *testing.B) {
		lab := newRateLab(b, 4e8, api.Quality{MinRate: 3e8}, api.Quality{MinRate: 1e8}, api.Quality{})
		var first, second, alone []float64
		for range b.N {
			got := lab.carry(b, [][2]int{{0, 2}, {1, 2}})
			first, second = append(first, got[0]), append(second, got[1])
			alone = append(alone, lab.carry(b, [][2]int{{1, 2}})[0])
		}
		b.ReportMetric(measure.Median(first), "first-Mbit/s")
		b.ReportMetric(measure.Median(second), "second-Mbit/s")
		b.ReportMetric(measure.Median(alone), "second-alone-Mbit/s")
		b.ReportMetric(0, "ns/op")
	})
	for _, cfg := range []Config{{}, {NoShortcuts: true}} {
		name := "a port without rates, by shortcuts"
		if cfg.NoShortcuts {
			name = "a port without rates, by bridges"
		}
		b.Run(name, func(b *testing.B) {
			needRoot(b)
			var took [2][]float64
			var ways [2]way
			for i, q := range []api.Quality{{}, {MinRate: 1e8, MaxRate: 1e9, DSCP: "10"}} {
				n := newNode(b, cfg)
				network := testNetwork(1, 2, 3, 4)
				network.Ports[2].Quality = q
				apply(b, n.fabric, network)
				members := []member{attach(b, n.fabric, network, 0), attach(b, n.fabric, network, 1), attach(b, n.fabric, network, 2)}
				ways[i] = connect(b, members[0].namespace, members[1].namespace, members[1].port.Address.As4())
			}
			for round := range max(b.N*20, 100) {
				for i := range ways {
					side := (i + round) % len(ways)
					took[side] = append(took[side], ways[side].roundTrips(b, 8, false))
				}
			}
			reportRatio(b, "beside-rates/without", took[1], took[0])
			b.ReportMetric(0, "ns/op")
		})
	}
}

// rateLab is a node whose members have these qualities of service.
type rateLab struct{ members []member }

func newRateLab(b *testing.B, uplink int64, qualities ...api.Quality) rateLab {
	b.Helper()
	needRoot(b)
	n := newNode(b, Config{Config: plan.Config{UplinkRate: uplink}})
	network := testNetwork(1)
	for i, q := range qualities {
		p := testPort(network, 2+i)
		p.Quality = q
		network.Ports = append(network.Ports, p)
	}
	apply(b, n.fabric, network)
	var lab rateLab
	for i := range network.Ports {
		lab.members = append(lab.members, attach(b, n.fabric, network, i))
	}
	return lab
}

// await waits for an event for a while.
func await(b *testing.B, event <-chan struct{}) {
	b.Helper()
	select {
	case <-event:
	case <-b.Context().Done():
		b.Fatal("interrupted")
	}
}

// carry sends between members at once until 10 MiB of the first stream arrived, after 2 MiB, and returns what arrived of each stream in Mbit/s.
func (lab rateLab) carry(b *testing.B, streams [][2]int) []float64 {
	b.Helper()
	const warmBytes, doneBytes = 2 << 20, 12 << 20
	warm, done := make(chan struct{}), make(chan struct{})
	received := make([]atomic.Int64, len(streams))
	var all sync.WaitGroup
	var open []net.Conn
	for i, stream := range streams {
		from, to := lab.members[stream[0]], lab.members[stream[1]]
		var l net.Listener
		if err := to.Do(func() (err error) { l, err = net.Listen("tcp4", to.address()+":0"); return err }); err != nil {
			b.Fatal(err)
		}
		var out net.Conn
		if err := from.Do(func() (err error) { out, err = net.Dial("tcp4", l.Addr().String()); return err }); err != nil {
			b.Fatal(err)
		}
		in, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		l.Close()
		open = append(open, in, out)
		all.Go(func() {
			for data := make([]byte, 64<<10); ; {
				if _, err := out.Write(data); err != nil {
					return
				}
			}
		})
		all.Go(func() {
			for data := make([]byte, 256<<10); ; {
				n, err := in.Read(data)
				if err != nil {
					return
				}
				now := received[i].Add(int64(n))
				for at, reached := range map[int64]chan struct{}{warmBytes: warm, doneBytes: done} {
					if i == 0 && now >= at && now-int64(n) < at {
						close(reached)
					}
				}
			}
		})
	}
	counts := make([]int64, len(streams))
	await(b, warm)
	begun := time.Now()
	for i := range counts {
		counts[i] = received[i].Load()
	}
	await(b, done)
	took := time.Since(begun).Seconds()
	rates := make([]float64, len(streams))
	for i := range rates {
		rates[i] = float64(received[i].Load()-counts[i]) * 8 / 1e6 / took
	}
	for _, c := range open {
		c.Close()
	}
	all.Wait()
	return rates
}
