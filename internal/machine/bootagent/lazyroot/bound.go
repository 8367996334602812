package lazyroot

import (
	"container/list"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/image"
)

// ErrBounded: what is kept is bounded below the image's size, so the image never is whole.
var ErrBounded = errors.New("the image is larger than what is kept of it")

// Puncher is a Backing that gives room back. What was punched is read as zeros.
type Puncher interface {
	Punch(off, length int64) error
}

// File is a Puncher: a file on a file system that has holes (fallocate(2), FALLOC_FL_PUNCH_HOLE).
type File struct{ *os.File }

// Punch makes a hole in the file.
func (f File) Punch(off, length int64) error {
	if err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length); err != nil {
		return fmt.Errorf("making a hole in %s: %w", f.Name(), err)
	}
	return nil
}

// bound keeps the chunks that were read last, within a limit. Reads hold what they read: it makes no room until they have it, so that more than the limit
// may be there meanwhile.
type bound struct {
	// chunks is the limit, 0: none.
	chunks  int
	puncher Puncher
	// used has the present chunks, the one that was read longest ago at the back; at is where each is.
	used *list.List
	at   []*list.Element
	// holds are the reads at work on each chunk, went the chunks that made room.
	holds []int
	went  []bool

	fetched, again int64
}

// leastSeen is how much must have been fetched before a limit is called too small, in limits.
const leastSeen = 1

func newBound(cfg Config, chunks int) bound {
	b := bound{used: list.New()}
	puncher, ok := cfg.Backing.(Puncher)
	if cfg.LimitBytes <= 0 || cfg.LimitBytes >= cfg.Root.SizeBytes || !ok {
		return b
	}
	b.chunks, b.puncher = int(max(1, cfg.LimitBytes/image.ChunkBytes)), puncher
	b.at, b.holds, b.went = make([]*list.Element, chunks), make([]int, chunks), make([]bool, chunks)
	return b
}

// bounded tells whether chunks make room for others.
func (m *Image) bounded() bool { return m.bound.chunks > 0 }

// tooSmall tells whether a quarter of what was fetched had been there before, once a limit's worth came again: what is read again and again has no room.
func (b *bound) tooSmall() bool {
	return b.chunks > 0 && b.fetched > int64(b.chunks)*image.ChunkBytes*leastSeen && b.again >= b.fetched/4
}

// hold keeps chunks from making room, and notes that they are read.
func (m *Image) hold(first, last int) {
	if !m.bounded() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := first; c <= last; c++ {
		m.bound.holds[c]++
		if e := m.bound.at[c]; e != nil {
			m.bound.used.MoveToFront(e)
		}
	}
}

// letGo ends hold.
func (m *Image) letGo(first, last int) {
	if !m.bounded() {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := first; c <= last; c++ {
		m.bound.holds[c]--
	}
	m.makeRoom()
}

// keep notes a chunk that has come. Called with the lock.
func (m *Image) keep(c, bytes int) {
	m.bound.fetched += int64(bytes)
	if !m.bounded() {
		return
	}
	if m.bound.went[c] {
		m.bound.again += int64(bytes)
	}
	m.bound.at[c] = m.bound.used.PushFront(c)
	m.makeRoom()
}

// makeRoom lets chunks go until the rest is within the limit, those that were read longest ago first. Called with the lock: a chunk that goes must not
// come again before its room is free.
func (m *Image) makeRoom() {
	b := &m.bound
	for e := b.used.Back(); e != nil && m.held > b.chunks; {
		c, before := e.Value.(int), e.Prev()
		if b.holds[c] == 0 {
			offset, length := m.cfg.Chunks.Span(c)
			if err := b.puncher.Punch(offset, int64(length)); err != nil && m.err == nil {
				m.err = fmt.Errorf("making room for what is read: %w", err)
				close(m.failed)
			}
			b.used.Remove(e)
			b.at[c], b.went[c], m.present[c] = nil, true, false
			m.held--
		}
		e = before
	}
}
