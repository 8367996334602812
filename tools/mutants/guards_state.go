package main

// stateGuards: written ahead, fenced, nothing lost.
var stateGuards = []Mutant{
	{
		Guard:   "a commit is guarded by the leader's election key",
		File:    "internal/state/leader.go",
		Find:    "\treturn []store.Cond{\n\t\tl.leadership.Guard(),\n",
		Replace: "\treturn []store.Cond{\n",
		Test:    "./internal/state TestADeposedLeaderWritesNothing",
	},
	{
		Guard:   "chunks written ahead are guarded by the leader's election key",
		File:    "internal/state/chunks.go",
		Find:    "conds := []store.Cond{l.leadership.Guard()}\n\t\tn, bytes := 0, 0",
		Replace: "conds := []store.Cond{}\n\t\tn, bytes := 0, 0",
		Test:    "./internal/state TestADeposedLeaderWritesNothing",
	},
	{
		Guard:   "a decision holds only on the intent it was made on",
		File:    "internal/state/leader.go",
		Find:    "\t\t{Key: prefixIntent + base.Name(), Revision: base.intentRevision},\n",
		Replace: "",
		Test:    "./internal/state TestADecisionOnAnOldViewIsAConflict",
	},
	{
		Guard:   "a decision holds only on the record it was made on",
		File:    "internal/state/leader.go",
		Find:    "\t\t{Key: prefixRecord + base.Name(), Revision: base.recordRevision},\n",
		Replace: "",
		Test:    "./internal/state TestADecisionOnAnOldViewIsAConflict",
	},
	{
		Guard:   "a cluster is not forgotten while an assignment is not confirmed clean",
		File:    "internal/state/leader.go",
		Find:    "\tfor a := range base.All() {\n\t\treturn 0,",
		Replace: "\tfor a := range base.All() {\n\t\t_ = a\n\t\tbreak\n\t\treturn 0,",
		Test:    "./internal/state TestALifeEndsWithNothingStored",
	},
	{
		Guard:   "garbage collection leaves chunks alone whose header is still to come",
		File:    "internal/state/garbage.go",
		Find:    "named[e.Key] || l.flying(e.Key)",
		Replace: "named[e.Key]",
		Test:    "./internal/state TestGarbageIsCollectedBesideCommitsOfTheSameLeader",
	},
	{
		Guard:   "of two creates of one name one wins",
		File:    "internal/state/projects.go",
		Find:    "conds, ops := []store.Cond{{Key: op.Key}}, []store.Op{op}",
		Replace: "conds, ops := []store.Cond{}, []store.Op{op}",
		Test:    "./internal/state TestOfManyCreatesOfOneNameExactlyOneWins",
	},
	{
		Guard:   "a commit is on the disk before it is acknowledged",
		File:    "internal/store/etcd/embedded.go",
		Find:    "\tc.Name = \"nearmetal\"\n",
		Replace: "\tc.Name = \"nearmetal\"\n\tc.UnsafeNoFsync = true\n",
		Test:    "./testbed/powercut TestCommitsSurviveAPowerCut",
	},
	{
		Guard:   "the memory store checks the conditions of a commit",
		File:    "internal/store/memory/memory.go",
		Find:    "s.entries[c.Key].Revision == c.Revision",
		Replace: "true",
		Test:    "./internal/store/memory TestTheMemoryStoreKeepsTheContract",
	},
	{
		Guard:   "the etcd store checks the conditions of a commit",
		File:    "internal/store/etcd/commit.go",
		Find:    "s.client.Txn(inner).If(cmps...).Then",
		Replace: "s.client.Txn(inner).Then",
		Test:    "./internal/store/etcd TestTheEmbeddedStoreKeepsTheContract",
	},
}

// plannerGuards: nothing is given twice, nothing old is obeyed.
var plannerGuards = []Mutant{
	{
		Guard:   "an assignment whose slot another holds is refused",
		File:    "internal/placement/view.go",
		Find:    "\tif err := v.collision(a); err != nil {\n\t\treturn err\n\t}\n",
		Replace: "",
		Test:    "./internal/placement TestADoubleAllocationIsRefusedWithTheAssignmentsThatCollide",
	},
	{
		Guard:   "only what is releasing or quarantined is freed",
		File:    "internal/placement/view.go",
		Find:    "!h.releasing && !h.quarantined",
		Replace: "false",
		Test:    "./internal/placement TestWhatIsBeingReleasedOrQuarantinedCanNotBeHandedOut",
	},
	{
		Guard:   "what a group of the same request took is not free for the next",
		File:    "internal/placement/plan.go",
		Find:    "freeCores, freeMemory = freeCores-u.cores, freeMemory-u.memory",
		Replace: "_ = u",
		Test:    "./internal/placement TestNothingIsEverAllocatedTwiceAndEverythingReturns",
	},
	{
		Guard:   "exclusive cores come before shared ones",
		File:    "internal/placement/plan.go",
		Find:    "if r.over {",
		Replace: "if r.over && false {",
		Test:    "./internal/placement TestNodesWithCPUsOfTheirOwnComeBeforeOversubscribedOnes",
	},
	{
		Guard:   "the orders of a former leader are not obeyed",
		File:    "internal/lifecycle/member.go",
		Find:    "case next.Term < e.Term:",
		Replace: "case next.Term < e.Term && false:",
		Test:    "./internal/lifecycle TestDesiredStateOfAFormerLeaderOrAnEarlierTimeIsNotObeyed",
	},
	{
		Guard:   "a member of an older generation is not started",
		File:    "internal/lifecycle/member.go",
		Find:    "case d.Generation < in.NewestGeneration:",
		Replace: "case d.Generation < in.NewestGeneration && false:",
		Test:    "./internal/lifecycle TestWhatAnAgentDoesAboutAMemberNext",
	},
	{
		Guard:   "an answer of not found is not ahead of what the next read shows",
		File:    "internal/apiserver/life.go",
		Find:    "\tfor c != nil {\n",
		Replace: "\tfor c != nil && false {\n",
		Test:    "./internal/apiserver TestAnAnswerIsNotAheadOfWhatTheNextReadShows",
	},
	{
		Guard:   "an answer that a cluster exists is not ahead of what the next read shows",
		File:    "internal/apiserver/clusters.go",
		Find:    "\t\ts.seenThere(ctx, intent.Name)\n",
		Replace: "",
		Test:    "./internal/apiserver TestAnAnswerIsNotAheadOfWhatTheNextReadShows",
	},
}
