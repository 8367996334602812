package state

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// CollectGarbage removes the chunks that no record names, left by a crash between write-ahead and header, and returns how
// many. It is safe beside commits of the same leader: chunks whose header is still to come are noted as in flight, and a header
// that was committed after our reading fails the condition on the record. Another leader's late write-ahead is fenced by the
// election.
func (l *Leader) CollectGarbage(ctx context.Context) (int, error) {
	// Chunks before records would be wrong: a header between the two readings would name chunks we had seen unnamed. So
	// everything is read as of one revision.
	snap, err := l.repo.store.List(ctx, "")
	if err != nil {
		return 0, fmt.Errorf("list the state: %w", err)
	}
	named := map[string]bool{}
	record := map[string]store.Cond{} // by cluster UID
	intent := map[string]store.Cond{}
	for _, e := range snap.Entries {
		switch kind, _ := splitKey(e.Key); kind {
		case prefixIntent:
			var in api.ClusterIntent
			if err := decode(e, &in); err != nil {
				return 0, err
			}
			// A cluster without a record: nothing may have been decided meanwhile.
			intent[in.UID] = store.Cond{Key: prefixRecord + in.Name}
		case prefixRecord:
			var rec api.ClusterRecord
			if err := decode(e, &rec); err != nil {
				return 0, err
			}
			record[rec.UID] = store.Cond{Key: e.Key, Revision: e.Revision}
			for _, ref := range rec.Chunks {
				named[keyChunk(rec.UID, ref.ID)] = true
			}
		}
	}
	removed := 0
	for _, e := range snap.Entries {
		kind, rest := splitKey(e.Key)
		if kind != prefixChunk || named[e.Key] || l.flying(e.Key) {
			continue
		}
		uid, _, _ := strings.Cut(rest, "/")
		conds := []store.Cond{l.leadership.Guard()}
		if c, ok := record[uid]; ok {
			conds = append(conds, c)
		} else if c, ok := intent[uid]; ok {
			conds = append(conds, c)
		}
		switch _, err := l.repo.store.Commit(ctx, conds, []store.Op{{Key: e.Key, Delete: true}}); {
		case errors.Is(err, store.ErrConflict):
			// The cluster's record changed meanwhile and may name the chunk; the next collection looks again.
		case err != nil:
			return removed, fmt.Errorf("remove the chunk %s: %w", e.Key, err)
		default:
			removed++
		}
	}
	return removed, nil
}

func (l *Leader) flying(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight[key]
}
