package main

// hostGuards: what is read of the machine underneath.
var hostGuards = []Mutant{
	{
		Guard:   "a node offers the memory of /proc/meminfo, whatever its NUMA nodes report",
		File:    "internal/inventory/inventory.go",
		Find:    "ShareMemory(total, nodes), nil",
		Replace: "ShareMemory(0*total, nodes), nil",
		Test:    "./internal/inventory TestTheTotalOfProcMeminfoIsOfferedWhateverTheNodesReport",
	},
	{
		Guard:   "what has the observed program's group is its own, whoever else has it open",
		File:    "internal/hostsnapshot/attribute.go",
		Find:    "\tif item.ours {\n",
		Replace: "\tif item.ours && len(item.holders) == 0 {\n",
		Test:    "./internal/hostsnapshot TestWithAGroupAFileIsTheProgramsByItsGroupOrHolderOnly",
	},
	{
		Guard:   "what another observed program makes in a folder of this one is that one's",
		File:    "internal/hostsnapshot/group.go",
		Find:    "st.Gid == c.opts.Group || st.Gid >= firstGroup",
		Replace: "st.Gid == c.opts.Group || st.Gid >= firstGroup+1<<22",
		Test:    "./internal/hostsnapshot TestWhatAnotherObservedProgramMakesInOursIsNotOurs",
	},
	{
		Guard:   "what has no group and no holder is not taken for the observed program's",
		File:    "internal/hostsnapshot/attribute.go",
		Find:    "whose == unclear && j.after.group != 0 && grouped(kind)",
		Replace: "false",
		Test:    "./internal/hostsnapshot TestWithAGroupAFileIsTheProgramsByItsGroupOrHolderOnly",
	},
	{
		Guard:   "the working directory of the observer makes nothing around it the observed program's",
		File:    "internal/hostsnapshot/attribute.go",
		Find:    "item.place != \"\" && j.after.group == 0 {",
		Replace: "item.place != \"\" {",
		Test:    "./internal/hostsnapshot TestWithAGroupAFileIsTheProgramsByItsGroupOrHolderOnly",
	},
	{
		Guard:   "a mount on a directory of the observed program's is its own",
		File:    "internal/hostsnapshot/group.go",
		Find:    " || c.coversOurs(m.target)\n",
		Replace: "\n",
		Test:    "./internal/hostsnapshot TestEveryKindOfDebrisIsFoundByItsGroupAmongThatOfOthers",
	},
	{
		Guard:   "an IPC object is attributed by its creator's group",
		File:    "internal/hostsnapshot/kernel.go",
		Find:    "fields[group] == fmt.Sprint(c.opts.Group)",
		Replace: "fields[group] == \"\"",
		Test:    "./internal/hostsnapshot TestEveryKindOfDebrisIsFoundByItsGroupAmongThatOfOthers",
	},
	{
		Guard:   "a bench leaves out what the machine has no room for",
		File:    "bench/plan.go",
		Find:    "if n <= room {",
		Replace: "if n <= max(n, room) {",
		Test:    "./bench TestTheBenchMeasuresWhatTheMachineHasRoomForAndNamesTheRest",
	},
}
