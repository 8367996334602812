package nodeimages

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// How an image is divided among its sources. Without peers the server sends long pieces; with peers it sends what none of them has, in
// short pieces from anywhere, so that nodes which fetch at once soon have something to give each other.
const (
	serverWorkers  = 3
	serverSpan     = 16 // chunks a request
	peerSpan       = 4
	mostPeers      = 8                      // asked at once
	refreshTime    = 250 * time.Millisecond // how often a peer is asked what it holds
	peersPatience  = 2 * time.Second        // with peers that hold what is missing and send nothing
	serverFailures = 5                      // in a row, with no peer helping
	peerFailures   = 3
	peerPenalty    = 20 * time.Second // for one that failed that often
)

// fill is the filling of one root from all sources.
type filling struct {
	*fetch
	p *partial

	mu sync.Mutex
	// offers is what each peer that is asked holds.
	offers map[string][]byte
	// moved is when a chunk last came from a peer.
	moved time.Time
	// resting are peers that failed, until when.
	resting map[string]time.Time
}

// fill fetches all missing chunks of a root.
func (f *fetch) fill(ctx context.Context, p *partial) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	g := &filling{fetch: f, p: p, offers: map[string][]byte{}, resting: map[string]time.Time{}, moved: time.Now()}
	var workers sync.WaitGroup
	defer workers.Wait()
	for i := range f.serverWorkers() {
		workers.Go(func() {
			if err := g.fromServer(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	workers.Go(func() { g.fromPeers(ctx, cancel) })
	for {
		changes := f.changes()
		if missing, _ := p.state(); missing == 0 {
			cancel(nil)
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changes:
		}
	}
}

// serverWorkers is how many fetch from the server: none where only peers have what is fetched.
func (f *fetch) serverWorkers() int {
	if f.file != nil {
		return 0
	}
	return serverWorkers
}

// fromServer fetches from the server until nothing is missing. It is one of several; only the first goes on while there are peers.
func (g *filling) fromServer(ctx context.Context, worker int) error {
	for failures := 0; ; {
		changes := g.changes()
		if missing, _ := g.p.state(); missing == 0 || ctx.Err() != nil {
			return nil
		}
		start, most, test := 0, serverSpan, func(int) bool { return true }
		if len(g.livePeers()) > 0 {
			start, most, test = rand.IntN(g.p.chunks.Len()), peerSpan, g.offeredByNone()
			if worker > 0 {
				most = 0
			}
		}
		first, n := g.p.claim(start, most, test)
		if n == 0 {
			wait(ctx, changes, refreshTime)
			continue
		}
		err := g.chunks(ctx, g.server(), g.p, first, n, func(bytes int64) { g.served.Add(bytes) })
		g.p.release(first, n)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		if isLocal(err) || (failures >= serverFailures || errors.Is(err, errNotHere)) && !g.peersMove() {
			return err
		}
		wait(ctx, nil, min(100*time.Millisecond<<min(failures, 5), 3*time.Second))
	}
}

// isLocal tells whether it is this node that failed, as by a full disk: no source can help.
func isLocal(err error) bool { return errors.As(err, new(*localError)) }

// wait returns when something changed, after a time, or at the end.
func wait(ctx context.Context, changes <-chan struct{}, most time.Duration) {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changes:
	case <-timer.C:
	}
}

// offeredByNone tells of chunks whether the server must send them: no peer holds them, or none has sent anything for a while.
func (g *filling) offeredByNone() func(int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.moved) >= peersPatience {
		return func(int) bool { return true }
	}
	offered := make([]byte, (g.p.chunks.Len()+7)/8)
	for _, bits := range g.offers {
		for i := range min(len(bits), len(offered)) {
			offered[i] |= bits[i]
		}
	}
	return func(i int) bool { return !has(offered, i) }
}

func has(bits []byte, i int) bool { return i/8 < len(bits) && bits[i/8]&(1<<(i%8)) != 0 }

func (g *filling) peersMove() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.offers) > 0 && time.Since(g.moved) < peersPatience
}

// fromPeers keeps up to mostPeers of the named peers at work, chosen by lot.
func (g *filling) fromPeers(ctx context.Context, cancel context.CancelCauseFunc) {
	var workers sync.WaitGroup
	defer workers.Wait()
	busy := map[string]bool{}
	var mu sync.Mutex
	for ctx.Err() == nil {
		changes := g.changes()
		mu.Lock()
		for _, url := range g.candidates(busy) {
			if len(busy) >= mostPeers {
				break
			}
			busy[url] = true
			workers.Go(func() {
				err := g.fromPeer(ctx, url)
				if isLocal(err) {
					cancel(err)
				}
				g.mu.Lock()
				delete(g.offers, url)
				g.resting[url] = time.Now().Add(peerPenalty)
				g.mu.Unlock()
				mu.Lock()
				delete(busy, url)
				mu.Unlock()
				g.notify()
			})
		}
		mu.Unlock()
		wait(ctx, changes, time.Second)
	}
}

// candidates are the peers to begin with, in random order.
func (g *filling) candidates(busy map[string]bool) []string {
	var list []string
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, url := range g.livePeers() {
		if !busy[url] && time.Now().After(g.resting[url]) {
			list = append(list, url)
		}
	}
	rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// fromPeer fetches from a peer what it holds until nothing is missing, or it has nothing new for long, or fails.
func (g *filling) fromPeer(ctx context.Context, url string) error {
	from := g.peer(url)
	for failures, idle := 0, 0; failures < peerFailures && idle < 40; {
		if missing, _ := g.p.state(); missing == 0 || ctx.Err() != nil {
			return nil
		}
		offer, err := g.ask(ctx, from)
		if err != nil {
			failures++
			wait(ctx, nil, refreshTime<<failures)
			continue
		}
		g.mu.Lock()
		g.offers[url] = offer
		g.mu.Unlock()
		got, err := g.takeOffer(ctx, from, offer)
		switch {
		case isLocal(err):
			return err
		case errors.Is(err, image.ErrDigest):
			g.drop(url, err)
			return nil
		case err != nil && !errors.Is(err, errBusy) && !errors.Is(err, errNotHere):
			failures++
		case got > 0:
			failures, idle = 0, 0
			continue // it may hold more by now
		}
		idle++
		wait(ctx, nil, refreshTime)
	}
	return nil
}

// ask asks a peer which chunks it holds; one that has nothing of the root yet holds none.
func (g *filling) ask(ctx context.Context, from source) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, chunkTime)
	defer cancel()
	body, err := from.openPath(ctx, g.p.root.Digest.Hex()+"/held", "")
	if errors.Is(err, errNotHere) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	return io.ReadAll(io.LimitReader(body, int64(g.p.chunks.Len()+7)/8))
}

// takeOffer fetches what a peer holds and is missing here, for as long as that is so, and returns how many pieces came.
func (g *filling) takeOffer(ctx context.Context, from source, offer []byte) (int, error) {
	asked := time.Now()
	for pieces := 0; ; pieces++ {
		first, n := g.p.claim(rand.IntN(g.p.chunks.Len()), peerSpan, func(i int) bool { return has(offer, i) })
		if n == 0 {
			return pieces, nil
		}
		err := g.chunks(ctx, from, g.p, first, n, func(bytes int64) {
			g.peered.Add(bytes)
			g.mu.Lock()
			g.moved = time.Now()
			g.mu.Unlock()
		})
		g.p.release(first, n)
		if err != nil || time.Since(asked) > refreshTime {
			return pieces, err
		}
	}
}
