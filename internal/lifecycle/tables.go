package lifecycle

import "github.com/nearmetal/nearmetal/api"

// Clusters returns the machine of clusters.
func Clusters() Machine[api.ClusterPhase] {
	const (
		pending, queued, refused    = api.ClusterPending, api.ClusterQueued, api.ClusterRefused
		starting, ready, failed     = api.ClusterStarting, api.ClusterReady, api.ClusterFailed
		scaling, degraded, deleting = api.ClusterScaling, api.ClusterDegraded, api.ClusterDeleting
		pausing, paused, resuming   = api.ClusterPausing, api.ClusterPaused, api.ClusterResuming
		saving, saved, restoring    = api.ClusterSaving, api.ClusterSaved, api.ClusterRestoring
		snapshotting                = api.ClusterSnapshotting
	)
	type from = []api.ClusterPhase
	return Machine[api.ClusterPhase]{
		Name: "cluster",
		Phases: []PhaseRule[api.ClusterPhase]{
			{Phase: pending, Owner: "leader: decides at once", Timer: "the death timer: it waits only for `unknown` nodes that would make it fit"},
			{Phase: queued, Owner: "user: waits for room, or deletes it; the leader places it in its turn"},
			{Phase: refused, Owner: "user: deletes it, creates a different one"},
			{Phase: starting, Owner: "agents of its nodes", Timer: "start deadline, 5 min, or a member's third failure, then `failed`"},
			{Phase: ready, Owner: "user: uses it, changes it, deletes it", Timer: "the time limit, if set; it applies in every phase from `starting` on"},
			{Phase: scaling, Owner: "user: waits for room, or reverts the change; agents start the new members", Timer: "start deadline of each new member, which is then replaced"},
			{Phase: degraded, Owner: "leader: replaces lost members as soon as there is room; agents start the replacements", Timer: "patience with an unhealthy member, 10 s; start deadline of each replacement"},
			{Phase: pausing, Owner: "agents of its nodes; whole machines go off; user: cancels the pause", Timer: "pause deadline, 1 min, then its message names the members that are not frozen; deadlines of its machines"},
			{Phase: paused, Owner: "user: resumes it, deletes it"},
			{Phase: resuming, Owner: "agents of its nodes; whole machines boot", Timer: "pause deadline, 1 min, then members that are still frozen are lost and replaced; boot deadlines of its machines"},
			{Phase: snapshotting, Owner: "agents of its nodes; user: deletes the snapshot", Timer: "pause deadline, 1 min, then save deadline, 15 min, or a member that can't be written; then the snapshot is given up"},
			{Phase: saving, Owner: "agents of its nodes; user: cancels the save", Timer: "save deadline, 15 min, or a member that can't be saved, then `restoring`"},
			{Phase: saved, Owner: "user: restores it, deletes it"},
			{Phase: restoring, Owner: "user: waits for room, or saves it again; agents restore its members", Timer: "start deadline of each member, once it has a place, then all are saved again"},
			{Phase: failed, Owner: "user: inspects it, deletes it"},
			{Phase: deleting, Owner: "agents of its nodes", Timer: "clean deadline of each assignment, 10 min, then it is quarantined"},
		},
		Transitions: []Transition[api.ClusterPhase]{
			{From: from{""}, To: pending, On: "create", Why: "the intent is stored, no decision yet"},
			{From: from{pending}, To: queued, On: "possible, but not now", Why: "its user chose to wait; its place in the queue is computed from the stored state"},
			{From: from{pending, queued}, To: starting, On: "placed", Why: "every member has a place, and its assignment is committed"},
			{
				From: from{pending, queued}, To: refused, On: "can't be placed",
				Why: "the message names the binding constraint; the cluster holds nothing; a refusal is final: delete the cluster and create it again later",
			},
			{From: from{pending, queued, refused}, To: "", On: "delete", Why: "it holds nothing: there is nothing to clean"},
			{
				From: from{starting, scaling, degraded, resuming, restoring}, To: ready, On: "exactly the wanted members exist, are ready, and have the files that name all others",
				Why: "SSH, names and hostfile work on all of them",
			},
			{
				From: from{starting}, To: failed, On: "a member failed for the third time, or the start deadline passed",
				Why: "it keeps its resources until it is deleted, so that its user can inspect it",
			},
			{
				From: from{starting, ready, degraded, resuming, restoring}, To: scaling, On: "its groups were changed",
				Why: "new members wait for room or start, surplus members are released; the remaining members stay usable",
			},
			{
				From: from{ready, scaling, resuming, restoring}, To: degraded, On: "a member is lost: it exited, its node is down, or it was unhealthy for too long; or it is not ready",
				Why: "its name and rank wait for a replacement; a node that is only unknown is no evidence: its members keep running",
			},
			{
				From: from{ready, scaling, degraded, resuming}, To: pausing, On: "pause",
				Why: "its members are frozen and keep their resources; usage and time limit keep counting",
			},
			{From: from{pausing}, To: paused, On: "every member is frozen", Why: "no member runs; lost members are noted and replaced later"},
			{From: from{pausing, paused}, To: resuming, On: "resume, or the time limit passed", Why: "members are thawed, since frozen jobs can't end"},
			{From: from{ready, paused}, To: snapshotting, On: "snapshot", Why: "its members stand still while their states are written, so that all are of one moment"},
			{From: from{snapshotting}, To: resuming, On: "the snapshot is complete or given up, or the time limit passed", Why: "its members go on as before"},
			{From: from{snapshotting}, To: paused, On: "the snapshot of a paused cluster is complete or given up", Why: "its user wants its members frozen"},
			{
				From: from{ready, scaling, degraded, restoring}, To: saving, On: "save, or a restore that failed",
				Why: "its members are written to disk with their memory",
			},
			{From: from{saving}, To: saved, On: "every member is on disk", Why: "its members give back their cores and their memory in the same commit, and keep their addresses"},
			{From: from{saving, saved, ready, scaling, degraded, paused, resuming}, To: restoring, On: "restore, also of a snapshot, or a save that failed, or one that ended after it was taken back", Why: "saved members go on from disk, all together as soon as there is room"},
			{
				From: from{starting, ready, scaling, degraded, pausing, paused, resuming, snapshotting, saving, saved, restoring, failed},
				To:   deleting, On: "delete, or the grace after the time limit is over",
				Why: "every assignment is releasing, and holds its resources until it is confirmed clean",
			},
			{From: from{deleting}, To: "", On: "every assignment is clean or quarantined", Why: "no resources are left to clean"},
		},
	}
}

// Members returns the machine of members, as the leader sees them. What agents report are levels: a phase that did not last until
// the next report is skipped.
func Members() Machine[api.MemberPhase] {
	const (
		assigned, preparing, starting = api.MemberAssigned, api.MemberPreparing, api.MemberStarting
		ready, unhealthy, paused      = api.MemberReady, api.MemberUnhealthy, api.MemberPaused
		saved                         = api.MemberSaved
		failed, unknown, releasing    = api.MemberFailed, api.MemberUnknown, api.MemberReleasing
		lost, waiting, spare          = api.MemberLost, api.MemberWaiting, api.MemberSpare
	)
	type from = []api.MemberPhase
	return Machine[api.MemberPhase]{
		Name: "member",
		Phases: []PhaseRule[api.MemberPhase]{
			{Phase: waiting, Owner: "user: waits for room, or reverts the change"},
			{Phase: assigned, Owner: "leader: sends it to its node", Timer: "start deadline, 5 min; `unknown` with its node"},
			{Phase: preparing, Owner: "agent of its node", Timer: "5 attempts with growing pauses; start deadline"},
			{Phase: starting, Owner: "agent of its node", Timer: "start deadline"},
			{Phase: ready, Owner: "user"},
			{Phase: unhealthy, Owner: "agent of its node", Timer: "patience, 10 s, then it is lost"},
			{Phase: paused, Owner: "user: resumes the cluster"},
			{Phase: saved, Owner: "user: restores the cluster"},
			{Phase: failed, Owner: "leader: replaces it", Timer: "none needed: at once; in a cluster that failed it stays for its user to inspect"},
			{Phase: lost, Owner: "leader: replaces it", Timer: "a pause that grows from 0 to 1 min with each loss in a row, then as soon as there is room"},
			{Phase: spare, Owner: "user: requested it; the leader gives its room to a replacement"},
			{Phase: unknown, Owner: "leader: its node comes back or is down", Timer: "the node's death timer"},
			{Phase: releasing, Owner: "agent of its node", Timer: "clean deadline, 10 min, then quarantined"},
		},
		Transitions: []Transition[api.MemberPhase]{
			{From: from{""}, To: waiting, On: "its cluster was made larger", Why: "new members are placed all together or not at all"},
			{From: from{"", waiting, lost}, To: assigned, On: "assignment committed", Why: "its resources are reserved from this commit on; a replacement is a new generation under the same name and rank"},
			{
				From: from{unknown, preparing, starting, ready, unhealthy, paused, saved, failed}, To: assigned, On: "its node reports all its members, and this one is missing",
				Why: "its host restarted; the agent creates it again",
			},
			{
				From: from{assigned, starting, ready, unhealthy, paused, saved, failed, unknown}, To: preparing, On: "reported",
				Why: "root, network and files are being created",
			},
			{From: from{assigned, preparing, ready, unhealthy, paused, saved, failed, unknown}, To: starting, On: "reported", Why: "it runs and is not yet reachable"},
			{From: from{assigned, preparing, starting, unhealthy, paused, saved, failed, unknown}, To: ready, On: "reported", Why: "the member itself reported that SSH works"},
			{
				From: from{assigned, preparing, starting, ready, paused, saved, failed, unknown}, To: unhealthy, On: "reported",
				Why: "its SSH, its network or one of its own checks failed, or its node reports a phase that is not for agents to report",
			},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, saved, failed, unknown}, To: paused, On: "reported",
				Why: "its cluster is paused, and it is frozen",
			},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, paused, failed, unknown}, To: saved, On: "reported",
				Why: "its cluster is saved, and it is on disk with its memory",
			},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, paused, saved, unknown}, To: failed, On: "reported",
				Why: "it exited, or the agent gave up starting it; it is never restarted in place",
			},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, paused, saved, failed}, To: unknown, On: "its node is not reporting, or the node's agent has just started",
				Why: "unknown is not off: it may still run, and be ready",
			},
			{
				From: from{failed, unhealthy, unknown, assigned, preparing, starting, paused, saved}, To: lost,
				On:  "failed, node down, unhealthy or not ready for too long",
				Why: "its assignment is releasing, and its network and keys are closed to it; its name waits for a replacement",
			},
			{From: from{""}, To: spare, On: "assignment committed", Why: "its room is reserved; nothing happens on the node"},
			{From: from{spare}, To: "", On: "a replacement took its room, it is no longer needed, or its node is down", Why: "there is nothing to clean"},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, paused, saved, failed, unknown}, To: releasing,
				On: "cluster deleted or made smaller, or the member lost", Why: "its processes are stopped and its resources cleaned",
			},
			{From: from{lost, waiting}, To: "", On: "cluster deleted or made smaller", Why: "it is no longer needed"},
			{
				From: from{releasing}, To: "", On: "confirmed clean, or quarantined",
				Why: "its resources are free only after its executor has checked and found nothing left",
			},
		},
	}
}

// Nodes returns the machine of nodes, as the leader sees them.
func Nodes() Machine[api.NodePhase] {
	return Machine[api.NodePhase]{
		Name: "node",
		Phases: []PhaseRule[api.NodePhase]{
			{Phase: api.NodeUnknown, Owner: "leader", Timer: "death timer, 5 s, then `down`; it counts from the last report of the node or the start of the leader, whichever is later"},
			{Phase: api.NodeReady, Owner: "agent: keeps reporting", Timer: "half the death timer without a report, then `unknown`"},
			{Phase: api.NodeDown, Owner: "operator: brings it back"},
		},
		Transitions: []Transition[api.NodePhase]{
			{From: []api.NodePhase{""}, To: api.NodeUnknown, On: "recorded", Why: "it joined, or a new leader loaded it; it has not reported yet"},
			{From: []api.NodePhase{api.NodeUnknown, api.NodeDown}, To: api.NodeReady, On: "its agent is connected", Why: "it reports"},
			{From: []api.NodePhase{api.NodeReady}, To: api.NodeUnknown, On: "disconnected, or silent for half the death timer", Why: "nothing new is placed there; its members keep running"},
			{From: []api.NodePhase{api.NodeReady, api.NodeUnknown}, To: api.NodeDown, On: "silent for the death timer", Why: "its clusters are degraded; when it returns, it receives its desired state again"},
			{From: []api.NodePhase{api.NodeUnknown, api.NodeReady, api.NodeDown}, To: "", On: "removed from the inventory", Why: "an operator removed it"},
		},
	}
}
