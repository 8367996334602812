package controller

import (
	"slices"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/state"
)

// scaledDown is the cluster "a" of rank 0, whose rank 1 was released at a time; lost tells that it had died.
func scaledDown(t *testing.T, at time.Time, lost bool) *state.Cluster {
	t.Helper()
	s := newStored(t)
	s.view(s.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "a", UID: "ua"}))
	record := api.ClusterRecord{Name: "a", UID: "ua", Generation: 1, Phase: api.ClusterScaling}
	assignment := func(rank int, member string) []api.Assignment {
		return []api.Assignment{{ID: "ua." + member + ".1", ClusterUID: "ua", Member: member, Rank: rank, Node: "n1"}}
	}
	base := s.view(1, nil).Cluster("a")
	c := s.view(s.leader.Commit(t.Context(), base, state.Write{
		Record: record, Add: []state.Batch{{Assignments: assignment(0, "a-0")}, {Assignments: assignment(1, "a-1")}},
	})).Cluster("a")
	record = *c.Record
	record.Generation++
	record.Chunks = slices.Clone(record.Chunks)
	record.Chunks[1].Releasing, record.Chunks[1].ReleasedAt = true, &at
	if lost {
		record.Lost = []api.LostMember{{Member: "a-1", Rank: 1, Assignment: "ua.a-1.1", Since: at}}
	}
	return s.view(s.leader.Commit(t.Context(), c, state.Write{Record: record})).Cluster("a")
}

func TestAJobThatFailsAfterItsClusterWasScaledDownSaysSo(t *testing.T) {
	code := func(n int) *int { return &n }
	running := api.Job{
		ID: "j", Cluster: "a", ClusterUID: "ua", Phase: api.JobRunning, MemberID: "ua.a-0.1", StartedAt: &jobStart, DispatchedAt: &jobStart,
	}
	const because = "scaling down removed members while it ran: a-1"
	for _, tc := range []struct {
		name    string
		at      time.Time
		lost    bool
		code    int
		said    string
		message string
	}{
		{"a member was removed", jobLater, false, 205, "", because},
		{"its member knows better", jobLater, false, 137, "killed for its memory", "killed for its memory"},
		{"it succeeded all the same", jobLater, false, 0, "", ""},
		{"a member was removed before it began", jobStart.Add(-time.Second), false, 205, "", ""},
		{"a member died", jobLater, true, 205, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := jobInput{job: running, cluster: scaledDown(t, tc.at, tc.lost), now: jobLater.Add(time.Second), heard: true}
			in.seen = agentstream.JobObserved{ID: "j", Phase: api.JobRunning, StartedAt: &jobStart}
			meanwhile, _ := planJob(in)
			// The removed member is clean by the time the job's end is heard.
			in.job, in.cluster = meanwhile, jobScene{lost: -1, phase: api.ClusterReady}.cluster(t)
			in.seen.Phase, in.seen.ExitCode, in.seen.Message = api.JobFailed, code(tc.code), tc.said
			if ended, _ := planJob(in); ended.Message != tc.message {
				t.Errorf("message %q, want %q; members removed: %q", ended.Message, tc.message, ended.RemovedMembers)
			}
		})
	}
}
