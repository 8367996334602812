package main

// traceGuards: what traces know beyond a network.
var traceGuards = []Mutant{
	{
		Guard:   "a trace asks whether the sender's network is routed",
		File:    "internal/packettrace/routed.go",
		Find:    "case !n.Routed:",
		Replace: "case false:",
		Test:    "./internal/packettrace TestARoutedPacketThatIsStoppedNamesTheReason",
	},
	{
		Guard:   "a trace asks whether two networks are of one router",
		File:    "internal/packettrace/routed.go",
		Find:    "case !fabric.Connected(here.Network, there.Network):",
		Replace: "case here.Index == there.Index:",
		Test:    "./internal/fabric/node TestRoutedPacketsAndTheirAnswersPassAsTraced",
	},
	{
		Guard:   "a trace looks for the members that the sender's node routes to",
		File:    "internal/packettrace/routed.go",
		Find:    "if !known {",
		Replace: "if !known && to.MAC == \"\" {",
		Test:    "./internal/packettrace TestARoutedPacketThatIsStoppedNamesTheReason",
	},
	{
		Guard:   "a trace looks at the pins of routed frames",
		File:    "internal/packettrace/routed.go",
		Find:    "!slices.ContainsFunc(w.to.Beyond.Remotes, behind) {",
		Replace: "!slices.ContainsFunc(w.to.Beyond.Remotes, behind) && router == \"\" {",
		Test:    "./internal/fabric/node TestRoutedPacketsAndTheirAnswersPassAsTraced",
	},
	{
		Guard:   "a trace knows the ranges that egress never leads to",
		File:    "internal/packettrace/outside.go",
		Find:    "if p, ok := in(fabric.ProtectedRanges()); ok {",
		Replace: "if p, ok := in(fabric.ProtectedRanges()); ok && p.Bits() > 32 {",
		Test:    "./internal/packettrace TestEgressNamesTheRangeThatStopsOrPasses",
	},
	{
		Guard:   "a trace knows private ranges",
		File:    "internal/packettrace/outside.go",
		Find:    "if p, ok := in(fabric.PrivateRanges()); ok {",
		Replace: "if p, ok := in(fabric.PrivateRanges()); ok && p.Bits() > 32 {",
		Test:    "./internal/fabric/node TestConnectionsToTheOutsidePassAsTraced",
	},
	{
		Guard:   "a trace knows which ports of a floating address lead to its member",
		File:    "internal/packettrace/floating.go",
		Find:    "\tcase !leads:",
		Replace: "\tcase !leads && list == \"\":",
		Test:    "./internal/packettrace TestAFloatingAddressLeadsInToItsMember",
	},
	{
		Guard:   "a trace knows that nobody outside bears an address of members",
		File:    "internal/packettrace/floating.go",
		Find:    "if tenants.Contains(a.source) {",
		Replace: "if tenants.Contains(a.source) && a.who == \"\" {",
		Test:    "./internal/packettrace TestAFloatingAddressLeadsInToItsMember",
	},
	{
		Guard:   "a trace leads to members of floating addresses that the token sees",
		File:    "internal/apiserver/tracedends.go",
		Find:    "leads := findAddress(t.who, t.view, in.To)",
		Replace: "address, _ := netip.ParseAddr(in.To)\n\tleads := t.view.Address(address)",
		Test:    "./internal/apiserver TestAnEndThatATraceCanNotBeginOrEndAtIsRefused",
	},
	{
		Guard:   "rules for IPv6 are inserted at a place that is certain",
		File:    "internal/fabric/plan/ipv6.go",
		Find:    "count != 1 {",
		Replace: "count < 1 {",
		Test:    "./internal/fabric/plan TestRulesAreInsertedAtTheOnlyPlaceThatIsMeant",
	},
}
