package main

// cliGuards: what the command line refuses or says before a user loses something.
var cliGuards = []Mutant{
	{
		Guard:   "a home that holds files is not deleted without confirmation",
		File:    "internal/cli/cluster_delete.go",
		Find:    `	case usage.Empty():`,
		Replace: `	case true:`,
		Test:    "./internal/cli TestAHomeWithFilesIsNotDeletedUnasked",
	},
	{
		Guard:   "a home that can't be counted is treated as holding files",
		File:    "internal/cli/cluster_delete.go",
		Find:    `		holds = fmt.Sprintf("can't be inspected (%v)", err)`,
		Replace: `		return nil`,
		Test:    "./internal/cli TestAHomeWithFilesIsNotDeletedUnasked",
	},
	{
		Guard:   "an interrupted question is not taken for a yes",
		File:    "internal/cli/cluster_delete.go",
		Find:    `		return false, context.Cause(ctx)`,
		Replace: `		return true, nil`,
		Test:    "./internal/cli TestAnInterruptIsNoAnswer",
	},
	{
		Guard:   "counting a home stops after a bounded number of files",
		File:    "internal/agent/home.go",
		Find:    `if c.left == 0 || c.ctx.Err() != nil {`,
		Replace: `if c.ctx.Err() != nil {`,
		Test:    "./internal/agent TestCountingAHomeStopsAtItsLimits",
	},
	{
		Guard:   "counting a home stops after a bounded time",
		File:    "internal/agent/home.go",
		Find:    `if c.left == 0 || c.ctx.Err() != nil {`,
		Replace: `if c.left == 0 {`,
		Test:    "./internal/agent TestCountingAHomeStopsAtItsLimits",
	},
	{
		Guard:   "counting a home follows no links",
		File:    "internal/agent/home.go",
		Find:    `info, err := dir.Lstat(name)`,
		Replace: `info, err := os.Stat(dir.Name() + "/" + name)`,
		Test:    "./internal/agent TestAHomesFilesAreCountedAndLinksAreNotFollowed",
	},
	{
		Guard:   "an agent counts only a few homes at once",
		File:    "internal/monitor/home.go",
		Find:    `if len(s.homes) >= maxHomeCounts {`,
		Replace: `if false {`,
		Test:    "./internal/monitor TestAnAgentCountsAFewHomesAtOnce",
	},
	{
		Guard:   "a question about a home that nobody waits for takes no place",
		File:    "internal/monitor/home.go",
		Find:    `	defer s.forgetHome(id)`,
		Replace: `	_ = id`,
		Test:    "./internal/monitor TestAHomeOfANodeThatDoesNotAnswerIsNotKnown",
	},
	{
		Guard:   "run says that what is piped into it is not passed on",
		File:    "internal/cli/run_input.go",
		Find:    `if !ok || u.warned || !holdsData(in) {`,
		Replace: `if true {`,
		Test:    "./internal/cli TestRunWarnsOfInputThatTheJobDoesNotGet",
	},
	{
		Guard:   "a cancelled job that does not end is not waited for without bound",
		File:    "internal/cli/run_interrupt.go",
		Find:    `	case <-timer.C:`,
		Replace: `	case <-make(chan struct{}):`,
		Test:    "./internal/cli TestACancelledJobThatDoesNotEndIsNotWaitedForLong",
	},
	{
		Guard:   "a job that fails after a scale-down says which members it lost by it",
		File:    "internal/controller/jobs.go",
		Find:    `	job.RemovedMembers = in.removed()`,
		Replace: `	_ = in.removed()`,
		Test:    "./internal/controller TestAJobThatFailsAfterItsClusterWasScaledDownSaysSo",
	},
	{
		Guard:   "a member that died is not said to be removed by scaling down",
		File:    "internal/controller/jobs.go",
		Find:    `!slices.Contains(died, a.ID) && `,
		Replace: ``,
		Test:    "./internal/controller TestAJobThatFailsAfterItsClusterWasScaledDownSaysSo",
	},
}
