package main

// vlanGuards: what keeps a trunk to the frames of members. Not every kernel has VLANs, so these tests are pure: the plans are compared with what make
// test-network-guest shows to hold in a kernel.
var vlanGuards = []Mutant{
	{
		Guard:   "frames from a trunk pass the pins",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\t\tiifname \"nmvl*\" goto trunk\n",
		Replace: "",
		Test:    "./internal/fabric/plan TestTheRulesAreAsWrittenAndReadBack",
	},
	{
		Guard:   "frames from a trunk with a second tag are dropped",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\tchain trunk {\n\t\tether type 8021q drop\n",
		Replace: "\tchain trunk {\n",
		Test:    "./internal/fabric/plan TestTheRulesAreAsWrittenAndReadBack",
	},
	{
		Guard:   "frames from a trunk don't reach the node",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\t\tiifname \"nmvl*\" drop\n",
		Replace: "",
		Test:    "./internal/fabric/plan TestTheRulesAreAsWrittenAndReadBack",
	},
	{
		Guard:   "frames to nobody don't reach a trunk",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\t\toifname \"nmvl*\" goto leaving\n",
		Replace: "",
		Test:    "./internal/fabric/plan TestTheRulesAreAsWrittenAndReadBack",
	},
	{
		Guard:   "the node itself sends nothing to a trunk",
		File:    "internal/fabric/plan/rules.go",
		Find:    "\t\toifname \"nmvl*\" drop\n",
		Replace: "",
		Test:    "./internal/fabric/plan TestTheRulesAreAsWrittenAndReadBack",
	},
	{
		Guard:   "nobody on a VLAN is asked for the gateway",
		File:    "internal/fabric/plan/vlan.go",
		Find:    "\tbridge[\"anycast\"] = append(bridge[\"anycast\"], fmt.Sprintf(\"%q . %s\", name, n.Gateway))\n",
		Replace: "",
		Test:    "./internal/fabric/plan TestPlansOfVLANsAreAsWritten",
	},
	{
		Guard:   "a VLAN belongs to one network of a node",
		File:    "internal/fabric/vlan.go",
		Find:    "if other, taken := networkOf[vid]; taken {",
		Replace: "if other, taken := networkOf[vid]; taken && other == 0 {",
		Test:    "./internal/fabric/plan TestVLANsThatCannotBeEnforcedAreRefused",
	},
	{
		Guard:   "a network on a VLAN is not taken for an encrypted one",
		File:    "internal/fabric/vlan.go",
		Find:    "case n.OnVLAN() && n.Encrypted:",
		Replace: "case n.OnVLAN() && n.Encrypted && n.Index == 0:",
		Test:    "./internal/fabric/plan TestVLANsThatCannotBeEnforcedAreRefused",
	},
	{
		Guard:   "a machine on a VLAN has no member's address",
		File:    "internal/fabric/vlan.go",
		Find:    "\t\t\tif seen[name] {",
		Replace: "\t\t\tif seen[name] && n.Index == 0 {",
		Test:    "./internal/fabric/plan TestVLANsThatCannotBeEnforcedAreRefused",
	},
	{
		Guard:   "the VLANs of stored networks are taken",
		File:    "internal/placement/network.go",
		Find:    "if network.VLAN != 0 && ",
		Replace: "if network.VLAN < 0 && ",
		Test:    "./internal/placement TestEachVLANIsGivenOnce",
	},
	{
		Guard:   "two networks of one pass have two VLANs",
		File:    "internal/placement/fabricnumber.go",
		Find:    "\t\t\tn.vlans[vid] = network\n",
		Replace: "",
		Test:    "./internal/placement TestEachVLANIsGivenOnce",
	},
	{
		Guard:   "a network in another project keeps its name to itself",
		File:    "internal/apiserver/vlan.go",
		Find:    "case u.project != nil && seesProject(p, u.project.Project):",
		Replace: "case u.project != nil:",
		Test:    "./internal/apiserver TestAVLANIsRefusedWithTheReason",
	},
	{
		Guard:   "members of a network on a VLAN need a trunk",
		File:    "internal/placement/intern.go",
		Find:    "(m.VLAN == \"\" || m.Switched > 0 || p.trunkMTU >= m.TrunkBytes) && ",
		Replace: "",
		Test:    "./internal/placement TestMembersOnVLANsGoToNodesWithATrunk",
	},
}
