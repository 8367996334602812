package apiserver

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

const (
	// historyKept is how many changes of clusters are kept for watches that resume or are slow.
	historyKept = 4096
	// hubInterval bounds how often everything is joined anew: many observations in a row become one change.
	hubInterval = 10 * time.Millisecond
)

// change is one cluster as it became at a revision, or its end.
type change struct {
	// seq numbers the changes of this hub; revision is that of the stored state it was seen at. Observations change no
	// stored state, so several changes may share a revision.
	seq      uint64
	revision int64
	cluster  api.Cluster
	deleted  bool
}

// hub joins stored state and observations whenever either changes, and keeps the recent history for watches.
type hub struct {
	reader Reader
	live   Live

	mu       sync.Mutex
	started  bool
	revision int64
	clusters []api.Cluster // as of revision, by name
	history  []change
	seq      uint64 // of the newest change
	// floor is the oldest revision from which the history is whole.
	floor   int64
	changed chan struct{}
}

func newHub(reader Reader, live Live) *hub {
	return &hub{reader: reader, live: live, changed: make(chan struct{})}
}

// run keeps the hub current until ctx ends.
func (h *hub) run(ctx context.Context) {
	for {
		observed := h.live.Changed()
		view := h.reader.View()
		h.take(view)
		pause := time.NewTimer(hubInterval)
		stored, stop := h.stored(ctx, view.Revision)
		select {
		case <-observed:
		case <-stored:
		case <-ctx.Done():
		}
		stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
			return
		}
	}
}

// stored returns a channel that is closed when the stored state goes beyond revision.
func (h *hub) stored(ctx context.Context, revision int64) (<-chan struct{}, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		if _, err := h.reader.WaitRevision(ctx, revision+1); err != nil {
			<-ctx.Done() // the view is at its end (shutting down): nothing more will come
		}
		close(done)
	}()
	return done, cancel
}

// take joins the view with what is observed now and notes what is different.
func (h *hub) take(view *state.View) {
	joined := make([]api.Cluster, len(view.Clusters))
	for i, c := range view.Clusters {
		joined[i] = joinCluster(c, h.live)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.started {
		h.started, h.floor = true, view.Revision
	}
	before, beforeRevision := h.seq, h.revision
	h.revision = view.Revision
	old := h.clusters
	h.clusters = joined
	for len(old) > 0 || len(joined) > 0 {
		switch {
		case len(joined) == 0 || len(old) > 0 && old[0].Name < joined[0].Name:
			h.note(old[0], true)
			old = old[1:]
		case len(old) == 0 || joined[0].Name < old[0].Name:
			h.note(joined[0], false)
			joined = joined[1:]
		default:
			if old[0].UID != joined[0].UID {
				h.note(old[0], true)
				h.note(joined[0], false)
			} else if !reflect.DeepEqual(old[0], joined[0]) {
				h.note(joined[0], false)
			}
			old, joined = old[1:], joined[1:]
		}
	}
	h.trim()
	if h.seq != before || h.revision != beforeRevision {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// note adds a change; the lock is held.
func (h *hub) note(c api.Cluster, deleted bool) {
	h.seq++
	h.history = append(h.history, change{seq: h.seq, revision: h.revision, cluster: c, deleted: deleted})
}

// trim drops the oldest changes beyond what is kept; the lock is held.
func (h *hub) trim() {
	keep := max(historyKept, 2*len(h.clusters))
	if excess := len(h.history) - keep; excess > 0 {
		h.floor = h.history[excess-1].revision + 1
		h.history = append([]change(nil), h.history[excess:]...)
	}
}

// cursor is where a watch is in the history.
type cursor struct {
	hub *hub
	// name limits the watch to one cluster; "" is all.
	name string
	seq  uint64
}

// snapshot returns what is there now, by name, its revision, and a cursor for what comes after.
func (h *hub) snapshot(name string) ([]api.Cluster, int64, *cursor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []api.Cluster
	for _, c := range h.clusters {
		if name == "" || c.Name == name {
			found = append(found, c)
		}
	}
	return found, h.revision, &cursor{hub: h, name: name, seq: h.seq}
}

// resume returns a cursor for the changes at and after a revision, or false when they are not all kept. The changes at the
// revision itself are repeated: observations of the same revision may have come after what the client saw.
func (h *hub) resume(name string, revision int64) (*cursor, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.started || revision < h.floor || revision > h.revision {
		return nil, false
	}
	c := &cursor{hub: h, name: name, seq: h.seq}
	for i := len(h.history) - 1; i >= 0 && h.history[i].revision >= revision; i-- {
		c.seq = h.history[i].seq - 1
	}
	return c, true
}

// next returns the changes since the last call, the channel that tells when more come, and false when some of them are no
// longer kept: the reader was too slow.
func (c *cursor) next() ([]change, <-chan struct{}, bool) {
	h := c.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.history) > 0 && c.seq+1 < h.history[0].seq {
		return nil, nil, false
	}
	var fresh []change
	for i := len(h.history) - int(h.seq-c.seq); i < len(h.history); i++ {
		if ch := h.history[i]; c.name == "" || ch.cluster.Name == c.name {
			fresh = append(fresh, ch)
		}
	}
	c.seq = h.seq
	return fresh, h.changed, true
}

// at tells whether the hub is current to a revision, and the channel that tells when that may have changed.
func (h *hub) at(revision int64) (bool, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revision >= revision, h.changed
}

// ready tells whether the hub has seen the state at all.
func (h *hub) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.started
}
