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
	// The order of these readings matters. A chunk seen first and not named by a record read later is either still to be named, which its
	// condition on that record finds out, or garbage; and a chunk whose cluster has neither record nor intent by then is of one that was
	// forgotten, whose UID never comes back.
	chunks, err := l.repo.store.List(ctx, prefixChunk)
	if err != nil {
		return 0, fmt.Errorf("list the chunks: %w", err)
	}
	named, record, err := l.readRecords(ctx)
	if err != nil {
		return 0, err
	}
	intents, err := l.repo.Intents(ctx)
	if err != nil {
		return 0, err
	}
	intent := map[string]store.Cond{}
	for i := range intents {
		// A cluster without a record: nothing may have been decided meanwhile.
		intent[intents[i].UID] = store.Cond{Key: prefixRecord + intents[i].Name}
	}
	removed := 0
	for _, e := range chunks.Entries {
		_, rest := splitKey(e.Key)
		if named[e.Key] || l.flying(e.Key) {
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

// readRecords returns the keys of the chunks that records name, and for each cluster UID the condition that its record is unchanged.
func (l *Leader) readRecords(ctx context.Context) (named map[string]bool, unchanged map[string]store.Cond, err error) {
	snap, err := l.repo.store.List(ctx, prefixRecord)
	if err != nil {
		return nil, nil, fmt.Errorf("list the records: %w", err)
	}
	named, unchanged = map[string]bool{}, map[string]store.Cond{}
	for _, e := range snap.Entries {
		var rec api.ClusterRecord
		if err := decode(e, &rec); err != nil {
			return nil, nil, err
		}
		unchanged[rec.UID] = store.Cond{Key: e.Key, Revision: e.Revision}
		for _, ref := range rec.Chunks {
			named[keyChunk(rec.UID, ref.ID)] = true
		}
	}
	return named, unchanged, nil
}

func (l *Leader) flying(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.inFlight[key]
}
