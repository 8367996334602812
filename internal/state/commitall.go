package state

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/store"
)

// Decided is a write with the view of the cluster that it was decided on.
type Decided struct {
	Base  *Cluster
	Write Write
}

// Outcome is what became of a write: the revision that it is true in, or why it is not, or not known to be.
type Outcome struct {
	Revision int64
	Err      error
}

// header is the commit that makes a write true, with the chunks that go ahead of it.
type header struct {
	at     int // in the list of CommitAll
	base   *Cluster
	write  Write
	ops    []store.Op
	chunks []store.Op
}

// condsOfHeader is how many conditions a header has besides the guard of the leadership and those on joined networks.
const condsOfHeader = 2

// CommitAll makes decisions about different clusters true, each as Commit does: all of it or none, whatever becomes of the others. What has room
// beside each other goes in one commit, since each costs a sync of the disk; when a condition of it fails, each is tried by itself.
// Outcomes are in the order of the decisions.
func (l *Leader) CommitAll(ctx context.Context, all []Decided) []Outcome {
	outcomes := make([]Outcome, len(all))
	var headers []header
	for i, d := range all {
		if d.Write.Forget {
			outcomes[i].Revision, outcomes[i].Err = l.forget(ctx, d.Base, d.Write)
			continue
		}
		if err := fits(d.Base, d.Write); err != nil {
			outcomes[i].Err = err
			continue
		}
		headers = append(headers, l.header(i, d))
	}
	headers = l.aheadOf(ctx, headers, outcomes)
	for len(headers) > 0 {
		n := together(headers)
		l.commitTogether(ctx, headers[:n], outcomes)
		headers = headers[n:]
	}
	return outcomes
}

// header prepares a write.
func (l *Leader) header(at int, d Decided) header {
	h := header{at: at, base: d.Base, write: d.Write}
	if len(d.Write.Add) > 0 {
		refs, chunks := l.cut(d.Write.Record.UID, d.Write.Add)
		h.write.Record.Chunks, h.chunks = slices.Concat(d.Write.Record.Chunks, refs), chunks
	}
	return h
}

// aheadOf writes the chunks of all headers, and quarantines that have no room in them, and returns those for which that is done, with all that
// they write.
func (l *Leader) aheadOf(ctx context.Context, headers []header, outcomes []Outcome) []header {
	var chunks []store.Op
	for _, h := range headers {
		chunks = append(chunks, h.chunks...)
	}
	var failed error
	if len(chunks) > 0 {
		if failed = l.writeAhead(ctx, chunks); failed == nil {
			failpoint.Hit("state.after-chunks")
			failpoint.Hit("state.before-header")
		}
	}
	var ready []header
	for _, h := range headers {
		if failed != nil && len(h.chunks) > 0 {
			l.finish(h, outcomes, 0, fmt.Errorf("write the assignment chunks of cluster %q: %w", h.write.Record.Name, failed))
			continue
		}
		quarantines, err := l.quarantinesAhead(ctx, h.base, h.write.Quarantines)
		if err != nil {
			l.finish(h, outcomes, 0, explained(h, err))
			continue
		}
		h.ops = headerOps(h.base, h.write, quarantines)
		ready = append(ready, h)
	}
	return ready
}

// together returns how many of the headers have room in one commit, at least one.
func together(headers []header) int {
	ops, bytes, conds := 0, 0, 1
	for n, h := range headers {
		ops, conds = ops+len(h.ops), conds+condsOfHeader+len(h.write.Joins)
		for _, op := range h.ops {
			bytes += len(op.Key) + len(op.Value)
		}
		if n > 0 && (ops > store.MaxOps || conds > store.MaxOps || bytes > store.MaxBytes) {
			return n
		}
	}
	return len(headers)
}

// commitTogether makes headers true in one commit, or, when a condition of one of them fails, those whose own conditions hold.
func (l *Leader) commitTogether(ctx context.Context, headers []header, outcomes []Outcome) {
	conds, ops := []store.Cond{l.leadership.Guard()}, []store.Op(nil)
	joined := map[string]bool{}
	for _, h := range headers {
		conds = append(conds, l.conds(h.base)[1:]...)
		for _, j := range h.write.Joins {
			conds = append(conds, store.Cond{Key: prefixNetUse + j.UID, Revision: j.revision})
		}
		for _, op := range h.ops {
			if prefix, _ := splitKey(op.Key); prefix == prefixNetUse { // several may join one network, and a commit writes a key once
				if joined[op.Key] {
					continue
				}
				joined[op.Key] = true
			}
			ops = append(ops, op)
		}
	}
	revision, err := l.repo.store.Commit(ctx, conds, ops)
	if errors.Is(err, store.ErrConflict) && len(headers) > 1 {
		for i := range headers {
			l.commitTogether(ctx, headers[i:i+1], outcomes)
		}
		return
	}
	for _, h := range headers {
		l.finish(h, outcomes, revision, explained(h, err))
	}
	if err == nil {
		hitAfter(headers)
	}
}

// hitAfter marks that headers are committed.
func hitAfter(headers []header) {
	if slices.ContainsFunc(headers, func(h header) bool { return len(h.chunks) > 0 }) {
		failpoint.Hit("state.after-header")
	} else {
		failpoint.Hit("state.after-record")
	}
}

func explained(h header, err error) error {
	switch {
	case err == nil:
		return nil
	case len(h.chunks) == 0:
		return fmt.Errorf("commit %q of cluster %q: %w", h.write.Record.Phase, h.write.Record.Name, err)
	default:
		return fmt.Errorf("commit generation %d of cluster %q: %w", h.write.Record.Generation, h.write.Record.Name, err)
	}
}

// finish notes the outcome of a header. After an error that is neither yes nor no the commit may still become true later, so its chunks stay noted
// as in flight: they must not be collected in this leadership.
func (l *Leader) finish(h header, outcomes []Outcome, revision int64, err error) {
	outcomes[h.at] = Outcome{Revision: revision, Err: err}
	if err == nil || errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotLeader) {
		l.landed(h.chunks)
	}
}
