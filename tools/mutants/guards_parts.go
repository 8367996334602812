package main

// partGuards are about what a member holds besides its own: on another node, or cleaned by others.
var partGuards = []Mutant{
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
}
