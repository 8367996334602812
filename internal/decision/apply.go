package decision

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// settledAfter is how long a member must have held its place for its loss not to count as another in a row.
const settledAfter = 10 * time.Minute

// Apply returns what one commit of these operations writes. It refuses, and nothing is to be written, when an operation does not fit what is
// committed: then the plan was made on something else, or is wrong. A time before what is committed counts as that.
func Apply(c Cluster, ops []lifecycle.ClusterOperation, now time.Time) (Change, error) {
	if change, ok := passOn(c, ops, now); ok {
		return change, nil
	}
	if err := c.check(); err != nil {
		return Change{}, fmt.Errorf("cluster %q: %w", c.Name(), err)
	}
	a := newApplier(c, c.notBefore(now))
	for _, op := range ops {
		if err := a.apply(op); err != nil {
			return Change{}, fmt.Errorf("cluster %q: %T: %w", c.Name(), op, err)
		}
	}
	if err := a.finish(); err != nil {
		return Change{}, fmt.Errorf("cluster %q: %w", c.Name(), err)
	}
	return a.change, nil
}

// passOn returns a change that writes nothing, and false if any operation needs more: most looks at most clusters end with it.
func passOn(c Cluster, ops []lifecycle.ClusterOperation, now time.Time) (Change, bool) {
	var a applier
	a.c, a.now = c, now
	if c.Record != nil {
		a.change.Record = *c.Record
	}
	for _, op := range ops {
		if !a.pass(op) {
			return Change{}, false
		}
	}
	return a.change, true
}

// fate is what becomes of a committed assignment.
type fate int

const (
	stays    fate = iota
	released      // held before, releasing now
	dropped       // a spare: gone without cleaning
	changed       // held before and after, as place.next
	cleaned       // releasing before, confirmed clean or in quarantine now, or clean already
)

// place is a committed assignment, where it stands and what becomes of it.
type place struct {
	assignment *api.Assignment
	chunk      int
	fate       fate
	// next is what a changed one is from this commit on.
	next *api.Assignment
}

// applier gathers what operations do to one cluster.
type applier struct {
	c      Cluster
	now    time.Time
	change Change
	record *api.ClusterRecord // change.Record
	places map[string]*place
	parts  map[string][]*place // by the ID of their member
	held   []api.Assignment    // new ones
	left   []api.Assignment    // new ones that are releasing: what members let go of that others have to prove clean
	spans  spans
	// moved: assignments changed, so the generation does.
	moved bool
}

func newApplier(c Cluster, now time.Time) *applier {
	a := &applier{c: c, now: now, change: Change{Record: c.cloneRecord()}, places: map[string]*place{}, parts: map[string][]*place{}}
	a.record = &a.change.Record
	clean := c.clean()
	for i, chunk := range c.Chunks {
		for j := range chunk.Assignments {
			p := &place{assignment: &chunk.Assignments[j], chunk: i}
			if clean[p.assignment.ID] {
				p.fate = cleaned
			}
			a.places[p.assignment.ID] = p
			if p.assignment.IsPart() {
				a.parts[p.assignment.Of] = append(a.parts[p.assignment.Of], p)
			}
		}
	}
	return a
}

// pass hands on what is not stored with the cluster. It reports whether the operation was of that kind.
func (a *applier) pass(op lifecycle.ClusterOperation) bool {
	switch op := op.(type) {
	case lifecycle.Emit:
		a.change.Events = append(a.change.Events, api.Event{
			Time: a.now, Cluster: a.c.Name(), Reason: op.Reason, Message: op.Message, Member: op.Member, Node: op.Node,
		})
	case lifecycle.WakeAt:
		if a.change.WakeAt.IsZero() || op.Time.Before(a.change.WakeAt) {
			a.change.WakeAt = op.Time
		}
	case lifecycle.Need:
		a.change.Needs = append(a.change.Needs, op)
	default:
		return false
	}
	return true
}

func (a *applier) apply(op lifecycle.ClusterOperation) error {
	if a.pass(op) {
		return nil
	}
	a.change.Dirty = true
	if a.change.Forget {
		return fmt.Errorf("an earlier operation already removed the cluster")
	}
	switch op := op.(type) {
	case lifecycle.SetPhase:
		return a.setPhase(op)
	case lifecycle.Hold:
		return a.hold(op)
	case lifecycle.Release:
		return a.release(op)
	case lifecycle.ReleaseServers:
		return a.releaseServers(op.IDs)
	case lifecycle.Shelve:
		return a.shelve(op.IDs)
	case lifecycle.KeepFiles:
		a.change.Record.Files = op.Files
		return nil
	case lifecycle.TakeOver:
		return a.takeOver(op.IDs)
	case lifecycle.Resize:
		return a.resize(op)
	case lifecycle.Resized:
		return a.resized(op.IDs)
	case lifecycle.ClaimVolumes:
		return a.claimVolumes(op)
	case lifecycle.VolumesClaimed:
		return a.volumesClaimed(op)
	case lifecycle.NoteDetached:
		return a.noteDetached(op.Detached)
	case lifecycle.NoteLayers:
		return a.noteLayers(op.Number)
	case lifecycle.Withdraw:
		return a.withdraw(op.IDs)
	case lifecycle.MoveEnd:
		return a.moveEnd(op)
	case lifecycle.MoveReported:
		return a.moveReported(op)
	case lifecycle.HoldSnapshot:
		return a.holdSnapshot(op.Snapshot)
	case lifecycle.NoteSnapshot:
		return a.noteSnapshot(op)
	case lifecycle.ForgetSnapshots:
		return a.forgetSnapshots(op.Names)
	case lifecycle.RestoreSnapshot:
		return a.restoreSnapshot(op.Snapshot)
	case lifecycle.RefuseSnapshotRestore:
		a.record.SnapshotRestore = &api.SnapshotRestoreRecord{Name: op.Snapshot.Name, AskedAt: op.Snapshot.AskedAt, Failed: brief(op.Reason)}
		return nil
	case lifecycle.GiveUp:
		return a.giveUp(op.Reason)
	case lifecycle.Drop:
		return a.drop(op)
	case lifecycle.Warn:
		a.record.WarnedFor = &op.For
		return nil
	case lifecycle.Expire:
		if a.record.ExpiredAt != nil {
			return fmt.Errorf("its time limit already passed at %s", a.record.ExpiredAt)
		}
		at := a.now
		a.record.ExpiredAt = &at
		return nil
	case lifecycle.ConfirmClean:
		return a.confirm(op.IDs)
	case lifecycle.NoteProofs:
		return a.prove(op.Proofs)
	case lifecycle.Quarantine:
		return a.quarantine(op)
	case lifecycle.Forget:
		return a.forget()
	default:
		return &lifecycle.UnhandledOperation{Handler: "the cluster's decision", Operation: op}
	}
}

func (a *applier) setPhase(op lifecycle.SetPhase) error {
	if op.To != a.record.Phase {
		if err := lifecycle.Clusters().Check(a.record.Phase, op.To); err != nil {
			return err
		}
		a.record.ChangedAt = a.now
	}
	a.record.Phase, a.record.Message = op.To, op.Message
	// One that was made larger while it started has had its first members ready, too, when it is scaling.
	if (op.To == api.ClusterReady || op.To == api.ClusterScaling) && a.record.ReadyAt == nil {
		at := a.now
		a.record.ReadyAt = &at
	}
	return nil
}

// release lets go of held assignments: members are to be cleaned, spares are gone.
func (a *applier) release(op lifecycle.Release) error {
	for _, id := range op.IDs {
		p, err := a.heldPlace(id)
		if err != nil {
			return err
		}
		if p.assignment.IsPart() {
			return fmt.Errorf("assignment %s is a part of %s, and released with it", id, p.assignment.Of)
		}
		a.moved = true
		a.spans.add(api.SpanAllocated, p.assignment, p.assignment.TakenAt, a.now)
		if p.assignment.Spare {
			p.fate = dropped
			continue
		}
		p.fate = released
		a.releaseParts(id)
		if !op.Lost {
			continue
		}
		if a.lost(p.assignment.Member) >= 0 {
			return fmt.Errorf("member %s already waits for a replacement", p.assignment.Member)
		}
		a.record.Lost = append(a.record.Lost, a.note(p.assignment, op.Reason))
	}
	return nil
}

// releaseServers lets go of servers of GPUs, whose members stay.
func (a *applier) releaseServers(ids []string) error {
	for _, id := range ids {
		p, err := a.heldPlace(id)
		if err != nil {
			return err
		}
		if !p.assignment.ServesGPU() {
			return fmt.Errorf("assignment %s is no server of GPUs", id)
		}
		a.moved = true
		a.spans.add(api.SpanAllocated, p.assignment, p.assignment.TakenAt, a.now)
		p.fate = released
	}
	return nil
}

// releaseParts lets go of what a member holds besides its own.
func (a *applier) releaseParts(member string) {
	for _, p := range a.parts[member] {
		if p.fate != stays || a.c.Chunks[p.chunk].Ref.Releasing {
			continue // a successor that was withdrawn, or has taken over
		}
		p.fate = released
		a.spans.add(api.SpanAllocated, p.assignment, p.assignment.TakenAt, a.now)
	}
}

// note is what is remembered of a lost member until it is replaced.
func (a *applier) note(m *api.Assignment, reason string) api.LostMember {
	attempt := m.Attempt + 1
	if a.now.Sub(m.TakenAt) >= settledAfter {
		attempt = 1
	}
	var shape *api.Shape
	if m.Stack == api.StackVM { // others are never resized
		held := m.Held().Shape()
		shape = &held
	}
	return api.LostMember{
		Group: m.Group, Member: m.Member, Rank: m.Rank, Assignment: m.ID, Node: m.Node, Attempt: attempt, Reason: brief(reason), Since: a.now,
		Saved: m.Saved, Shape: shape,
	}
}

// maxReason bounds what is kept of why a member was lost, in bytes: it is the word of the member, and a thousand may be lost in one
// commit. The event has all of it.
const maxReason = 200

func brief(text string) string {
	if len(text) <= maxReason {
		return text
	}
	const more = "..."
	end := maxReason - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// heldPlace finds an assignment that is held, and was not let go of by an operation before.
func (a *applier) heldPlace(id string) (*place, error) {
	p := a.places[id]
	switch {
	case p == nil:
		return nil, fmt.Errorf("assignment %s does not belong to the cluster", id)
	case a.c.Chunks[p.chunk].Ref.Releasing || p.fate != stays:
		return nil, fmt.Errorf("assignment %s was already released", id)
	default:
		return p, nil
	}
}

// lost is the index of a name among the lost members, -1 for none.
func (a *applier) lost(member string) int {
	return slices.IndexFunc(a.record.Lost, func(m api.LostMember) bool { return m.Member == member })
}

func (a *applier) drop(op lifecycle.Drop) error {
	for _, name := range op.Members {
		i := a.lost(name)
		if i < 0 {
			return fmt.Errorf("member %s is not lost", name)
		}
		a.record.Lost = slices.Delete(a.record.Lost, i, i+1)
	}
	return nil
}

// releasingPlace finds an assignment that is being cleaned.
func (a *applier) releasingPlace(id string) (*place, error) {
	p := a.places[id]
	switch {
	case p == nil:
		return nil, fmt.Errorf("assignment %s does not belong to the cluster", id)
	case !a.c.Chunks[p.chunk].Ref.Releasing:
		return nil, fmt.Errorf("assignment %s is not being released", id)
	case p.fate == cleaned:
		return nil, fmt.Errorf("assignment %s is already clean", id)
	default:
		return p, nil
	}
}

// prove stores proofs of assignments that others still owe theirs for.
func (a *applier) prove(proofs []api.Proof) error {
	for _, proof := range proofs {
		p, err := a.releasingPlace(proof.Assignment)
		switch {
		case err != nil:
			return err
		case !slices.Contains(p.assignment.CleanBy, proof.Prover):
			return fmt.Errorf("the %s need not prove assignment %s clean", proof.Prover, proof.Assignment)
		case slices.Contains(a.record.Proved, proof):
			return fmt.Errorf("the %s already proved assignment %s clean", proof.Prover, proof.Assignment)
		}
		a.record.Proved = append(a.record.Proved, proof)
	}
	return nil
}

func (a *applier) confirm(ids []string) error {
	for _, id := range ids {
		p, err := a.releasingPlace(id)
		if err != nil {
			return err
		}
		a.clean(p)
	}
	return nil
}

// clean ends the cleaning of an assignment, as far as the cluster is concerned.
func (a *applier) clean(p *place) {
	p.fate = cleaned
	a.record.Proved = slices.DeleteFunc(a.record.Proved, func(o api.Proof) bool { return o.Assignment == p.assignment.ID })
	a.record.Clean = append(a.record.Clean, p.assignment.ID)
	a.spans.add(api.SpanCleaning, p.assignment, a.c.releasedAt(a.c.Chunks[p.chunk].Ref), a.now)
}

func (a *applier) quarantine(op lifecycle.Quarantine) error {
	p, err := a.releasingPlace(op.ID)
	if err != nil {
		return err
	}
	var proved []api.Proof
	for _, o := range a.record.Proved {
		if o.Assignment == op.ID {
			proved = append(proved, o)
		}
	}
	a.clean(p)
	a.change.Quarantines = append(a.change.Quarantines, api.Quarantine{Assignment: *p.assignment, Proved: proved, Reason: op.Reason, Since: a.now})
	return nil
}

func (a *applier) forget() error {
	if err := lifecycle.Clusters().Check(a.record.Phase, ""); err != nil {
		return err
	}
	for id, p := range a.places {
		if p.fate != cleaned && p.fate != dropped {
			return fmt.Errorf("assignment %s on node %s is not confirmed clean", id, p.assignment.Node)
		}
	}
	if len(a.held) > 0 {
		return fmt.Errorf("the same commit gives it %d assignments", len(a.held))
	}
	a.change.Forget = true
	return nil
}
