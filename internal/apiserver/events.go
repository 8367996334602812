package apiserver

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/state"
)

// eventsAtOnce is how many events are read together for those who follow them.
const eventsAtOnce = 100

// eventsQuery is which events are asked for.
type eventsQuery struct {
	after int64
	limit int // 0: all that are kept
	watch bool
}

// clusterEvents answers with the events of a cluster, as a list or, when asked, as a stream that goes on.
func (s *Server) clusterEvents(w http.ResponseWriter, r *http.Request) {
	name, err := resolve(r.Context(), r.PathValue("name"))
	if err != nil {
		failureOf(err).write(w)
		return
	}
	q, f := eventsParameters(r)
	if f != nil {
		f.write(w)
		return
	}
	// A cluster that is gone still tells its last events; names that never were have none.
	first, last := s.cfg.Reader.EventLog(name)
	if s.cfg.Reader.View().Cluster(name) == nil && last == 0 {
		noCluster(r.PathValue("name")).write(w)
		return
	}
	if !q.watch {
		events, _, err := s.eventsOf(r.Context(), name, q.after, q.limit)
		if err != nil {
			s.asFailure(r.Context(), err).write(w)
			return
		}
		writeJSON(w, http.StatusOK, api.List[api.Event]{Items: events})
		return
	}
	if (r.Header.Get("Last-Event-ID") != "" || r.URL.Query().Get("after") != "") && first > q.after+1 {
		fail(codeHistoryGone, "the events after %d of cluster %q are no longer kept, the oldest is %d; watch again without "+
			"Last-Event-ID and after", q.after, r.PathValue("name"), first).write(w)
		return
	}
	s.followEvents(r, beginEvents(w), name, q.after)
}

// eventsParameters reads where to begin, how many to answer with, and whether to go on.
func eventsParameters(r *http.Request) (q eventsQuery, f *failure) {
	query := r.URL.Query()
	text, location := query.Get("after"), "query.after"
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		text, location = last, "header.Last-Event-ID"
	}
	if text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return q, failFields(codeParameter, api.FieldProblem{
				Location: location, Value: text, Message: "is not the number of an event; give the seq of the last one you have",
			})
		}
		q.after = n
	}
	limit, _ := strconv.ParseInt(query.Get("limit"), 10, 64) // checkQuery has refused what is no number
	q.limit = int(min(limit, state.EventsKept))
	q.watch = query.Get("watch") == "true" || acceptsEvents(r)
	return q, nil
}

// eventsOf returns the events of the cluster that has the name now, limit of them or all; of a former one only while no other has it. to is the last
// one that was looked at.
func (s *Server) eventsOf(ctx context.Context, name string, after int64, limit int) (events []api.Event, to int64, err error) {
	var since time.Time
	if c := s.cfg.Reader.View().Cluster(name); c != nil {
		since = c.Intent.CreatedAt
	}
	shown := shownName(who(ctx), name)
	limit = cmp.Or(limit, state.EventsKept)
	events, to = []api.Event{}, after
	for len(events) < limit {
		wanted := limit - len(events)
		page, err := s.cfg.Reader.Events(ctx, name, to, wanted)
		if err != nil {
			return nil, 0, err
		}
		for _, e := range page {
			to = e.Seq
			if len(events) > 0 || !e.Time.Before(since) {
				e.Cluster = shown
				events = append(events, e)
			}
		}
		if len(page) < wanted {
			break
		}
	}
	return events, to, nil
}

// followEvents sends events until the client goes, or the cluster is gone and its last event sent.
func (s *Server) followEvents(r *http.Request, out *eventStream, name string, after int64) {
	alive := time.NewTicker(s.cfg.KeepAlive)
	defer alive.Stop()
	asker := sessionOf(r.Context())
	if out.flush() != nil {
		return
	}
	for {
		view := s.cfg.Reader.View()
		if !asker.valid() { // by this view or a later one: a token that is revoked after it ends the wait below
			return
		}
		gone := view.Cluster(name) == nil
		stored, stop := s.hub.stored(r.Context(), view.Revision)
		sent, err := s.sendEvents(r.Context(), out, name, after)
		if err != nil || gone {
			stop()
			return
		}
		after = sent
		open := s.waitStream(r, stored, alive.C, out)
		stop()
		if !open {
			return
		}
	}
}

// sendEvents sends what is stored after an event, and returns the last one that it came to.
func (s *Server) sendEvents(ctx context.Context, out *eventStream, name string, after int64) (int64, error) {
	for {
		// Most of what is stored is none of it, and nothing needs to be read.
		if _, last := s.cfg.Reader.EventLog(name); last <= after {
			return after, nil
		}
		events, to, err := s.eventsOf(ctx, name, after, eventsAtOnce)
		if err != nil {
			return after, err
		}
		for _, e := range events {
			if err := out.send(eventEvent, e.Seq, e); err != nil {
				return after, err
			}
		}
		if len(events) > 0 {
			if err := out.flush(); err != nil {
				return after, err
			}
		}
		if to == after {
			return after, nil // those there were have been removed
		}
		after = to
	}
}

// nodeEventsInput is which events of a machine are asked for.
type nodeEventsInput struct {
	Name  string `path:"name" doc:"Name of the node"`
	After int64  `query:"after" minimum:"0" doc:"Only events with a greater seq"`
	Limit int64  `query:"limit" minimum:"0" doc:"At most this many, the oldest of them; 0: all"`
}

func (s *Server) nodeEvents(ctx context.Context, in *nodeEventsInput) (*body[api.List[api.Event]], error) {
	log := state.NodeLog(in.Name)
	if _, last := s.cfg.Reader.EventLog(log); last == 0 && s.cfg.Reader.View().Node(in.Name) == nil {
		return nil, noNode(in.Name)
	}
	limit := int(min(cmp.Or(in.Limit, state.EventsKept), state.EventsKept))
	events, err := s.cfg.Reader.Events(ctx, log, in.After, limit)
	if err != nil {
		return nil, s.asFailure(ctx, err)
	}
	return &body[api.List[api.Event]]{api.List[api.Event]{Items: events}}, nil
}
