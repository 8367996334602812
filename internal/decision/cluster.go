package decision

import (
	"fmt"
	"slices"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// Name is the cluster's, UID what is unique for ever.
func (c Cluster) Name() string {
	if c.Record != nil {
		return c.Record.Name
	}
	if c.Intent != nil {
		return c.Intent.Name
	}
	return ""
}

// UID is the cluster's.
func (c Cluster) UID() string {
	if c.Record != nil {
		return c.Record.UID
	}
	if c.Intent != nil {
		return c.Intent.UID
	}
	return ""
}

// Assignments are all of the cluster, those that are clean included, as lifecycle looks at them.
func (c Cluster) Assignments() []lifecycle.ClusterAssignment {
	n := 0
	for _, chunk := range c.Chunks {
		n += len(chunk.Assignments)
	}
	clean, proved := c.clean(), c.proved()
	list := make([]lifecycle.ClusterAssignment, 0, n)
	for _, chunk := range c.Chunks {
		for i := range chunk.Assignments {
			a := lifecycle.ClusterAssignment{Assignment: &chunk.Assignments[i], Releasing: chunk.Ref.Releasing}
			if a.Releasing {
				a.ReleasedAt, a.Clean, a.Proved = c.releasedAt(chunk.Ref), clean[a.ID], proved[a.ID]
			}
			list = append(list, a)
		}
	}
	return list
}

// Unclean are the assignments that hold room, addresses included: all but those confirmed clean.
func (c Cluster) Unclean() []api.Assignment {
	var list []api.Assignment
	for _, a := range c.Assignments() {
		if !a.Clean {
			list = append(list, *a.Assignment)
		}
	}
	return list
}

func (c Cluster) clean() map[string]bool {
	if c.Record == nil || len(c.Record.Clean) == 0 {
		return nil
	}
	clean := make(map[string]bool, len(c.Record.Clean))
	for _, id := range c.Record.Clean {
		clean[id] = true
	}
	return clean
}

// proved are those whose proofs are in the record, by assignment.
func (c Cluster) proved() map[string][]api.Prover {
	if c.Record == nil || len(c.Record.Proved) == 0 {
		return nil
	}
	proved := map[string][]api.Prover{}
	for _, p := range c.Record.Proved {
		proved[p.Assignment] = append(proved[p.Assignment], p.Prover)
	}
	return proved
}

// releasedAt is when a chunk turned to releasing; a record that does not tell was written when its phase last changed.
func (c Cluster) releasedAt(ref api.ChunkRef) time.Time {
	if ref.ReleasedAt == nil {
		return c.Record.ChangedAt
	}
	return *ref.ReleasedAt
}

// check reports what is wrong with what is committed, before anything is built on it.
func (c Cluster) check() error {
	var refs []api.ChunkRef
	if c.Record != nil {
		refs = c.Record.Chunks
	}
	if len(refs) != len(c.Chunks) {
		return fmt.Errorf("its record names %d chunks, but %d are given", len(refs), len(c.Chunks))
	}
	if c.Record != nil && c.Intent != nil && c.Record.UID != c.Intent.UID {
		return fmt.Errorf("its record has UID %s, its intent has UID %s", c.Record.UID, c.Intent.UID)
	}
	seen, clean := map[string]bool{}, c.clean()
	for i, chunk := range c.Chunks {
		if chunk.Ref.ID != refs[i].ID || chunk.Ref.Releasing != refs[i].Releasing || len(chunk.Assignments) != refs[i].Count {
			return fmt.Errorf("found chunk %s with %d assignments where its record names %s with %d",
				chunk.Ref.ID, len(chunk.Assignments), refs[i].ID, refs[i].Count)
		}
		for _, a := range chunk.Assignments {
			if seen[a.ID] {
				return fmt.Errorf("assignment %s appears twice", a.ID)
			}
			seen[a.ID] = true
			if chunk.Ref.Releasing {
				delete(clean, a.ID)
			}
		}
	}
	for id := range clean {
		return fmt.Errorf("assignment %s is in the clean list but in no releasing chunk", id)
	}
	return nil
}

// cloneRecord is a copy that shares nothing that Apply changes.
func (c Cluster) cloneRecord() api.ClusterRecord {
	if c.Record == nil {
		return api.ClusterRecord{Name: c.Name(), UID: c.UID(), Phase: api.ClusterPending}
	}
	r := *c.Record
	r.Chunks, r.Clean, r.Lost, r.Proved = slices.Clone(r.Chunks), slices.Clone(r.Clean), slices.Clone(r.Lost), slices.Clone(r.Proved)
	r.Networks, r.Joined, r.Moves = slices.Clone(r.Networks), slices.Clone(r.Joined), slices.Clone(r.Moves)
	r.Snapshots = slices.Clone(r.Snapshots)
	return r
}

// notBefore is now, or the newest time in what is committed when that is later: nothing ends before it began.
func (c Cluster) notBefore(now time.Time) time.Time {
	later := func(t time.Time) {
		if t.After(now) {
			now = t
		}
	}
	for _, chunk := range c.Chunks {
		if chunk.Ref.ReleasedAt != nil {
			later(*chunk.Ref.ReleasedAt)
		}
		for i := range chunk.Assignments {
			later(chunk.Assignments[i].HeldSince())
		}
	}
	return now
}
