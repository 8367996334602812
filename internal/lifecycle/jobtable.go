package lifecycle

import "github.com/nearmetal/nearmetal/api"

// Jobs returns the machine of jobs. What members report are levels: a phase that did not last until the next report is skipped.
func Jobs() Machine[api.JobPhase] {
	const (
		pending, running  = api.JobPending, api.JobRunning
		succeeded, failed = api.JobSucceeded, api.JobFailed
		cancelled, lost   = api.JobCancelled, api.JobLost
		reader            = "user: reads its output; the leader removes the oldest beyond 1,000"
		complete          = "its end is stored once the rest of its output is, or none of it has arrived for 1 min"
	)
	type from = []api.JobPhase
	return Machine[api.JobPhase]{
		Name: "job",
		Phases: []PhaseRule[api.JobPhase]{
			{Phase: pending, Owner: "user: waits for room at the member, or for its cluster to be whole again, or cancels it; the leader gives it to the member of the lowest rank"},
			{Phase: running, Owner: "user: waits for it, or cancels it; its member reports its end", Timer: "the time limit of its cluster, if set, then 25 s"},
			{Phase: succeeded, Owner: reader},
			{Phase: failed, Owner: reader},
			{Phase: cancelled, Owner: reader},
			{Phase: lost, Owner: reader},
		},
		Transitions: []Transition[api.JobPhase]{
			{From: from{""}, To: pending, On: "submitted", Why: "it is stored; no member has it yet"},
			{From: from{pending}, To: running, On: "reported", Why: "its member was chosen and stored before the job was sent: no other member ever starts it"},
			{
				From: from{running}, To: pending, On: "a member of its cluster was lost, and it asked to be run again",
				Why: "the next attempt waits until the cluster is whole again",
			},
			{From: from{pending, running}, To: succeeded, On: "exit code 0 is reported", Why: complete},
			{From: from{pending, running}, To: failed, On: "another exit code is reported, or that it could not be started", Why: complete},
			{
				From: from{pending, running}, To: cancelled, On: "cancelled before a member had it, or reported",
				Why: "its user, or the time limit of its cluster, ended it",
			},
			{
				From: from{pending, running}, To: lost, On: "its member or its cluster is gone, or its member reports that it lost the job",
				Why: "what it did since is unknown, and is not waited for",
			},
			{From: from{succeeded, failed, cancelled, lost}, To: "", On: "it is the oldest of more than 1,000 that have ended", Why: "its output is removed with it"},
		},
	}
}
