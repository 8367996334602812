package main

// floatingGuards are about floating addresses and the limits of connections.
var floatingGuards = []Mutant{
	{
		Guard:   "a floating address comes up after its rules",
		File:    "internal/fabric/plan/plan.go",
		Find:    "	ops = append(ops, shut...)\n",
		Replace: "	ops = append(ops, shut...)\n	ops = append(ops, planFloatingOn(want, seen)...)\n",
		Test:    "./internal/fabric/plan TestAFloatingAddressIsOnAnUplinkOnlyWhileItsRulesAreInForce",
	},
	{
		Guard:   "a floating address goes before its rules",
		File:    "internal/fabric/plan/plan.go",
		Find:    "	ops = append(ops, planFloatingOff(want, seen)...)\n",
		Replace: "	defer func() { ops = append(ops, planFloatingOff(want, seen)...) }()\n",
		Test:    "./internal/fabric/plan TestAFloatingAddressIsOnAnUplinkOnlyWhileItsRulesAreInForce",
	},
	{
		Guard:   "an address of somebody else on an uplink stays",
		File:    "internal/fabric/plan/floating.go",
		Find:    "if p.Addr() == address && !slices",
		Replace: "if p.Addr() == address && false && !slices",
		Test:    "./internal/fabric/plan TestAnAddressThatSomebodyElsePutOnAnUplinkStaysTheirs",
	},
	{
		Guard:   "connections of a former member are forgotten, even by another agent",
		File:    "internal/fabric/plan/floating.go",
		Find:    "		first = withLeaving(want, leaving)\n",
		Replace: "",
		Test:    "./internal/fabric/plan TestConnectionsOfAFormerMemberAreForgottenWhereverTheAgentEnds",
	},
	{
		Guard:   "connections of a former member are forgotten",
		File:    "internal/fabric/node/floating.go",
		Find:    "netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, to, from)",
		Replace: "netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, to)",
		Test:    "./internal/fabric/node TestAnOpenConnectionEndsWhenItsAddressIsAnotherMembers",
	},
	{
		Guard:   "nothing for a floating address comes to the node",
		File:    "internal/fabric/plan/rules.go",
		Find:    "		ip daddr @floating drop\n",
		Replace: "",
		Test:    "./internal/fabric/node TestNothingForAFloatingAddressComesToTheNodeItself",
	},
	{
		Guard:   "nobody outside bears the address of a member",
		File:    "internal/fabric/plan/floating.go",
		Find:    "		ip saddr @tenants drop\n",
		Replace: "",
		Test:    "./internal/fabric/node TestNobodyOutsideBearsTheAddressOfAMember",
	},
	{
		Guard:   "neighbours learn at once where an address is",
		File:    "internal/fabric/node/floating.go",
		Find:    "	return announceOn(link.Attrs().Index, mac, address)\n",
		Replace: "	return nil\n",
		Test:    "./internal/fabric/node TestAMovedAddressIsReachedAtOnce",
	},
	{
		Guard:   "a project that floods leaves others connections",
		File:    "internal/fabric/plan/rules.go",
		Find:    "		ct state new jump bounded\n",
		Replace: "",
		Test:    "./internal/fabric/node TestAProjectThatFloodsLeavesOthersConnections",
	},
	{
		Guard:   "each project has a limit of its own",
		File:    "internal/fabric/plan/floating.go",
		Find:    "sha256.Sum256([]byte(cmp.Or(project, api.DefaultProject)))",
		Replace: "sha256.Sum256([]byte(cmp.Or(api.DefaultProject, project)))",
		Test:    "./internal/fabric/node TestAProjectThatFloodsLeavesOthersConnections",
	},
	{
		Guard:   "the member of a floating address has that address outside",
		File:    "internal/fabric/plan/floating.go",
		Find:    "		iifname @egress oifname != \"nmbr*\" snat ip to ip saddr map @floating_out\n",
		Replace: "",
		Test:    "./internal/fabric/node TestAFloatingAddressLeadsToItsMemberAndIsTheMembersAddressOutside",
	},
}
