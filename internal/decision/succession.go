package decision

import (
	"errors"
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// shelve cuts saved members down to what they hold on a disk: their ports. Their use of cores and memory ends.
func (a *applier) shelve(ids []string) error {
	for _, id := range ids {
		p, err := a.heldPlace(id)
		switch {
		case err != nil:
			return err
		case !p.assignment.IsMember() || p.assignment.Saved:
			return fmt.Errorf("assignment %s is no member that holds cores", id)
		}
		a.moved = true
		a.spans.add(api.SpanAllocated, p.assignment, p.assignment.TakenAt, a.now)
		next := *p.assignment
		next.Saved, next.Oversubscribed, next.ReserveBytes, next.TakenAt = true, false, 0, a.now
		next.Slots, next.CPUs, next.NUMANodes, next.Memory = []int{}, []int{}, []int{}, []api.MemoryClaim{}
		p.fate, p.next = changed, &next
	}
	return nil
}

// successorPlace finds a successor that is held, and the member that it succeeds.
func (a *applier) successorPlace(id string) (next, from *place, err error) {
	if next, err = a.heldPlace(id); err != nil {
		return nil, nil, err
	}
	if !next.assignment.IsSuccessor() {
		return nil, nil, fmt.Errorf("assignment %s succeeds nobody", id)
	}
	from, err = a.heldPlace(next.assignment.From)
	return next, from, err
}

// takeOver makes successors the members that they succeed, which are released: from this commit on, and not before, they are who is meant by
// their name.
func (a *applier) takeOver(ids []string) error {
	for _, id := range ids {
		p, from, err := a.successorPlace(id)
		if err != nil {
			return err
		}
		a.moved = true
		next, was := *p.assignment, from.assignment
		a.spans.add(api.SpanAllocated, p.assignment, p.assignment.TakenAt, a.now)
		a.spans.add(api.SpanAllocated, was, was.TakenAt, a.now)
		next.Of, next.Rank, next.Replaces, next.Attempt, next.TakenAt = "", was.Rank, was.Replaces, was.Attempt, a.now
		p.fate, p.next, from.fate = changed, &next, released
		a.releaseParts(was.ID)
	}
	return nil
}

// withdraw releases successors; the members stay what they are.
func (a *applier) withdraw(ids []string) error {
	for _, id := range ids {
		p, _, err := a.successorPlace(id)
		if err != nil {
			return err
		}
		a.moved = true
		a.spans.add(api.SpanAllocated, p.assignment, p.assignment.TakenAt, a.now)
		p.fate = released
	}
	return nil
}

func (a *applier) giveUp(reason string) error {
	if a.c.Intent == nil || a.c.Intent.SaveAskedAt == nil {
		return errors.New("nobody asked to save or to restore it")
	}
	a.record.GaveUp = &api.GaveUp{AskedAt: *a.c.Intent.SaveAskedAt, Reason: brief(reason)}
	return nil
}

// checkSuccessor tells what is wrong with where a member is to go on: it must be the same member, and the only one that succeeds it.
func (a *applier) checkSuccessor(n api.Assignment) error {
	p, err := a.heldPlace(n.From)
	if err != nil {
		return err
	}
	succeeds := func(other *api.Assignment) bool { return other.IsSuccessor() && other.From == n.From }
	taken := slices.ContainsFunc(a.parts[n.From], func(o *place) bool {
		return o.fate == stays && !a.c.Chunks[o.chunk].Ref.Releasing && succeeds(o.assignment)
	}) || slices.ContainsFunc(a.held, func(h api.Assignment) bool { return succeeds(&h) })
	switch m := p.assignment; {
	case !m.IsMember() || m.Member != n.Member || m.Group != n.Group || m.EnvironmentDigest != n.EnvironmentDigest || !slices.EqualFunc(m.Ports, n.Ports, samePort):
		return fmt.Errorf("assignment %s is to succeed %s, but is not the same member", n.ID, n.From)
	case n.Spare || n.Rank != lifecycle.NoRank || n.Replaces != "":
		return fmt.Errorf("assignment %s is to succeed %s, but has a rank or a past of its own", n.ID, n.From)
	case taken:
		return fmt.Errorf("assignment %s is to succeed %s, which another one is to succeed already", n.ID, n.From)
	default:
		return a.checkFree(n)
	}
}

// samePort reports whether two ports are one to the networks: where a node has them is its own business.
func samePort(a, b api.PortClaim) bool {
	return a.Network == b.Network && a.Address == b.Address && a.MAC == b.MAC
}
