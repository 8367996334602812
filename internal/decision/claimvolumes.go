package decision

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// claimVolumes gives a member other claims on volumes. It gives none up: the member may have the volume as long as its node has not reported that it
// has let go.
func (a *applier) claimVolumes(op lifecycle.ClaimVolumes) error {
	p, err := a.heldPlace(op.Assignment)
	if err != nil {
		return err
	}
	was := p.assignment
	if !was.IsMember() && !was.Spare || was.Saved {
		return fmt.Errorf("assignment %s is no member that can have other volumes", was.ID)
	}
	next := *was
	next.Volumes = slices.Clone(op.Volumes)
	for _, c := range was.Volumes {
		kept := slices.ContainsFunc(next.Volumes, func(n api.VolumeClaim) bool {
			return n.UID == c.UID && n.Path == c.Path && n.ReadOnly == c.ReadOnly && n.Node == c.Node
		})
		if !kept && !was.Spare { // nothing is carried out for a spare
			return fmt.Errorf("assignment %s would give volume %q up before its node has", was.ID, c.Name)
		}
	}
	for i, c := range next.Volumes {
		if slices.ContainsFunc(next.Volumes[:i], func(o api.VolumeClaim) bool { return o.UID == c.UID }) {
			return fmt.Errorf("assignment %s would claim volume %q twice", was.ID, c.Name)
		}
	}
	if !was.Spare {
		next.VolumesNumber++
	}
	a.moved = true
	p.fate, p.next = changed, &next
	return nil
}

// volumesClaimed ends the changes of a member's volumes that its node has reported: what the member has let go of is claimed no more.
func (a *applier) volumesClaimed(op lifecycle.VolumesClaimed) error {
	p, err := a.heldPlace(op.Assignment)
	if err != nil {
		return err
	}
	if p.assignment.VolumesNumber != op.Number {
		return fmt.Errorf("assignment %s has volumes of number %d, not %d", p.assignment.ID, p.assignment.VolumesNumber, op.Number)
	}
	next := *p.assignment
	next.Volumes = slices.DeleteFunc(slices.Clone(next.Volumes), func(c api.VolumeClaim) bool { return c.Detaching })
	for i := range next.Volumes {
		next.Volumes[i].Number = 0
	}
	a.moved = true
	p.fate, p.next = changed, &next
	return nil
}

// noteDetached notes which volumes no member has any more.
func (a *applier) noteDetached(detached []api.VolumeDetach) error {
	for _, d := range detached {
		if slices.ContainsFunc(a.record.Detached, d.Same) {
			continue
		}
		for id, p := range a.places {
			if p.fate != cleaned && p.fate != dropped && slices.ContainsFunc(p.assignment.Volumes, func(c api.VolumeClaim) bool { return c.UID == d.UID }) {
				return fmt.Errorf("volume %q is still claimed by assignment %s", d.Name, id)
			}
		}
	}
	a.record.Detached = slices.Clone(detached)
	return nil
}
