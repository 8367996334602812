package apiserver

import (
	"sync"

	"github.com/nearmetal/nearmetal/api"
)

// feedKept is how many changes of objects of all kinds are kept for watches that resume or are slow: about 100 bytes each.
const feedKept = 8192

// note is the change of one object. It says whose the object is, so that every watch can check for itself whether it may report it.
type note struct {
	// seq numbers the notes of this feed; revision is that of the stored state the change was seen at.
	seq      uint64
	revision int64
	kind     api.Kind
	name     string // the full name, or the ID
	owner    owner
	deleted  bool
}

// owner is whose an object is.
type owner struct {
	// project is the project it belongs to; "" if it is the site's.
	project string
	// cluster is the full name of the cluster that it is or belongs to; "" if there is none.
	cluster string
	// hidden objects are administrators' only.
	hidden bool
}

// feed is the recent history of changes of all objects. All watches read this one history at their own pace: nothing is kept for a single
// watch, so one that does not read costs nothing and loses its place.
type feed struct {
	mu       sync.Mutex
	started  bool
	revision int64
	history  []note
	seq      uint64 // of the newest note
	// floor is the oldest revision from which the history is whole.
	floor   int64
	changed chan struct{}
}

func newFeed() *feed { return &feed{changed: make(chan struct{})} }

// add appends what was seen at a revision. The first call only sets where the history begins.
func (f *feed) add(revision int64, notes []note) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.revision = revision
	if !f.started {
		f.started, f.floor = true, revision
		return
	}
	if len(notes) == 0 {
		return
	}
	for _, n := range notes {
		f.seq++
		n.seq, n.revision = f.seq, revision
		f.history = append(f.history, n)
	}
	f.trim()
	close(f.changed)
	f.changed = make(chan struct{})
}

// trim drops the oldest notes beyond what is kept; the lock is held.
func (f *feed) trim() {
	// Only now and then: every time would copy the whole history for each note.
	if len(f.history) <= feedKept+feedKept/4 {
		return
	}
	excess := len(f.history) - feedKept
	f.floor = f.history[excess-1].revision + 1
	f.history = append([]note(nil), f.history[excess:]...)
}

// feedCursor is where a watch is in the history.
type feedCursor struct {
	feed *feed
	seq  uint64
}

// now returns a cursor for what comes after the present revision, and that revision.
func (f *feed) now() (*feedCursor, int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &feedCursor{feed: f, seq: f.seq}, f.revision
}

// resume returns a cursor for the notes at and after a revision, or false when they are not all kept. Those at the revision itself are
// repeated: observations of the same revision may have come after what the client saw.
func (f *feed) resume(revision int64) (*feedCursor, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.started || revision < f.floor || revision > f.revision {
		return nil, false
	}
	c := &feedCursor{feed: f, seq: f.seq}
	for i := len(f.history) - 1; i >= 0 && f.history[i].revision >= revision; i-- {
		c.seq = f.history[i].seq - 1
	}
	return c, true
}

// next returns the notes since the last call, a channel that is closed when more come, and false when some of them are no longer kept: the
// reader was too slow.
func (c *feedCursor) next() ([]note, <-chan struct{}, bool) {
	f := c.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.history) > 0 && c.seq+1 < f.history[0].seq {
		return nil, nil, false
	}
	fresh := append([]note(nil), f.history[len(f.history)-int(f.seq-c.seq):]...)
	c.seq = f.seq
	return fresh, f.changed, true
}
