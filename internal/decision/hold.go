package decision

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// hold makes new assignments true. Spares whose room they take are gone in the same commit.
func (a *applier) hold(op lifecycle.Hold) error {
	if len(op.Assignments) == 0 {
		return errors.New("it holds nothing")
	}
	if err := a.holdNumbers(op); err != nil {
		return err
	}
	for _, id := range op.Spares {
		p, err := a.heldPlace(id)
		if err != nil {
			return err
		}
		if !p.assignment.Spare {
			return fmt.Errorf("assignment %s is a member, not a spare: its room is not free until it is clean", id)
		}
		p.fate = dropped
		a.spans.add(api.SpanAllocated, p.assignment, p.assignment.TakenAt, a.now)
	}
	for _, n := range op.Assignments {
		if err := a.checkNew(n); err != nil {
			return err
		}
		if n.Replaces != "" {
			i := a.lost(n.Member)
			a.record.Lost = slices.Delete(a.record.Lost, i, i+1)
		}
		n.TakenAt = a.now
		a.held = append(a.held, n)
	}
	a.moved = true
	if a.record.PlacedAt == nil {
		at := a.now
		a.record.PlacedAt = &at
	}
	return nil
}

// holdNumbers takes the networks and user IDs that the first assignments bring; later ones bring none.
func (a *applier) holdNumbers(op lifecycle.Hold) error {
	had := len(a.record.Networks) > 0
	switch {
	case len(op.Networks) == 0 && !had:
		return errors.New("the assignments bring no network, and the cluster has none")
	case len(op.Networks) > 0 && had:
		return fmt.Errorf("the assignments bring networks, but the cluster has %d already", len(a.record.Networks))
	case len(op.Networks) == 0 && len(op.Joined) > 0:
		return fmt.Errorf("the assignments join networks, but the cluster joined %d when it was placed", len(a.record.Joined))
	case len(op.Networks) == 0:
		return nil
	}
	for _, n := range op.Networks {
		if n.ClusterUID != a.c.UID() || n.Index == 0 || slices.Contains(a.record.Networks, api.NetworkRef{UID: n.UID, Prefix: n.Prefix}) {
			return fmt.Errorf("network %s (%s, index %d) is no new one of the cluster", n.Name, n.UID, n.Index)
		}
		a.record.Networks = append(a.record.Networks, api.NetworkRef{UID: n.UID, Prefix: n.Prefix})
	}
	for _, ref := range op.Joined {
		if ref.UID == "" || ref.Name == "" || slices.Contains(a.record.Joined, ref) || slices.ContainsFunc(op.Networks, func(n api.Network) bool { return n.UID == ref.UID }) {
			return fmt.Errorf("network %q (%s) is no other one that the cluster can join", ref.Name, ref.UID)
		}
		a.record.Joined = append(a.record.Joined, ref)
	}
	a.record.UserIDs, a.change.Networks = op.UserIDs, op.Networks
	return nil
}

// checkNew reports what is wrong with a new assignment.
func (a *applier) checkNew(n api.Assignment) error {
	generation := int64(1)
	if a.c.Record != nil {
		generation = a.c.Record.Generation + 1
	}
	lost := a.lost(n.Member)
	switch {
	case n.ID == "" || a.places[n.ID] != nil:
		return fmt.Errorf("the ID of assignment %q is taken", n.ID)
	case n.ClusterUID != a.c.UID():
		return fmt.Errorf("assignment %s belongs to cluster UID %q, not %q", n.ID, n.ClusterUID, a.c.UID())
	case n.Generation != generation:
		return fmt.Errorf("assignment %s has generation %d, but the next generation is %d", n.ID, n.Generation, generation)
	case len(n.CleanBy) == 0:
		return fmt.Errorf("assignment %s names no prover that must prove it clean", n.ID)
	case n.IsSuccessor():
		return a.checkSuccessor(n)
	case n.From != "" && n.Resumes == "":
		return fmt.Errorf("assignment %s succeeds %s, but is no part of it: nothing takes over before it runs", n.ID, n.From)
	case n.IsPart():
		return a.checkPart(n)
	case n.IsSnapshot():
		return a.checkFree(n)
	case n.Spare && (n.Rank != lifecycle.NoRank || n.Replaces != ""):
		return fmt.Errorf("spare %s has rank %d and replaces %q; a spare has no rank and replaces no member", n.ID, n.Rank, n.Replaces)
	case n.Spare:
		return a.checkFree(n)
	case n.Rank < 0:
		return fmt.Errorf("member %s has no rank", n.Member)
	case n.Replaces == "" && lost >= 0:
		return fmt.Errorf("member %s waits for a replacement of %s, but %s replaces no assignment", n.Member, a.record.Lost[lost].Assignment, n.ID)
	case n.Replaces != "" && (lost < 0 || a.record.Lost[lost].Assignment != n.Replaces || a.record.Lost[lost].Rank != n.Rank):
		return fmt.Errorf("assignment %s replaces %s at rank %d, but no such member is lost", n.ID, n.Replaces, n.Rank)
	default:
		return a.checkFree(n)
	}
}

// sameAddress returns an address that both have in one network; not valid when there is none.
func sameAddress(a, b *api.Assignment) netip.Addr {
	for _, p := range a.Ports {
		for _, q := range b.Ports {
			if p.Address.IsValid() && p.Address == q.Address && p.Network == q.Network {
				return p.Address
			}
		}
	}
	return netip.Addr{}
}

// checkPart reports what is wrong with a part of a member: that member must be given its place in the same commit, before its parts.
func (a *applier) checkPart(n api.Assignment) error {
	of := slices.IndexFunc(a.held, func(m api.Assignment) bool { return m.ID == n.Of })
	if of < 0 && n.ServesGPU() {
		return a.checkServer(n)
	}
	switch {
	case of < 0 || a.held[of].IsPart():
		return fmt.Errorf("assignment %s is a part of %s, which is no member that is placed with it", n.ID, n.Of)
	case n.Spare || n.Rank != lifecycle.NoRank || n.Replaces != "" || n.Member != a.held[of].Member:
		return fmt.Errorf("assignment %s is a part of member %s, but has a name, a rank or a past of its own", n.ID, a.held[of].Member)
	default:
		return a.checkFree(n)
	}
}

// checkServer reports what is wrong with another GPU server of a member that has its place: that member must have none.
func (a *applier) checkServer(n api.Assignment) error {
	of, err := a.heldPlace(n.Of)
	switch {
	case err != nil:
		return fmt.Errorf("assignment %s is a server of %s: %w", n.ID, n.Of, err)
	case !of.assignment.IsMember() || of.assignment.Saved || n.Spare || n.Rank != lifecycle.NoRank || n.Replaces != "" || n.Member != of.assignment.Member:
		return fmt.Errorf("assignment %s is a server of %s, which is no member that runs, or has a name, a rank or a past of its own", n.ID, n.Of)
	}
	for _, p := range a.parts[n.Of] {
		if p.fate == stays && !a.c.Chunks[p.chunk].Ref.Releasing && p.assignment.ServesGPU() {
			return fmt.Errorf("assignment %s is a server of %s, which has one: %s", n.ID, n.Of, p.assignment.ID)
		}
	}
	return a.checkFree(n)
}

// checkFree reports what of a new assignment another one has: its ID, name or rank while one of the cluster holds it, its address until any
// that holds it is clean.
func (a *applier) checkFree(n api.Assignment) error {
	against := func(other *api.Assignment, held bool) error {
		switch {
		case n.ID == other.ID:
			return fmt.Errorf("the ID of assignment %q is taken", n.ID)
		case sameAddress(&n, other).IsValid() && (n.From == "" || n.From != other.ID):
			return fmt.Errorf("assignment %s takes the address %s of %s, which is not clean", n.ID, sameAddress(&n, other), other.ID)
		case n.IsPart() || other.IsPart() || n.IsSnapshot() || other.IsSnapshot(): // these have their member's name, and no rank
			return nil
		case held && n.Member == other.Member:
			return fmt.Errorf("assignment %s is for member %s, which already has assignment %s", n.ID, n.Member, other.ID)
		case held && !n.Spare && n.Rank == other.Rank:
			return fmt.Errorf("assignment %s has rank %d, which %s already has", n.ID, n.Rank, other.ID)
		default:
			return nil
		}
	}
	for _, p := range a.places {
		if p.fate == cleaned || p.fate == dropped {
			continue
		}
		if err := against(p.assignment, p.fate == stays && !a.c.Chunks[p.chunk].Ref.Releasing); err != nil {
			return err
		}
	}
	for i := range a.held {
		if err := against(&a.held[i], true); err != nil {
			return err
		}
	}
	for i := range a.c.Beside {
		if address := sameAddress(&n, &a.c.Beside[i]); address.IsValid() {
			return fmt.Errorf("assignment %s takes the address %s of %s, which is of another cluster and not clean", n.ID, address, a.c.Beside[i].ID)
		}
	}
	for _, m := range a.record.Lost {
		if m.Member != n.Member && m.Rank == n.Rank {
			return fmt.Errorf("assignment %s has rank %d, which is reserved for lost member %s", n.ID, n.Rank, m.Member)
		}
	}
	return nil
}
