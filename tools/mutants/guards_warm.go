package main

// warmGuards: machines that nobody has wait in their boot agents, or go off, and who gets which is no accident.
var warmGuards = []Mutant{
	{
		Guard:   "a machine that was not cleaned is no warm one",
		File:    "internal/situation/situation.go",
		Find:    "now.warm = now.asleep && isWarm(m)",
		Replace: "now.warm = isWarm(m)",
		Test:    "./internal/situation TestOnlyMachinesThatAreReadyAndStayGetMembers",
	},
	{
		Guard:   "a machine that waits and falls silent goes off",
		File:    "internal/lifecycle/machinewarm.go",
		Find:    "if !in.Now.Before(silentAt) {",
		Replace: "if false {",
		Test:    "./internal/decision TestAMachineThatFallsSilentWhileItWaitsGoesOff",
	},
	{
		Guard:   "a new leader has not heard of the machines that wait",
		File:    "internal/lifecycle/machinewarm.go",
		Find:    "[]time.Time{in.LeaderSince, in.Boot.LastHeard}",
		Replace: "[]time.Time{in.Boot.LastHeard}",
		Test:    "./internal/decision TestANewLeaderDoesNotTakeAMachineThatWaitsForSilent",
	},
	{
		Guard:   "a machine that an operator has switched off is not woken to wait",
		File:    "internal/lifecycle/machinewarm.go",
		Find:    "return off || held ||",
		Replace: "return held ||",
		Test:    "./internal/decision TestAMachineIsWokenWhileTooFewWait",
	},
	{
		Guard:   "a machine in quarantine is not woken to wait",
		File:    "internal/lifecycle/machinewarm.go",
		Find:    "r.Quarantine != nil || in.Tenant != nil || in.keptOff() {",
		Replace: "in.Tenant != nil {",
		Test:    "./internal/decision TestAMachineIsWokenWhileTooFewWait",
	},
	{
		Guard:   "a machine with an agent is not switched off for being idle",
		File:    "internal/lifecycle/machinewarm.go",
		Find:    "in.Agent.Connected ||",
		Replace: "",
		Test:    "./internal/decision TestAMachineThatIsOnThoughNobodyAskedGoesOff",
	},
	{
		Guard:   "a boot from the boot agent leaves the power alone",
		File:    "internal/lifecycle/machinewarm.go",
		Find:    "return []MachineOperation{b, NoteBoot{",
		Replace: "return []MachineOperation{b}\n\treturn []MachineOperation{b, NoteBoot{",
		Test:    "./internal/decision TestAMachineThatWaitsBootsForItsMemberFromItsBootAgent",
	},
	{
		Guard:   "a machine starts no boot twice by itself",
		File:    "internal/machine/bootapi/progress.go",
		Find:    "if b == nil || !b.Warm || b.RedeemedAt != nil {",
		Replace: "if b == nil || !b.Warm {",
		Test:    "./internal/machine/bootapi TestAMachineThatWaitsInItsBootAgentIsToldWhatItBootsNext",
	},
	{
		Guard:   "a boot agent starts the kernel named, and no other",
		File:    "internal/machine/bootagent/next.go",
		Find:    "got != digest {",
		Replace: "false && got != digest {",
		Test:    "./internal/machine/bootagent TestAKernelThatIsNotTheOneNamedIsNotStarted",
	},
	{
		Guard:   "warm machines are given away first",
		File:    "internal/placement/prefer.go",
		Find:    "case r.Warm:\n\t\t\treturn 0",
		Replace: "case r.Warm:\n\t\t\treturn 1",
		Test:    "./internal/placement TestAWholeMachineIsTakenWarmThenRecentlyVerified",
	},
	{
		Guard:   "machines that proved last that they boot are given away before others",
		File:    "internal/placement/prefer.go",
		Find:    ", b.VerifiedAt.Compare(a.VerifiedAt))",
		Replace: ")",
		Test:    "./internal/placement TestAWholeMachineIsTakenWarmThenRecentlyVerified",
	},
}
