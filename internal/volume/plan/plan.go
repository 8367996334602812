// Package plan decides about volumes: on which node a new one lies, when it grows, when it is purged, and when it is over.
//
// It is pure. It sees the site as a Situation and returns operations, which package decision turns into records. It must never write, ask a node or
// read a clock. Start with Plan, then room.go (how much a node's pool has left), phase.go (what users are shown) and told.go (what a node hears).
package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/volume"
)

// Volume is what is stored of a volume. One of both is never nil.
type Volume struct {
	Intent *api.VolumeIntent
	Record *api.VolumeRecord
}

// UID returns the volume's UID.
func (v *Volume) UID() string {
	if v.Record != nil {
		return v.Record.UID
	}
	return v.Intent.UID
}

// Node is a node of the inventory.
type Node struct {
	Name string
	// Pool is the room that the node has for volumes; nil: its agent offers none.
	Pool *api.VolumePool
	// Heard: its agent is connected and has reported. Down: it was not heard of for so long that nobody waits for it.
	Heard, Down bool
	// Drained: it is to get nothing new.
	Drained bool
	// Volumes are those that the agent found. Purged are the UIDs of those of which it says that nothing is left. Both count only while it is heard.
	Volumes []volume.State
	Purged  []string
}

// found returns what the node's agent reports of a volume, nil if it reports nothing.
func (n *Node) found(uid string) *volume.State {
	for i := range n.Volumes {
		if n.Volumes[i].UID == uid {
			return &n.Volumes[i]
		}
	}
	return nil
}

// Situation is everything that decisions about volumes depend on.
type Situation struct {
	// Volumes are in the order of their UIDs.
	Volumes []Volume
	// Nodes are in the order of their names.
	Nodes []Node
	// Claimed are the UIDs of volumes that members have attached which are not proved clean, those in quarantine included.
	Claimed map[string]bool
	// Ended are the UIDs of clusters with homes of their own that have ended or are being deleted.
	Ended map[string]bool
	Now   time.Time
}

func (s *Situation) node(name string) *Node {
	i, ok := slices.BinarySearchFunc(s.Nodes, name, func(n Node, name string) int { return cmp.Compare(n.Name, name) })
	if !ok {
		return nil
	}
	return &s.Nodes[i]
}

func (s *Situation) volume(uid string) *Volume {
	i, ok := slices.BinarySearchFunc(s.Volumes, uid, func(v Volume, uid string) int { return cmp.Compare(v.UID(), uid) })
	if !ok {
		return nil
	}
	return &s.Volumes[i]
}

// Operation is a decision about one volume.
type Operation interface{ operation() }

// Place gives a volume its node, for good.
type Place struct {
	Node      string
	SizeBytes int64
}

// Resize changes the room that a volume holds on its node.
type Resize struct{ SizeBytes int64 }

// NoteMade records that the node has the volume, whole.
type NoteMade struct{}

// Purge gives the room of a volume back. It can't be undone. Cluster is the UID of the cluster that has ended, for its home; "" for a volume that was
// deleted.
type Purge struct{ Cluster string }

// Forget removes all that is stored of a volume of which nothing is left.
type Forget struct{}

func (Place) operation()    {}
func (Resize) operation()   {}
func (NoteMade) operation() {}
func (Purge) operation()    {}
func (Forget) operation()   {}

// Decision is what is to be done about one volume.
type Decision struct {
	UID        string
	Operations []Operation
}

// Plan returns the decisions about all volumes that something is to be done about, and when to look again though nothing was heard; zero: never. The
// oldest volume gets room first.
func Plan(s Situation) (decisions []Decision, wakeAt time.Time) {
	rooms := newRooms(&s)
	for _, v := range inOrder(s.Volumes) {
		ops, at := s.planOne(v, rooms)
		if len(ops) > 0 {
			decisions = append(decisions, Decision{v.UID(), ops})
		}
		if !at.IsZero() && (wakeAt.IsZero() || at.Before(wakeAt)) {
			wakeAt = at
		}
	}
	return decisions, wakeAt
}

// inOrder returns the volumes by age.
func inOrder(volumes []Volume) []*Volume {
	all := make([]*Volume, len(volumes))
	for i := range volumes {
		all[i] = &volumes[i]
	}
	created := func(v *Volume) time.Time {
		if v.Intent == nil {
			return time.Time{}
		}
		return v.Intent.CreatedAt
	}
	slices.SortStableFunc(all, func(a, b *Volume) int {
		return cmp.Or(created(a).Compare(created(b)), cmp.Compare(a.UID(), b.UID()))
	})
	return all
}

func (s *Situation) planOne(v *Volume, rooms rooms) ([]Operation, time.Time) {
	switch {
	case v.Record != nil && v.Record.Purging:
		if s.nothingLeft(v) {
			return []Operation{Forget{}}, time.Time{}
		}
		return nil, time.Time{}
	case v.Intent == nil: // a record without an intent is no order to wipe anything
		return nil, time.Time{}
	case s.ended(v):
		return s.planEnded(v), time.Time{}
	case v.Intent.DeleteRequestedAt != nil:
		return s.planDeleted(v)
	case v.Record == nil:
		node, _ := s.choose(v, rooms)
		if node == "" {
			return nil, time.Time{}
		}
		rooms.take(node, v.Intent.SizeBytes)
		return []Operation{Place{Node: node, SizeBytes: v.Intent.SizeBytes}}, time.Time{}
	}
	return s.follow(v, rooms), time.Time{}
}

// planDeleted purges a deleted volume once its time is over and nobody needs it any more.
func (s *Situation) planDeleted(v *Volume) ([]Operation, time.Time) {
	if at := v.Intent.PurgeAt; at != nil && s.Now.Before(*at) {
		return nil, *at
	}
	if v.Record == nil { // nor will there be anything that a clone could begin as
		return []Operation{Forget{}}, time.Time{}
	}
	if s.needed(v) {
		return nil, time.Time{}
	}
	return []Operation{Purge{}}, time.Time{}
}

// attached reports whether the volume's node says that some cluster still has access.
func (s *Situation) attached(v *Volume) bool {
	if v.Record == nil {
		return false
	}
	n := s.node(v.Record.Node)
	if n == nil || !n.Heard {
		return false
	}
	seen := n.found(v.UID())
	return seen != nil && len(seen.Attached) > 0
}

// clonesOf returns the first volume that is still to begin as a snapshot of a volume, nil if there is none.
func (s *Situation) clonesOf(uid string) *Volume {
	for i := range s.Volumes {
		v := &s.Volumes[i]
		if begins(v) && v.Intent.Origin.VolumeUID == uid {
			return v
		}
	}
	return nil
}

// begins reports whether a volume is still to begin as a snapshot of another.
func begins(v *Volume) bool {
	switch {
	case v.Intent == nil || !v.Intent.Origin.IsSnapshot():
		return false
	case v.Record == nil:
		return v.Intent.DeleteRequestedAt == nil
	default:
		return !v.Record.Made && !v.Record.Purging
	}
}

// nothingLeft reports whether a volume that is being purged is over: its node says that nothing is left, or is no node of the site any more.
func (s *Situation) nothingLeft(v *Volume) bool {
	n := s.node(v.Record.Node)
	if n == nil {
		return true
	}
	return n.Heard && slices.Contains(n.Purged, v.UID()) && n.found(v.UID()) == nil
}

// follow takes over what the node says of a volume, and lets it grow where there is room.
func (s *Situation) follow(v *Volume, rooms rooms) []Operation {
	var ops []Operation
	var seen *volume.State
	n := s.node(v.Record.Node)
	if n != nil && n.Heard {
		seen = n.found(v.UID())
	}
	if !v.Record.Made && seen != nil && seen.Ready {
		ops = append(ops, NoteMade{})
	}
	want, has := v.Intent.SizeBytes, v.Record.SizeBytes
	switch {
	case want > has && n != nil && n.Heard && rooms.left(n.Name) >= want-has:
		rooms.take(n.Name, want-has)
		ops = append(ops, Resize{want})
	case want < has && seen != nil && seen.Ready && seen.SizeBytes <= want: // until then it may hold more
		ops = append(ops, Resize{want})
	}
	return ops
}
