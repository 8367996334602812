// Package lazyroot gives a root that is not there yet: what is read is fetched first, verified, and kept; the rest follows in the
// background, until all of it is local.
//
// It reads by HTTP ranges (RFC 9110, section 14) from peers and the server, and serves what it has as an NBD export. Nothing is ever given
// out that the chunk list does not vouch for. It must never decide where an image comes from or what is done once it is whole. Start with New.
package lazyroot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// Backing keeps the chunks: a file of the image's size, or a disk at least as large.
type Backing interface {
	io.ReaderAt
	io.WriterAt
}

// Config is one image and where it comes from.
type Config struct {
	Root    image.Root
	Chunks  *image.Chunks
	Backing Backing
	// Server and Peers are URLs below which blobs are by their digits, ending with a slash.
	Server string
	Peers  []string
	Client *http.Client
	// LimitBytes bounds what is kept; 0: all of it is. What was read longest ago makes room (bound.go), if Backing is a Puncher.
	LimitBytes int64
	// RateBytesPerSecond bounds the background; 0: no bound.
	RateBytesPerSecond int64
	// IdleTimeout ends a request that brings nothing; 0: 15 s. RetryPause lies between tries at a server that can't be reached, AskPause between
	// questions to neighbours what they hold; 0: 1 s.
	IdleTimeout, RetryPause, AskPause time.Duration
	Log                               *slog.Logger
}

// flight is a chunk that a request was sent for.
type flight struct {
	// ended is closed when the chunk has come or will not.
	ended chan struct{}
	run   *run
}

// run is one request.
type run struct {
	// hurry is closed once a read waits for a chunk of it.
	hurry   chan struct{}
	hurries bool
	// background requests make way for reads.
	background bool
}

// ErrWrongContent: the server gives other content than the chunk list names, again and again.
var ErrWrongContent = errors.New("the server's image differs from its chunk list")

// Image is an image of which some chunks are local. It is safe for concurrent use.
type Image struct {
	cfg     Config
	chunks  int
	sources *sources
	// stop ends all fetching.
	ctx  context.Context
	stop context.CancelFunc

	mu sync.Mutex
	// present are the chunks that are local and verified, coming those that a request was sent for.
	present []bool
	coming  map[int]flight
	held    int
	// peerBytes are those of the present that came from peers.
	peerBytes int64
	// touched are the chunks that a read wanted, in the order of their first reading.
	touched   []int32
	isTouched []bool
	// waiting counts reads that wait for a chunk; calm is closed when none does.
	waiting int
	calm    chan struct{}
	ahead   readAhead
	whole   chan struct{}
	failed  chan struct{}
	err     error
	badFrom int // times the server gave wrong content
	bound   bound
	// away: the server's last answer was none.
	away bool
	// neighbours fetch the same image; met are all there ever were.
	neighbours []*neighbour
	met        map[string]bool
}

// New makes an image of which nothing is local. Close ends its fetching.
func New(cfg Config) *Image {
	if cfg.IdleTimeout == 0 {
		cfg.IdleTimeout = 15 * time.Second
	}
	if cfg.RetryPause == 0 {
		cfg.RetryPause = time.Second
	}
	if cfg.AskPause == 0 {
		cfg.AskPause = time.Second
	}
	chunks := cfg.Chunks.Len()
	calm := make(chan struct{})
	close(calm)
	ctx, stop := context.WithCancel(context.Background())
	return &Image{
		cfg: cfg, chunks: chunks, sources: newSources(cfg.Server, cfg.Peers), ctx: ctx, stop: stop,
		present: make([]bool, chunks), isTouched: make([]bool, chunks), coming: map[int]flight{},
		met: map[string]bool{}, calm: calm, whole: make(chan struct{}), failed: make(chan struct{}), bound: newBound(cfg, chunks),
	}
}

// Close ends all fetching; reads of what is not local fail from then on.
func (m *Image) Close() { m.stop() }

// Whole is closed once all of it is local and verified; Failed once it never will be, Err tells why.
func (m *Image) Whole() <-chan struct{} { return m.whole }

// Failed: see Whole.
func (m *Image) Failed() <-chan struct{} { return m.failed }

// Err is why the image can't be had; nil so far.
func (m *Image) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Progress is how far an image is.
type Progress struct {
	// ReadBytes is of the chunks that reads wanted, HeldBytes of those that are local, RootBytes of all; PeerBytes came from peers and were
	// right.
	ReadBytes, HeldBytes, RootBytes, PeerBytes int64
	// FetchedBytes came from anywhere, AgainBytes of them after they had made room. TooSmall: they are so many that the limit is below what is
	// read again and again.
	FetchedBytes, AgainBytes int64
	TooSmall                 bool
	Touched                  []int32
}

// Progress returns how far it is.
func (m *Image) Progress() Progress {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := Progress{RootBytes: m.cfg.Root.SizeBytes, PeerBytes: m.peerBytes, Touched: append([]int32(nil), m.touched...)}
	p.ReadBytes = min(int64(len(m.touched))*image.ChunkBytes, p.RootBytes)
	p.HeldBytes = min(int64(m.held)*image.ChunkBytes, p.RootBytes)
	p.FetchedBytes, p.AgainBytes, p.TooSmall = m.bound.fetched, m.bound.again, m.bound.tooSmall()
	return p
}

// ReadAt reads from the image, fetching what is not local first. Past its end there are zeros: block devices come in whole blocks.
func (m *Image) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("read before the image's beginning")
	}
	clear(p)
	if off >= m.cfg.Root.SizeBytes || len(p) == 0 {
		return len(p), nil
	}
	inside := p[:min(int64(len(p)), m.cfg.Root.SizeBytes-off)]
	first := int(off / image.ChunkBytes)
	last := int((off + int64(len(inside)) - 1) / image.ChunkBytes)
	m.hold(first, last)
	defer m.letGo(first, last)
	if err := m.need(first, last); err != nil {
		return 0, err
	}
	if n, err := m.cfg.Backing.ReadAt(inside, off); n < len(inside) {
		return n, fmt.Errorf("read the local copy: %w", err)
	}
	return len(p), nil
}

// need returns once the chunks first to last are local.
func (m *Image) need(first, last int) error {
	m.mu.Lock()
	m.touch(first, last)
	wait := m.order(first, last)
	if len(wait) == 0 {
		m.mu.Unlock()
		return nil
	}
	if m.waiting++; m.waiting == 1 {
		m.calm = make(chan struct{})
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.waiting--; m.waiting == 0 {
			close(m.calm)
		}
	}()
	for {
		for _, ended := range wait {
			select {
			case <-ended:
			case <-m.failed:
				return m.Err()
			case <-m.ctx.Done():
				return m.ctx.Err()
			}
		}
		// A request may have ended without what was wanted: ask again.
		m.mu.Lock()
		wait = m.order(first, last)
		m.mu.Unlock()
		if len(wait) == 0 {
			return nil
		}
	}
}

// touch notes what is read. Called with the lock.
func (m *Image) touch(first, last int) {
	for c := first; c <= last; c++ {
		if !m.isTouched[c] {
			m.isTouched[c] = true
			m.touched = append(m.touched, int32(c))
		}
	}
}

// order sends requests for the chunks first to last, and some ahead of a sequential reader, unless they are local or coming, and returns
// what to wait for. Called with the lock.
func (m *Image) order(first, last int) []chan struct{} {
	var wait []chan struct{}
	until := last
	if ahead := m.ahead.after(first, last); ahead > 0 {
		until = min(last+ahead, m.chunks-1)
	}
	for c := first; c <= until; c++ {
		if m.present[c] {
			continue
		}
		if _, ok := m.coming[c]; !ok {
			src, end := m.whoGives(c, until+1)
			r, end := m.claim(c, end)
			go m.fetch(c, end, src, r, nil)
		}
		if c <= last {
			f := m.coming[c]
			wait = append(wait, f.ended)
			if !f.run.hurries {
				f.run.hurries = true
				close(f.run.hurry)
			}
		}
	}
	return wait
}

// whoGives chooses for reads who is asked for the chunks from to before end, and how far: a neighbour only while the server is away, because
// it may be slow. Called with the lock.
func (m *Image) whoGives(from, end int) (*source, int) {
	src := m.sources.pick(from)
	if !m.away || src.peer {
		return src, end
	}
	n := m.holder(from)
	if n == nil {
		return src, end
	}
	after := from + 1
	for after < end && n.held[after] {
		after++
	}
	return n.source, after
}

// claim makes one request of the missing chunks from to before end, and returns where it ends. Called with the lock.
func (m *Image) claim(from, end int) (*run, int) {
	r := &run{hurry: make(chan struct{})}
	for c := from; c < end; c++ {
		if _, ok := m.coming[c]; ok || m.present[c] {
			return r, c
		}
		m.coming[c] = flight{ended: make(chan struct{}), run: r}
	}
	return r, end
}

// readAhead notices a reader that goes through the image in order.
type readAhead struct {
	// next follows the chunk read last, edge what was fetched ahead of it.
	next, edge, window int
}

// maxAhead bounds how many chunks are fetched ahead.
const maxAhead = 16

// after returns how many chunks behind last to fetch as well.
func (r *readAhead) after(first, last int) int {
	switch {
	case last < r.next && first >= r.next-maxAhead-1:
		// Within what was read just now.
		return 0
	case first == r.next:
		r.window = min(max(1, r.window*2), maxAhead)
	default:
		r.window, r.edge = 0, 0
	}
	r.next = last + 1
	// Half the window is fetched at a time: fewer, longer requests.
	if r.edge-r.next >= (r.window+1)/2 {
		return 0
	}
	r.edge = r.next + r.window
	return r.window
}
