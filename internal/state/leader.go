package state

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// chunkAssignments is how many assignments one chunk holds: small enough that a heal rewrites little, large enough that a
// thousand members are few keys.
const chunkAssignments = 64

// chunkCommitBytes is how many bytes of chunks are written in one commit: the store keeps its newest commits in memory, so they
// should not all be as large as store.MaxBytes.
const chunkCommitBytes = store.MaxBytes / 4

// Leader writes what only the leader may write. Every commit is guarded by the election (store.ErrNotLeader when it is lost)
// and by the view of the cluster it was decided on (store.ErrConflict when intent or record changed since).
type Leader struct {
	repo       *Repo
	leadership store.Leadership

	mu       sync.Mutex
	chunks   int64           // chunk IDs given out in this leadership
	inFlight map[string]bool // keys of chunks whose header is not yet committed
}

// AsLeader returns the writer for a leadership. Call it once for each.
func (r *Repo) AsLeader(l store.Leadership) *Leader {
	return &Leader{repo: r, leadership: l, inFlight: map[string]bool{}}
}

// Term is the leader's term.
func (l *Leader) Term() int64 { return l.leadership.Term() }

// Done is closed when the leadership is lost.
func (l *Leader) Done() <-chan struct{} { return l.leadership.Done() }

// Batch is new assignments of a generation: held, or releasing from the start (what a heal splits off). Any number; they are
// cut into chunks here.
type Batch struct {
	Assignments []api.Assignment
	Releasing   bool
}

// CommitGeneration makes a decision true: the new assignments are written ahead into immutable chunks, then one small commit
// of the record makes them true, all or none. base is the view the decision was made on, its Record nil before the first.
// rec.Chunks names the chunks of base that stay (with Releasing as now decided); the references of the new ones are appended
// here. It returns the revision of the commit. A failure between the two leaves the previous generation true and unnamed
// chunks, which CollectGarbage removes.
func (l *Leader) CommitGeneration(ctx context.Context, base *Cluster, rec api.ClusterRecord, add ...Batch) (int64, error) {
	refs, ops := l.cut(rec.UID, add)
	revision, err := l.commitGeneration(ctx, base, rec, refs, ops)
	if err == nil || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotLeader) {
		l.landed(ops)
	}
	// After any other error, a time-out say, the commit may still become true later, so the chunks stay noted as in flight:
	// they must not be collected in this leadership.
	return revision, err
}

func (l *Leader) commitGeneration(ctx context.Context, base *Cluster, rec api.ClusterRecord, refs []api.ChunkRef, ops []store.Op) (int64, error) {
	if err := l.writeAhead(ctx, ops); err != nil {
		return 0, fmt.Errorf("write assignments of cluster %q ahead: %w", rec.Name, err)
	}
	failpoint.Hit("state.after-chunks")
	rec.Chunks = append(append([]api.ChunkRef(nil), rec.Chunks...), refs...)
	failpoint.Hit("state.before-header")
	revision, err := l.commitHeader(ctx, base, rec, nil)
	if err != nil {
		return 0, fmt.Errorf("commit generation %d of cluster %q: %w", rec.Generation, rec.Name, err)
	}
	failpoint.Hit("state.after-header")
	return revision, nil
}

// CommitRecord changes the record without new assignments: phase, message, confirmations, chunks that turn to releasing.
// Quarantines given with it become true in the same commit, so what can't be cleaned passes from the cluster's hands into
// quarantine without a moment in between.
func (l *Leader) CommitRecord(ctx context.Context, base *Cluster, rec api.ClusterRecord, quarantine ...api.Quarantine) (int64, error) {
	revision, err := l.commitHeader(ctx, base, rec, quarantine)
	if err != nil {
		return 0, fmt.Errorf("commit %q of cluster %q: %w", rec.Phase, rec.Name, err)
	}
	failpoint.Hit("state.after-record")
	return revision, nil
}

// Forget removes the cluster: record, chunks and intent in one commit. It refuses while any assignment is not confirmed clean.
func (l *Leader) Forget(ctx context.Context, base *Cluster) (int64, error) {
	for a := range base.All() {
		return 0, fmt.Errorf("cluster %q still holds assignments (%s on node %s is not confirmed clean)", base.Name(), a.ID, a.Node)
	}
	ops := []store.Op{
		{Key: prefixIntent + base.Name(), Delete: true},
		{Key: prefixRecord + base.Name(), Delete: true},
		{Key: keyChunk(base.UID(), ""), DeletePrefix: true},
	}
	failpoint.Hit("state.before-forget")
	revision, err := l.repo.store.Commit(ctx, l.conds(base), ops)
	if err != nil {
		return 0, fmt.Errorf("forget cluster %q: %w", base.Name(), err)
	}
	failpoint.Hit("state.after-forget")
	return revision, nil
}

// Quarantine keeps the resources of an assignment out of the free view.
func (l *Leader) Quarantine(ctx context.Context, q api.Quarantine) (int64, error) {
	ops := []store.Op{put(prefixQuarantine+q.Assignment.ID, q)}
	revision, err := l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops)
	if err != nil {
		return 0, fmt.Errorf("quarantine %s: %w", q.Assignment.ID, err)
	}
	return revision, nil
}

// Unquarantine gives the resources of an assignment back; one that is not quarantined is no error.
func (l *Leader) Unquarantine(ctx context.Context, assignmentID string) (int64, error) {
	ops := []store.Op{{Key: prefixQuarantine + assignmentID, Delete: true}}
	revision, err := l.repo.store.Commit(ctx, []store.Cond{l.leadership.Guard()}, ops)
	if err != nil {
		return 0, fmt.Errorf("end the quarantine of %s: %w", assignmentID, err)
	}
	return revision, nil
}

// conds are the conditions of a commit decided on base: still the leader, intent and record as they were seen.
func (l *Leader) conds(base *Cluster) []store.Cond {
	return []store.Cond{
		l.leadership.Guard(),
		{Key: prefixIntent + base.Name(), Revision: base.intentRevision},
		{Key: prefixRecord + base.Name(), Revision: base.recordRevision},
	}
}

// commitHeader writes the record, and removes in the same commit the chunks it no longer names.
func (l *Leader) commitHeader(ctx context.Context, base *Cluster, rec api.ClusterRecord, quarantine []api.Quarantine) (int64, error) {
	if rec.Name != base.Name() || rec.UID != base.UID() {
		return 0, fmt.Errorf("record of %q (%s) decided on cluster %q (%s)", rec.Name, rec.UID, base.Name(), base.UID())
	}
	ops := []store.Op{put(prefixRecord+rec.Name, rec)}
	for _, q := range quarantine {
		ops = append(ops, put(prefixQuarantine+q.Assignment.ID, q))
	}
	if base.Record != nil {
		named := map[string]bool{}
		for _, ref := range rec.Chunks {
			named[ref.ID] = true
		}
		for _, ref := range base.Record.Chunks {
			// What does not fit the commit is left to CollectGarbage.
			if !named[ref.ID] && len(ops) < store.MaxOps {
				ops = append(ops, store.Op{Key: keyChunk(rec.UID, ref.ID), Delete: true})
			}
		}
	}
	return l.repo.store.Commit(ctx, l.conds(base), ops)
}

// cut makes chunks of assignments and notes them as in flight. IDs are unique for ever: terms are, and the counter within.
func (l *Leader) cut(uid string, add []Batch) ([]api.ChunkRef, []store.Op) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var refs []api.ChunkRef
	var ops []store.Op
	for _, b := range add {
		for rest := b.Assignments; len(rest) > 0; {
			n := min(len(rest), chunkAssignments)
			l.chunks++
			ref := api.ChunkRef{ID: strconv.FormatInt(l.Term(), 10) + "-" + strconv.FormatInt(l.chunks, 10), Count: n, Releasing: b.Releasing}
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
