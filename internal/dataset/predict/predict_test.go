package predict

import (
	"math"
	"math/rand/v2"
	"testing"
)

// drawn is a random case of any size that occurs: paths of a rack and around the world, files of bytes and of terabytes.
func drawn(random *rand.Rand) (Work, Ways) {
	log := func(low, high float64) float64 { return low * math.Pow(high/low, random.Float64()) }
	path := func() *Path {
		p := &Path{RoundTrip: log(1e-5, 1), Rate: log(1e3, 1e11)}
		if random.IntN(2) == 0 {
			p.Loss = log(1e-6, 0.3)
		}
		return p
	}
	w := Work{
		Bytes: log(1, 1e13), Reads: random.Float64(), Jobs: float64(1 + random.IntN(20)),
		Reader: Reader{Trips: float64(random.IntN(20)), RequestBytes: log(1e3, 1e8), SecondsPerByte: log(1e-12, 1e-7)},
	}
	ways := Ways{
		Source: path(), Peer: path(), Disk: log(1e6, 1e10), FromSource: Copier{Trips: float64(random.IntN(20)), Streams: float64(1 + random.IntN(15)), Start: random.Float64()},
		FromPeer: Copier{Trips: 3, Streams: 4}, Cache: &CacheAt{Held: random.Float64(), BlockBytes: log(1e4, 1e8), Ahead: float64(random.IntN(20)), Streams: 1},
	}
	return w, ways
}

func TestNoChoiceBecomesQuickerByAWorsePathOrMoreWork(t *testing.T) {
	random := rand.New(rand.NewPCG(20, 26))
	for i := range 20_000 {
		w, ways := drawn(random)
		before := Table(w, ways)
		if len(before) != 4 {
			t.Fatalf("case %d: %d choices, want peer, copy, stream and cache", i, len(before))
		}
		more := 1 + 3*random.Float64()
		for name, worsen := range map[string]func(w *Work, s, p *Path){
			"more bytes":                   func(w *Work, _, _ *Path) { w.Bytes *= more },
			"a longer round trip":          func(_ *Work, s, p *Path) { s.RoundTrip, p.RoundTrip = s.RoundTrip*more, p.RoundTrip*more },
			"a lower rate":                 func(_ *Work, s, p *Path) { s.Rate, p.Rate = s.Rate/more, p.Rate/more },
			"more loss":                    func(_ *Work, s, p *Path) { s.Loss, p.Loss = min(1, s.Loss*more), min(1, p.Loss*more) },
			"more jobs at once":            func(w *Work, _, _ *Path) { w.Jobs += 5 },
			"a larger fraction to be read": func(w *Work, _, _ *Path) { w.Reads = min(1, w.Reads*more) },
		} {
			w2, ways2, source, peer := w, ways, *ways.Source, *ways.Peer
			worsen(&w2, &source, &peer)
			ways2.Source, ways2.Peer = &source, &peer
			for k, after := range Table(w2, ways2) {
				if b := before[k]; after.Choice != b.Choice || !(after.Seconds >= b.Seconds*(1-1e-9)) || math.IsInf(after.Seconds, 0) {
					t.Fatalf("case %d, %s: %s took %g s and takes %g s: %+v %+v %+v", i, name, b.Choice, b.Seconds, after.Seconds, w, source, peer)
				}
			}
		}
	}
}

func TestATransferTakesItsTripsItsSlowStartAndItsBytes(t *testing.T) {
	path := Path{RoundTrip: 0.1, Rate: 1e7}
	for name, c := range map[string]struct {
		bytes float64
		path  Path
		by    Flow
		want  float64
	}{
		"nothing takes its trips":                     {0, path, Flow{Trips: 3}, 0.3},
		"what the first window holds takes one trip":  {firstBytes, path, Flow{}, 0.1},
		"three windows take two trips":                {3 * firstBytes, path, Flow{}, 0.2},
		"many bytes take their rate":                  {1e12, path, Flow{}, 1e5},
		"two transfers at once take twice the time":   {1e12, path, Flow{Sharing: 2}, 2e5},
		"without a round trip the rate alone counts":  {1e7, Path{Rate: 1e7}, Flow{Trips: 9}, 1},
		"two connections begin with twice the window": {6 * firstBytes, path, Flow{Streams: 2}, 0.2},
		// 1448 B / 0.1 s * sqrt(1.5 / 0.0006) = 724,000 B/s
		"losses bound the rate":                  {724e6, Path{RoundTrip: 0.1, Rate: 1e9, Loss: 0.0006}, Flow{}, 1000},
		"losses bound each connection by itself": {724e6, Path{RoundTrip: 0.1, Rate: 1e9, Loss: 0.0006}, Flow{Streams: 4}, 250},
	} {
		if got := Seconds(c.bytes, c.path, c.by); math.Abs(got-c.want) > 0.005*c.want {
			t.Errorf("%s: %g s, want %g s", name, got, c.want)
		}
	}
}

func TestARateIsFoundAgainInTheTimeThatItTook(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	told := 0
	for range 5000 {
		w, ways := drawn(random)
		p, by := Path{RoundTrip: ways.Source.RoundTrip, Rate: ways.Source.Rate}, Flow{Trips: 5, Streams: ways.FromSource.Streams}
		got, least := RateOf(w.Bytes, Seconds(w.Bytes, p, by), p.RoundTrip, by)
		if least {
			if got > p.Rate*(1+1e-9) && Seconds(w.Bytes, Path{RoundTrip: p.RoundTrip, Rate: got}, by) < 0.8*Seconds(w.Bytes, p, by) {
				t.Fatalf("%g B over %+v by %+v: at least %g", w.Bytes, p, by, got)
			}
			continue
		}
		told++
		if math.Abs(got-p.Rate) > 1e-3*p.Rate {
			t.Fatalf("%g B over %+v by %+v: rate %g", w.Bytes, p, by, got)
		}
	}
	if told < 1000 {
		t.Errorf("%d of 5000 transfers told their rate", told)
	}
	// Two packets say nothing of a path's rate.
	if rate, least := RateOf(2000, 0.61, 0.1, Flow{Trips: 5}); !least || rate > 2e4 {
		t.Errorf("2000 bytes told a rate of %g B/s, least %v", rate, least)
	}
}

func TestAChoiceWithoutFiguresIsNotPredicted(t *testing.T) {
	has := func(all []Prediction, c Choice) bool {
		for _, p := range all {
			if p.Choice == c {
				return true
			}
		}
		return false
	}
	w := Work{Bytes: 1e9, Reads: 1, Jobs: 1}
	for name, c := range map[string]struct {
		held float64
		ways Ways
		read float64
		want []Choice
	}{
		"nothing is known":                 {0, Ways{}, 0, nil},
		"a round trip alone is no rate":    {0, Ways{Source: &Path{RoundTrip: 0.1}}, 1e6, nil},
		"the source's path is known":       {0, Ways{Source: &Path{Rate: 1e6}}, 0, []Choice{Copy}},
		"and how the member reads":         {0, Ways{Source: &Path{Rate: 1e6}}, 1e6, []Choice{Copy, Stream}},
		"and a cache":                      {0, Ways{Source: &Path{Rate: 1e6}, Cache: &CacheAt{}}, 1e6, []Choice{Copy, Stream, Cold}},
		"a peer's path is known":           {0, Ways{Peer: &Path{Rate: 1e6}}, 0, []Choice{Peer}},
		"all is here, and nothing known":   {1e9, Ways{}, 0, []Choice{Here}},
		"what is here is not copied":       {1e9, Ways{Source: &Path{Rate: 1e6}, Peer: &Path{Rate: 1}}, 0, []Choice{Here}},
		"another node's choices are known": {0, Ways{Elsewhere: new(float64)}, 0, []Choice{Elsewhere}},
	} {
		w := w
		w.Held, w.Reader.RequestBytes = c.held, c.read
		got := Table(w, c.ways)
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v, want %v", name, got, c.want)
		}
		for _, choice := range c.want {
			if !has(got, choice) {
				t.Errorf("%s: %+v has no %s", name, got, choice)
			}
		}
	}
}

func TestASmallPartIsStreamedAndAllIsCopied(t *testing.T) {
	ways := Ways{Source: &Path{RoundTrip: 0.05, Rate: 1e8}, FromSource: Copier{Trips: 10, Streams: 4}}
	at := func(reads float64) Choice {
		best, _ := Best(Table(Work{Bytes: 10e9, Reads: reads, Jobs: 1, Reader: Reader{Trips: 10, RequestBytes: 4e6}}, ways))
		return best.Choice
	}
	if got := at(0.01); got != Stream {
		t.Errorf("one part in a hundred: %s, want it streamed", got)
	}
	if got := at(1); got != Copy {
		t.Errorf("all: %s, want it copied", got)
	}
}

func TestWaitingCostsTheIdlePowerOfTheMembersShare(t *testing.T) {
	p := Power{IdleWatts: 100, BusyWatts: 200, Share: 0.25, Working: 0.1}
	if got := p.Joules(10); got != 450 {
		t.Errorf("%g J, want 10 s of a quarter of 100 W, and a tenth of 200 W", got)
	}
	if got := p.Joules(0); got != 0 {
		t.Errorf("no time costs %g J", got)
	}
}

func TestACacheFetchesWholeBlocksAndWaitsOncePerRequest(t *testing.T) {
	source := Path{RoundTrip: 0.1, Rate: 1e8}
	at := func(reads, request, held float64) Prediction {
		all := Table(Work{Bytes: 1e9, Reads: reads, Jobs: 1, Reader: Reader{RequestBytes: request}}, Ways{Source: &source, Cache: &CacheAt{Held: held, BlockBytes: 1e6}})
		return all[len(all)-1]
	}
	for name, c := range map[string]struct {
		got                Prediction
		choice             Choice
		leastBytes, mostBy float64
		trips              float64
	}{
		// 10 requests of 1 MB touch two blocks each, and wait 10 times.
		"few large requests": {at(0.01, 1e6, 0), Cold, 19.8e6, 20e6, 10},
		// 100 requests of 10 kB touch about one block each.
		"few small requests":       {at(0.001, 1e4, 0), Cold, 95e6, 101e6, 95},
		"all":                      {at(1, 1e6, 0), Cold, 1e9, 1e9, 1000},
		"all, of which it has all": {at(1, 1e6, 1), Warm, 0, 0, 0},
		"of which it has half":     {at(1, 1e6, 0.5), Warm, 5e8, 5e8, 500},
	} {
		if p := c.got; p.Choice != c.choice || p.Terms.Bytes < c.leastBytes-1 || p.Terms.Bytes > c.mostBy+1 || math.Abs(p.Terms.Trips-c.trips) > 3 {
			t.Errorf("%s: %s fetches %g MB in %g waits, want %s, %g to %g MB in %g waits", name, p.Choice, p.Terms.Bytes/1e6, p.Terms.Trips, c.choice, c.leastBytes/1e6, c.mostBy/1e6, c.trips)
		}
	}
}
