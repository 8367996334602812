package main

// siteGuards: between server and agents, and of each alone.
var siteGuards = []Mutant{
	{
		Guard:   "an agent obeys no leader of an older term",
		File:    "internal/agent/agent.go",
		Find:    `d.Term < a.term || (a.desired`,
		Replace: `(a.desired`,
		Test:    "./internal/agent TestOrdersOfADeposedLeaderAreNotObeyedEvenAfterARestart",
	},
	{
		Guard:   "an agent obeys no older order of the same leader",
		File:    "internal/agent/agent.go",
		Find:    `d.Revision < a.desired.Revision`,
		Replace: `d.Revision < 0`,
		Test:    "./internal/agent TestOrdersOfADeposedLeaderAreNotObeyedEvenAfterARestart",
	},
	{
		Guard:   "an agent keeps the leader's term across a restart",
		File:    "internal/agent/agent.go",
		Find:    `err := saveTerm(a.cfg.StateDir, a.cfg.Site, d.Term)`,
		Replace: `err := error(nil)`,
		Test:    "./internal/agent TestOrdersOfADeposedLeaderAreNotObeyedEvenAfterARestart",
	},
	{
		Guard:   "a term counts within its site only",
		File:    "internal/agent/term.go",
		Find:    `if of != site {`,
		Replace: `if of == "" {`,
		Test:    "./internal/agent TestTheTermOfALeaderIsKeptForItsSiteOnly",
	},
	{
		Guard:   "a second machine can't take the name of a living one",
		File:    "internal/monitor/monitor.go",
		Find:    `n.agentID != hello.AgentID && silence`,
		Replace: `false && silence`,
		Test:    "./internal/agent TestASecondMachineUnderANameInUseIsRefused",
	},
	{
		Guard:   "a released member is clean only when its network is gone from the node",
		File:    "internal/agent/members.go",
		Find:    `if !a.networks.holds(m.want.Network.Index) || a.sharesNetwork(m) {`,
		Replace: `if true {`,
		Test:    "./internal/agent TestAReleasedMemberIsCleanOnlyWhenItsNetworkIsGoneFromTheNode",
	},
	{
		Guard:   "a silent node is not down before its death timer",
		File:    "internal/monitor/monitor.go",
		Find:    `case silence >= m.cfg.DeathTimer:`,
		Replace: `case silence >= m.cfg.DeathTimer || n.stream == nil:`,
		Test:    "./internal/agent TestANodeIsDownOnlyAfterTheDeathTimer",
	},
	{
		Guard:   "what is quarantined goes on being cleaned",
		File:    "internal/controller/desired.go",
		Find:    `	d.updateQuarantines(view, dirty)`,
		Replace: ``,
		Test:    "./internal/controller TestAQuarantinedMemberIsAskedToGoAfterItsClusterIsGone",
	},
	{
		Guard:   "one server at a time holds a state directory",
		File:    "internal/server/server.go",
		Find:    `syscall.LOCK_EX|syscall.LOCK_NB); err != nil {`,
		Replace: `syscall.LOCK_SH|syscall.LOCK_NB); err != nil {`,
		Test:    "./internal/server TestASecondServerOnOneStateDirectoryIsRefusedAndToldWhoHoldsIt",
	},
	{
		Guard:   "a tenant can't make a job's output larger than what is kept",
		File:    "internal/monitor/joblog.go",
		Find:    `if offset >= maxLogBytes {`,
		Replace: `if false {`,
		Test:    "./internal/monitor TestAPieceFarBeyondTheLimitIsRefused",
	},
	{
		Guard:   "output that comes twice is stored once",
		File:    "internal/monitor/joblog.go",
		Find:    `data = data[max(0, have-offset):]`,
		Replace: `data = data[0:]`,
		Test:    "./internal/monitor TestOutputIsStoredOnceHoweverOftenItComes",
	},
}
