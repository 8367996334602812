package state

import (
	"iter"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Cluster is everything stored about a cluster, as of one revision. It is immutable and shared.
type Cluster struct {
	Intent api.ClusterIntent
	// Record is nil before the first decision.
	Record *api.ClusterRecord
	// Revision is that of the newest commit that touched intent or record.
	Revision int64

	intentRevision, recordRevision int64
	chunks                         []chunk // of Record.Chunks, in their order
	clean                          map[string]bool
}

type chunk struct {
	ref         api.ChunkRef
	assignments []api.Assignment
}

// Name is the cluster's name.
func (c *Cluster) Name() string { return c.Intent.Name }

// UID is the cluster's unique ID, which outlives no deletion.
func (c *Cluster) UID() string { return c.Intent.UID }

// Held yields the assignments that are true and not releasing, in rank order within each batch.
func (c *Cluster) Held() iter.Seq[*api.Assignment] { return c.each(true, false) }

// Releasing yields the assignments being released and not yet confirmed clean.
func (c *Cluster) Releasing() iter.Seq[*api.Assignment] { return c.each(false, true) }

// All yields all assignments whose resources are in use: those held and those not yet confirmed clean.
func (c *Cluster) All() iter.Seq[*api.Assignment] { return c.each(true, true) }

// Confirmed tells whether a releasing assignment has been confirmed clean.
func (c *Cluster) Confirmed(assignmentID string) bool { return c.clean[assignmentID] }

func (c *Cluster) each(held, releasing bool) iter.Seq[*api.Assignment] {
	return func(yield func(*api.Assignment) bool) {
		for _, ch := range c.chunks {
			if ch.ref.Releasing && !releasing || !ch.ref.Releasing && !held {
				continue
			}
			for i := range ch.assignments {
				a := &ch.assignments[i]
				if ch.ref.Releasing && c.clean[a.ID] {
					continue
				}
				if !yield(a) {
					return
				}
			}
		}
	}
}

// View is everything stored except events, as of one revision: immutable, shared, never to be modified. Lists are in the order
// of their names or IDs.
type View struct {
	Revision    int64
	Clusters    []*Cluster
	Nodes       []*api.NodeRecord
	Jobs        []*api.Job
	Quarantines []*api.Quarantine
	// Leader is the name of the leading candidate, "" when nobody leads.
	Leader string
}

// Cluster returns the cluster of that name, or nil.
func (v *View) Cluster(name string) *Cluster {
	return find(v.Clusters, name, (*Cluster).Name)
}

// Node returns the node of that name, or nil.
func (v *View) Node(name string) *api.NodeRecord {
	return find(v.Nodes, name, func(n *api.NodeRecord) string { return n.Name })
}

// Job returns the job of that ID, or nil.
func (v *View) Job(id string) *api.Job {
	return find(v.Jobs, id, func(j *api.Job) string { return j.ID })
}

func find[T any](sorted []*T, key string, keyOf func(*T) string) *T {
	i, ok := slices.BinarySearchFunc(sorted, key, func(v *T, k string) int { return strings.Compare(keyOf(v), k) })
	if !ok {
		return nil
	}
	return sorted[i]
}

// Diff tells what changed from one list of a View to a later one: what is new or changed, and what is gone. Lists of Views share
// what did not change, so this compares pointers only.
func Diff[T any](before, after []*T, keyOf func(*T) string) (changed, gone []*T) {
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(before) == 0 || len(after) > 0 && keyOf(after[0]) < keyOf(before[0]):
			changed, after = append(changed, after[0]), after[1:]
		case len(after) == 0 || keyOf(before[0]) < keyOf(after[0]):
			gone, before = append(gone, before[0]), before[1:]
		default:
			if before[0] != after[0] {
				changed = append(changed, after[0])
			}
			before, after = before[1:], after[1:]
		}
	}
	return changed, gone
}
