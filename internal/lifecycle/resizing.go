package lifecycle

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// resizesPerLook is how many resizes begin, or end, in one commit: each rewrites a chunk of assignments, and ends a span of use.
const resizesPerLook = 300

// Resizable returns why members of a group can't be resized, or "".
func Resizable(g *api.Group) string {
	switch {
	case g.Stack != api.StackVM:
		return fmt.Sprintf("they run on stack %q; only members of stack %q can be resized", g.Stack, api.StackVM)
	case len(g.Devices) > 0:
		return "they have devices, which were chosen to suit their cores"
	default:
		return ""
	}
}

// ResizePending reports whether a member is to have another size than it has, by its group or by a decision that its node has not carried out.
func ResizePending(spec api.ClusterSpec, a *api.Assignment) bool {
	return a.Resizing != nil || resizes(spec, a) != nil
}

// resizes returns the group of a member whose size is not the one that was decided last; nil when it is, or can't become so.
func resizes(spec api.ClusterSpec, a *api.Assignment) *api.Group {
	if !a.IsMember() || a.Saved || a.Whole {
		return nil
	}
	for i := range spec.Groups {
		g := &spec.Groups[i]
		if g.Name == a.Group && Resizable(g) == "" && a.Wants().Shape() != g.Shape {
			return g
		}
	}
	return nil
}

// planResized ends the resizes of members whose node reports their new size.
func (l *look) planResized() []ClusterOperation {
	var ids []string
	var ops []ClusterOperation
	for _, m := range l.members {
		if m.Resizing == nil || m.loss != "" || m.seen.Size != m.Resizing.To.Number || len(ids) == resizesPerLook {
			continue
		}
		ids = append(ids, m.ID)
		ops = append(ops, Emit{Reason: EventResized, Message: fmt.Sprintf("%s has %s now", m.Member, shapeText(m.Resizing.To)), Member: m.Member, Node: m.Node})
	}
	if len(ids) == 0 {
		return nil
	}
	return append(ops, Resized{IDs: ids})
}

// planResizes asks for the room of members that are to have another size, each for itself: one without room does not hold up the others.
func (l *look) planResizes() []ClusterOperation {
	switch l.Record.Phase {
	case api.ClusterReady, api.ClusterDegraded, api.ClusterScaling:
	default:
		return nil
	}
	if l.Intent.Paused || WantsSaved(l.Intent, l.Record) {
		return nil
	}
	var ops []ClusterOperation
	for _, m := range l.members {
		_, moving := l.successors[m.ID]
		if m.loss != "" || moving || len(ops) == resizesPerLook || resizes(l.Intent.Spec, m.Assignment) == nil {
			continue
		}
		ops = append(ops, Need{Kind: NeedResize, Members: []WantedMember{{
			Group: m.Group, Member: m.Member, Rank: NoRank, Resizes: m.ID, On: m.Node,
		}}})
	}
	return ops
}

// PlanResize returns what to commit for a member that has got the room for its new size.
func PlanResize(need Need, hold, to api.Size) []ClusterOperation {
	m := need.Members[0]
	return []ClusterOperation{
		Resize{Assignment: m.Resizes, Hold: hold, To: to},
		Emit{Reason: EventResizing, Message: fmt.Sprintf("%s is to have %s", m.Member, shapeText(to)), Member: m.Member, Node: m.On},
	}
}

func shapeText(s api.Size) string {
	shape := s.Shape()
	text := fmt.Sprintf("%s and %s", plural(shape.Cores, "core"), shape.Memory)
	if shape.Disk > 0 {
		text += fmt.Sprintf(", with a disk of %s", shape.Disk)
	}
	return text
}

// sizedAsWanted reports whether a spare holds the room that a member of its group needs now.
func (in ClusterInput) sizedAsWanted(spare *api.Assignment) bool {
	i := slices.IndexFunc(in.Intent.Spec.Groups, func(g api.Group) bool { return g.Name == spare.Group })
	if i < 0 || spare.Whole || Resizable(&in.Intent.Spec.Groups[i]) != "" {
		return true
	}
	return spare.Held().Shape() == in.Intent.Spec.Groups[i].Shape
}
