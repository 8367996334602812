package state

import (
	"context"
	"strconv"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/store"
)

// chunkAssignments is how many assignments one chunk holds: small enough that a heal rewrites little, large enough that a
// thousand members are few keys.
const chunkAssignments = 64

// chunkCommitBytes is how many bytes of chunks are written in one commit: the store keeps its newest commits in memory, so they
// should not all be as large as store.MaxBytes.
const chunkCommitBytes = store.MaxBytes / 4

// cut makes chunks of assignments and notes them as in flight. IDs are never used twice: terms are not, and the counter within.
func (l *Leader) cut(uid string, add []Batch) ([]api.ChunkRef, []store.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var refs []api.ChunkRef
	var ops []store.Op
	for _, b := range add {
		for rest := b.Assignments; len(rest) > 0; {
			n := min(len(rest), chunkAssignments)
			l.chunks++
			ref := api.ChunkRef{ID: strconv.FormatInt(l.Term(), 10) + "-" + strconv.FormatInt(l.chunks, 10), Count: n}
			ref.Releasing, ref.ReleasedAt = b.Releasing, b.ReleasedAt
			op := put(keyChunk(uid, ref.ID), rest[:n])
			l.inFlight[op.Key] = true
			refs, ops, rest = append(refs, ref), append(ops, op), rest[n:]
		}
	}
	return refs, ops
}

// landed notes that the header of chunks is committed, or never will be.
func (l *Leader) landed(ops []store.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, op := range ops {
		delete(l.inFlight, op.Key)
	}
}

// writeAhead writes chunks in as few commits as their size allows.
func (l *Leader) writeAhead(ctx context.Context, ops []store.Op) error {
	for len(ops) > 0 {
		conds := []store.Cond{l.leadership.Guard()}
		n, bytes := 0, 0
		for n < len(ops) && n < store.MaxOps-1 && (n == 0 || bytes+len(ops[n].Value) <= chunkCommitBytes) {
			conds = append(conds, store.Cond{Key: ops[n].Key}) // a chunk is never overwritten
			bytes += len(ops[n].Value)
			n++
		}
		if _, err := l.repo.store.Commit(ctx, conds, ops[:n]); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}
