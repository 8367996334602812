package main

// treeGuards: what tenants' directory trees can't do to whoever removes or reads them.
var treeGuards = []Mutant{
	{
		Guard:   "the removal of a deep tree holds few directories open",
		File:    "internal/filetree/remove.go",
		Find:    "if len(r.held) == mostHeld {",
		Replace: "if len(r.held) == 1<<20 {",
		Test:    "./internal/filetree TestATreeOfAnyDepthIsRemovedWithFewOpenFiles",
	},
	{
		Guard:   "a removal ends when its time is up",
		File:    "internal/filetree/remove.go",
		Find:    "if err := r.ctx.Err(); err != nil {",
		Replace: "if err := r.ctx.Err(); err != nil && false {",
		Test:    "./internal/filetree TestARemovalThatIsOutOfTimeGoesOnWhereItStopped",
	},
	{
		Guard:   "a removal enters no mount",
		File:    "internal/filetree/remove.go",
		Find:    "Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS",
		Replace: "Resolve: unix.RESOLVE_NO_SYMLINKS",
		Test:    "./internal/filetree TestWhatLinksAndMountsLeadToStays",
	},
	{
		Guard:   "a removal follows no link, also when a directory becomes one meanwhile",
		File:    "internal/filetree/remove.go",
		Find:    "unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,\n\t\tResolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,",
		Replace: "unix.O_DIRECTORY | unix.O_CLOEXEC,\n\t\tResolve: unix.RESOLVE_NO_MAGICLINKS,",
		Test:    "./internal/filetree TestATenantWhoExchangesDirectoriesMeanwhileLosesNobodyElsesFiles",
	},
	{
		Guard:   "a link of an image leads to a file of the image",
		File:    "internal/filetree/read.go",
		Find:    "unix.RESOLVE_IN_ROOT|unix.RESOLVE_NO_MAGICLINKS)",
		Replace: "unix.RESOLVE_NO_MAGICLINKS)",
		Test:    "./internal/filetree TestLinksOfARootLeadNowhereElse",
	},
	{
		Guard:   "no more of an image's file is read than there may be",
		File:    "internal/filetree/read.go",
		Find:    "if err == nil && int64(len(data)) > most {",
		Replace: "if err == nil && int64(len(data)) > 1<<40 {",
		Test:    "./internal/filetree TestLinksOfARootLeadNowhereElse",
	},
	{
		Guard:   "what is stored of others' words is bounded",
		File:    "internal/state/state.go",
		Find:    "json.Marshal(bounded(v))",
		Replace: "json.Marshal(v)",
		Test:    "./internal/state TestWhatOthersWordedIsStoredInBounds",
	},
	{
		Guard:   "what an agent says is bounded",
		File:    "internal/monitor/monitor.go",
		Find:    "\tshortenMessages(&o)\n",
		Replace: "",
		Test:    "./internal/monitor TestWhatAnAgentSaysIsHeldInBounds",
	},
	{
		Guard:   "a reading whose problem is stored in part is not noted again and again",
		File:    "internal/lifecycle/machine.go",
		Find:    "api.ShortMessage(p.Problem) != r.PowerMessage",
		Replace: "p.Problem != r.PowerMessage",
		Test:    "./internal/lifecycle TestALongPowerProblemIsNotedOnce",
	},
	{
		Guard:   "nothing is said to be gone that passed to quarantine",
		File:    "internal/lifecycle/cleaning.go",
		Find:    "if len(in.Quarantined) == 0 {",
		Replace: "if len(in.Quarantined) >= 0 {",
		Test:    "./internal/lifecycle TestHowAClusterIsDeletedAndCleaned",
	},
	{
		Guard:   "the leader knows which members of a deleted cluster are in quarantine",
		File:    "internal/situation/situation.go",
		Find:    "if q.Assignment.ClusterUID == c.UID() {",
		Replace: "if false {",
		Test:    "./internal/controller TestMoreMembersThanACommitHoldsArePassedIntoQuarantine",
	},
}
