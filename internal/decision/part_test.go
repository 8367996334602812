package decision

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// partOf is what a member holds on the next node, cleaned by its agent and by a fabric.
func partOf(member string, rank int, generation int64, change func(*api.Assignment)) api.Assignment {
	a := assignment(member, rank+1, generation)
	a.Of, a.ID = assignment(member, rank, generation).ID, a.ID+"-1"
	a.Member, a.Rank, a.Slots, a.Memory, a.Ports = member, lifecycle.NoRank, nil, nil, nil
	a.CleanBy = append(a.CleanBy, api.Prover{By: api.ExecutorFabric, At: "ib0"})
	change(&a)
	return a
}

func TestAPartComesAndGoesWithItsMember(t *testing.T) {
	c := running()
	member, part := assignment("c-7", 7, 4), partOf("c-7", 7, 4, func(a *api.Assignment) {
		gpu := api.DeviceClaim{Class: "gpu", Takes: map[string]int64{"slices": 7}}
		a.Devices = []api.DeviceClaim{gpu, gpu}
	})
	change := apply(t, c, time.Minute, lifecycle.Hold{Assignments: []api.Assignment{member, part}})
	equal(t, "held", []string{"held u1.c-7.4 u1.c-7.4-1"}, batches(change))

	c.Record = &change.Record
	ref := api.ChunkRef{ID: "k9", Count: 2}
	c.Record.Chunks = append(c.Record.Chunks, ref)
	c.Chunks = append(c.Chunks, Chunk{Ref: ref, Assignments: change.Add[0].Assignments})
	if _, err := Apply(c, []lifecycle.ClusterOperation{lifecycle.Release{IDs: []string{part.ID}}}, t0.Add(2*time.Minute)); err == nil {
		t.Error("a part was released without its member")
	}
	change = apply(t, c, 2*time.Minute, lifecycle.Release{IDs: []string{member.ID}, Lost: true, Reason: "node n7 is down"})
	equal(t, "chunks that are written", nil, batches(change))
	if last := change.Record.Chunks[len(change.Record.Chunks)-1]; !last.Releasing {
		t.Errorf("the chunk of member and part is not releasing: %+v", last)
	}
	equal(t, "usage", []string{
		"allocated n7 1m0s-2m0s 1 members 2 cores 1000 bytes", "allocated n8 1m0s-2m0s 0 members 0 cores 0 bytes map[gpu/slices:14]",
	}, usage(change))
	if len(change.Record.Lost) != 1 || change.Record.Lost[0].Member != "c-7" {
		t.Errorf("lost are %+v, want the member alone", change.Record.Lost)
	}
}

func TestProofsStayUntilAllHaveProvedIt(t *testing.T) {
	c := running()
	fabric := api.Prover{By: api.ExecutorFabric, At: "ib0"}
	agent := api.ByAgents("n9")[0]
	c.Chunks[2].Assignments[0].CleanBy = []api.Prover{agent, fabric}
	note := lifecycle.NoteProofs{Proofs: []api.Proof{{Assignment: "u1.c-9.1", Prover: agent}}}
	change := apply(t, c, time.Minute, note)
	if len(change.Record.Proved) != 1 || change.Record.Generation != c.Record.Generation {
		t.Errorf("proofs %v in generation %d, want one, in generation %d", change.Record.Proved, change.Record.Generation, c.Record.Generation)
	}
	c.Record = &change.Record
	var seen []api.Prover
	for _, a := range c.Assignments() {
		if a.ID == "u1.c-9.1" {
			seen = a.Proved
		}
	}
	if len(seen) != 1 || seen[0] != agent {
		t.Errorf("the planner sees the proofs of %v, want that of the agent", seen)
	}
	quarantined := apply(t, c, 2*time.Minute, lifecycle.Quarantine{ID: "u1.c-9.1", Reason: "late"})
	if q := quarantined.Quarantines[0]; len(q.Proved) != 1 || len(quarantined.Record.Proved) != 0 {
		t.Errorf("the quarantine has proofs %v, the record %v; want the proof to go with the assignment", q.Proved, quarantined.Record.Proved)
	}
	if clean := apply(t, c, 2*time.Minute, lifecycle.ConfirmClean{IDs: []string{"u1.c-9.1"}}); len(clean.Record.Proved) != 0 {
		t.Errorf("proofs %v are left of what is clean", clean.Record.Proved)
	}
}
