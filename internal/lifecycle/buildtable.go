package lifecycle

import "github.com/nearmetal/nearmetal/api"

// Builds returns the machine of builds.
func Builds() Machine[api.BuildPhase] {
	const (
		pending, running  = api.BuildPending, api.BuildRunning
		succeeded, failed = api.BuildSucceeded, api.BuildFailed
		cancelled         = api.BuildCancelled
		reader            = "user: reads its output; the leader removes it 30 days after its end"
	)
	type from = []api.BuildPhase
	return Machine[api.BuildPhase]{
		Name: "build",
		Phases: []PhaseRule[api.BuildPhase]{
			{Phase: pending, Owner: "user: waits for a trusted builder, or with --verify for any builder node, or cancels it; the leader gives it to the first free one"},
			{Phase: running, Owner: "user: waits for it, or cancels it; the agent of its node builds", Timer: "the death timer of its node, for three nodes"},
			{Phase: succeeded, Owner: reader},
			{Phase: failed, Owner: reader},
			{Phase: cancelled, Owner: reader},
		},
		Transitions: []Transition[api.BuildPhase]{
			{From: from{""}, To: pending, On: "requested", Why: "its recipe is stored with it"},
			{From: from{pending}, To: running, On: "a builder node is free", Why: "node and attempt are stored before the node receives the build"},
			{
				From: from{running}, To: pending,
				On:  "its node is down or no longer a trusted builder, for the first or second time, or the first of two nodes has built it",
				Why: "what becomes of a node is not the recipe's fault, and a build is verified by another node that builds it again",
			},
			{
				From: from{pending}, To: succeeded, On: "an image of the same recipe on the same bases exists, and a rebuild was not requested",
				Why: "the image is used again; a recipe that takes files of the builder node is always built",
			},
			{
				From: from{running}, To: succeeded,
				On:  "reported by a trusted builder, or alike by two nodes, and the site's store has the whole image",
				Why: "build, image and environment become true in one commit, which fails if that trust has ended",
			},
			{
				From: from{pending, running}, To: failed,
				On: "a base is not built, the node reports an error, the third node is down or no longer trusted, the image is incomplete or of another " +
					"recipe, or two nodes that verify it differ",
				Why: "its message gives the reason",
			},
			{From: from{pending, running}, To: cancelled, On: "cancelled, and no node has it any more", Why: "its user ended it"},
			{From: from{succeeded, failed, cancelled}, To: "", On: "it ended 30 days ago", Why: "its output is removed with it"},
		},
	}
}
