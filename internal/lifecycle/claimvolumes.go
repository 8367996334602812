package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// volumeChangesPerLook is how many members claim or let go of volumes in one commit: each rewrites a chunk of assignments.
const volumeChangesPerLook = 300

// homePath is where members have their home. What lies there was mounted when the member started, and stays until the member ends.
const homePath = "/home"

// VolumeAttachable returns why volumes of a cluster's members can't change while they run, or "".
func VolumeAttachable(spec *api.ClusterSpec) string {
	for i := range spec.Groups {
		if g := &spec.Groups[i]; g.Stack == api.StackMetal {
			return fmt.Sprintf("members of group %q run on stack %q; only members of the stacks %q and %q take volumes while they run", g.Name, g.Stack, api.StackContainer, api.StackVM)
		}
	}
	return ""
}

// VolumeChanges returns the volumes that a member is about to have, or to let go of.
func VolumeChanges(intent *api.ClusterIntent, a *api.Assignment) []api.MemberVolumeChange {
	if !a.IsMember() || a.Spare {
		return nil
	}
	var changes []api.MemberVolumeChange
	add := func(name, path, change string) {
		changes = append(changes, api.MemberVolumeChange{Name: name, Path: path, Change: change})
	}
	wanted := api.VolumesOf(intent)
	for _, has := range a.Volumes {
		asked := slices.ContainsFunc(wanted, func(w api.VolumeAttachment) bool {
			return w.Name == has.Name && w.MountPath() == has.Path && w.ReadOnly == has.ReadOnly
		})
		switch {
		case has.Path == homePath:
		case !asked || has.Detaching:
			add(has.Name, has.Path, api.VolumeDetaching)
		case has.Number > 0:
			add(has.Name, has.Path, api.VolumeAttaching)
		}
	}
	for _, w := range wanted {
		has := slices.ContainsFunc(a.Volumes, func(c api.VolumeClaim) bool { return c.Name == w.Name && c.Path == w.MountPath() && !c.Detaching })
		if !has && w.MountPath() != homePath {
			add(w.Name, w.MountPath(), api.VolumeAttaching)
		}
	}
	return changes
}

// claimOf returns the claim on a volume, or nil.
func claimOf(claims []api.VolumeClaim, uid string) *api.VolumeClaim {
	i := slices.IndexFunc(claims, func(c api.VolumeClaim) bool { return c.UID == uid })
	if i < 0 {
		return nil
	}
	return &claims[i]
}

// volumesOf returns the claims that a member is to have by its cluster's intent, and whether they are others than it has. A volume that the member
// is to let go of stays claimed, as Detaching, and is claimed in another way only after that.
func volumesOf(intent *api.ClusterIntent, asked []api.VolumeClaim, a *api.Assignment) (next []api.VolumeClaim, changed bool) {
	number := a.VolumesNumber + 1
	wanted := api.VolumesOf(intent)
	for _, has := range a.Volumes {
		ask := claimOf(asked, has.UID)
		same := ask != nil && ask.Path == has.Path && ask.ReadOnly == has.ReadOnly
		unknown := ask == nil && slices.ContainsFunc(wanted, func(w api.VolumeAttachment) bool { return w.Name == has.Name })
		switch {
		case has.Path == homePath || unknown:
		case same == !has.Detaching: // as it should be, or on its way
		case a.Spare: // nothing was carried out for it
			changed = true
			continue
		default:
			has.Detaching, has.Number, changed = !same, number, true
		}
		next = append(next, has)
	}
	for _, ask := range asked {
		taken := slices.ContainsFunc(next, func(c api.VolumeClaim) bool { return c.UID == ask.UID || overlap(c.Path, ask.Path) })
		if taken || ask.Path == homePath {
			continue
		}
		if !a.Spare {
			ask.Number = number
		}
		next, changed = append(next, ask), true
	}
	return next, changed
}

// overlap reports whether one of two directories is the other, or lies in it.
func overlap(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

// planVolumes settles what nodes report of volumes of running members, and then decides what members are to attach and to let go of. It returns
// nothing while all is as wanted.
func (l *look) planVolumes() []ClusterOperation {
	var ops []ClusterOperation
	count := 0
	for _, m := range l.members {
		if m.loss != "" || m.VolumesNumber == 0 || m.seen.Volumes != m.VolumesNumber || count == volumeChangesPerLook {
			continue
		}
		if text := claimsText(m.Volumes, "has detached", "has"); text != "" {
			count++
			ops = append(ops, VolumesClaimed{Assignment: m.ID, Number: m.VolumesNumber},
				Emit{Reason: EventVolumesChanged, Message: m.Member + " " + text, Member: m.Member, Node: m.Node})
		}
	}
	if len(ops) > 0 {
		return ops
	}
	change := func(a *api.Assignment) {
		if count == volumeChangesPerLook || a.Saved || len(a.Volumes) == 0 && len(l.Volumes) == 0 {
			return
		}
		next, changed := volumesOf(l.Intent, l.Volumes, a)
		if !changed {
			return
		}
		count++
		ops = append(ops, ClaimVolumes{Assignment: a.ID, Volumes: next})
		if !a.Spare {
			ops = append(ops, Emit{Reason: EventVolumesChanging, Message: a.Member + " " + claimsText(next, "is to detach", "is to have"), Member: a.Member, Node: a.Node})
		}
	}
	for _, m := range l.members {
		if m.loss == "" {
			change(m.Assignment)
		}
	}
	for _, s := range l.spares {
		change(s.Assignment)
	}
	return ops
}

// claimsText says what members let go of and get; "" when nothing changes.
func claimsText(claims []api.VolumeClaim, detach, attach string) string {
	var parts []string
	for _, c := range claims {
		switch {
		case c.Detaching:
			parts = append(parts, fmt.Sprintf("%s volume %q", detach, c.Name))
		case c.Number > 0:
			parts = append(parts, fmt.Sprintf("%s volume %q at %s", attach, c.Name, c.Path))
		}
	}
	return strings.Join(parts, ", and ")
}

// planDetached notes which volumes no member has any more: others may use them as they like from then on.
func (in ClusterInput) planDetached() []ClusterOperation {
	if in.Record == nil || in.Intent == nil || len(in.Intent.Detaching) == 0 && len(in.Record.Detached) == 0 {
		return nil
	}
	var detached []api.VolumeDetach
	var ops []ClusterOperation
	for _, d := range in.Intent.Detaching {
		noted := slices.ContainsFunc(in.Record.Detached, d.Same)
		if !noted && in.claims(d.UID) {
			continue
		}
		detached = append(detached, d)
		if !noted {
			ops = append(ops, Emit{Reason: EventVolumeDetached, Message: fmt.Sprintf("volume %q is detached", d.Name)})
		}
	}
	if slices.EqualFunc(detached, in.Record.Detached, api.VolumeDetach.Same) {
		return nil
	}
	return append([]ClusterOperation{NoteDetached{Detached: detached}}, ops...)
}

// claims reports whether any assignment that is not clean claims a volume.
func (in ClusterInput) claims(uid string) bool {
	for _, a := range in.Assignments {
		if !a.Clean && claimOf(a.Volumes, uid) != nil {
			return true
		}
	}
	return false
}
