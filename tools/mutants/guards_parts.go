package main

// partGuards are about what a member holds besides its own: on another node, or cleaned by others.
var partGuards = []Mutant{
	{
		Guard:   "a part counts no member of its project's quota",
		File:    "internal/resource/of.go",
		Find:    "if !a.IsPart() && !a.IsSnapshot() {",
		Replace: "if !a.IsSnapshot() {",
		Test:    "./internal/resource TestAPartCountsNoMemberOfTheQuota",
	},
	{
		Guard:   "a member is not ready before its parts are",
		File:    "internal/lifecycle/parts.go",
		Find:    `case phase == api.MemberReady || m.phase != api.MemberReady:`,
		Replace: `case true:`,
		Test:    "./internal/lifecycle TestAMemberIsNoFurtherThanItsParts",
	},
	{
		Guard:   "a member whose part is on a node that is down is lost",
		File:    "internal/lifecycle/parts.go",
		Find:    `case in.Nodes[p.Node].Phase == api.NodeDown:`,
		Replace: `case false:`,
		Test:    "./internal/lifecycle TestAMemberIsNoFurtherThanItsParts",
	},
	{
		Guard:   "a driver that can't carry parts is given none",
		File:    "internal/agent/converge.go",
		Find:    "if !ok {\n\t\treturn nil, fmt.Errorf(\"the %s stack of this node can't carry",
		Replace: "if !ok {\n\t\treturn m.driver.Start, nil\n\t}\n\tif false {\n\t\treturn nil, fmt.Errorf(\"the %s stack of this node can't carry",
		Test:    "./internal/agent TestAPartThatItsDriverCannotCarryHasFailed",
	},
	{
		Guard:   "a part of a device that is held is not given again",
		File:    "internal/placement/view.go",
		Find:    "if err := v.devicesFree(&a); err != nil {",
		Replace: "if err := v.devicesFree(&a); err != nil && false {",
		Test:    "./internal/placement TestADeviceIsTakenUntilItsAssignmentIsClean",
	},
	{
		Guard:   "a device that is stored as held twice is noticed",
		File:    "internal/placement/view.go",
		Find:    "if err := v.devicesHeld(&h.assignment); err != nil && v.inInventory",
		Replace: "if err := v.devicesHeld(&h.assignment); err != nil && false && v.inInventory",
		Test:    "./internal/placement TestADeviceIsTakenUntilItsAssignmentIsClean",
	},
	{
		Guard:   "what was chosen for one cluster is chosen for no other in the same plan",
		File:    "internal/placement/devices.go",
		Find:    "s.view.claims[id] = append(slices.Clip(s.view.claims[id]), on.Claims...)",
		Replace: "_ = append(s.view.claims[id], on.Claims...)",
		Test:    "./internal/placement TestMembersGetTheNearestDevicesAndNoneTwice",
	},
	{
		Guard:   "a part on another node is proved clean by the agent there",
		File:    "internal/decision/assign.go",
		Find:    "CleanBy: api.ByAgents(on.Node),\n\t\t\t\t\tDevices: claims",
		Replace: "CleanBy: api.ByAgents(m.Node),\n\t\t\t\t\tDevices: claims",
		Test:    "./internal/decision TestDevicesOfOtherNodesArePartsThatTheirAgentsProveClean",
	},
	{
		Guard:   "what is left in a device outlives the memory of its machine",
		File:    "internal/decision/assign.go",
		Find:    "m.RAMBoot = 0 // what",
		Replace: "// what",
		Test:    "./internal/decision TestDevicesOfOtherNodesArePartsThatTheirAgentsProveClean",
	},
	{
		Guard:   "a node with nothing but a part is nobody's peer",
		File:    "internal/controller/render.go",
		Find:    `if len(a.Ports) > 0 { // a part`,
		Replace: `if len(a.Ports) >= 0 { // a part`,
		Test:    "./internal/controller TestANodeWithNothingButAPartIsNobodysPeer",
	},
}
