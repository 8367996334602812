package main

// rebootGuards: a reboot on request happens once, and is no loss of the member.
var rebootGuards = []Mutant{
	{
		Guard:   "a member that exited in the middle of its reboot goes on with it",
		File:    "internal/lifecycle/member.go",
		Find:    `case in.Host == HostExited && in.Desired.Reboot && in.Attempts.Count < MaxAttempts:`,
		Replace: `case false:`,
		Test:    "./internal/lifecycle TestWhatAnAgentDoesAboutAMemberNext",
	},
	{
		Guard:   "a member on its way to another node is not rebooted",
		File:    "internal/lifecycle/member.go",
		Find:    `case in.Desired.Reboot && !in.Desired.Moving:`,
		Replace: `case in.Desired.Reboot:`,
		Test:    "./internal/lifecycle TestWhatAnAgentDoesAboutAMemberNext",
	},
	{
		Guard:   "an agent that starts again knows which boot a member runs",
		File:    "internal/agent/members.go",
		Find:    `m.boot, m.size, m.assigned = o.Member.Boot, o`,
		Replace: `m.boot, m.size, m.assigned = "", o`,
		Test:    "./internal/agent TestARebootedMemberIsTheSameOneAndBootsOnce",
	},
	{
		Guard:   "a boot that runs already is not ended",
		File:    "internal/driver/fake/reboot.go",
		Find:    `case old.alive() && old.config.Boot == m.Boot:`,
		Replace: `case false:`,
		Test:    "./internal/driver/fake TestTheFakeOfVirtualMachinesMeetsTheDriverContract",
	},
	{
		Guard:   "a hard reboot ends the wait of a graceful one",
		File:    "internal/agent/reboot.go",
		Find:    `return w == nil || !w.HardReboot || w.Boot == want.Boot })`,
		Replace: `return true })`,
		Test:    "./internal/agent TestAHardRebootEndsTheWaitOfAGracefulOne",
	},
	{
		Guard:   "a hard reboot that overtakes another includes every member that waits",
		File:    "internal/apiserver/reboots.go",
		Find:    `case !overtakes(next, last):`,
		Replace: `case false:`,
		Test:    "./internal/apiserver TestAHardRebootOvertakesAGracefulOneThatWaits",
	},
	{
		Guard:   "a reboot that has not ended is not replaced by another",
		File:    "internal/apiserver/reboots.go",
		Find:    `case last == nil || last.Ended:`,
		Replace: `case true:`,
		Test:    "./internal/apiserver TestARebootIsRequestedOnceAndItsMembersAreListed",
	},
	{
		Guard:   "containers are not rebooted",
		File:    "internal/lifecycle/reboot.go",
		Find:    `g.Stack != api.StackVM {`,
		Replace: `false {`,
		Test:    "./internal/apiserver TestARebootIsRequestedOnceAndItsMembersAreListed",
	},
}
