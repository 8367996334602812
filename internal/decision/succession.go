package decision

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// shelve cuts saved members down to what they hold on a disk: their ports. Their use of cores, memory and functions of adapters ends. A node reports a
// member saved once its functions are released and read back, so they are free. Only a fabric's proof is missing of whole ports on fabrics.
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
		next.SizedAt, next.Resizing = nil, nil
		next.Slots, next.CPUs, next.NUMANodes, next.Memory = []int{}, []int{}, []int{}, []api.MemoryClaim{}
		var fenced []api.PortClaim
		next.Devices = nil
		if next.Ports, fenced = p.assignment.LetGo(); len(fenced) > 0 {
			a.left = append(a.left, partOn(p.assignment, fenced, a.record.Generation+1, a.now))
		}
		p.fate, p.next = changed, &next
	}
	return nil
}

// partOn is a part of a member that holds whole ports on fabrics until these prove them clean. The ports have no address: that stays the member's.
func partOn(m *api.Assignment, ports []api.PortClaim, generation int64, now time.Time) api.Assignment {
	part := api.Assignment{
		ID: m.ID + "-ports", Of: m.ID, ClusterUID: m.ClusterUID, Cluster: m.Cluster, Generation: generation, Group: m.Group, Member: m.Member,
		Rank: lifecycle.NoRank, Node: m.Node, CleanBy: api.ByAgents(m.Node), UserIDs: m.UserIDs, Stack: m.Stack, TakenAt: now,
	}
	for _, p := range ports {
		for _, c := range m.Devices {
			if c.Device == p.Device && c.Part == p.Part {
				part.Devices = append(part.Devices, c)
			}
		}
		if by := (api.Prover{By: api.ExecutorFabric, At: p.Fabric}); !slices.Contains(part.CleanBy, by) {
			part.CleanBy = append(part.CleanBy, by)
		}
		p.Address, p.MAC = netip.Addr{}, ""
		part.Ports = append(part.Ports, p)
	}
	return part
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
		if !p.assignment.Live && !from.assignment.Saved {
			return fmt.Errorf("assignment %s is to go on from disk, but %s is not saved", id, from.assignment.ID)
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

// movesKept is how many ends of moves a record keeps, the newest.
const movesKept = 2 * lifecycle.MembersPerMove

// moveEnd notes how the move of a member ended.
func (a *applier) moveEnd(op lifecycle.MoveEnd) error {
	p, err := a.heldPlace(op.Assignment)
	if err != nil {
		return err
	}
	var asked *api.MoveIntent
	if a.c.Intent != nil {
		asked = a.c.Intent.Move
	}
	kept := slices.DeleteFunc(a.record.Moves, func(r api.MoveRecord) bool { // of what is gone, nobody asks but the last request
		return a.places[r.Assignment] == nil && (asked == nil || !asked.AskedAt.Equal(r.AskedAt))
	})
	kept = append(kept, api.MoveRecord{
		AskedAt: op.AskedAt, Assignment: op.Assignment, Member: p.assignment.Member, From: p.assignment.Node, To: op.To, Failed: brief(op.Failed), EndedAt: a.now,
	})
	a.record.Moves = kept[max(0, len(kept)-movesKept):]
	return nil
}

// moveReported adds what a move took to its end.
func (a *applier) moveReported(op lifecycle.MoveReported) error {
	i := slices.IndexFunc(a.record.Moves, func(r api.MoveRecord) bool { return r.Assignment == op.Assignment && r.Failed == "" })
	if i < 0 {
		return fmt.Errorf("no move of assignment %s ended well", op.Assignment)
	}
	a.record.Moves[i].Report = &op.Report
	return nil
}

// checkSuccessor reports what is wrong with where a member is to go on: it must be the same member, and the only one that succeeds it.
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
	case m.Resizing != nil:
		return fmt.Errorf("assignment %s is to succeed %s, which is being resized", n.ID, n.From)
	case n.Live && (m.Saved || n.Node == m.Node):
		return fmt.Errorf("assignment %s is to take over from %s while that runs on another node, but it is saved, or on the same", n.ID, n.From)
	case n.Spare || n.Rank != lifecycle.NoRank || n.Replaces != "":
		return fmt.Errorf("assignment %s is to succeed %s, but has a rank or a past of its own", n.ID, n.From)
	case taken:
		return fmt.Errorf("assignment %s is to succeed %s, which another one is to succeed already", n.ID, n.From)
	default:
		return a.checkFree(n)
	}
}

// samePort reports whether a successor may have the second port in the place of the first: with the same identity, the same restrictions and the same
// quality of service.
func samePort(a, b api.PortClaim) bool {
	return a.SameAs(&b) && slices.Equal(a.SecurityGroups, b.SecurityGroups) && a.Quality == b.Quality
}
