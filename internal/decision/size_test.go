package decision

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/manifest"
	"github.com/nearmetal/nearmetal/internal/placement"
	"github.com/nearmetal/nearmetal/internal/store"
)

// huge is a cluster as large as there may be, each member on a node of its own, with the longest names there may be.
func huge() (Cluster, map[string]lifecycle.NodeState) {
	const uid = "abcdefghijkl"
	group := strings.Repeat("g", manifest.MaxLabel-len("-4092"))
	c := Cluster{
		Intent: &api.ClusterIntent{Name: "c", UID: uid, Spec: api.ClusterSpec{Groups: []api.Group{{Name: group, Size: manifest.MaxMembers}}}},
		Record: &api.ClusterRecord{Name: "c", UID: uid, Generation: 1, Phase: api.ClusterReady, PlacedAt: at(0), ReadyAt: at(0), ChangedAt: t0},
	}
	nodes := map[string]lifecycle.NodeState{}
	var all []api.Assignment
	for rank := range manifest.MaxMembers {
		a := assignment(manifest.MemberName(group, rank), rank, 1)
		a.ID, a.ClusterUID, a.Group, a.Node = placement.AssignmentID(uid, a.Member, 1), uid, group, fmt.Sprintf("%063d", rank)
		a.TakenAt = t0.Add(time.Duration(rank)*time.Hour + 123456789)
		nodes[a.Node] = lifecycle.NodeState{Phase: api.NodeReady, Reported: true}
		all = append(all, a)
	}
	c.store(Change{Record: *c.Record, Add: []Batch{{Assignments: all}}})
	return c, nodes
}

// store takes a change in as the store does.
func (c *Cluster) store(change Change) {
	content := map[string][]api.Assignment{}
	for _, chunk := range c.Chunks {
		content[chunk.Ref.ID] = chunk.Assignments
	}
	record := change.Record
	for i, b := range change.Add {
		for n := 0; len(b.Assignments) > 0; n++ {
			part := b.Assignments[:min(64, len(b.Assignments))]
			b.Assignments = b.Assignments[len(part):]
			ref := api.ChunkRef{ID: fmt.Sprintf("%d-%d-%d-%d", record.Generation, record.UsageSeq, i, n), Count: len(part), Releasing: b.Releasing, ReleasedAt: b.ReleasedAt}
			record.Chunks, content[ref.ID] = append(record.Chunks, ref), part
		}
	}
	c.Record, c.Chunks = &record, nil
	for _, ref := range record.Chunks {
		c.Chunks = append(c.Chunks, Chunk{ref, content[ref.ID]})
	}
}

func TestWhateverHappensToTheLargestClusterAtOnceFitsACommit(t *testing.T) {
	words := strings.Repeat("\u20ac", 1000) // as much as a member may say
	now := t0.Add(manifest.MaxMembers * time.Hour)
	c, nodes := huge()
	observed := map[string]lifecycle.Observation{}
	// settle plans and commits until there is nothing more to do.
	settle := func(what string) (forgotten bool) {
		t.Helper()
		for look := 0; ; look++ {
			ops := lifecycle.PlanCluster(lifecycle.ClusterInput{
				Intent: c.Intent, Record: c.Record, Assignments: c.Assignments(), Observed: observed, Nodes: nodes, Now: now,
				LeaderSince: t0, Deadlines: lifecycle.DefaultDeadlines(),
			})
			change, err := Apply(c, ops, now)
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if !change.Dirty {
				return false
			}
			size := 0
			for _, v := range []any{change.Record, change.Usage, change.Quarantines} {
				data, err := json.Marshal(v)
				if err != nil {
					t.Fatal(err)
				}
				size += len(data)
			}
			if size > store.MaxBytes*9/10 { // keys come on top
				t.Fatalf("%s: commit %d is of %d bytes, more than a commit of %d has room for", what, look, size, store.MaxBytes)
			}
			if change.Forget {
				return true
			}
			c.store(change)
			now = now.Add(time.Millisecond)
			if look > 200 {
				t.Fatalf("%s: goes on after %d commits; the record is %d bytes", what, look, size)
			}
		}
	}
	for _, a := range c.Assignments() {
		observed[a.ID] = lifecycle.Observation{Phase: api.MemberFailed, Message: words, Current: true, Since: t0}
	}
	settle("all members fail")
	if len(c.Record.Lost) < 1000 {
		t.Errorf("%d members are noted as lost, want at least 1000", len(c.Record.Lost))
	}
	c.Intent.DeleteRequestedAt = &now
	settle("it is deleted")
	clean := 0
	for _, a := range c.Assignments() {
		if a.Rank < manifest.MaxMembers-100 {
			observed[a.ID] = lifecycle.Observation{Proved: a.CleanBy}
			clean++
		}
	}
	settle(fmt.Sprintf("%d members are clean", clean))
	now = now.Add(time.Hour)
	if !settle("the others are not clean in time") {
		t.Errorf("it is not forgotten; %d assignments are left", len(c.Assignments()))
	}
}
