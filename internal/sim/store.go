package sim

import (
	"errors"
	"maps"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// errDeposed is what a commit of a former leader gets.
var errDeposed = errors.New("this server is no longer the leader")

// store is the committed state: what survives every crash. It obeys the guards of the real one: only the leader of the current term
// commits, all of a commit or nothing.
type store struct {
	term, revision int64
	intents        map[string]*api.ClusterIntent
	records        map[string]*api.ClusterRecord
	// chunks by cluster UID and chunk ID; a chunk counts only when a record names it.
	chunks      map[string][]api.Assignment
	quarantines map[string]api.Quarantine
	// unguarded: anyone may commit.
	unguarded bool

	// listed are names as of revision listedAt.
	listed   []string
	listedAt int64
}

func newStore() *store {
	return &store{
		intents: map[string]*api.ClusterIntent{}, records: map[string]*api.ClusterRecord{},
		chunks: map[string][]api.Assignment{}, quarantines: map[string]api.Quarantine{},
	}
}

// commit applies a leader's writes.
func (s *store) commit(term int64, write func()) error {
	if term != s.term && !s.unguarded {
		return errDeposed
	}
	write()
	s.revision++
	return nil
}

// names are the clusters that have an intent or a record, in order.
func (s *store) names() []string {
	if s.listed != nil && s.listedAt == s.revision {
		return s.listed
	}
	names := slices.Collect(maps.Keys(s.intents))
	for name := range s.records {
		if s.intents[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	s.listed, s.listedAt = names, s.revision
	return names
}

// assignments are all that a record's chunks hold.
func (s *store) assignments(r *api.ClusterRecord) []lifecycle.ClusterAssignment {
	if r == nil {
		return nil
	}
	var all []lifecycle.ClusterAssignment
	for _, ref := range r.Chunks {
		chunk := s.chunks[r.UID+"/"+ref.ID]
		for i := range chunk {
			all = append(all, lifecycle.ClusterAssignment{
				Assignment: &chunk[i], Releasing: ref.Releasing, Clean: slices.Contains(r.Clean, chunk[i].ID),
			})
		}
	}
	return all
}

// quarantined are the quarantines in order.
func (s *store) quarantined() []api.Quarantine {
	var all []api.Quarantine
	for _, id := range slices.Sorted(maps.Keys(s.quarantines)) {
		all = append(all, s.quarantines[id])
	}
	return all
}

// collectGarbage removes chunks that no record names, left by a crash before the header.
func (s *store) collectGarbage() {
	named := map[string]bool{}
	for _, r := range s.records {
		for _, ref := range r.Chunks {
			named[r.UID+"/"+ref.ID] = true
		}
	}
	maps.DeleteFunc(s.chunks, func(key string, _ []api.Assignment) bool { return !named[key] })
}
