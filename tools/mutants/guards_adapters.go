package main

// adapterGuards: what keeps functions of adapters to their owner and its network.
var adapterGuards = []Mutant{
	{
		Guard:   "no function is on a network that its adapter does not know",
		File:    "internal/fabric/node/function.go",
		Find:    "	settings, err := fabric.SettingsOf(network, port)\n	if err != nil {\n		return state, err\n	}\n",
		Replace: "	settings, _ := fabric.SettingsOf(network, port)\n",
		Test:    "./internal/fabric/node TestWhatNoAdapterEnforcesIsRefusedOnFunctions",
	},
	{
		Guard:   "an adapter drops what a function sends from other addresses",
		File:    "internal/fabric/function.go",
		Find:    "NormalMAC(p.MAC), n.VLAN, true",
		Replace: "NormalMAC(p.MAC), n.VLAN, false",
		Test:    "./internal/fabric/node TestAFunctionsInterfaceMovesIntoItsMember",
	},
	{
		Guard:   "a port on a function gets no other place",
		File:    "internal/fabric/node/attach.go",
		Find:    "	if port.OnFunction() {\n",
		Replace: "	if false {\n",
		Test:    "./internal/fabric/node TestWhatNoAdapterEnforcesIsRefusedOnFunctions",
	},
	{
		Guard:   "a machine on InfiniBand is not moved while it runs",
		File:    "internal/driver/vm/function.go",
		Find:    "if network.Technology == api.TechnologyInfiniBand {",
		Replace: "if false {",
		Test:    "./internal/driver/vm TestAFunctionSurvivesWhatItsKindAndItsNetworkLet",
	},
	{
		Guard:   "members get parts of adapters and no other devices",
		File:    "internal/driver/devices.go",
		Find:    "if !slices.Contains(portClasses(), claim.Class) {",
		Replace: "if false {",
		Test:    "./internal/driver/vm TestAMemberThatCanNotBeCarriedIsRefused",
	},
	{
		Guard:   "a port is on no function that its member does not hold",
		File:    "internal/driver/devices.go",
		Find:    "return c.Device == p.Device && c.Part == p.Part }) {",
		Replace: "return true }) && false {",
		Test:    "./internal/driver/vm TestAMemberThatCanNotBeCarriedIsRefused",
	},
	{
		Guard:   "a member has no address in the default partition",
		File:    "internal/fabric/node/ipoib.go",
		Find:    "	if samePartition(want.key, port.key) {\n",
		Replace: "	if true {\n",
		Test:    "./internal/fabric/node TestPlansOfIPoIB",
	},
	{
		Guard:   "an interface in another partition is not taken for a member's",
		File:    "internal/fabric/node/ipoib.go",
		Find:    "		case !samePartition(own.key, want.key):\n",
		Replace: "		case false:\n",
		Test:    "./internal/fabric/node TestOtherInterfacesInPlaceOfAMembersAreRefused",
	},
	{
		Guard:   "children of partitions go before their port is released",
		File:    "internal/fabric/node/ipoib.go",
		Find:    "	case *netlink.Macvtap, *netlink.IPoIB:\n",
		Replace: "	case *netlink.Macvtap:\n",
		Test:    "./internal/fabric/node TestWhatAMemberLeavesOnAPortIsRemoved",
	},
	{
		Guard:   "a port that moved before a crash is not assigned again",
		File:    "internal/fabric/node/function.go",
		Find:    "	if err == nil && !there && carried {",
		Replace: "	if false {",
		Test:    "./internal/fabric/node TestAPortThatMovedBeforeACrashIsNotGivenToAnotherDriverAgain",
	},
	{
		Guard:   "a child of a partition is not taken for a function's interface",
		File:    "internal/fabric/node/sriov/host.go",
		Find:    "		if len(found) == 1 || !b.isChild(",
		Replace: "		if true || !b.isChild(",
		Test:    "./internal/fabric/node/sriov TestAChildForAPartitionIsNotTakenForTheFunctionsInterface",
	},
	{
		Guard:   "a machine's interface is in its network's partition",
		File:    "internal/machine/bootagent/ipoib.go",
		Find:    "return n.key&^fullMember == key&^fullMember })",
		Replace: "return !n.child })",
		Test:    "./internal/machine/bootagent TestAGuestUsesThePortOrMakesAChildForItsPartition",
	},
}
