package main

// routeGuards are about packets between routed networks of a project.
var routeGuards = []Mutant{
	{
		Guard:   "a frame that a peer routed comes from a member behind it",
		File:    "internal/fabric/plan/routes.go",
		Find:    "@th,224,16 0x800 ip saddr . @th,96,24 . @th,176,48 . @th,336,32 @routed accept",
		Replace: "@th,224,16 0x800 @th,176,8 0xa @th,96,24 @vnis accept",
		Test:    "./internal/fabric/node TestAFrameThatAPeerRoutedIsPinnedToTheMembersBehindIt",
	},
	{
		Guard:   "what a peer routed is IPv4",
		File:    "internal/fabric/plan/routes.go",
		Find:    "udp dport 4789 @th,224,16 0x800 ip saddr . @th,96,24 . @th,176,48 . @th,336,32 @routed accept",
		Replace: "udp dport 4789 ip saddr . @th,96,24 . @th,176,48 . @th,336,32 @routed accept\n\t\tudp dport 4789 ip saddr . @th,96,24 . @th,176,48 . @th,352,32 @routed accept",
		Test:    "./internal/fabric/node TestAFrameThatAPeerRoutedIsPinnedToTheMembersBehindIt",
	},
	{
		Guard:   "packets are routed between networks of one project only",
		File:    "internal/fabric/gateway.go",
		Find:    "a.Routed && Router(a) == Router(b)",
		Replace: "a.Routed && b.Routed",
		Test:    "./internal/fabric/node TestRoutedNetworksOfAProjectReachEachOtherOnEveryNode",
	},
	{
		Guard:   "packets are routed between pairs of networks that are connected",
		File:    "internal/fabric/plan/routes.go",
		Find:    "\t\tiifname . oifname @routes goto between\n",
		Replace: "\t\tiifname \"nmbr*\" oifname \"nmbr*\" goto between\n",
		Test:    "./internal/fabric/node TestRoutedNetworksOfAProjectReachEachOtherOnEveryNode",
	},
	{
		Guard:   "a packet to nobody is refused before the node asks for its receiver",
		File:    "internal/fabric/plan/routes.go",
		Find:    "\t\tip daddr @members accept\n",
		Replace: "\t\taccept\n",
		Test:    "./internal/fabric/node TestAPacketToNobodyOnARoutedNetworkIsRefusedAtOnce",
	},
	{
		Guard:   "a frame that a node routed bears its router's MAC address",
		File:    "internal/fabric/plan/rules.go",
		Find:    "ether saddr set oifname map @routers accept",
		Replace: "accept",
		Test:    "./internal/fabric/node TestRoutedNetworksOfAProjectReachEachOtherOnEveryNode",
	},
	{
		Guard:   "what somebody changed of the neighbours of a routed network is found",
		File:    "internal/fabric/plan/routes.go",
		Find:    "\t\tif !slices.Contains(seen.Neighbours, n) {\n",
		Replace: "\t\tif len(seen.Neighbours) == 0 {\n",
		Test:    "./internal/fabric/node TestWhatSomebodyChangedOfRoutesIsFoundAndRepaired",
	},
	{
		Guard:   "a node with lost members alone is routed to and from by nobody",
		File:    "internal/controller/routers.go",
		Find:    "if len(e.reached) > 0 && e.address.IsValid() {",
		Replace: "if e.address.IsValid() {",
		Test:    "./internal/controller TestANodeHasAllNetworksThatItsMembersAreRoutedTo",
	},
	{
		Guard:   "groups of other networks of the project are members of those that rules name",
		File:    "internal/portgroups/portgroups.go",
		Find:    "\tfor _, p := range beyond {\n",
		Replace: "\tfor _, p := range beyond[:0] {\n",
		Test:    "./internal/controller TestASecurityGroupHasItsMembersOnAllRoutedNetworks",
	},
	{
		Guard:   "a clean member waits for its network, unless another member is routed to it",
		File:    "internal/agent/members.go",
		Find:    "n.Index == network.Index || fabric.Connected(n, network)",
		Replace: "n.Index == network.Index || fabric.Router(n) != \"\"",
		Test:    "./internal/agent TestANetworkThatMembersAreRoutedToStaysAndKeepsNobodyFromBeingClean",
	},
}
