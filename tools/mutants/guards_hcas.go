package main

// hcaGuards: the adapters of a whole machine are in its member's partition and in no other, and a machine that hangs resets itself.
var hcaGuards = []Mutant{
	{
		Guard:   "a machine that says that it has another's adapter gets nothing by it",
		File:    "internal/situation/hcas.go",
		Find:    `if known && !slices.ContainsFunc(view.Nodes, other) {`,
		Replace: `if known && !slices.ContainsFunc(view.Nodes[:0], other) {`,
		Test:    "./internal/situation TestTheInfiniBandPortsOfAMachineAreThoseThatAFabricKnowsAndNobodyElseHas",
	},
	{
		Guard:   "an adapter that no fabric knows is in no partition",
		File:    "internal/situation/hcas.go",
		Find:    `if known && !slices.ContainsFunc(view.Nodes, other) {`,
		Replace: `if _ = known; !slices.ContainsFunc(view.Nodes, other) {`,
		Test:    "./internal/situation TestTheInfiniBandPortsOfAMachineAreThoseThatAFabricKnowsAndNobodyElseHas",
	},
	{
		Guard:   "a machine is placed with the adapters that a survey found",
		File:    "internal/situation/topology.go",
		Find:    `r.charts, r.places, r.hosts = charts, r.Fabrics.Places(view), r.Fabrics.hosts()`,
		Replace: `r.charts, r.places = charts, r.Fabrics.Places(view)`,
		Test:    "./internal/situation TestAMachineIsPlacedWithItsInfiniBandPorts",
	},
	{
		Guard:   "a fabric proves that a machine's adapter left its partition",
		File:    "internal/placement/assign.go",
		Find:    `add(h.Fabric)`,
		Replace: `_ = h`,
		Test:    "./internal/placement TestAllInfiniBandPortsOfAMachineAreItsMembersAndTheirFabricsProveThemClean",
	},
	{
		Guard:   "an address is not on an InfiniBand adapter of a whole machine",
		File:    "internal/placement/assign.go",
		Find:    ` && o.Technology != api.FabricInfiniBand {`,
		Replace: ` {`,
		Test:    "./internal/placement TestAllInfiniBandPortsOfAMachineAreItsMembersAndTheirFabricsProveThemClean",
	},
	{
		Guard:   "a VLAN's number is no partition of adapters",
		File:    "internal/controller/render.go",
		Find:    `held[i].Node, n.Index, api.Partition{}, h.At, false}`,
		Replace: `held[i].Node, n.FabricNumber(), api.Partition{}, h.At, false}`,
		Test:    "./internal/controller TestAWholeMachinesAdaptersAreInThePartitionWithTheIndexOfTheClustersNetwork",
	},
	{
		Guard:   "a member with a whole machine is ready once its adapters are in its partition, and clean once they are out",
		File:    "internal/situation/fabrics.go",
		Find:    `for _, h := range a.HCAs {`,
		Replace: `for _, h := range a.HCAs[:0] {`,
		Test:    "./internal/situation TestAMemberWithAWholeMachineIsReadyOnceItsAdaptersAreInItsPartition",
	},
	{
		Guard:   "users see no partitions of others' adapters",
		File:    "internal/situation/topology.go",
		Find:    `h.Fabric != cell || !sees(n) {`,
		Replace: `h.Fabric != cell {`,
		Test:    "./internal/situation TestAMembersAdaptersAreShownToThoseWhoMaySeeThem",
	},
	{
		Guard:   "a machine's watchdog is fed",
		File:    "internal/machine/bootagent/watchdog.go",
		Find:    `if _, err := file.Write([]byte{0}); err != nil {`,
		Replace: `if err := error(nil); err != nil {`,
		Test:    "./internal/machine/bootagent TestTheWatchdogOfAMachineIsFedFromTheMomentThatItIsThere",
	},
	{
		Guard:   "a watchdog that programs drive is no hardware",
		File:    "internal/machine/inspection/watchdog.go",
		Find:    ` && text != "Software Watchdog"`,
		Replace: ``,
		Test:    "./internal/machine/inspection TestInfiniBandPortsAreKnownByTheirGUIDsAndAWatchdogByItsDriver",
	},
}
