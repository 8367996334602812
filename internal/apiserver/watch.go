package apiserver

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
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
	of := scope{sees: func(project string) bool { return sees(p, project) }}
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

// clusterEvents answers with the events of a cluster, as a list or, when asked, as a stream that goes on.
func (s *Server) clusterEvents(w http.ResponseWriter, r *http.Request) {
	name, err := resolve(r.Context(), r.PathValue("name"))
	if err != nil {
		failureOf(err).write(w)
		return
	}
	after, watch, f := eventsParameters(r)
	if f != nil {
		f.write(w)
		return
	}
	// A cluster that is gone still tells its last events; names that never were have none.
	if s.cfg.Reader.View().Cluster(name) == nil && len(s.cfg.Reader.Events(name, 0)) == 0 {
		noCluster(r.PathValue("name")).write(w)
		return
	}
	events := s.eventsOf(r.Context(), name, after)
	if !watch {
		writeJSON(w, http.StatusOK, api.List[api.Event]{Items: events})
		return
	}
	if r.Header.Get("Last-Event-ID") != "" || r.URL.Query().Get("after") != "" {
		if kept := s.cfg.Reader.Events(name, 0); len(kept) > 0 && kept[0].Seq > after+1 {
			fail(codeHistoryGone, "the events after %d of cluster %q are no longer kept, the oldest is %d; watch again without "+
				"Last-Event-ID and after", after, r.PathValue("name"), kept[0].Seq).write(w)
			return
		}
	}
	s.followEvents(r, beginEvents(w), name, after)
}

// eventsParameters reads where to begin and whether to go on.
func eventsParameters(r *http.Request) (after int64, watch bool, f *failure) {
	query := r.URL.Query()
	text, location := query.Get("after"), "query.after"
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		text, location = last, "header.Last-Event-ID"
	}
	if text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return 0, false, failFields(codeParameter, api.FieldProblem{
				Location: location, Value: text, Message: "is not the number of an event; give the seq of the last one you have",
			})
		}
		after = n
	}
	return after, query.Get("watch") == "true" || acceptsEvents(r), nil
}

// eventsOf are the events of the cluster that has the name now; of a former one only while no other has it.
func (s *Server) eventsOf(ctx context.Context, name string, after int64) []api.Event {
	events := s.cfg.Reader.Events(name, after)
	if c := s.cfg.Reader.View().Cluster(name); c != nil {
		for len(events) > 0 && events[0].Time.Before(c.Intent.CreatedAt) {
			events = events[1:]
		}
	}
	if events == nil {
		events = []api.Event{}
	}
	shown := shownName(who(ctx), name)
	for i := range events {
		events[i].Cluster = shown
	}
	return events
}

// followEvents sends events until the client goes, or the cluster is gone and its last event sent.
func (s *Server) followEvents(r *http.Request, out *eventStream, name string, after int64) {
	alive := time.NewTicker(s.cfg.KeepAlive)
	defer alive.Stop()
	asker := sessionOf(r.Context())
	if out.flush() != nil {
		return
	}
	for asker.valid() {
		view := s.cfg.Reader.View()
		gone := view.Cluster(name) == nil
		stored, stop := s.hub.stored(r.Context(), view.Revision)
		events := s.eventsOf(r.Context(), name, after)
		for _, e := range events {
			if out.send(eventEvent, e.Seq, e) != nil {
				stop()
				return
			}
			after = e.Seq
		}
		if len(events) > 0 && out.flush() != nil || gone {
			stop()
			return
		}
		open := s.waitStream(r, stored, alive.C, out)
		stop()
		if !open {
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
