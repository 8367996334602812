package paths

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
)

const farRoot = "root://far:1094"

// wish is for a file of 100 MB from a server at 50 ms, of which a tenth is read.
func wish() Wish {
	return Wish{
		Ask:   Ask{Node: "n1", Bytes: 1e8, Files: []api.DatasetFile{{URLs: []string{"root://far//a"}, SizeBytes: 1e8}}},
		Reads: 0.1, ReadsFrom: "declared", Readers: 1, Here: 1, Cache: &CacheHere{CacheRoom: dataset.CacheRoom{Bytes: 1e10, BlockBytes: 256 << 10}},
	}
}

func farKnown(rate float64) *Known {
	return knownAt(start.Add(time.Minute), &api.DataPaths{Node: "n1", Paths: []api.DataPath{{From: farRoot, BytesPerSecond: rate, RateAt: at(0), RoundTripSeconds: 0.05, RoundTripAt: at(0)}}})
}

func TestTheQuickestOfThePossibleWaysIsTaken(t *testing.T) {
	peer := func(w *Wish) { w.Peers = []string{"n2"} }
	for name, c := range map[string]struct {
		change func(w *Wish)
		known  *Known
		want   predict.Choice
		way    api.DatasetWay
	}{
		"nothing was measured":            {func(*Wish) {}, knownAt(start), predict.Copy, api.DatasetCopy},
		"a small part":                    {func(*Wish) {}, farKnown(1e7), predict.Stream, api.DatasetStream},
		"all of it":                       {func(w *Wish) { w.Reads = 1 }, farKnown(1e7), predict.Copy, api.DatasetCopy},
		"without a way out":               {func(w *Wish) { w.NoStream = "no way out" }, farKnown(1e7), predict.Cold, api.DatasetCached},
		"without a way out and a cache":   {func(w *Wish) { w.NoStream, w.Cache = "no way out", nil }, farKnown(1e7), predict.Copy, api.DatasetCopy},
		"what can't be cached":            {func(w *Wish) { w.NoStream, w.NoCache = "private", "private" }, farKnown(1e7), predict.Copy, api.DatasetCopy},
		"a cache that is too small":       {func(w *Wish) { w.NoStream, w.Cache.Bytes = "no way out", 1e6 }, farKnown(1e7), predict.Copy, api.DatasetCopy},
		"a cache that has it":             {func(w *Wish) { w.Cache.HeldBytes = 2e7 }, farKnown(1e7), predict.Warm, api.DatasetCached},
		"a cache that has some of it":     {func(w *Wish) { w.Cache.HeldBytes = 2e6 }, farKnown(1e7), predict.Cold, api.DatasetCached},
		"a node that has all":             {func(w *Wish) { w.Held = 1e8 }, farKnown(1e7), predict.Here, api.DatasetCopy},
		"many that would stream at once":  {func(w *Wish) { w.Readers = 100 }, farKnown(1e7), predict.Copy, api.DatasetCopy},
		"many that share a node's cache":  {func(w *Wish) { w.Readers, w.Here = 100, 100 }, farKnown(1e7), predict.Cold, api.DatasetCached},
		"a peer that nobody has measured": {peer, farKnown(1e7), predict.Stream, api.DatasetStream},
		// The node takes all from the peer, since one has it, though the source were quicker.
		"a peer that is slow": {func(w *Wish) { peer(w); w.Reads = 1 }, knownAt(start, &api.DataPaths{Node: "n1", Paths: []api.DataPath{
			{From: farRoot, BytesPerSecond: 1e9, RateAt: at(0), RoundTripSeconds: 0.05, RoundTripAt: at(0)}, {From: OfNode("n2"), BytesPerSecond: 1e6, RateAt: at(0)},
		}}), predict.Stream, api.DatasetStream},
		"readers that wait for little": {func(w *Wish) { w.BytesPerWait = 1e4 }, farKnown(1e7), predict.Copy, api.DatasetCopy},
	} {
		w := wish()
		c.change(&w)
		options := c.known.Options(w)
		if got := options[Taken(options)]; got.Choice != c.want || got.Way != c.way {
			t.Errorf("%s: %s by %s, want %s", name, got.Choice, got.Way, c.want)
			for i := range options {
				t.Logf("%s: known %v, %.2f s = %s (%s)", options[i].Choice, options[i].Known, options[i].Seconds, options[i].Sum(), options[i].Figures())
			}
		}
	}
}

func TestADecisionCanBeCheckedByHand(t *testing.T) {
	w := wish()
	options := farKnown(1e7).Options(w)
	claim := Claim("events", w, options)
	if claim.Way != api.DatasetStream || claim.Bytes != 1e7 || claim.Seconds == nil || len(claim.Options) != 3 || !strings.Contains(claim.Why, "next is cold cache") {
		t.Fatalf("%+v", claim)
	}
	for choice, want := range map[string][2]string{
		"copy":       {"start 0.050 s + 10 trips x 50 ms + 100 MB at 10.0 MB/s + slow start 0.116 s", "root://far:1094: 10.0 MB/s 1m ago, 50 ms 1m ago"},
		"stream":     {"19.54 trips x 50 ms + 10 MB at 10.0 MB/s + slow start 0.211 s", "reads 0.1 of 100 MB (declared), 1.049 MB per wait (assumed)"},
		"cold cache": {"19.54 trips x 50 ms + 12.34 MB at 10.0 MB/s + slow start 0.211 s", "blocks of 262.1 kB; the cache holds 0 kB"},
	} {
		var got *api.DataOption
		for i := range claim.Options {
			if claim.Options[i].Choice == choice {
				got = &claim.Options[i]
			}
		}
		if got == nil || !strings.Contains(got.Sum, want[0]) || !strings.Contains(got.Figures, want[1]) {
			t.Errorf("%s: %+v, want %q", choice, got, want)
		}
	}
	// 19.54 round trips of 50 ms, 10 MB at 10 MB/s, and slow start.
	if got := *claim.Seconds; got < 2.187 || got > 2.189 {
		t.Errorf("%g s, want the sum", got)
	}
	if c := Claim("events", w, knownAt(start).Options(w)); c.Seconds != nil || c.Way != api.DatasetCopy || !strings.Contains(c.Why, "nothing could be predicted") {
		t.Errorf("nothing was measured: %+v", c)
	}
}

func TestWhatMembersReadIsLearnedUnlessItIsDeclared(t *testing.T) {
	var all api.DataOutcomes
	add := func(member string, bytes int64, fraction float64, after time.Duration) bool {
		var news bool
		all, news = Read(all, api.DataReading{Member: member, Bytes: bytes, Fraction: fraction, Waits: 4, At: start.Add(after)})
		return news
	}
	if !add("a", 100, 0.1, 0) || !add("b", 300, 0.3, time.Minute) || !add("c", 200, 0.2, 0) {
		t.Error("readings of three members are not all taken in")
	}
	if r := ReadsOf(&all, start.Add(time.Hour)); r == nil || r.Fraction != 0.2 || r.Members != 3 || !r.At.Equal(start.Add(time.Minute)) || r.BytesPerWait != 50 {
		t.Errorf("learned: %+v, want the median", r)
	}
	if !add("a", 400, 0.4, 2*time.Minute) || len(all.Readings) != 3 {
		t.Errorf("a member reads on: %+v", all.Readings)
	}
	if add("a", 50, 0.05, 3*time.Minute) || add("a", 410, 0.41, 3*time.Minute) {
		t.Error("what a member has read becomes less, or is stored for each byte")
	}
	learned := ReadsOf(&all, start.Add(time.Hour))
	if f, from := ReadFraction(0.05, learned, start); f != 0.05 || from != "declared" {
		t.Errorf("declared: %g, %s", f, from)
	}
	if f, from := ReadFraction(0, learned, start.Add(time.Hour)); f != 0.3 || from != "learned from 3 members, 58m ago" {
		t.Errorf("learned: %g, %s", f, from)
	}
	if f, from := ReadFraction(0, nil, start); f != 1 || from != "assumed" {
		t.Errorf("nothing is known: %g, %s", f, from)
	}
	if r := ReadsOf(&all, start.Add(8*24*time.Hour)); r != nil {
		t.Errorf("after 8 days: %+v", r)
	}
	for i := range 2 * newestReadings {
		add(strings.Repeat("x", i+1), 10, 0.01, time.Hour)
	}
	if len(all.Readings) != newestReadings {
		t.Errorf("%d readings are kept", len(all.Readings))
	}
}
