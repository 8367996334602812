package lifecycle

import "github.com/nearmetal/nearmetal/api"

// Clusters returns the machine of clusters.
func Clusters() Machine[api.ClusterPhase] {
	const (
		pending, queued, refused    = api.ClusterPending, api.ClusterQueued, api.ClusterRefused
		starting, ready, failed     = api.ClusterStarting, api.ClusterReady, api.ClusterFailed
		scaling, degraded, deleting = api.ClusterScaling, api.ClusterDegraded, api.ClusterDeleting
		pausing, paused, resuming   = api.ClusterPausing, api.ClusterPaused, api.ClusterResuming
	)
	type from = []api.ClusterPhase
	return Machine[api.ClusterPhase]{
		Name: "cluster",
		Phases: []PhaseRule[api.ClusterPhase]{
			{Phase: pending, Owner: "leader: decides at once", Timer: "none of its own: waits only while a node that would make it fit is `unknown`, at most the death timer"},
			{Phase: queued, Owner: "user: waits for room, or deletes it; the leader places it when it is its turn"},
			{Phase: refused, Owner: "user: deletes it, asks for something else"},
			{Phase: starting, Owner: "agents of its nodes", Timer: "start deadline, 5 min, or a member's third failure, then `failed`"},
			{Phase: ready, Owner: "user: uses it, changes it, deletes it", Timer: "the time limit, where there is one; so in every phase from `starting` on"},
			{Phase: scaling, Owner: "user: waits for room, or takes the change back; agents start the new members", Timer: "start deadline of each new member, which is then replaced"},
			{Phase: degraded, Owner: "leader: replaces who is lost as soon as there is room; agents start the replacements", Timer: "patience with an unhealthy member, 10 s; start deadline of each replacement"},
			{Phase: pausing, Owner: "agents of its nodes; user: takes it back", Timer: "pause deadline, 1 min, then its message names who is not frozen"},
			{Phase: paused, Owner: "user: resumes it, deletes it"},
			{Phase: resuming, Owner: "agents of its nodes", Timer: "pause deadline, 1 min, then who is still frozen is lost and replaced"},
			{Phase: failed, Owner: "user: looks at what is left, deletes it"},
			{Phase: deleting, Owner: "agents of its nodes", Timer: "clean deadline of each assignment, 10 min, then it is quarantined"},
		},
		Transitions: []Transition[api.ClusterPhase]{
			{From: from{""}, To: pending, On: "create", Why: "the intent is stored, no decision yet"},
			{From: from{pending}, To: queued, On: "possible, but not now", Why: "its user asked to wait; its place in the queue follows from what is stored"},
			{From: from{pending, queued}, To: starting, On: "placed", Why: "every member has a place, and its assignment is committed"},
			{
				From: from{pending, queued}, To: refused, On: "can't be placed",
				Why: "the binding constraint is named; it holds nothing, and a refusal is final: ask again when something changed",
			},
			{From: from{pending, queued, refused}, To: "", On: "delete", Why: "it holds nothing: there is nothing to clean"},
			{
				From: from{starting, scaling, degraded, resuming}, To: ready, On: "exactly the wanted members are there, ready, and have files that name all others",
				Why: "SSH, names and hostfile work on all of them",
			},
			{
				From: from{starting}, To: failed, On: "a member failed for the third time, or the start deadline passed",
				Why: "it holds what it has, so that its user can look, until it is deleted",
			},
			{
				From: from{starting, ready, degraded, resuming}, To: scaling, On: "its groups were changed",
				Why: "new members wait for room or come up, others go; those that stay can be used",
			},
			{
				From: from{ready, scaling, resuming}, To: degraded, On: "a member is lost: it ended, its node is down, or it was unhealthy for too long; or it is not ready",
				Why: "its name and rank wait for a replacement; a node that is only unknown is no evidence: its members run on",
			},
			{
				From: from{ready, scaling, degraded, resuming}, To: pausing, On: "pause",
				Why: "its members are frozen and hold what they have; usage and time limit go on",
			},
			{From: from{pausing}, To: paused, On: "every member is frozen", Why: "nothing of it runs; who is lost is noted and replaced later"},
			{From: from{pausing, paused}, To: resuming, On: "resume, or the time limit passed", Why: "members are woken; jobs that don't run can't end"},
			{
				From: from{starting, ready, scaling, degraded, pausing, paused, resuming, failed},
				To:   deleting, On: "delete, or the grace after the time limit is over",
				Why: "every assignment is releasing, and holds its resources until it is confirmed clean",
			},
			{From: from{deleting}, To: "", On: "every assignment is clean or quarantined", Why: "nothing is left to care for"},
		},
	}
}

// Members returns the machine of members, as the leader sees them. What agents report are levels: a phase that did not last until
// the next report is skipped.
func Members() Machine[api.MemberPhase] {
	const (
		assigned, preparing, starting = api.MemberAssigned, api.MemberPreparing, api.MemberStarting
		ready, unhealthy, paused      = api.MemberReady, api.MemberUnhealthy, api.MemberPaused
		failed, unknown, releasing    = api.MemberFailed, api.MemberUnknown, api.MemberReleasing
		lost, waiting, spare          = api.MemberLost, api.MemberWaiting, api.MemberSpare
	)
	type from = []api.MemberPhase
	return Machine[api.MemberPhase]{
		Name: "member",
		Phases: []PhaseRule[api.MemberPhase]{
			{Phase: waiting, Owner: "user: waits for room, or takes the change back"},
			{Phase: assigned, Owner: "leader: sends it to its node", Timer: "start deadline, 5 min; `unknown` with its node"},
			{Phase: preparing, Owner: "agent of its node", Timer: "5 attempts with growing pauses; start deadline"},
			{Phase: starting, Owner: "agent of its node", Timer: "start deadline"},
			{Phase: ready, Owner: "user"},
			{Phase: unhealthy, Owner: "agent of its node", Timer: "patience, 10 s, then it is lost"},
			{Phase: paused, Owner: "user: resumes the cluster"},
			{Phase: failed, Owner: "leader: replaces it", Timer: "none needed: at once; in a cluster that failed it stays for its user to look at"},
			{Phase: lost, Owner: "leader: replaces it", Timer: "a pause that grows from 0 to 1 min with each loss in a row, then as soon as there is room"},
			{Phase: spare, Owner: "user: asked for it; the leader gives its room to a replacement"},
			{Phase: unknown, Owner: "leader: its node comes back or is down", Timer: "the node's death timer"},
			{Phase: releasing, Owner: "agent of its node", Timer: "clean deadline, 10 min, then quarantined"},
		},
		Transitions: []Transition[api.MemberPhase]{
			{From: from{""}, To: waiting, On: "its cluster was made larger", Why: "all new members get their places together or not at all"},
			{From: from{"", waiting, lost}, To: assigned, On: "assignment committed", Why: "its resources are its own from this commit; a replacement is a new generation under the same name and rank"},
			{
				From: from{unknown, preparing, starting, ready, unhealthy, paused, failed}, To: assigned, On: "its node tells all it has, and this is not among it",
				Why: "its host restarted; the agent makes it again",
			},
			{
				From: from{assigned, starting, ready, unhealthy, paused, failed, unknown}, To: preparing, On: "reported",
				Why: "root, network and files are made",
			},
			{From: from{assigned, preparing, ready, unhealthy, paused, failed, unknown}, To: starting, On: "reported", Why: "it runs and is not yet reachable"},
			{From: from{assigned, preparing, starting, unhealthy, paused, failed, unknown}, To: ready, On: "reported", Why: "it said itself that SSH works"},
			{
				From: from{assigned, preparing, starting, ready, paused, failed, unknown}, To: unhealthy, On: "reported",
				Why: "SSH, its network or a check of its own says that it can't be used",
			},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, failed, unknown}, To: paused, On: "reported",
				Why: "its cluster is paused, and it is frozen",
			},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, paused, unknown}, To: failed, On: "reported",
				Why: "it ended, or could not be started and the agent has given up; it is never started again in place",
			},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, paused, failed}, To: unknown, On: "its node is not heard of, or its node's agent has just started",
				Why: "unknown is not off: it may well run, and be ready",
			},
			{
				From: from{failed, unhealthy, unknown, assigned, preparing, starting, paused}, To: lost,
				On:  "failed, node down, unhealthy or not ready for too long",
				Why: "its assignment is releasing, and its network and keys are closed to it; its name waits for a replacement",
			},
			{From: from{""}, To: spare, On: "assignment committed", Why: "room is held; nothing is carried out on the node"},
			{From: from{spare}, To: "", On: "a replacement took its room, nobody wants it any more, or its node is down", Why: "there is nothing to clean"},
			{
				From: from{assigned, preparing, starting, ready, unhealthy, paused, failed, unknown}, To: releasing,
				On: "cluster deleted or made smaller, or the member lost", Why: "what is left of it is stopped and cleaned",
			},
			{From: from{lost, waiting}, To: "", On: "cluster deleted or made smaller", Why: "nobody wants it any more"},
			{
				From: from{releasing}, To: "", On: "confirmed clean, or quarantined",
				Why: "its resources are free only when its executor looked and found nothing",
			},
		},
	}
}

// Nodes returns the machine of nodes, as the leader sees them.
func Nodes() Machine[api.NodePhase] {
	return Machine[api.NodePhase]{
		Name: "node",
		Phases: []PhaseRule[api.NodePhase]{
			{Phase: api.NodeUnknown, Owner: "leader", Timer: "death timer, 5 s, then `down`; it runs from the last word of the node or the start of the leader, whichever is later"},
			{Phase: api.NodeReady, Owner: "agent: keeps talking", Timer: "half the death timer without a word, then `unknown`"},
			{Phase: api.NodeDown, Owner: "operator: brings it back"},
		},
		Transitions: []Transition[api.NodePhase]{
			{From: []api.NodePhase{""}, To: api.NodeUnknown, On: "recorded", Why: "it joined, or a new leader read it; nobody has heard of it yet"},
			{From: []api.NodePhase{api.NodeUnknown, api.NodeDown}, To: api.NodeReady, On: "its agent is connected", Why: "it is heard of"},
			{From: []api.NodePhase{api.NodeReady}, To: api.NodeUnknown, On: "disconnected, or silent for half the death timer", Why: "nothing new is placed there; what runs there runs on"},
			{From: []api.NodePhase{api.NodeReady, api.NodeUnknown}, To: api.NodeDown, On: "silent for the death timer", Why: "its clusters are degraded; it is told again what it should have when it comes back"},
			{From: []api.NodePhase{api.NodeUnknown, api.NodeReady, api.NodeDown}, To: "", On: "taken out of the inventory", Why: "an operator removed it"},
		},
	}
}
