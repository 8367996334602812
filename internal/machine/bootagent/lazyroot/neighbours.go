package lazyroot

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// Machines that boot an image at the same moment give each other what each holds already, so that what they have in common crosses the
// server's uplink about once. Each begins at a place of its own, and asks the others every now and then what they hold.

const (
	// neighbourFillers is how many runs are fetched from neighbours at once.
	neighbourFillers = 3
	// maxNeighbours bounds how many are asked.
	maxNeighbours = 8
	// heldSuffix follows the image's digits in the URL of what is held.
	heldSuffix = "/held"
	// neighbourIdle ends a request to one that brings nothing: on a network of their own it is near, and the server is there as well.
	neighbourIdle = 3 * time.Second
	// neighbourRun times as long may all take that one request brings: what a neighbour was asked for, nobody else is.
	neighbourRun = 2
)

// neighbour is a machine that holds some of the image.
type neighbour struct {
	*source
	held []bool
}

// Neighbours lets it read from others that fetch the same image: URLs below which Handler answers. Those that failed are not taken again.
func (m *Image) Neighbours(urls []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, url := range urls {
		if !m.met[url] && len(m.neighbours) < maxNeighbours {
			m.met[url] = true
			m.neighbours = append(m.neighbours, &neighbour{source: &source{
				url: strings.TrimSuffix(url, "/") + "/", peer: true, idle: min(m.cfg.IdleTimeout, neighbourIdle),
			}})
		}
	}
}

// askAll asks the neighbours what they hold until the image is whole.
func (m *Image) askAll() {
	for more := true; more; more = m.pause(m.cfg.AskPause) {
		m.mu.Lock()
		neighbours := slices.Clone(m.neighbours)
		m.mu.Unlock()
		var all sync.WaitGroup
		for _, n := range neighbours {
			all.Go(func() { m.askOne(n) })
		}
		all.Wait()
	}
}

// pause waits; false: all is there, or never will be.
func (m *Image) pause(d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-m.whole:
	case <-m.failed:
	case <-m.ctx.Done():
	}
	return false
}

func (m *Image) askOne(n *neighbour) {
	bits, err := m.heldBy(n.url+m.cfg.Root.Digest.Hex()+heldSuffix, n.idle)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.neighbourFailed(n.source, false)
		return
	}
	n.held = make([]bool, m.chunks)
	for c := range n.held {
		n.held[c] = bits[c/8]&(1<<(c%8)) != 0
	}
}

func (m *Image) heldBy(url string, timeout time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(m.ctx, timeout)
	defer cancel()
	return get(ctx, m.cfg.Client, url, int64(m.chunks+7)/8)
}

// neighbourFailed notes that a neighbour failed, and lets go of one that failed too often or gave wrong content; false: it is none. Called
// with the lock.
func (m *Image) neighbourFailed(from *source, wrong bool) bool {
	i := slices.IndexFunc(m.neighbours, func(n *neighbour) bool { return n.source == from })
	if i < 0 {
		return false
	}
	if from.faults++; wrong || from.faults >= maxPeerFaults {
		m.neighbours = slices.Delete(m.neighbours, i, i+1)
	}
	return true
}

// holder is a neighbour that holds a chunk, nil for none. Called with the lock.
func (m *Image) holder(chunk int) *neighbour {
	if len(m.neighbours) == 0 {
		return nil
	}
	first := rand.IntN(len(m.neighbours))
	for i := range m.neighbours {
		if n := m.neighbours[(first+i)%len(m.neighbours)]; n.held != nil && n.held[chunk] {
			return n
		}
	}
	return nil
}

// fillFromNeighbours fetches what neighbours hold, from anywhere in the image, until nothing is missing.
func (m *Image) fillFromNeighbours(limit *pace) {
	for m.ctx.Err() == nil && m.Err() == nil {
		r, from, end, n := m.neighboursRun()
		switch {
		case r != nil:
			m.fetch(from, end, n.source, r, limit)
		case !m.pause(m.cfg.AskPause / 4):
			return
		}
	}
}

// after is where the server is asked next: goes on, or, beside neighbours, anywhere. Who goes on comes to where another one is, and then both
// ask for the same.
func (m *Image) after(end int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.neighbours) == 0 {
		return end
	}
	return rand.IntN(m.chunks)
}

// neighboursRun claims a missing run that one neighbour holds; nil when there is none now.
func (m *Image) neighboursRun() (r *run, from, end int, n *neighbour) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.neighbours) == 0 {
		return nil, 0, 0, nil
	}
	position := rand.IntN(m.chunks)
	for i := range m.chunks {
		from = (position + i) % m.chunks
		if _, coming := m.coming[from]; coming || m.present[from] {
			continue
		}
		if n = m.holder(from); n == nil {
			continue
		}
		for end = from + 1; end < min(from+fillRun, m.chunks) && n.held[end]; {
			end++
		}
		r, end = m.claim(from, end)
		r.background = true
		return r, from, end, n
	}
	return nil, 0, 0, nil
}

// Handler gives others what is local: the image below its digits, by one range at a time (RFC 9110, section 14.1.2), 404 for what is not all
// there; and below its digits and "/held" a bit for each chunk, the first one in the lowest bit of the first byte, 1 for those that are there.
func (m *Image) Handler() http.Handler {
	mux := http.NewServeMux()
	path := "GET /" + m.cfg.Root.Digest.Hex()
	mux.HandleFunc(path+heldSuffix, func(w http.ResponseWriter, _ *http.Request) {
		bits := make([]byte, (m.chunks+7)/8)
		m.mu.Lock()
		for c, here := range m.present {
			if here {
				bits[c/8] |= 1 << (c % 8)
			}
		}
		m.mu.Unlock()
		_, _ = w.Write(bits)
	})
	mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		var first, last int64
		if n, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); n != 2 || err != nil || !m.holds(first, last) {
			http.Error(w, "not here", http.StatusNotFound)
			return
		}
		// Not by http.ServeContent: it gives several ranges, or all, when asked for in other headers, and a disk holds what was on it before.
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(last+1-first, 10))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, m.cfg.Root.SizeBytes))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.Copy(w, io.NewSectionReader(m.cfg.Backing, first, last+1-first)) // who gets too little notices
	})
	return mux
}

// holds tells whether the bytes first to last are local.
func (m *Image) holds(first, last int64) bool {
	if first < 0 || last < first || last >= m.cfg.Root.SizeBytes || m.bounded() { // which may have made room before it is sent
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return !slices.Contains(m.present[first/image.ChunkBytes:last/image.ChunkBytes+1], false)
}
