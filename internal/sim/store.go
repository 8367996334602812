package sim

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
)

// What commits may fail with.
var (
	errDeposed  = errors.New("this server is no longer the leader")
	errConflict = errors.New("the cluster has changed since")
	errUnknown  = errors.New("the store did not answer: the commit may be true, become true, or never be")
)

// entry is a cluster in the store, with the revisions at which its parts changed last; 0 for a part that is not there.
type entry struct {
	intent                         *api.ClusterIntent
	record                         *api.ClusterRecord
	intentRevision, recordRevision int64
}

// store is the committed state: what survives every crash. It obeys the guards of the real one: only the leader of the current term
// commits, on what it has seen, all of a commit or nothing. What it holds is never changed in place.
type store struct {
	term, revision int64
	clusters       map[string]entry
	// chunks by cluster UID and chunk ID; a chunk counts only when a record names it.
	chunks      map[string][]api.Assignment
	quarantines map[string]api.Quarantine
	controls    map[string]api.NodeControl
	projects    map[string]api.Project
	usage       []*api.UsageRecord
	nodeSpans   map[string][]*api.NodeSpan // by node, in order; the last is the present one
	// released is the revision from which on an assignment was no longer held, for ever; left the one since which a cluster's network has
	// no business with a node.
	released map[string]int64
	left     map[onNode]int64
	// unguarded: anyone may commit.
	unguarded bool

	// listed are names as of revision listedAt.
	listed   []string
	listedAt int64
}

func newStore() *store {
	return &store{
		clusters: map[string]entry{}, chunks: map[string][]api.Assignment{}, quarantines: map[string]api.Quarantine{},
		controls: map[string]api.NodeControl{}, projects: map[string]api.Project{}, nodeSpans: map[string][]*api.NodeSpan{},
		released: map[string]int64{}, left: map[onNode]int64{}, listedAt: -1,
	}
}

// onNode is what a cluster has on a node.
type onNode struct{ uid, node string }

// condition is what must be as it was when a commit was decided.
type condition struct {
	term int64
	// cluster is the name of the one that must not have changed; empty: none.
	cluster                        string
	intentRevision, recordRevision int64
	// blind: the cluster may have changed after all. takes: the commit takes room.
	blind, takes bool
}

// commit applies a leader's writes.
func (s *store) commit(c condition, write func()) error {
	if c.term != s.term && !s.unguarded {
		return errDeposed
	}
	if e := s.clusters[c.cluster]; c.cluster != "" && !c.blind &&
		(e.intentRevision != c.intentRevision || e.recordRevision != c.recordRevision) {
		return errConflict
	}
	s.revision++
	write()
	return nil
}

// putIntent is what the API does.
func (s *store) putIntent(in *api.ClusterIntent) {
	s.revision++
	e := s.clusters[in.Name]
	e.intent, e.intentRevision = in, s.revision
	s.clusters[in.Name] = e
}

// names are the clusters in order.
func (s *store) names() []string {
	if s.listedAt != s.revision {
		s.listed, s.listedAt = slices.Sorted(maps.Keys(s.clusters)), s.revision
	}
	return s.listed
}

// cluster is what is committed of one cluster, as decisions take it.
func (s *store) cluster(name string) decision.Cluster {
	e := s.clusters[name]
	c := decision.Cluster{Intent: e.intent, Record: e.record}
	if e.record != nil {
		for _, ref := range e.record.Chunks {
			c.Chunks = append(c.Chunks, decision.Chunk{Ref: ref, Assignments: s.chunks[chunkKey(e.record.UID, ref.ID)]})
		}
	}
	return c
}

func chunkKey(uid, id string) string { return uid + "/" + id }

// held is an assignment that a record names.
type held struct {
	*api.Assignment
	releasedAt *time.Time // nil: not releasing
	clean      bool
}

// assignments are all that a record's chunks hold.
func (s *store) assignments(r *api.ClusterRecord) []held {
	if r == nil {
		return nil
	}
	var all []held
	for _, ref := range r.Chunks {
		chunk := s.chunks[chunkKey(r.UID, ref.ID)]
		for i := range chunk {
			h := held{Assignment: &chunk[i], clean: slices.Contains(r.Clean, chunk[i].ID)}
			if ref.Releasing {
				h.releasedAt = ref.ReleasedAt
				if h.releasedAt == nil {
					h.releasedAt = &time.Time{}
				}
			}
			all = append(all, h)
		}
	}
	return all
}

// quarantined are the quarantines in order.
func (s *store) quarantined() []api.Quarantine {
	all := make([]api.Quarantine, 0, len(s.quarantines))
	for _, id := range slices.Sorted(maps.Keys(s.quarantines)) {
		all = append(all, s.quarantines[id])
	}
	return all
}

// putRecord writes a record and removes the chunks it no longer names; nil removes the cluster.
func (s *store) putRecord(name string, r *api.ClusterRecord) {
	e := s.clusters[name]
	named := map[string]bool{}
	if r != nil {
		for _, ref := range r.Chunks {
			named[ref.ID] = true
		}
	}
	if e.record != nil {
		for _, ref := range e.record.Chunks {
			if !named[ref.ID] {
				delete(s.chunks, chunkKey(e.record.UID, ref.ID))
			}
		}
	}
	if r == nil {
		// What was written ahead for it and never became true goes with it.
		uid := e.intent.UID
		maps.DeleteFunc(s.chunks, func(key string, _ []api.Assignment) bool { return strings.HasPrefix(key, chunkKey(uid, "")) })
		delete(s.clusters, name)
		return
	}
	e.record, e.recordRevision = r, s.revision
	s.clusters[name] = e
	for _, h := range s.assignments(r) {
		if h.releasedAt != nil && s.released[h.ID] == 0 {
			s.released[h.ID] = s.revision
			s.left[onNode{r.UID, h.Node}] = s.revision
		}
	}
}

// collectGarbage removes chunks that no record names, left by a crash before the header.
func (s *store) collectGarbage() {
	for _, key := range s.garbage() {
		delete(s.chunks, key)
	}
}

// garbage are the chunks that no record names.
func (s *store) garbage() []string {
	named := map[string]bool{}
	for _, e := range s.clusters {
		if e.record != nil {
			for _, ref := range e.record.Chunks {
				named[chunkKey(e.record.UID, ref.ID)] = true
			}
		}
	}
	var unnamed []string
	for _, key := range slices.Sorted(maps.Keys(s.chunks)) {
		if !named[key] {
			unnamed = append(unnamed, key)
		}
	}
	return unnamed
}

// newestTime is the newest of all times stored.
func (s *store) newestTime() time.Time {
	var newest time.Time
	see := func(times ...*time.Time) {
		for _, t := range times {
			if t != nil && t.After(newest) {
				newest = *t
			}
		}
	}
	for _, e := range s.clusters {
		if in := e.intent; in != nil {
			see(&in.CreatedAt, in.DeleteRequestedAt, in.ScaledAt)
		}
		if r := e.record; r != nil {
			see(&r.ChangedAt, r.PlacedAt, r.ExpiredAt, r.ReadyAt)
			for _, ref := range r.Chunks {
				see(ref.ReleasedAt)
			}
			for _, l := range r.Lost {
				see(&l.Since)
			}
			for _, h := range s.assignments(r) {
				see(&h.TakenAt)
			}
		}
	}
	for _, q := range s.quarantines {
		see(&q.Since)
	}
	for _, c := range s.controls {
		see(&c.Since)
	}
	for _, r := range s.usage {
		for i := range r.Spans {
			see(&r.Spans[i].To)
		}
	}
	for _, spans := range s.nodeSpans {
		last := spans[len(spans)-1]
		see(&last.From, last.To)
	}
	return newest
}
