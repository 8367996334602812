package main

// standbyGuards: what keeps the two ways to a member with a function and a standby apart, pinned, and clean.
var standbyGuards = []Mutant{
	{
		Guard:   "a member with a standby is placed on a node with a trunk",
		File:    "internal/situation/mtu.go",
		Find:    "(g.Standby || !g.Interface.OnFunction())",
		Replace: "!g.Interface.OnFunction()",
		Test:    "./internal/situation TestAnOwnNetworkOnAVLANNeedsATrunkForPortsOnBridges",
	},
	{
		Guard:   "a container has no standby",
		File:    "internal/manifest/interfaces.go",
		Find:    "	case g.Stack != api.StackVM:\n		n.add(at, \"standby\"",
		Replace: "	case g.Stack == api.StackMetal:\n		n.add(at, \"standby\"",
		Test:    "./internal/manifest TestAnOwnNetworkThatCanNotBeIsRefusedWithTheReason",
	},
	{
		Guard:   "a project's network on InfiniBand has no standbys",
		File:    "internal/apiserver/functions.go",
		Find:    "	case on.Standby:\n",
		Replace: "	case on.Standby && on.Limited:\n",
		Test:    "./internal/apiserver TestAPortOnAFunctionIsRefusedWithTheReason",
	},
	{
		Guard:   "a foreign system has no standby",
		File:    "internal/apiserver/foreign.go",
		Find:    "return on.Standby }",
		Replace: "return on.Standby && on.Limited }",
		Test:    "./internal/apiserver TestGroupsOfAnotherSystemsDiskAreRefusedWhatNeedsAnAgent",
	},
	{
		Guard:   "a standby is a pinned port of the bridge",
		File:    "internal/fabric/functionport.go",
		Find:    "if !p.OnFunction() || p.Standby {",
		Replace: "if !p.OnFunction() {",
		Test:    "./internal/fabric/plan TestPlansOfVLANsAreAsWritten",
	},
	{
		Guard:   "no shortcut leads to a standby, past which its function may have the member",
		File:    "internal/fabric/groups.go",
		Find:    "p.Shaped() || p.Standby || ",
		Replace: "p.Shaped() || ",
		Test:    "./internal/fabric TestAMemberWithAStandbyIsHereAndBeyondTheVLAN",
	},
	{
		Guard:   "a node refuses a standby of what is no virtual function on a VLAN",
		File:    "internal/fabric/functionport.go",
		Find:    "case p.Standby && (f.Kind != api.PortVF || !n.OnVLAN()):",
		Replace: "case p.Standby && f.Kind != api.PortVF && !n.OnVLAN():",
		Test:    "./internal/fabric TestAFunctionOutOfPlaceIsRefused",
	},
	{
		Guard:   "a port without a standby gets no TAP device beside its function",
		File:    "internal/fabric/node/attach.go",
		Find:    "(!port.Standby || place.Kind != api.PortTAP)",
		Replace: "place.Kind != api.PortTAP",
		Test:    "./internal/fabric/node TestAStandbyIsForAPortThatHasOneOnly",
	},
	{
		Guard:   "an address that no member with a standby has is taken off a VLAN",
		File:    "internal/fabric/plan/plan.go",
		Find:    "if !slices.Contains(want.Filters, mac) {",
		Replace: "if slices.Contains(want.Filters, mac) {",
		Test:    "./internal/fabric/plan TestPlansOfVLANsAreAsWritten",
	},
	{
		Guard:   "a function is parked only where a standby carries its traffic",
		File:    "internal/fabric/node/standby.go",
		Find:    "	case !port.Standby:\n",
		Replace: "	case port.MAC == \"\":\n",
		Test:    "./internal/fabric/node TestAStandbyIsForAPortThatHasOneOnly",
	},
	{
		Guard:   "addresses go to the master of a pair and never to a part",
		File:    "internal/machine/bootagent/failover.go",
		Find:    "master != \"\" && strings.TrimSpace(string(address)) == mac {",
		Replace: "strings.TrimSpace(string(address)) == mac {",
		Test:    "./internal/machine/bootagent TestOnlyTheMasterOfAPairIsGivenAnAddress",
	},
}
