package apiserver

import (
	"net/http"
	"strconv"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/tenancy"
)

// selection is what a watch of all kinds asks for, and who asks.
type selection struct {
	principal     tenancy.Principal
	kind          api.Kind // "" is all
	name, project string   // "" is all
}

// selectionOf reads the query, which is checked already as far as its words go.
func (s *Server) selectionOf(r *http.Request) (selection, *failure) {
	query := r.URL.Query()
	of := selection{principal: who(r.Context()), kind: api.Kind(query.Get("kind")), name: query.Get("name"), project: query.Get("project")}
	if hiddenKind(of.kind) {
		if f := allow(of.principal, AccessAdmin); f != nil {
			return of, f
		}
	}
	if of.project != "" && (!seesProject(of.principal, of.project) || s.cfg.Reader.View().Project(of.project) == nil) {
		return of, noProject(of.project)
	}
	return of, nil
}

// hiddenKind reports whether only administrators see any object of a kind.
func hiddenKind(kind api.Kind) bool {
	return kind == api.KindToken || kind == api.KindCandidate || kind == api.KindEnrollToken
}

// sees reports whether the watcher may know of an object.
func (of selection) sees(o owner) bool {
	switch {
	case o.hidden:
		return administers(of.principal)
	case o.cluster != "":
		return seesCluster(of.principal, o.cluster)
	case o.project != "":
		return seesProject(of.principal, o.project)
	}
	return true
}

// covers reports whether a note is one that was asked for, and may be reported.
func (of selection) covers(n note) bool {
	return of.sees(n.owner) && (of.kind == "" || of.kind == n.kind) && (of.project == "" || of.project == n.owner.project) &&
		(of.name == "" || of.name == n.name || of.name == of.shownName(n))
}

// shownName is the name of an object as the watcher would write it.
func (of selection) shownName(n note) string {
	if n.kind == api.KindCluster {
		return shownName(of.principal, n.name)
	}
	return n.name
}

// change is a note as it is reported.
func (of selection) change(n note) api.Change {
	c := api.Change{Type: api.ChangePut, Kind: n.kind, Name: of.shownName(n), Project: n.owner.project, Revision: n.revision}
	if n.deleted {
		c.Type = api.ChangeDelete
	}
	return c
}

// watchChanges streams which objects change, of all kinds.
func (s *Server) watchChanges(w http.ResponseWriter, r *http.Request) {
	of, f := s.selectionOf(r)
	if f != nil {
		f.write(w)
		return
	}
	if !s.hub.ready() || !s.catchUp(r) {
		fail(codeUnavailable, "the server is starting or stopping; try again in a moment").write(w)
		return
	}
	cur, revision := s.hub.feed.now()
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after, ok := eventID(w, last)
		if !ok {
			return
		}
		if cur, ok = s.hub.feed.resume(after); !ok {
			fail(codeHistoryGone, "the changes after revision %d are no longer kept; list the objects, and watch again without Last-Event-ID",
				after).write(w)
			return
		}
		revision = after
	}
	out := beginEvents(w)
	if out.send(eventSync, revision, struct{}{}) != nil || out.flush() != nil {
		return
	}
	s.followChanges(r, out, of, cur)
}

// followChanges sends changes until the client goes, may no longer watch, or falls too far behind.
func (s *Server) followChanges(r *http.Request, out *eventStream, of selection, cur *feedCursor) {
	alive := time.NewTicker(s.cfg.KeepAlive)
	defer alive.Stop()
	asker := sessionOf(r.Context())
	for asker.valid() {
		fresh, more, whole := cur.next()
		if !whole {
			return // the client comes back, and learns why it can't go on
		}
		sent := 0
		for _, n := range fresh {
			if !of.covers(n) {
				continue
			}
			if !asker.valid() {
				return
			}
			if c := of.change(n); out.send(string(c.Type), c.Revision, c) != nil {
				return
			}
			sent++
		}
		if sent > 0 && out.flush() != nil {
			return
		}
		if !s.waitStream(r, more, alive.C, out) {
			return
		}
	}
}

// eventID returns the revision that the Last-Event-ID of a watch names. Where it names none, it answers so and returns false.
func eventID(w http.ResponseWriter, last string) (after int64, ok bool) {
	after, err := strconv.ParseInt(last, 10, 64)
	if err != nil || after < 0 {
		failFields(codeParameter, api.FieldProblem{
			Location: "header.Last-Event-ID", Value: last, Message: "is not the id of an event of this watch",
		}).write(w)
		return 0, false
	}
	return after, true
}
