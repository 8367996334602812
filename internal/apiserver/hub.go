package apiserver

import (
	"context"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

const (
	// historyKept is how many changes of clusters are kept for watches that resume or are slow.
	historyKept = 4096
	// membersKept is how many members these changes may list in all: every change of a cluster lists all of its members, about 500 bytes
	// each.
	membersKept = 400_000
	// hubInterval bounds how often changes are taken in: many observations in a row become one change.
	hubInterval = 10 * time.Millisecond
	// sweepInterval is how often nodes are looked at that nobody told of: a node that is silent goes down by the clock alone.
	sweepInterval = time.Second
)

// change is one cluster as it became at a revision, or its end. It is shared by all watches.
type change struct {
	// seq numbers the changes of this hub; revision is that of the stored state it was seen at. Observations change no
	// stored state, so several changes may share a revision.
	seq      uint64
	revision int64
	*shown
	deleted bool
}

// shown is a cluster as it is shown; it never changes.
type shown struct {
	name, project string // the full name
	cluster       api.Cluster

	once sync.Once
	text []byte
	err  error
}

// encoded is the cluster as JSON, made once for all watches.
func (s *shown) encoded() ([]byte, error) {
	s.once.Do(func() { s.text, s.err = json.Marshal(s.cluster) })
	return s.text, s.err
}

// hub joins stored state and observations when either changes, only for the clusters that the change is about, and keeps the recent
// history for watches.
type hub struct {
	reader Reader
	live   Live
	// feed has the changes of all kinds.
	feed *feed

	// Of the goroutine of run alone.
	view     *state.View
	observed uint64 // what Live has told of is taken in up to here
	nodes    map[string]*hubNode
	heard    heard
	volumes  heardVolumes
	swept    time.Time

	mu       sync.Mutex
	started  bool
	revision int64
	order    []*state.Cluster  // as of revision, by name
	shown    map[string]*shown // by full name
	history  []change
	members  int    // that history lists
	notes    []note // of clusters, that feed has not got yet
	seq      uint64 // of the newest change
	// floor is the oldest revision from which the history is whole.
	floor   int64
	changed chan struct{}
}

// hubNode is a node that members of clusters are on.
type hubNode struct {
	phase    api.NodePhase
	clusters map[string]bool
}

func newHub(reader Reader, live Live) *hub {
	return &hub{
		reader: reader, live: live, feed: newFeed(), heard: heard{}, volumes: heardVolumes{}, view: &state.View{}, nodes: map[string]*hubNode{}, shown: map[string]*shown{},
		changed: make(chan struct{}),
	}
}

// run keeps the hub current until ctx ends.
func (h *hub) run(ctx context.Context) {
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	for {
		observed := h.live.Changed()
		view := h.reader.View()
		h.take(view)
		pause := time.NewTimer(hubInterval)
		stored, stop := h.stored(ctx, view.Revision)
		select {
		case <-observed:
		case <-stored:
		case <-sweep.C:
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

// take joins anew the clusters that the view, or what is observed now, may have changed, and notes what is different.
func (h *hub) take(view *state.View) {
	stored, gone := state.Diff(h.view.Clusters, view.Clusters, (*state.Cluster).Name)
	stale := map[string]*state.Cluster{}
	for _, c := range stored {
		stale[c.Name()] = c
	}
	var told []string
	told, h.observed = h.live.ChangedNodes(h.observed)
	sweep := time.Since(h.swept) >= sweepInterval
	if sweep {
		h.swept = time.Now()
	}
	for name := range h.unsettled(told, sweep) {
		if c := view.Cluster(name); c != nil {
			stale[name] = c
		}
	}
	var fresh []*shown
	for name, c := range stale {
		h.place(name, h.view.Cluster(name), c)
		joined := joinCluster(c, h.live)
		if old := h.shown[name]; old == nil || !reflect.DeepEqual(old.cluster, joined) {
			fresh = append(fresh, &shown{name: name, project: joined.Project, cluster: joined})
		}
	}
	for _, c := range gone {
		h.place(c.Name(), c, nil)
	}
	slices.SortFunc(fresh, func(a, b *shown) int { return strings.Compare(a.name, b.name) })
	heard := h.heard.look(h.live, view, told, sweep)
	others := slices.Concat(storedNotes(h.view, view), nodeNotes(h.view, view, heard), h.volumes.look(h.live, view, told, sweep))
	h.view = view
	h.tell(view, fresh, gone, others)
}

// tell makes what was taken in visible to the watches; others are the notes of other kinds.
func (h *hub) tell(view *state.View, fresh []*shown, gone []*state.Cluster, others []note) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.started {
		h.started, h.floor = true, view.Revision
	}
	before, beforeRevision := h.seq, h.revision
	h.revision, h.order = view.Revision, view.Clusters
	for _, c := range gone {
		if last := h.shown[c.Name()]; last != nil {
			h.note(last, true)
			delete(h.shown, c.Name())
		}
	}
	for _, now := range fresh {
		if last := h.shown[now.name]; last != nil && last.cluster.UID != now.cluster.UID {
			h.note(last, true)
		}
		h.shown[now.name] = now
		h.note(now, false)
	}
	h.trim()
	h.feed.add(view.Revision, append(h.notes, others...))
	h.notes = nil
	if h.seq != before || h.revision != beforeRevision {
		close(h.changed)
		h.changed = make(chan struct{})
	}
}

// unsettled returns the names of the clusters with members on nodes that have said something new, or, with sweep, whose phase has changed.
func (h *hub) unsettled(told []string, sweep bool) map[string]bool {
	names := map[string]bool{}
	add := func(n *hubNode) {
		for name := range n.clusters {
			names[name] = true
		}
	}
	for _, node := range told {
		if n := h.nodes[node]; n != nil {
			n.phase, _, _ = h.live.Node(node)
			add(n)
		}
	}
	if !sweep {
		return names
	}
	for node, n := range h.nodes {
		if phase, _, _ := h.live.Node(node); phase != n.phase {
			n.phase = phase
			add(n)
		}
	}
	return names
}

// place notes on which nodes a cluster has members now.
func (h *hub) place(name string, before, after *state.Cluster) {
	if before == after {
		return
	}
	if before != nil {
		for a := range before.All() {
			if n := h.nodes[a.Node]; n != nil {
				delete(n.clusters, name)
				if len(n.clusters) == 0 {
					delete(h.nodes, a.Node)
				}
			}
		}
	}
	if after == nil {
		return
	}
	for a := range after.All() {
		n := h.nodes[a.Node]
		if n == nil {
			n = &hubNode{clusters: map[string]bool{}}
			n.phase, _, _ = h.live.Node(a.Node)
			h.nodes[a.Node] = n
		}
		n.clusters[name] = true
	}
}

// note adds a change; the lock is held.
func (h *hub) note(s *shown, deleted bool) {
	h.seq++
	h.history = append(h.history, change{seq: h.seq, revision: h.revision, shown: s, deleted: deleted})
	h.members += len(s.cluster.Status.Members)
	h.notes = append(h.notes, note{kind: api.KindCluster, name: s.name, owner: ofCluster(s.name), deleted: deleted})
}

// trim drops the oldest changes beyond what is kept; the lock is held.
func (h *hub) trim() {
	keep := max(historyKept, 2*len(h.shown))
	// Only now and then: every time would copy the whole history for each change.
	if len(h.history) <= keep+keep/4 && h.members <= membersKept+membersKept/4 {
		return
	}
	excess := max(0, len(h.history)-keep)
	for i, ch := range h.history[:len(h.history)-1] {
		if i >= excess && h.members <= membersKept {
			break
		}
		h.members -= len(ch.cluster.Status.Members)
		excess = max(excess, i+1)
	}
	if excess == 0 {
		return // the newest is kept, however large
	}
	h.floor = h.history[excess-1].revision + 1
	h.history = append([]change(nil), h.history[excess:]...)
}

// scope is what a watch may see and asks for.
type scope struct {
	// name limits the watch to one cluster; "" is all.
	name string
	sees func(full string) bool
}

func (w scope) covers(s *shown) bool { return (w.name == "" || s.name == w.name) && w.sees(s.name) }

// cursor is where a watch is in the history.
type cursor struct {
	hub *hub
	scope
	seq uint64
}

// snapshot returns what is there now, by name, its revision, and a cursor for what comes after.
func (h *hub) snapshot(of scope) ([]*shown, int64, *cursor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []*shown
	if of.name != "" {
		if s := h.shown[of.name]; s != nil && of.covers(s) {
			found = append(found, s)
		}
		return found, h.revision, &cursor{hub: h, scope: of, seq: h.seq}
	}
	for _, c := range h.order {
		if s := h.shown[c.Name()]; s != nil && of.covers(s) {
			found = append(found, s)
		}
	}
	return found, h.revision, &cursor{hub: h, scope: of, seq: h.seq}
}

// resume returns a cursor for the changes at and after a revision, or false when they are not all kept. The changes at the
// revision itself are repeated: observations of the same revision may have come after what the client saw.
func (h *hub) resume(of scope, revision int64) (*cursor, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.started || revision < h.floor || revision > h.revision {
		return nil, false
	}
	c := &cursor{hub: h, scope: of, seq: h.seq}
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
		if ch := h.history[i]; c.covers(ch.shown) {
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
