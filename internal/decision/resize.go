package decision

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// resize decides the new size of a member. From this commit on the member holds what either size takes. It gives nothing up: the machine may have
// its former size as long as its node has not reported the new one.
func (a *applier) resize(op lifecycle.Resize) error {
	p, err := a.heldPlace(op.Assignment)
	if err != nil {
		return err
	}
	was := p.assignment
	switch held := was.Held(); {
	case !was.IsMember() || was.Saved || was.Whole:
		return fmt.Errorf("assignment %s is no member that can have another size", was.ID)
	case slices.ContainsFunc(a.parts[was.ID], func(o *place) bool { return o.assignment.IsSuccessor() && !a.c.Chunks[o.chunk].Ref.Releasing }):
		return fmt.Errorf("assignment %s is being succeeded, and must keep its size until then", was.ID)
	case op.To.Number != was.Wants().Number+1:
		return fmt.Errorf("size %d of assignment %s does not follow size %d", op.To.Number, was.ID, was.Wants().Number)
	case !covers(op.Hold, held):
		return fmt.Errorf("assignment %s would give up a part of its former size before its node has", was.ID)
	case !covers(op.Hold, op.To):
		return fmt.Errorf("assignment %s would not hold all of its new size", was.ID)
	}
	next := was.Sized(op.Hold)
	next.SizeNumber = was.SizeNumber
	next.Resizing = &api.Resizing{From: was.Has(), To: op.To}
	a.resizeTo(p, next)
	return nil
}

// resized ends resizes whose members have their new size: nothing else is held from this commit on.
func (a *applier) resized(ids []string) error {
	for _, id := range ids {
		p, err := a.heldPlace(id)
		if err != nil {
			return err
		}
		if p.assignment.Resizing == nil {
			return fmt.Errorf("assignment %s is not being resized", id)
		}
		a.resizeTo(p, p.assignment.Sized(p.assignment.Resizing.To))
	}
	return nil
}

// resizeTo changes what an assignment holds. Where that is another amount, the use of the former one ends.
func (a *applier) resizeTo(p *place, next api.Assignment) {
	if was := p.assignment; !resource.OfAssignment(was).Equal(resource.OfAssignment(&next)) {
		a.spans.add(api.SpanAllocated, was, was.TakenAt, a.now)
		at := a.now
		next.SizedAt = &at
	}
	a.moved = true
	p.fate, p.next = changed, &next
}

// covers reports whether one size takes all that another takes of the node.
func covers(all, part api.Size) bool {
	for _, s := range part.Slots {
		if !slices.Contains(all.Slots, s) {
			return false
		}
	}
	for _, m := range part.Memory {
		i := slices.IndexFunc(all.Memory, func(o api.MemoryClaim) bool { return o.NUMANode == m.NUMANode && o.PageBytes == m.PageBytes })
		if i < 0 || all.Memory[i].Bytes < m.Bytes {
			return false
		}
	}
	return all.ReserveBytes >= part.ReserveBytes && all.DiskBytes >= part.DiskBytes
}
