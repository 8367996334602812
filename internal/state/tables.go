package state

import (
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/store"
)

// tables are the decoded contents of the state. Values are never modified, only replaced.
type tables struct {
	clusters    sorted[Cluster]
	nodes       sorted[api.NodeRecord]
	jobs        sorted[api.Job]
	quarantines sorted[api.Quarantine]
	controls    sorted[api.NodeControl]
	nodeSpans   sorted[api.NodeSpan]
	usage       sorted[api.UsageRecord]
	projects    sorted[api.Project]
	tokens      sorted[api.TokenInfo]
	machineTables
	events map[string][]api.Event // by the name of their log, oldest first
	chunks map[string][]api.Assignment
	leader string
}

func newTables() tables {
	t := tables{events: map[string][]api.Event{}, chunks: map[string][]api.Assignment{}}
	t.projects.set(api.DefaultProject, defaultProject())
	return t
}

// put takes in a key as written.
func (t *tables) put(e store.Entry) error {
	switch kind, rest := splitKey(e.Key); kind {
	case prefixIntent:
		in := &api.ClusterIntent{}
		if err := decode(e, in); err != nil {
			return err
		}
		next := t.cluster(rest)
		next.Intent, next.intentRevision, next.Revision = *in, e.Revision, e.Revision
		t.clusters.set(rest, next)
	case prefixRecord:
		return t.putRecord(rest, e)
	case prefixChunk:
		var as []api.Assignment
		if err := decode(e, &as); err != nil {
			return err
		}
		t.chunks[e.Key] = as
	case prefixNode:
		return set(&t.nodes, rest, e)
	case prefixJob:
		return set(&t.jobs, rest, e)
	case prefixQuarantine:
		return set(&t.quarantines, rest, e)
	case prefixControl:
		return set(&t.controls, rest, e)
	case prefixNodeSpan:
		return set(&t.nodeSpans, rest, e)
	case prefixUsage:
		return set(&t.usage, rest, e)
	case prefixProject:
		return set(&t.projects, rest, e)
	case prefixToken:
		return set(&t.tokens, rest, e)
	case prefixEvent:
		var ev api.Event
		if err := decode(e, &ev); err != nil {
			return err
		}
		name, _, _ := strings.Cut(rest, "/")
		t.events[name] = append(t.events[name], ev)
	case store.ElectionKey:
		t.leader = string(e.Value)
	default:
		return t.machineTables.put(kind, rest, e)
	}
	return nil
}

func (t *tables) putRecord(name string, e store.Entry) error {
	rec := &api.ClusterRecord{}
	if err := decode(e, rec); err != nil {
		return err
	}
	next := t.cluster(name)
	next.Record, next.recordRevision, next.Revision = rec, e.Revision, e.Revision
	next.chunks, next.clean = make([]decision.Chunk, len(rec.Chunks)), make(map[string]bool, len(rec.Clean))
	for i, ref := range rec.Chunks {
		as, ok := t.chunks[keyChunk(rec.UID, ref.ID)]
		if !ok || len(as) != ref.Count {
			return fmt.Errorf("stored state of cluster %q is damaged: generation %d names chunk %s with %d assignments, but it has %d; restore a backup",
				name, rec.Generation, ref.ID, ref.Count, len(as))
		}
		next.chunks[i] = decision.Chunk{Ref: ref, Assignments: as}
	}
	for _, id := range rec.Clean {
		next.clean[id] = true
	}
	next.held = heldTotal(next.chunks)
	t.clusters.set(name, next)
	return nil
}

// heldTotal sums up the assignments that are held.
func heldTotal(chunks []decision.Chunk) api.Quota {
	var q api.Quota
	for _, ch := range chunks {
		if ch.Ref.Releasing {
			continue
		}
		for i := range ch.Assignments {
			q.Clusters = 1
			q.Members++
			q.Cores += len(ch.Assignments[i].Slots)
			q.Memory += api.Bytes(ch.Assignments[i].MemoryBytes)
		}
	}
	return q
}

// cluster returns a copy of a cluster to change, or a new one.
func (t *tables) cluster(name string) *Cluster {
	if old := t.clusters.get(name); old != nil {
		next := *old
		return &next
	}
	return &Cluster{}
}

// remove takes in a deleted key.
func (t *tables) remove(key string) {
	switch kind, rest := splitKey(key); kind {
	case prefixIntent:
		// Intent and record go in one commit (Leader.Commit), so the cluster is gone.
		t.clusters.remove(rest)
	case prefixChunk:
		delete(t.chunks, key)
	case prefixNode:
		t.nodes.remove(rest)
	case prefixJob:
		t.jobs.remove(rest)
	case prefixQuarantine:
		t.quarantines.remove(rest)
	case prefixControl:
		t.controls.remove(rest)
	case prefixNodeSpan:
		t.nodeSpans.remove(rest)
	case prefixUsage:
		t.usage.remove(rest)
	case prefixProject:
		t.projects.remove(rest)
	case prefixToken:
		t.tokens.remove(rest)
	case prefixEvent:
		// Only the oldest are ever removed.
		name, _, _ := strings.Cut(rest, "/")
		if log := t.events[name]; len(log) > 1 {
			t.events[name] = log[1:]
		} else {
			delete(t.events, name)
		}
	case store.ElectionKey:
		t.leader = ""
	default:
		t.machineTables.remove(kind, rest)
	}
}

func set[T any](s *sorted[T], name string, e store.Entry) error {
	v := new(T)
	if err := decode(e, v); err != nil {
		return err
	}
	s.set(name, v)
	return nil
}
