package main

// watchGuards: what a network's check and traces find.
var watchGuards = []Mutant{
	{
		Guard:   "a trace looks at the receiver's security groups",
		File:    "internal/packettrace/groups.go",
		Find:    "if !w.to.Network.Guarded(w.to.Port.ID) {\n\t\treturn Hop{w.to.Node, GroupsIn, true, \"the port has none\"}\n\t}\n\treturn judge",
		Replace: "if true {\n\t\treturn Hop{w.to.Node, GroupsIn, true, \"the port has none\"}\n\t}\n\treturn judge",
		Test:    "./internal/fabric/node TestPacketsAndTheirAnswersPassAsTraced",
	},
	{
		Guard:   "a trace looks at rules for out",
		File:    "internal/packettrace/groups.go",
		Find:    "case !restricted(groups):",
		Replace: "case true:",
		Test:    "./internal/fabric/node TestPacketsAndTheirAnswersPassAsTraced",
	},
	{
		Guard:   "a trace looks for the receiver among the members on other nodes",
		File:    "internal/packettrace/trace.go",
		Find:    "!slices.ContainsFunc(w.from.Network.Remotes, known)",
		Replace: "!slices.ContainsFunc(w.from.Network.Remotes, known) && mac == \"\"",
		Test:    "./internal/packettrace TestAStoppedPacketEndsAtTheHopThatNamesTheReason",
	},
	{
		Guard:   "a trace looks at the pins of tunnels",
		File:    "internal/packettrace/trace.go",
		Find:    "!slices.ContainsFunc(w.to.Network.Remotes, behind)",
		Replace: "!slices.ContainsFunc(w.to.Network.Remotes, behind) && text == \"\"",
		Test:    "./internal/fabric/node TestPacketsAndTheirAnswersPassAsTraced",
	},
	{
		Guard:   "what shortcuts give a member is counted",
		File:    "internal/fabric/node/count.go",
		Find:    "c.ReceivedBytes, c.ReceivedPackets = int64(member.RxBytes), int64(member.RxPackets)\n",
		Replace: "",
		Test:    "./internal/fabric/node TestPortsCountWhatPassesByTheBridge",
	},
	{
		Guard:   "probes count for their own meeting only",
		File:    "internal/fabric/node/meet.go",
		Find:    "binary.BigEndian.Uint64(b[probeMark:]) != m.mark || ",
		Replace: "",
		Test:    "./internal/fabric/node TestOnlyProbesOfPeersForThisMeetingCount",
	},
	{
		Guard:   "probes are never fragmented",
		File:    "internal/fabric/node/meet.go",
		Find:    "unix.IP_PMTUDISC_PROBE)",
		Replace: "unix.IP_PMTUDISC_DONT)",
		Test:    "./internal/fabric/node TestALinkTooSmallForANetworkIsNamedByItsOwnNode",
	},
	{
		Guard:   "a check shows no drift of other networks",
		File:    "internal/agent/networkcheck.go",
		Find:    "return d.Network != network && (",
		Replace: "return d.Network < 0 && (",
		Test:    "./internal/agent TestAnAgentReportsWhatANetworkHasOtherwise",
	},
	{
		Guard:   "metrics have the ports that the token may see",
		File:    "internal/apiserver/networks.go",
		Find:    "if !n.OfProject() && seesCluster(p, n.Cluster) {\n\t\t\tall",
		Replace: "if !n.OfProject() {\n\t\t\tall",
		Test:    "./internal/apiserver TestMetricsHaveTheCountersOfThePortsThatTheTokenMaySee",
	},
	{
		Guard:   "a trace begins at a port that the token may see",
		File:    "internal/apiserver/tracedends.go",
		Find:    "if named && seesCluster(t.who, p.assignment.Cluster) {",
		Replace: "if named {",
		Test:    "./internal/apiserver TestATraceBeginsAtAPortThatTheTokenMaySee",
	},
}
