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
}
