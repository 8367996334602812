package replica

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/transfer"
)

// mostPlaces bounds the newest passages and probes that are kept.
const mostPlaces = 64

// ways are what the store has seen of the ways of data to this node; the store's lock is held for all of it.
type ways struct {
	// newest are the newest passage from each place and its newest probe.
	newest map[seen]dataset.Passage
	// asked are the places to be probed. probing: somebody does that.
	asked   []string
	probing bool
}

// seen is what a node has seen of a place: by a probe, or by what came from there.
type seen struct {
	from  string
	probe bool
}

func (w *ways) note(p dataset.Passage) {
	if w.newest == nil {
		w.newest = map[seen]dataset.Passage{}
	}
	key := seen{p.From, p.Bytes == 0}
	w.newest[key] = p
	for len(w.newest) > mostPlaces {
		oldest := key
		for k, other := range w.newest {
			if other.At.Before(w.newest[oldest].At) {
				oldest = k
			}
		}
		delete(w.newest, oldest)
	}
}

// Paths returns the newest passage from each place, and its newest probe, in the order of places and times.
func (s *Store) Paths() []dataset.Passage {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]dataset.Passage, 0, len(s.paths.newest))
	for _, p := range s.paths.newest {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b dataset.Passage) int { return cmp.Or(cmp.Compare(a.From, b.From), a.At.Compare(b.At)) })
	return all
}

// journey is one fetch of a dataset, of whose files several come at once.
type journey struct {
	began           time.Time
	sourced, peered int64 // those of the replica before

	mu    sync.Mutex
	spans []span
}

// span is what came from a place, and when.
type span struct {
	from         string
	bytes        int64
	began, ended time.Time
	streams      int
	trip         time.Duration
}

func (j *journey) fromSources(passages []transfer.Passage) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, p := range passages {
		if from := dataset.ServerOf(p.Source); from != "" {
			j.spans = append(j.spans, span{from, p.Bytes, p.Began, p.Ended, p.Streams, p.RoundTrip})
		}
	}
}

// fromPeers notes what came from nodes: from the one that there was, or from several, of which nobody counts which sent what.
func (j *journey) fromPeers(peers []string, bytes int64, began time.Time) {
	if bytes <= 0 {
		return
	}
	from := dataset.FromNodes
	if len(peers) == 1 {
		from = peers[0]
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.spans = append(j.spans, span{from: from, bytes: bytes, began: began, ended: time.Now()})
}

// passages sums up what came from each place, in the order of places. The seconds are those in which something was on its way from there: what came at
// once shared the path. Files' connections add up to those that there were at once at most.
func passages(spans []span) []dataset.Passage {
	byPlace := map[string][]span{}
	for _, s := range spans {
		byPlace[s.from] = append(byPlace[s.from], s)
	}
	var all []dataset.Passage
	for from, of := range byPlace {
		p := dataset.Passage{From: from}
		slices.SortFunc(of, func(a, b span) int { return a.began.Compare(b.began) })
		var busy time.Duration
		var until time.Time
		trip := time.Duration(0)
		for i, s := range of {
			p.Bytes += s.bytes
			if s.trip > 0 && (trip == 0 || s.trip < trip) {
				trip = s.trip
			}
			streams := 0
			for _, other := range of[:i+1] {
				if other.ended.After(s.began) || other == s {
					streams += other.streams
				}
			}
			p.Streams = max(p.Streams, streams)
			if s.began.After(until) {
				until = s.began
			}
			if s.ended.After(until) {
				busy += s.ended.Sub(until)
				until = s.ended
			}
		}
		p.Seconds, p.RoundTripSeconds, p.At = busy.Seconds(), trip.Seconds(), until
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b dataset.Passage) int { return cmp.Compare(a.From, b.From) })
	return all
}

// arrived notes how a replica came that is whole now.
func (s *Store) arrived(r *replica, j *journey, size int64) {
	now := time.Now()
	all := passages(j.spans)
	s.mu.Lock()
	defer s.mu.Unlock()
	took := now.Sub(j.began)
	r.fetched = &dataset.Fetched{Seconds: took.Seconds(), At: now.UTC(), SourceBytes: r.sourced - j.sourced, PeerBytes: r.peered - j.peered}
	crossing := 0.0
	for i := range all {
		all[i].At = all[i].At.UTC()
		crossing = max(crossing, all[i].Seconds)
		s.paths.note(all[i])
	}
	if rest := took.Seconds() - crossing; len(all) == 1 && rest > 0 { // of several places, nobody knows what was waited for
		s.paths.note(dataset.Passage{From: dataset.FromDisk, Bytes: size, Seconds: rest, At: now.UTC()})
	}
}

// Probe has the distance of some places measured, one after the other, once for each list of places.
func (s *Store) Probe(ctx context.Context, places []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Equal(places, s.paths.asked) {
		return
	}
	if s.paths.asked = places; !s.paths.probing {
		s.paths.probing = true
		go s.probe(ctx)
	}
}

// probe measures until the list of places is another one no more.
func (s *Store) probe(ctx context.Context) {
	var done []string
	for {
		s.mu.Lock()
		places := s.paths.asked
		if slices.Equal(places, done) || ctx.Err() != nil {
			s.paths.probing = false
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		for _, from := range places {
			took, err := s.cfg.Fetcher.RoundTrip(ctx, from)
			if err != nil {
				s.cfg.Log.DebugContext(ctx, "the distance of a source can't be measured", "source", from, "error", err)
				continue
			}
			s.mu.Lock()
			s.paths.note(dataset.Passage{From: from, RoundTripSeconds: took.Seconds(), At: time.Now().UTC()})
			s.mu.Unlock()
			s.cfg.Changed()
		}
		done = places
	}
}
