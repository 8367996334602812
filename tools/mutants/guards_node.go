package main

// fabricGuards: what keeps members apart.
var fabricGuards = []Mutant{
	{
		Guard:   "a member sends under its own identity only",
		File:    "internal/fabric/ethernet/rules.go",
		Find:    "@pins iifname . arp saddr ether . arp saddr ip @pins accept\n\t\tdrop\n",
		Replace: "@pins iifname . arp saddr ether . arp saddr ip @pins accept\n",
		Test:    "./internal/fabric/ethernet TestAMemberCannotSendUnderAnotherIdentity",
	},
	{
		Guard:   "a member is no DHCP server",
		File:    "internal/fabric/ethernet/rules.go",
		Find:    "\t\tudp sport 67 drop\n",
		Replace: "",
		Test:    "./internal/fabric/ethernet TestAMemberCannotPlayDHCPServer",
	},
	{
		Guard:   "a member does not reach its node",
		File:    "internal/fabric/ethernet/rules.go",
		Find:    "\t\tiifname \"nmp*\" drop\n\t\tiifname \"nmvx*\" drop\n",
		Replace: "",
		Test:    "./internal/fabric/ethernet TestAMemberDoesNotReachTheNodeNorOtherNetworks",
	},
	{
		Guard:   "only peers send into a tunnel",
		File:    "internal/fabric/ethernet/rules.go",
		Find:    "\t\tudp dport 4789 @th,96,24 @vnis drop\n\t}\n}\n",
		Replace: "\t}\n}\n",
		Test:    "./internal/fabric/ethernet TestOnlyPeersCanSendIntoATunnel",
	},
	{
		Guard:   "egress does not lead to other networks or the node's own",
		File:    "internal/fabric/ethernet/rules.go",
		Find:    "iifname @egress ip daddr != @protected accept",
		Replace: "iifname @egress accept",
		Test:    "./internal/fabric/ethernet TestEgressDoesNotLeadToTheNodeTheUnderlayOrOtherNetworks",
	},
}

// containerGuards: what a member is held to.
var containerGuards = []Mutant{
	{
		Guard:   "a member runs on its own cores",
		File:    "internal/driver/container/spec.go",
		Find:    "&specs.LinuxCPU{Cpus: numberList(a.CPUs), Mems: numberList(a.NUMANodes)}",
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
}
