package study

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/data/xrootd"
	"github.com/nearmetal/nearmetal/internal/dataset/paths"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
	"github.com/nearmetal/nearmetal/internal/measure/condition"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// The block of the cache that is tried, which is the default of nodes, and its address.
const (
	triedBlock = 256 << 10
	farServer  = "root://198.18.0.2:1094//"
)

// waysWorld is a dataWorld with a cache at the near end.
type waysWorld struct {
	*dataWorld
	cacheURL string
	files    int
	// opening are the round trips until a file is open: for a reader at the source, and at a cache that has nothing of it.
	opening, coldOpening float64
	// handing is how many bytes per second the cache hands out of what it has.
	handing float64
}

func newWaysWorld(t *testing.T) *waysWorld {
	t.Helper()
	w := &waysWorld{dataWorld: newDataWorld(t), opening: 4}
	cache, err := xrootd.StartCache(t.Context(), w.near, xrootd.CacheConfig{
		Address: netip.MustParseAddrPort("127.0.0.1:1094"), Origin: "198.18.0.2:1094", Dir: w.path("cached"), Work: w.path("cache"), SizeBytes: 20 << 30, BlockBytes: triedBlock,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cache.Stop() })
	w.cacheURL = "root://127.0.0.1:1094//"
	return w
}

// congestion sets how the server's connections answer losses.
func (w *waysWorld) congestion(name string) {
	w.t.Helper()
	if err := w.far.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(name), 0o644) }); err != nil {
		w.t.Fatalf("congestion control %s: %v", name, err)
	}
}

// fresh is another name of the file of jobs, of which no cache has anything.
func (w *waysWorld) fresh() string {
	w.files++
	name := fmt.Sprintf("job%d", w.files)
	if err := os.Link(w.path("files", "job"), w.path("files", name)); err != nil {
		w.t.Fatal(err)
	}
	return name
}

func (w *waysWorld) read(base, name string, reads float64, request int64) float64 {
	return w.do(dataWork{URL: base + name, Bytes: jobBytes, Reads: reads, Request: request}).Seconds
}

// calibrate finds what opening a file by the cache takes, and how fast the cache hands out, under conditions that are not compared.
func (w *waysWorld) calibrate() {
	const reads, request = 0.25, 512 << 10
	var trips, rates []float64
	for _, delay := range []time.Duration{10 * time.Millisecond, 20 * time.Millisecond, 40 * time.Millisecond} {
		_, p := w.figures(condition.Condition{Delay: delay, Seed: 1}, farServer)
		name := w.fresh()
		cold := w.read(w.cacheURL, name, reads, request)
		warm := w.read(w.cacheURL, name, reads, request)
		rates = append(rates, reads*jobBytes/warm)
		all := predict.Table(predict.Work{Bytes: jobBytes, Reads: reads, Jobs: 1, Reader: predict.Reader{RequestBytes: request}}, predict.Ways{
			Source: &p, Cache: &predict.CacheAt{BlockBytes: triedBlock, Streams: 1, Rate: reads * jobBytes / warm},
		})
		trips = append(trips, (cold-all[len(all)-1].Seconds)/p.RoundTrip)
	}
	slices.Sort(trips)
	slices.Sort(rates)
	w.coldOpening, w.handing = max(0, trips[1]), rates[1]
	w.t.Logf("opening a file that the cache has nothing of takes %.1f round trips, and it hands out %.0f MB/s", trips, w.handing/1e6)
}

// predictAll predicts what each way takes, by what a copy of another file has told.
func (w *waysWorld) predictAll(c *tried) predict.Path {
	from, p := w.figures(c.way, farServer)
	table := func(opening, held float64) []predict.Prediction {
		return predict.Table(predict.Work{Bytes: jobBytes, Reads: c.reads, Jobs: 1, Reader: predict.Reader{Trips: opening, RequestBytes: float64(c.request), RequestTrips: 1}}, predict.Ways{
			Source: &p, FromSource: paths.CopierOf(from), Cache: &predict.CacheAt{Held: held, BlockBytes: triedBlock, Streams: 1, Rate: w.handing},
		})
	}
	for _, one := range slices.Concat(table(w.opening, 1), table(w.coldOpening, 0)[2:]) {
		c.predicted[one.Choice] = one.Seconds
	}
	return p
}

var triedChoices = []predict.Choice{predict.Copy, predict.Stream, predict.Cold, predict.Warm}

// waysTried are the sums and errors of one kind of conditions.
type waysTried struct {
	ratios map[predict.Choice][]float64
	sums   map[string]float64
}

func (w *waysWorld) tryAll(c *tried, into *waysTried) {
	p := w.predictAll(c)
	name := w.fresh()
	c.actual[predict.Copy] = w.copyOf(farServer, "job", jobBytes).Seconds
	c.actual[predict.Stream] = w.read(farServer, name, c.reads, c.request)
	c.actual[predict.Cold] = w.read(w.cacheURL, name, c.reads, c.request)
	c.actual[predict.Warm] = w.read(w.cacheURL, name, c.reads, c.request)
	best, chosen := math.Inf(1), predict.Copy
	var row strings.Builder
	for _, choice := range triedChoices {
		into.ratios[choice] = append(into.ratios[choice], c.actual[choice]/c.predicted[choice])
		fmt.Fprintf(&row, " %.2f | %.2f |", c.actual[choice], c.predicted[choice])
		if choice == predict.Warm { // not every job finds one
			continue
		}
		into.sums["always "+string(choice)] += c.actual[choice]
		best = min(best, c.actual[choice])
		if c.predicted[choice] < c.predicted[chosen] {
			chosen = choice
		}
	}
	into.sums["by prediction"] += c.actual[chosen]
	into.sums["by hindsight"] += best
	w.t.Logf("| %.1f | %.0f | %.2f | %.2f | %d | %.1f |%s", 2e3*c.way.Delay.Seconds(), float64(c.way.BitsPerSecond)/1e6, 100*c.way.Loss, c.reads, c.request>>10, p.Rate*8/1e6, row.String())
}

// Caches, cold and warm, and losses are predicted like other ways, by what copies have told.
func TestCachesAndLossesComeAboutAsPredicted(t *testing.T) {
	needs.Request(t, "NEARMETAL_TESTBED", "make test-testbed")
	w := newWaysWorld(t)
	w.calibrate()
	random := rand.New(rand.NewPCG(2026, 1122))
	for _, kind := range []struct {
		name, congestion string
		lossy            bool
		count            int
	}{{"no losses, BBR", "bbr", false, 12}, {"losses, BBR", "bbr", true, 10}, {"losses, Reno", "reno", true, 10}} {
		w.congestion(kind.congestion)
		into := waysTried{map[predict.Choice][]float64{}, map[string]float64{}}
		t.Logf("%s: | round trip ms | Mbit/s | loss %% | fraction | part KiB | learned Mbit/s | copy | predicted | stream | predicted | cold | predicted | warm | predicted |", kind.name)
		for range kind.count {
			c := randomWay(random)
			if c.way.BitsPerSecond > 0 {
				c.way.BitsPerSecond = max(c.way.BitsPerSecond, 25e6) // slower ones take long, and tell nothing else
			}
			if kind.lossy {
				c.way.Loss = 1e-4 * math.Pow(100, random.Float64())
			}
			w.tryAll(&c, &into)
		}
		for _, choice := range triedChoices {
			errs := make([]float64, 0, kind.count)
			for _, r := range into.ratios[choice] {
				errs = append(errs, math.Abs(r-1))
			}
			ratios := into.ratios[choice]
			slices.Sort(errs)
			slices.Sort(ratios)
			t.Logf("%s, %s: took by predicted: median %.2f; error: median %.0f%%, 90th percentile %.0f%%", kind.name, choice, ratios[len(ratios)/2], 100*errs[len(errs)/2], 100*errs[len(errs)*9/10])
			if choice != predict.Warm && !kind.lossy && errs[len(errs)/2] > 0.4 {
				t.Errorf("%s, %s: the median error is %.0f%%, want 40%% at most", kind.name, choice, 100*errs[len(errs)/2])
			}
		}
		t.Logf("%s: %v", kind.name, into.sums)
		if always := min(into.sums["always copy"], into.sums["always stream"], into.sums["always cold cache"]); into.sums["by prediction"] > 1.1*always {
			t.Errorf("%s: choosing by prediction takes %.1f s, and one way for all %.1f s", kind.name, into.sums["by prediction"], always)
		}
	}
	load, err := os.ReadFile("/proc/loadavg")
	t.Logf("load: %s (%v)", strings.TrimSpace(string(load)), errors.Join(err))
}
