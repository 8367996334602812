package agent

import (
	"errors"
	"sync"
	"time"
)

// hearing reports whether what the agent knows of the leader's wishes is still what they are. An agent that has heard nothing for a while,
// because it was cut off or did not run at all, may have been given up: its members were replaced elsewhere. Until it has heard anew it
// starts nothing.
//
// Silence is noticed by whoever asks next, also when the first to run after a long stop is a timer, or a goroutine that reads what
// lay in the socket's buffer since before.
type hearing struct {
	clock    Clock
	patience time.Duration

	mu   sync.Mutex
	last time.Time // when something was last heard
	// number counts the silences: what was heard before one says nothing after it.
	number int64
	silent bool // noticed, and nothing heard since
	known  bool // a desired state was obeyed that was heard since the last silence
}

// errSilence ends a stream on which nothing is heard.
var errSilence = errors.New("the server has been silent for too long; the connection may work in one direction only, " +
	"or this agent was suspended for a while")

// errNotKnown holds an operation back.
var errNotKnown = errors.New("the leader has been silent for a while, and its orders may have changed")

// notice counts a silence that has become too long; the lock is held.
func (h *hearing) notice() {
	if !h.silent && h.clock.Now().Sub(h.last) >= h.patience {
		h.silent, h.known = true, false
		h.number++
	}
}

// begin notes that the server answers on a new stream, and returns the number under which things are heard there.
func (h *hearing) begin() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notice()
	h.silent, h.last = false, h.clock.Now()
	return h.number
}

// heard notes that something was heard on a stream; false when that came after a silence, and the stream is over.
func (h *hearing) heard(number int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notice()
	if number != h.number {
		return false
	}
	h.last = h.clock.Now()
	return true
}

// goesOn reports whether there was no silence since a stream began.
func (h *hearing) goesOn(number int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notice()
	return number == h.number
}

// obeyed notes that a desired state was obeyed that had been heard under this number.
func (h *hearing) obeyed(number int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notice()
	if number == h.number && !h.silent {
		h.known = true
	}
}

// current reports whether the desired state last obeyed is still that of the leader, as far as this agent can know.
func (h *hearing) current() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notice()
	return h.known
}
