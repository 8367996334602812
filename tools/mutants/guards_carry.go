package main

// carryGuards: how states and running members get from one node to another.
var carryGuards = []Mutant{
	{
		Guard:   "a node fetches members of its own successors only",
		File:    "internal/situation/carry.go",
		Find:    "next.Node != r.Node ||",
		Replace: "",
		Test:    "./internal/situation TestOnlyTheNodeOfASuccessorFetchesItsMember",
	},
	{
		Guard:   "nothing but a successor fetches a member",
		File:    "internal/situation/carry.go",
		Find:    "|| !next.IsSuccessor()",
		Replace: "",
		Test:    "./internal/situation TestOnlyTheNodeOfASuccessorFetchesItsMember",
	},
	{
		Guard:   "a state is fetched of who is saved, and nobody else",
		File:    "internal/situation/carry.go",
		Find:    "case from.Saved !=",
		Replace: "case false && from.Saved !=",
		Test:    "./internal/situation TestOnlyTheNodeOfASuccessorFetchesItsMember",
	},
	{
		Guard:   "a member is sent only where its leader wants it",
		File:    "internal/agent/carry.go",
		Find:    "case move == nil || move.To != successor:",
		Replace: "case move == nil:",
		Test:    "./internal/agent TestAMemberIsGivenOnlyToTheSuccessorThatItsLeaderNames",
	},
	{
		Guard:   "a member that was sent is never started again",
		File:    "internal/lifecycle/member.go",
		Find:    "case in.Departed:",
		Replace: "case in.Departed && false:",
		Test:    "./internal/agent TestAMemberThatWasSentIsNotStartedAgain",
	},
	{
		Guard:   "nor by the agent that starts again",
		File:    "internal/agent/members.go",
		Find:    "exit: o.Message, departed: a.hasDeparted(o.ID)}",
		Replace: "exit: o.Message}",
		Test:    "./internal/agent TestAMemberThatWasSentIsNotStartedAgain",
	},
	{
		Guard:   "a member whose fate is unknown is taken back only on its leader's word",
		File:    "internal/lifecycle/member.go",
		Find:    "case !in.Desired.TakeBack:",
		Replace: "case false:",
		Test:    "./internal/agent TestAMemberWhoseFateIsUnknownStandsStillUntilItIsTakenBack",
	},
	{
		Guard:   "a move that broke off is not tried again by its receiver",
		File:    "internal/agent/carry.go",
		Find:    "return &overError{err}",
		Replace: "return err",
		Test:    "./internal/agent TestAMoveThatFailsLeavesTheMemberRunningAndIsNotTriedAgain",
	},
	{
		Guard:   "a transfer that the leader no longer wants ends",
		File:    "internal/agent/carry.go",
		Find:    "if m.transfer != nil && !m.transfer.wanted(m.want) {",
		Replace: "if false {",
		Test:    "./internal/agent TestAMoveThatIsNoLongerWantedEnds",
	},
	{
		Guard:   "the port of a member that has left is gone from its node",
		File:    "internal/agent/members.go",
		Find:    "m.gone() || m.left() ||",
		Replace: "m.gone() ||",
		Test:    "./internal/agent TestARunningMemberMovesToAnotherNodeThroughTheServer",
	},
	{
		Guard:   "what an earlier attempt left of a state is gone before the next",
		File:    "internal/agent/converge.go",
		Find:    "if m.elsewhere(a.cfg.Node.Name) && a.inTheWay(m.want.Assignment.From) {",
		Replace: "if false {",
		Test:    "./internal/agent TestWhatAnEarlierAttemptLeftOfAStateIsRemovedFirst",
	},
	{
		Guard:   "nothing of the saved member stays where it was carried to",
		File:    "internal/agent/carry.go",
		Find:    "d.Clean(cleaning, from)",
		Replace: "error(nil)",
		Test:    "./internal/agent TestASavedMemberGoesOnOnAnotherNode",
	},
}
