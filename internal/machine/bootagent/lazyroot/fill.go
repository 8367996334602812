package lazyroot

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/internal/image"
)

// fillRun is how many chunks the background asks for at once: long enough that the pause between requests does not count.
const fillRun = 16

// maxFillers bounds how many sources the background reads from at once.
const maxFillers = 4

// Fill fetches all that is missing, behind what is read meanwhile, and returns once the image is whole, given up or closed. ErrBounded: there is no room
// for all of it.
func (m *Image) Fill() error {
	if m.bounded() {
		return ErrBounded
	}
	limit := newPace(m.cfg.RateBytesPerSecond)
	fillers := min(maxFillers, 1+len(m.cfg.Peers))
	var wg sync.WaitGroup
	first := rand.IntN(max(m.chunks, 1))
	for n := range fillers {
		// Each begins in a part of its own, so that they don't ask for the same; and so does each machine.
		wg.Go(func() { m.fillFrom((first+n*m.chunks/fillers)%max(m.chunks, 1), n, limit) })
	}
	for range neighbourFillers {
		wg.Go(func() { m.fillFromNeighbours(limit) })
	}
	go m.askAll() // not waited for: a slow neighbour may take its time to say what nobody wants to know any more
	wg.Wait()
	select {
	case <-m.whole:
		return nil
	case <-m.failed:
		return m.Err()
	default:
		return m.ctx.Err()
	}
}

// fillFrom fetches run after run, going round the image, until nothing is missing.
func (m *Image) fillFrom(position, number int, limit *pace) {
	for {
		r, from, end, wait := m.nextRun(position)
		switch {
		case r != nil:
			m.fetch(from, end, m.sources.pick(number+from/fillRun), r, limit)
			position = m.after(end)
		case wait == nil && m.left():
			// Neighbours hold all that is missing: it is theirs to give, until they fail.
			m.pause(m.cfg.AskPause / 4)
		case wait != nil:
			// All that is missing is coming already; if it does not come, it is taken up again.
			select {
			case <-wait:
			case <-m.ctx.Done():
			}
		default:
			return
		}
		select {
		case <-m.ctx.Done():
			return
		case <-m.failed:
			return
		default:
		}
	}
}

// nextRun claims the next missing run at or after a position, going round; or returns what to wait for; or neither when nothing is missing.
// What a neighbour holds is left to it.
func (m *Image) nextRun(position int) (r *run, from, end int, wait chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.chunks {
		c := (position + i) % m.chunks
		if m.present[c] {
			continue
		}
		if f, ok := m.coming[c]; ok {
			wait = f.ended
			continue
		}
		if m.holder(c) != nil {
			continue
		}
		for end = c + 1; end < min(c+fillRun, m.chunks) && m.holder(end) == nil; {
			end++
		}
		r, end := m.claim(c, end)
		r.background = true
		return r, c, end, nil
	}
	return nil, 0, 0, wait
}

// left tells whether anything is missing.
func (m *Image) left() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held < m.chunks
}

// yield holds a request of the background back while a read waits for another one, and to the rate.
func (m *Image) yield(r *run, limit *pace) error {
	if !r.background {
		return nil
	}
	m.mu.Lock()
	calm := m.calm
	m.mu.Unlock()
	select {
	case <-r.hurry:
		return nil
	default:
	}
	select {
	case <-calm:
	case <-r.hurry:
		return nil
	case <-time.After(yieldAtMost):
	case <-m.ctx.Done():
		return m.ctx.Err()
	}
	if limit != nil {
		return limit.wait(m.ctx.Done(), r.hurry, image.ChunkBytes)
	}
	return nil
}

// yieldAtMost is how long one chunk of the background makes way for reads.
const yieldAtMost = 200 * time.Millisecond

// pace spreads bytes over time.
type pace struct {
	mu   sync.Mutex
	rate int64
	next time.Time
}

func newPace(rate int64) *pace {
	if rate <= 0 {
		return nil
	}
	return &pace{rate: rate}
}

// wait returns when bytes more may be read.
func (p *pace) wait(done, hurry <-chan struct{}, bytes int64) error {
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	at := p.next
	p.next = p.next.Add(time.Duration(float64(bytes) / float64(p.rate) * float64(time.Second)))
	p.mu.Unlock()
	select {
	case <-time.After(time.Until(at)):
		return nil
	case <-hurry:
		return nil
	case <-done:
		return context.Canceled
	}
}
