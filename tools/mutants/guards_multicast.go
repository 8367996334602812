package main

// multicastGuards: who gets multicast, and who may pass for a router of it.
var multicastGuards = []Mutant{
	{
		Guard:   "a member asks no one for groups",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\t\tip protocol 2 igmp type membership-query drop\n",
		Replace: "",
		Test:    "./internal/fabric/node TestAMemberCannotPassForAMulticastRouter",
	},
	{
		Guard:   "a member is no multicast router",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\t\tip protocol 103 drop\n",
		Replace: "",
		Test:    "./internal/fabric/node TestAMemberCannotPassForAMulticastRouter",
	},
	{
		Guard:   "tunnels take all multicast",
		File:    "internal/fabric/plan/plan.go",
		Find:    "MulticastRouter: true, ",
		Replace: "",
		Test:    "./internal/fabric/node TestMulticastReachesMembersOnAnotherNodeThatAskedForItAndNoOthers",
	},
	{
		Guard:   "multicast goes to ports that asked for it",
		File:    "internal/fabric/plan/plan.go",
		Find:    "Up: true, Snooping: true,",
		Replace: "Up: true,",
		Test:    "./internal/fabric/node TestMulticastReachesMembersOnAnotherNodeThatAskedForItAndNoOthers",
	},
	{
		Guard:   "bridges' questions reach ports with security groups",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\t\tip protocol 2 igmp type membership-query accept\n",
		Replace: "",
		Test:    "./internal/fabric/node TestAPortWithSecurityGroupsHearsTheQuestionsOfItsBridge",
	},
	{
		Guard:   "how a table is printed is known after a change of its parts",
		File:    "internal/fabric/node/nft.go",
		Find:    "\t\tpresent[table.Text] = true\n",
		Replace: "",
		Test:    "./internal/fabric/node TestHowATableIsPrintedIsKnownAfterAChangeOfItsParts",
	},
}
