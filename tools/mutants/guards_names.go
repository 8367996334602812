package main

// nameGuards: what a node answers its members by DHCP and DNS.
var nameGuards = []Mutant{
	{
		Guard:   "a member gets no address in the name of another",
		File:    "internal/responder/dhcp.go",
		Find:    "!ok || asker.ID != p.ID",
		Replace: "!ok || asker.ID == \"\"",
		Test:    "./internal/responder TestAMemberDoesNotAskForAnother",
	},
	{
		Guard:   "a client with another address than its port's is refused",
		File:    "internal/responder/dhcp.go",
		Find:    "if wanted != p.Address {",
		Replace: "if !wanted.IsValid() {",
		Test:    "./internal/responder TestMembersGetTheirOwnAddressAndNoOther",
	},
	{
		Guard:   "a router is named only where there is a way out",
		File:    "internal/responder/dhcp.go",
		Find:    "if s.Egress {\n",
		Replace: "if s.Gateway.IsValid() {\n",
		Test:    "./internal/responder TestALeaseNamesTheNetworkAndARouterOnlyWhereThereIsAWayOut",
	},
	{
		Guard:   "a question comes from the port's own address",
		File:    "internal/responder/frame.go",
		Find:    "q.source.Addr() == q.port.Address || q.source",
		Replace: "q.source.IsValid() || q.source",
		Test:    "./internal/responder TestOnlyAMembersOwnQuestionsAreRead",
	},
	{
		Guard:   "names of the domain are not asked of other servers",
		File:    "internal/responder/names.go",
		Find:    "len(addresses) == 0 && !inDomain &&",
		Replace: "len(addresses) == 0 && (inDomain || !inDomain) &&",
		Test:    "./internal/responder TestOnlyNamesOfTheOutsideAreAskedOfOtherServers",
	},
	{
		Guard:   "a response of another server has the query's number",
		File:    "internal/responder/forward.go",
		Find:    "bytes.Equal(response[:2], query[:2])",
		Replace: "len(response) > 2",
		Test:    "./internal/responder TestAResponseOfAnotherServerHasToAnswerTheQuestion",
	},
	{
		Guard:   "a response of another server has the query's name",
		File:    "internal/responder/forward.go",
		Find:    " && bytes.EqualFold([]byte(asked.Name.String()), []byte(answered.Name.String()))",
		Replace: "",
		Test:    "./internal/responder TestAResponseOfAnotherServerHasToAnswerTheQuestion",
	},
	{
		Guard:   "a port that floods with questions uses up its own share only",
		File:    "internal/responder/link.go",
		Find:    "return share.Allow()",
		Replace: "return share != nil",
		Test:    "./internal/responder TestAPortThatFloodsUsesUpItsOwnShareOnly",
	},
	{
		Guard:   "a rogue DHCP server reaches no client",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\t\tudp sport 67-68 jump dhcp\n",
		Replace: "\t\tip saddr 0.0.0.0 accept\n",
		Test:    "./internal/responder TestAMemberThatPlaysDHCPServerHearsAndReachesNoClient",
	},
	{
		Guard:   "no other member hears a DHCP client",
		File:    "internal/fabric/plan/rules.go",
		Find:    " ether daddr set iifname . ether saddr map @clients accept",
		Replace: " accept",
		Test:    "./internal/responder TestDHCPMessagesReachNeitherOtherMembersNorTheNodesOwnStack",
	},
	{
		Guard:   "the node's own servers don't hear a DHCP client",
		File:    "internal/fabric/plan/rules.go",
		Find:    "meta pkttype set other ether",
		Replace: "ether",
		Test:    "./internal/responder TestDHCPMessagesReachNeitherOtherMembersNorTheNodesOwnStack",
	},
	{
		Guard:   "a port with security groups may ask for names",
		File:    "internal/fabric/plan/guard_chains.go",
		Find:    "@nh,176,16 0x35",
		Replace: "@nh,176,16 0x36",
		Test:    "./internal/responder TestMembersWithASecurityGroupGetAnAddressAndNames",
	},
}
