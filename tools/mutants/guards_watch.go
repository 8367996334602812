package main

// watchGuards: what a network's check and traces find.
var watchGuards = []Mutant{
	{
		Guard:   "a trace looks at the receiver's security groups",
		File:    "internal/fabric/trace/groups.go",
		Find:    "if !w.to.Network.Guarded(w.to.Port.ID) {\n\t\treturn Hop{w.to.Node, GroupsIn, true, \"the port has none\"}\n\t}\n\treturn judge",
		Replace: "if true {\n\t\treturn Hop{w.to.Node, GroupsIn, true, \"the port has none\"}\n\t}\n\treturn judge",
		Test:    "./internal/fabric/node TestPacketsAndTheirAnswersPassAsTraced",
	},
	{
		Guard:   "a trace looks at rules for out",
		File:    "internal/fabric/trace/groups.go",
		Find:    "case !restricted(groups):",
		Replace: "case true:",
		Test:    "./internal/fabric/node TestPacketsAndTheirAnswersPassAsTraced",
	},
	{
		Guard:   "a trace looks for the receiver among the members on other nodes",
		File:    "internal/fabric/trace/trace.go",
		Find:    "!slices.ContainsFunc(w.from.Network.Remotes, known)",
		Replace: "!slices.ContainsFunc(w.from.Network.Remotes, known) && mac == \"\"",
		Test:    "./internal/fabric/trace TestAStoppedPacketEndsAtTheHopThatNamesTheReason",
	},
	{
		Guard:   "a trace looks at the pins of tunnels",
		File:    "internal/fabric/trace/trace.go",
		Find:    "!slices.ContainsFunc(w.to.Network.Remotes, behind)",
		Replace: "!slices.ContainsFunc(w.to.Network.Remotes, behind) && text == \"\"",
		Test:    "./internal/fabric/node TestPacketsAndTheirAnswersPassAsTraced",
	},
}
