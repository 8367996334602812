package apiserver

import (
	"net/http"
	"time"
)

// Names of the events of a watch.
const (
	eventCluster = "cluster" // data: api.Cluster as it now is
	eventDeleted = "deleted" // data: api.Cluster as it last was; it is gone altogether
	eventSync    = "sync"    // data: {}; everything that existed when the watch began has been sent
	eventEvent   = "event"   // data: api.Event
)

// watchClusters streams changes of clusters: of one when the path names it, else of all.
func (s *Server) watchClusters(w http.ResponseWriter, r *http.Request) {
	p := who(r.Context())
	of := scope{sees: func(full string) bool { return seesCluster(p, full) }}
	if name := r.PathValue("name"); name != "" {
		var err error
		if of.name, err = resolve(r.Context(), name); err != nil {
			failureOf(err).write(w)
			return
		}
	}
	if !s.hub.ready() || !s.catchUp(r) {
		fail(codeUnavailable, "the server is starting or stopping; try again in a moment").write(w)
		return
	}
	var first []*shown
	var revision int64
	var cur *cursor
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after, ok := eventID(w, last)
		if !ok {
			return
		}
		if cur, ok = s.hub.resume(of, after); !ok {
			fail(codeHistoryGone, "the changes after revision %d are no longer kept; watch again without Last-Event-ID: "+
				"everything that exists is sent first", after).write(w)
			return
		}
		revision = after
	} else {
		first, revision, cur = s.hub.snapshot(of)
		if of.name != "" && len(first) == 0 {
			noCluster(r.PathValue("name")).write(w)
			return
		}
	}
	out := beginEvents(w)
	for _, c := range first {
		if out.sendShown(eventCluster, revision, c) != nil {
			return
		}
	}
	if out.send(eventSync, revision, struct{}{}) != nil || out.flush() != nil {
		return
	}
	s.followClusters(r, out, cur)
}

// catchUp waits until the hub has seen what the stored state holds now, so that what a client just did is in what a watch begins
// with; false when the client or the server gives up first.
func (s *Server) catchUp(r *http.Request) bool {
	revision := s.cfg.Reader.View().Revision
	for {
		current, changed := s.hub.at(revision)
		if current {
			return true
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return false
		case <-s.stopping:
			return false
		}
	}
}

// followClusters sends changes until the client goes, may no longer watch, falls too far behind, or the only cluster
// watched is gone.
func (s *Server) followClusters(r *http.Request, out *eventStream, cur *cursor) {
	alive := time.NewTicker(s.cfg.KeepAlive)
	defer alive.Stop()
	asker := sessionOf(r.Context())
	for {
		fresh, more, whole := cur.next()
		if !whole || !asker.valid() {
			return // the client comes back, and is told why it can't go on
		}
		for _, ch := range fresh {
			event := eventCluster
			if ch.deleted {
				event = eventDeleted
			}
			if out.sendShown(event, ch.revision, ch.shown) != nil {
				return
			}
		}
		if len(fresh) > 0 && out.flush() != nil {
			return
		}
		if len(fresh) > 0 && cur.name != "" && fresh[len(fresh)-1].deleted {
			return
		}
		select {
		case <-more:
		case <-alive.C:
			if out.keepAlive() != nil {
				return
			}
		case <-r.Context().Done():
			return
		case <-s.stopping:
			return
		}
	}
}

// waitStream waits for more, and keeps the stream alive; false when it is over.
func (s *Server) waitStream(r *http.Request, more <-chan struct{}, alive <-chan time.Time, out *eventStream) bool {
	select {
	case <-more:
		return true
	case <-alive:
		return out.keepAlive() == nil
	case <-r.Context().Done():
		return false
	case <-s.stopping:
		return false
	}
}
