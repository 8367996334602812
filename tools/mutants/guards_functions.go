package main

// functionGuards: what keeps functions of adapters, GUIDs and partition keys to one owner until the last proof.
var functionGuards = []Mutant{
	{
		Guard:   "a partition key is given to one network of the site",
		File:    "internal/placement/pkey.go",
		Find:    "\tn.indexes.Hold(pkey, \"partition of \"+network)\n",
		Replace: "\t_, _ = network, pkey\n",
		Test:    "./internal/placement TestEachPartitionKeyIsGivenOnce",
	},
	{
		Guard:   "the partition keys of stored networks are taken",
		File:    "internal/placement/network.go",
		Find:    "if network.PKey != 0 && ",
		Replace: "if network.PKey < 0 && ",
		Test:    "./internal/placement TestEachPartitionKeyIsGivenOnce",
	},
	{
		Guard:   "a network in another project keeps its name to itself when its partition key is asked for",
		File:    "internal/apiserver/partition.go",
		Find:    "case seesProject(p, in.Project):",
		Replace: "case in.Project != \"\" || seesProject(p, in.Project):",
		Test:    "./internal/apiserver TestAPartitionIsRefusedWithTheReason",
	},
	{
		Guard:   "a virtual function is held until its holder is clean",
		File:    "internal/placement/devices.go",
		Find:    "if f.held[c.Device][part] == \"\" {",
		Replace: "if i == 0 || f.held[c.Device][part] == \"\" {",
		Test:    "./internal/placement TestAPartIsHeldUntilItsHolderIsClean",
	},
	{
		Guard:   "a virtual function is not handed out twice",
		File:    "internal/placement/devices.go",
		Find:    "c.Part != \"\" && other != \"\" {",
		Replace: "c.Part != \"\" && other == c.Device {",
		Test:    "./internal/placement TestAPartIsHeldUntilItsHolderIsClean",
	},
	{
		Guard:   "an adapter's port gives no more functions than its table of partition keys has entries",
		File:    "internal/placement/devices.go",
		Find:    "limited := d.Class == api.ClassHCA && !counted",
		Replace: "limited := d.Class == api.ClassHCA && counted",
		Test:    "./internal/placement TestAPortHoldsNoMorePartitionKeysThanItsTable",
	},
	{
		Guard:   "members are placed on nodes that have their functions",
		File:    "internal/placement/plan.go",
		Find:    "\t\tmembers = f.roomDevices(id, members)\n",
		Replace: "",
		Test:    "./internal/placement TestMembersAreWhereTheirFunctionsAre",
	},
	{
		Guard:   "a member on a function of this node reaches the bridge over the VLAN only",
		File:    "internal/fabric/functionport.go",
		Find:    "\t\t\tif p.OnFunction() {\n",
		Replace: "\t\t\tif p.OnFunction() && p.ID == \"\" {\n",
		Test:    "./internal/fabric TestFunctionsAreOnNoBridge",
	},
	{
		Guard:   "a function is one port's",
		File:    "internal/fabric/functionport.go",
		Find:    "\t\t\tholders[part] = p.ID\n",
		Replace: "",
		Test:    "./internal/fabric TestAFunctionOutOfPlaceIsRefused",
	},
	{
		Guard:   "no port on a function has security groups, which nothing would enforce",
		File:    "internal/apiserver/functions.go",
		Find:    "case len(on.SecurityGroups) > 0:",
		Replace: "case len(on.SecurityGroups) < 0:",
		Test:    "./internal/apiserver TestAPortOnAFunctionIsRefusedWithTheReason",
	},
	{
		Guard:   "simulated: a virtual function is held until its holder is clean",
		File:    "internal/placement/devices.go",
		Find:    "\tif c.Part == \"\" {\n\t\treturn\n\t}\n\tif f.held",
		Replace: "\tif c.Part != \"\" {\n\t\treturn\n\t}\n\tif f.held",
		Test:    simulated,
	},
	{
		Guard:   "simulated: a fabric proves a member on InfiniBand clean, too",
		File:    "internal/placement/function.go",
		Find:    "port.GUID, port.At, port.Fabric, port.Limited = guid, guid, n.Cell, on.Limited",
		Replace: "port.GUID, port.At, port.Limited = guid, guid, on.Limited",
		Test:    simulated,
	},
}
