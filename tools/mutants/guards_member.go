package main

// memberGuards: what runs in a member, and what it may say.
var memberGuards = []Mutant{
	{
		Guard:   "a check that takes too long is killed",
		File:    "internal/member/trial.go",
		Find:    "\t\tend()\n\t\tif !watch.frozen",
		Replace: "\t\tif !watch.frozen",
		Test:    "./internal/member TestATrialBelievesFailuresInARow",
	},
	{
		Guard:   "a check is believed after failures in a row",
		File:    "internal/member/trial.go",
		Find:    `if failed >= t.failures && err.Error() != told {`,
		Replace: `if failed >= 1 && err.Error() != told {`,
		Test:    "./internal/member TestATrialBelievesFailuresInARow",
	},
	{
		Guard:   "a job is signalled once for each loss",
		File:    "internal/member/jobs.go",
		Find:    `if wanted.Failures <= known.failures || known.state.Phase.Ended() {`,
		Replace: `if wanted.Failures == 0 || known.state.Phase.Ended() {`,
		Test:    "./internal/member TestALossIsToldToARunOncePerCount",
	},
	{
		Guard:   "an attempt begins only after the earlier one has ended",
		File:    "internal/member/jobs.go",
		Find:    "\t\tif before != nil {\n\t\t\t<-before.ended\n\t\t}\n\t\tif begin",
		Replace: "\t\tif begin",
		Test:    "./internal/member TestAnAttemptIsMadeOnceNothingOfTheEarlierOneRuns",
	},
	{
		Guard:   "an earlier attempt does not begin after a later one",
		File:    "internal/member/jobs.go",
		Find:    `case before != nil && before.attempt > wanted.Attempt:`,
		Replace: `case before != nil && false:`,
		Test:    "./internal/member TestAnEarlierAttemptThatIsHeardOfLateIsNotMade",
	},
	{
		Guard:   "a run that an earlier agent of the member began is not begun again",
		File:    "internal/member/jobs.go",
		Find:    `case wanted.Phase != api.JobPending || wanted.StartedAt != nil:`,
		Replace: `case false:`,
		Test:    "./internal/member TestJobsEndAsTheirCommandsDo",
	},
	{
		Guard:   "a job that was given is given to no other instance",
		File:    "internal/member/given.go",
		Find:    `if owner, ok := g.instances[runID]; ok {`,
		Replace: `if owner, ok := g.instances[runID]; ok && owner == instance {`,
		Test:    "./internal/member TestAJobThatWasGivenIsRememberedAndATornLineIsNot",
	},
	{
		Guard:   "a member tells of its own jobs only",
		File:    "internal/member/serverconn.go",
		Find:    `!known && (s.jobs != nil || len(s.reported) >= maxReported) {`,
		Replace: `!known && false {`,
		Test:    "./internal/member TestWhatAMemberSaysOfJobsThatAreNotItsOwnIsNotKept",
	},
	{
		Guard:   "what a member said has ended does not come back",
		File:    "internal/member/serverconn.go",
		Find:    `old.Phase.Ended() && !state.Phase.Ended() {`,
		Replace: `old.Phase == "" {`,
		Test:    "./internal/member TestWhatAMemberSaysOfJobsThatAreNotItsOwnIsNotKept",
	},
	{
		Guard:   "a job that is told and ended at once has time to act on the signal",
		File:    "internal/member/jobs.go",
		Find:    `if known.told.IsZero() || left <= 0 {`,
		Replace: `if true {`,
		Test:    "./internal/member TestAJobThatIsToldAndEndedInOneListHasTimeToActOnTheSignal",
	},
}
