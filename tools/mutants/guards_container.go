package main

// containerGuards: what a member is held to.
var containerGuards = []Mutant{
	{
		Guard:   "a member runs on its own cores",
		File:    "internal/driver/container/spec.go",
		Find:    "&specs.LinuxCPU{Cpus: numberList(a.CPUs), Mems: numberList(a.MemoryNodes())}",
		Replace: "&specs.LinuxCPU{}",
		Test:    "./internal/driver/container TestTheKernelHoldsAMemberToItsAssignment",
	},
	{
		Guard:   "a member has a bound on its processes",
		File:    "internal/driver/container/spec.go",
		Find:    "Pids:   &specs.LinuxPids{Limit: &pids},",
		Replace: "Pids:   &specs.LinuxPids{Limit: new(int64(1 << 20 + pids))},",
		Test:    "./internal/driver/container TestTheKernelHoldsAMemberToItsAssignment",
	},
	{
		Guard:   "a member's root has no more capabilities than it needs",
		File:    "internal/driver/container/spec.go",
		Find:    "\"CAP_SETGID\", \"CAP_SETUID\", \"CAP_SYS_CHROOT\",",
		Replace: "\"CAP_SETGID\", \"CAP_SETUID\", \"CAP_SYS_CHROOT\", \"CAP_SYS_ADMIN\", \"CAP_NET_ADMIN\", \"CAP_NET_RAW\",",
		Test:    "./internal/driver/container TestAHostileRootInAMemberGetsNowhere",
	},
	{
		Guard:   "a member's system calls are filtered",
		File:    "internal/driver/container/spec.go",
		Find:    "\tspec.Linux.Seccomp = profile\n",
		Replace: "",
		Test:    "./internal/driver/container TestAHostileRootInAMemberGetsNowhere",
	},
	{
		Guard:   "a member sees none of the host's files but those of its environment",
		File:    "internal/driver/container/spec.go",
		Find:    "\t\ttmpfs(\"/root\", \"700\", half),\n",
		Replace: "\t\tbind(\"/etc\", \"/root\", \"ro\"),\n",
		Test:    "./internal/driver/container TestAMemberSeesNothingOfTheHostButWhatItsEnvironmentLists",
	},
	{
		Guard:   "services of an image keep their numbers",
		File:    "internal/accounts/accounts.go",
		Find:    "generated[i] = images[same]",
		Replace: "generated[i] = a",
		Test:    "./internal/driver/container TestServicesOfAnImageKeepTheirNumbers",
	},
}
