package lifecycle

import "github.com/nearmetal/nearmetal/api"

// Clusters returns the machine of clusters.
func Clusters() Machine[api.ClusterPhase] {
	return Machine[api.ClusterPhase]{
		Name: "cluster",
		Phases: []PhaseRule[api.ClusterPhase]{
			{Phase: api.ClusterPending, Owner: "leader: decides at once", Timer: "none of its own: waits only while a node that would make it fit is `unknown`, at most the death timer"},
			{Phase: api.ClusterRefused, Owner: "user: deletes it, asks for something else"},
			{Phase: api.ClusterStarting, Owner: "agents of its nodes", Timer: "start deadline, 5 min, then `failed`"},
			{Phase: api.ClusterReady, Owner: "user: uses it, deletes it"},
			{Phase: api.ClusterDegraded, Owner: "user: goes on with what is left, or deletes it; agents keep starting what ended"},
			{Phase: api.ClusterFailed, Owner: "user: looks at what is left, deletes it"},
			{Phase: api.ClusterDeleting, Owner: "agents of its nodes", Timer: "clean deadline, 10 min, then what is not clean is quarantined"},
		},
		Transitions: []Transition[api.ClusterPhase]{
			{
				From: []api.ClusterPhase{""}, To: api.ClusterPending, On: "create",
				Why: "the intent is stored, no decision yet",
			},
			{
				From: []api.ClusterPhase{api.ClusterPending}, To: api.ClusterStarting, On: "placed",
				Why: "every member has a place, and its assignment is committed",
			},
			{
				From: []api.ClusterPhase{api.ClusterPending}, To: api.ClusterRefused, On: "can't be placed",
				Why: "the binding constraint is named; it holds nothing, and a refusal is final: ask again when something changed",
			},
			{
				From: []api.ClusterPhase{api.ClusterPending, api.ClusterRefused}, To: "", On: "delete",
				Why: "it holds nothing: there is nothing to clean",
			},
			{
				From: []api.ClusterPhase{api.ClusterStarting}, To: api.ClusterReady, On: "every member is ready",
				Why: "SSH, names and hostfile work on all of them",
			},
			{
				From: []api.ClusterPhase{api.ClusterStarting}, To: api.ClusterFailed, On: "a member failed, or the start deadline passed",
				Why: "it holds what it has, so that its user can look, until it is deleted",
			},
			{
				From: []api.ClusterPhase{api.ClusterReady}, To: api.ClusterDegraded, On: "a member is not ready, or its node is down",
				Why: "a node that is only unknown is no evidence: its members run on",
			},
			{
				From: []api.ClusterPhase{api.ClusterDegraded}, To: api.ClusterReady, On: "every member is ready again",
				Why: "its agent started it again, or its node came back",
			},
			{
				From: []api.ClusterPhase{api.ClusterStarting, api.ClusterReady, api.ClusterDegraded, api.ClusterFailed},
				To:   api.ClusterDeleting, On: "delete",
				Why: "every assignment is releasing, and holds its resources until it is confirmed clean",
			},
			{
				From: []api.ClusterPhase{api.ClusterDeleting}, To: "", On: "every assignment is clean or quarantined",
				Why: "nothing is left to care for",
			},
		},
	}
}

// Members returns the machine of members, as the leader sees them. What agents report are levels: a phase that did not last until
// the next report is skipped.
func Members() Machine[api.MemberPhase] {
	const (
		assigned, preparing, starting = api.MemberAssigned, api.MemberPreparing, api.MemberStarting
		ready, failed                 = api.MemberReady, api.MemberFailed
		unknown, releasing            = api.MemberUnknown, api.MemberReleasing
	)
	type from = []api.MemberPhase
	return Machine[api.MemberPhase]{
		Name: "member",
		Phases: []PhaseRule[api.MemberPhase]{
			{Phase: assigned, Owner: "leader: sends it to its node", Timer: "the cluster's start deadline; `unknown` with its node"},
			{Phase: preparing, Owner: "agent of its node", Timer: "5 attempts with growing pauses; the cluster's start deadline"},
			{Phase: starting, Owner: "agent of its node", Timer: "the cluster's start deadline"},
			{Phase: ready, Owner: "user"},
			{Phase: failed, Owner: "user: looks at it, deletes the cluster"},
			{Phase: unknown, Owner: "leader: its node comes back or is down", Timer: "the node's death timer"},
			{Phase: releasing, Owner: "agent of its node", Timer: "the cluster's clean deadline, then quarantined"},
		},
		Transitions: []Transition[api.MemberPhase]{
			{From: from{""}, To: assigned, On: "assignment committed", Why: "its resources are its own from this commit"},
			{
				From: from{unknown, preparing, starting, ready, failed}, To: assigned, On: "its node tells all it has, and this is not among it",
				Why: "its host restarted; the agent makes it again",
			},
			{
				From: from{assigned, starting, ready, failed, unknown}, To: preparing, On: "reported",
				Why: "root, network and files are made, also anew after it ended",
			},
			{From: from{assigned, preparing, ready, failed, unknown}, To: starting, On: "reported", Why: "it runs and is not yet reachable"},
			{From: from{assigned, preparing, starting, failed, unknown}, To: ready, On: "reported", Why: "it said itself that SSH works"},
			{
				From: from{assigned, preparing, starting, ready, unknown}, To: failed, On: "reported",
				Why: "it ended or could not be started, and the agent has given up",
			},
			{
				From: from{assigned, preparing, starting, ready, failed}, To: unknown, On: "its node is not heard of, or its node's agent has just started",
				Why: "unknown is not off: it may well run, and be ready",
			},
			{From: from{assigned, preparing, starting, ready, failed, unknown}, To: releasing, On: "cluster deleted", Why: "it is stopped and cleaned"},
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
