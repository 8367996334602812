package replica

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
)

func TestFilesThatComeAtOnceShareTheTimeOfTheirPath(t *testing.T) {
	start := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	got := passages([]span{
		{"a", 10, at(0), at(10), 4, 30 * time.Millisecond},
		{"a", 20, at(5), at(12), 4, 20 * time.Millisecond},
		{"a", 30, at(20), at(25), 4, 0},
		{"b", 7, at(1), at(3), 0, 0},
		{"a", 5, at(2), at(4), 4, 0},
	})
	want := []dataset.Passage{
		{From: "a", Bytes: 65, Seconds: 17, Streams: 8, RoundTripSeconds: 0.02, At: at(25)},
		{From: "b", Bytes: 7, Seconds: 2, At: at(3)},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestANodeTellsHowADatasetCame(t *testing.T) {
	s := newSource(t)
	began := time.Now()
	n := start(t, t.TempDir(), nil)
	w := s.wanted("u1", "a", "b")
	n.Want([]dataset.Wanted{w})
	n.eventually("it is whole", func() bool { return n.state("u1").Fetched != nil })
	state, all := n.state("u1"), n.Paths()
	if f := state.Fetched; f.SourceBytes != 2*fileBytes || f.PeerBytes != 0 || f.Seconds <= 0 || f.Seconds > time.Since(began).Seconds() || f.At.Before(began) {
		t.Errorf("%+v, want two files from the source", f)
	}
	from := dataset.ServerOf(s.URL)
	at := slices.IndexFunc(all, func(p dataset.Passage) bool { return p.From == from })
	if at < 0 {
		t.Fatalf("%+v has nothing from %s", all, from)
	}
	if p := all[at]; p.Bytes != 2*fileBytes || p.Seconds <= 0 || p.Seconds > state.Fetched.Seconds || p.Streams < 1 || p.RoundTripSeconds <= 0 || p.RoundTripSeconds > p.Seconds {
		t.Errorf("%+v, want two files, and how far the source is", p)
	}
	if at := slices.IndexFunc(all, func(p dataset.Passage) bool { return p.From == dataset.FromDisk }); at < 0 || all[at].Bytes != 2*fileBytes {
		t.Errorf("%+v does not tell how the node verifies", all)
	}
	// What was here when the agent started came in no known time.
	n.stop()
	if f := start(t, n.cfg.Dir, nil).state("u1").Fetched; f != nil {
		t.Errorf("after a restart: %+v", f)
	}
}

func TestADistanceIsProbedWithoutAsking(t *testing.T) {
	s := newSource(t)
	n := start(t, t.TempDir(), nil)
	from := dataset.ServerOf(s.URL)
	n.Probe(t.Context(), []string{"http://198.18.255.254:no", from})
	n.eventually("the distance is known", func() bool { return len(n.Paths()) == 1 })
	if p := n.Paths()[0]; p.From != from || p.Bytes != 0 || p.RoundTripSeconds <= 0 || p.At.IsZero() {
		t.Errorf("%+v, want a round trip to %s", p, from)
	}
	if s.sent.Load() > 0 {
		t.Error("the source was asked for something")
	}
	// A node does not connect to itself for a user.
	guarded := start(t, t.TempDir(), func(c *Config) { c.Fetcher = transfer.New(transfer.Config{}) })
	if took, err := guarded.cfg.Fetcher.RoundTrip(t.Context(), from); err == nil {
		t.Errorf("the node itself is %v away", took)
	}
	open := transfer.New(transfer.Config{Allow: func(netip.Addr) error { return nil }})
	if _, err := open.RoundTrip(t.Context(), "no server"); err == nil {
		t.Error("what names no server has a distance")
	}
}
