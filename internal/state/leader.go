package state

import (
	"context"
	"fmt"
	"sync"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/decision"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

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

// Batch is new content of chunks: held, or releasing from the start (what a lost member's chunk is split into). Any number of
// assignments; they are cut into chunks here.
type Batch = decision.Batch

// Write is what one commit changes of a cluster.
type Write struct {
	// Record is the record after it. Its Chunks name the chunks of base that stay, as now decided; those of Add are appended here.
	Record api.ClusterRecord
	// Add are written ahead into immutable chunks.
	Add []Batch
	// Quarantines become true with the record, so what can't be cleaned passes from the cluster's hands into quarantine without a moment
	// in between in which it is free.
	Quarantines []api.Quarantine
	// Networks are new ones of the cluster, which become true with the record.
	Networks []api.Network
	// Joins are the project's networks on which the commit gives the cluster ports, as they were in the view that it was decided on.
	Joins []NetworkJoin
	// Usage is the record of what ends with this commit, nil for nothing; it is number Record.UsageSeq.
	Usage *api.UsageRecord
	// Forget removes the cluster, record, chunks and intent, instead of writing Record. It is refused while an assignment of base is not
	// confirmed clean.
	Forget bool
}

// Commit makes a decision true: new assignments are written ahead into chunks, then one small commit of the record, with all that belongs
// to it, makes them true, all or none. base is the view the decision was made on, its Record nil before the first. It returns the revision
// of the commit. A failure between the two leaves the previous generation true, and unnamed chunks, which CollectGarbage removes.
func (l *Leader) Commit(ctx context.Context, base *Cluster, w Write) (int64, error) {
	if w.Forget {
		return l.forget(ctx, base, w)
	}
	outcome := l.CommitAll(ctx, []Decided{{Base: base, Write: w}})[0]
	return outcome.Revision, outcome.Err
}

// fits refuses a write that was not decided on base: it would be a mistake of the caller's.
func fits(base *Cluster, w Write) error {
	rec := &w.Record
	if rec.Name != base.Name() || rec.UID != base.UID() {
		return fmt.Errorf("the record of cluster %q (%s) can't be written to cluster %q (%s)", rec.Name, rec.UID, base.Name(), base.UID())
	}
	return usageFits(base, w)
}

// usageFits refuses a usage record that would overwrite another, or that the cluster's record does not count.
func usageFits(base *Cluster, w Write) error {
	was := int64(0)
	if base.Record != nil {
		was = base.Record.UsageSeq
	}
	switch {
	case w.Usage == nil && (w.Forget || w.Record.UsageSeq == was):
		return nil
	case w.Usage == nil:
		return fmt.Errorf("the record of cluster %q counts %d usage records, but %d are stored", base.Name(), w.Record.UsageSeq, was)
	case w.Usage.UID != base.UID() || w.Usage.Seq != was+1 || !w.Forget && w.Record.UsageSeq != was+1:
		return fmt.Errorf("usage record %d of %s, counted as %d, does not follow record %d of cluster %q (%s)",
			w.Usage.Seq, w.Usage.UID, w.Record.UsageSeq, was, base.Name(), base.UID())
	}
	return nil
}

// forget removes record, chunks and intent in one commit.
func (l *Leader) forget(ctx context.Context, base *Cluster, w Write) (int64, error) {
	for a := range base.All() {
		return 0, fmt.Errorf("cluster %q still holds assignments (%s on node %s is not confirmed clean)", base.Name(), a.ID, a.Node)
	}
	if len(w.Add) > 0 || len(w.Quarantines) > 0 {
		return 0, fmt.Errorf("cluster %q can't be forgotten in the commit that gives it assignments or quarantines", base.Name())
	}
	if err := usageFits(base, w); err != nil {
		return 0, err
	}
	ops := []store.Op{
		{Key: prefixIntent + base.Name(), Delete: true},
		{Key: prefixRecord + base.Name(), Delete: true},
		{Key: keyChunk(base.UID(), ""), DeletePrefix: true},
	}
	if w.Usage != nil {
		ops = append(ops, put(keyUsage(w.Usage.UID, w.Usage.Seq), w.Usage))
	}
	failpoint.Hit("state.before-forget")
	revision, err := l.repo.store.Commit(ctx, l.conds(base), ops)
	if err != nil {
		return 0, fmt.Errorf("forget cluster %q: %w", base.Name(), err)
	}
	failpoint.Hit("state.after-forget")
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

// quarantinesPerCommit is how many quarantines are written in the commit of a record, which has room for store.MaxOps writes.
const quarantinesPerCommit = store.MaxOps / 2

// quarantinesAhead writes the quarantines that have no room in the commit of the record, and returns the others. For a moment, or after a crash
// until they are decided again, they are taken twice, which is never free.
func (l *Leader) quarantinesAhead(ctx context.Context, base *Cluster, quarantines []api.Quarantine) ([]api.Quarantine, error) {
	for len(quarantines) > quarantinesPerCommit {
		n := min(len(quarantines)-quarantinesPerCommit, store.MaxOps)
		if _, err := l.repo.store.Commit(ctx, l.conds(base), putQuarantines(quarantines[:n])); err != nil {
			return nil, err
		}
		quarantines = quarantines[n:]
	}
	return quarantines, nil
}

// headerOps writes the record with all that belongs to it, quarantines as far as they are given, and removes the chunks that it no longer names.
func headerOps(base *Cluster, w Write, quarantines []api.Quarantine) []store.Op {
	ops := append([]store.Op{put(prefixRecord+w.Record.Name, w.Record)}, putQuarantines(quarantines)...)
	for i := range w.Networks {
		ops = append(ops, put(prefixNetwork+w.Networks[i].UID, w.Networks[i]))
	}
	for _, j := range w.Joins {
		ops = append(ops, put(prefixNetUse+j.UID, networkUse{Newest: w.Record.Name}))
	}
	if w.Usage != nil {
		ops = append(ops, put(keyUsage(w.Usage.UID, w.Usage.Seq), w.Usage))
	}
	if base.Record != nil {
		named := map[string]bool{}
		for _, ref := range w.Record.Chunks {
			named[ref.ID] = true
		}
		for _, ref := range base.Record.Chunks {
			// What does not fit the commit is left to CollectGarbage.
			if !named[ref.ID] && len(ops) < store.MaxOps {
				ops = append(ops, store.Op{Key: keyChunk(w.Record.UID, ref.ID), Delete: true})
			}
		}
	}
	return ops
}

func putQuarantines(quarantines []api.Quarantine) []store.Op {
	ops := make([]store.Op, len(quarantines))
	for i := range quarantines {
		ops[i] = put(prefixQuarantine+quarantines[i].Assignment.ID, quarantines[i])
	}
	return ops
}
