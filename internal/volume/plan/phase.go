package plan

import (
	"fmt"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Seen is a volume as users are shown it.
type Seen struct {
	Phase   api.VolumePhase
	Message string
	// Resizing: its node is still to give it the size that is wanted. A message then is why it can't now.
	Resizing bool
	// Undecided: it has no place, and may get one as soon as a node is heard of.
	Undecided bool
	// UnlimitedIO is what the volume's limit of I/O does not bound on its node, and why; "" where there is no limit.
	UnlimitedIO string
	// State is what its node found of it last; nil: the node is not heard of, or has nothing of it.
	State *volume.State
}

// Show returns what users are shown of a volume of the situation.
func Show(s *Situation, uid string) Seen {
	v := s.volume(uid)
	if v == nil {
		return Seen{}
	}
	var n *Node
	out := Seen{}
	if v.Record != nil {
		if n = s.node(v.Record.Node); n != nil && n.Heard {
			out.State = n.found(uid)
		}
	}
	out.Phase, out.Message = s.phase(v, n, out.State)
	out.Undecided = out.Phase == api.VolumePending && s.undecided(v)
	if v.Intent != nil && v.Intent.IOBytesPerSecond > 0 && v.Intent.Kind != api.VolumeBlock && n != nil && n.Pool != nil {
		out.UnlimitedIO = n.Pool.UnlimitedIO
	}
	if v.Intent != nil && v.Record != nil && !v.Record.Purging {
		out.Resizing = v.Record.SizeBytes != v.Intent.SizeBytes || out.State != nil && out.State.Import == nil && out.State.SizeBytes != v.Intent.SizeBytes
	}
	return out
}

func (s *Situation) phase(v *Volume, n *Node, seen *volume.State) (api.VolumePhase, string) {
	switch {
	case v.Record != nil && v.Record.Purging:
		return api.VolumePurging, s.purging(v, n, seen)
	case v.Intent == nil:
		return api.VolumeUnavailable, "it is stored in part only; restore a backup"
	case s.ended(v):
		return api.VolumeDeleted, s.endedText(v)
	case v.Intent.DeleteRequestedAt != nil:
		return api.VolumeDeleted, s.deleted(v)
	case v.Record == nil:
		_, why := s.choose(v, newRooms(s))
		return api.VolumePending, why
	case n == nil:
		return api.VolumeUnavailable, fmt.Sprintf("node %s is no node of the site any more", v.Record.Node)
	case !n.Heard:
		return api.VolumeUnavailable, fmt.Sprintf("node %s is not heard of", n.Name)
	case seen == nil && v.Record.Made:
		return api.VolumeUnavailable, fmt.Sprintf("node %s has lost it: %s", n.Name, lostWhy(n))
	case n.Pool != nil && len(n.Pool.Problems) > 0:
		return api.VolumeUnavailable, fmt.Sprintf("the pool of node %s can't be used: %s", n.Name, strings.Join(n.Pool.Problems, "; "))
	case seen == nil:
		return api.VolumeCreating, ""
	case !seen.Ready && v.Record.Made:
		return api.VolumeUnavailable, problem(seen, "its node found it incomplete")
	case !v.Record.Made && v.Intent.Origin.IsUpload() && (seen.Ready || seen.Import != nil):
		return api.VolumeImporting, importing(v, seen)
	case !seen.Ready:
		return api.VolumeCreating, problem(seen, "")
	case restores(v, seen):
		return api.VolumeUnavailable, problem(seen, "it is being restored from a snapshot")
	}
	return api.VolumeReady, s.ready(v, n, seen)
}

func lostWhy(n *Node) string {
	if n.Pool != nil && len(n.Pool.Problems) > 0 {
		return n.Pool.Problems[0]
	}
	return "nothing of it is there; delete it with --now to give it up"
}

// problem is what a node says is wrong, or something else to say.
func problem(seen *volume.State, otherwise string) string {
	if seen.Problem != "" {
		return seen.Problem
	}
	return otherwise
}

// importing says how far the node is with the backup that a volume is made of.
func importing(v *Volume, seen *volume.State) string {
	switch i := seen.Import; {
	case seen.Problem != "":
		return seen.Problem
	case i == nil: // it is noted as made in a moment
		return ""
	case i.Receiving:
		return fmt.Sprintf("%s received", bytesText(i.ReceivedBytes))
	case i.Failure != "":
		return "waits for a backup; the last one failed: " + i.Failure
	default:
		return fmt.Sprintf("waits for a backup; send it with 'nearmetal volume create %s --from-backup FILE'", ownName(v.Intent.Name))
	}
}

// ready is what is to be said of a volume that can be attached.
func (s *Situation) ready(v *Volume, n *Node, seen *volume.State) string {
	want, has := v.Intent.SizeBytes, v.Record.SizeBytes
	if seen.Problem != "" || want <= has {
		return seen.Problem
	}
	if left := newRooms(s).left(n.Name); left < want-has {
		return fmt.Sprintf("waits to grow from %s to %s: node %s has %s left for volumes", bytesText(has), bytesText(want), n.Name, bytesText(left))
	}
	return ""
}

// deleted says until when a volume can be brought back, or what its purge waits for.
func (s *Situation) deleted(v *Volume) string {
	at := v.Intent.PurgeAt
	if at != nil && s.Now.Before(*at) {
		return fmt.Sprintf("purged at %s; until then, 'nearmetal volume undelete %s' brings it back", at.UTC().Format(time.RFC3339), ownName(v.Intent.Name))
	}
	return s.purgedWhen(v)
}

// purgedWhen says what the purge of a volume waits for that is to go now.
func (s *Situation) purgedWhen(v *Volume) string {
	if v.Record == nil {
		return "purged now"
	}
	if s.Claimed[v.UID()] || s.attached(v) {
		return "purged once no member has it attached"
	}
	if clone := s.clonesOf(v.UID()); clone != nil {
		return fmt.Sprintf("purged once volume %q, a clone of it, is made", ownName(clone.Intent.Name))
	}
	return "purged now"
}

// purging says what is left to be done of a purge.
func (s *Situation) purging(v *Volume, n *Node, seen *volume.State) string {
	switch {
	case n == nil:
		return ""
	case !n.Heard:
		return fmt.Sprintf("node %s is not heard of; it wipes the volume once it is back", n.Name)
	case seen != nil:
		return problem(seen, "")
	}
	return ""
}

// restores reports whether a volume is still to go back to a snapshot.
func restores(v *Volume, seen *volume.State) bool {
	return v.Intent.Restore != nil && v.Intent.Restore.Number > seen.Restored
}
