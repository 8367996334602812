// Package cpumodel lists the CPU models that virtual machines can be given by name.
//
// It is pure. It must never say which of them a node can carry: that is its driver's word, by what QEMU says there. A name outside the list is a
// mistake, wherever it comes from.
package cpumodel

import "slices"

// Host is the name of the default: what the node's own processor is, or all that QEMU can emulate.
const Host = "host"

// Names returns the models by name, sorted: those of QEMU's 64-bit x86 models that libvirt has, too (its src/cpu_map), and that have a fixed
// meaning. The same name is the same processor on every node.
func Names() []string {
	return []string{
		"Broadwell", "Broadwell-IBRS", "Broadwell-noTSX", "Broadwell-noTSX-IBRS", "Cascadelake-Server", "Cascadelake-Server-noTSX", "Conroe",
		"Cooperlake", "Dhyana", "EPYC", "EPYC-Genoa", "EPYC-IBPB", "EPYC-Milan", "EPYC-Rome", "EPYC-Turin", "GraniteRapids", "Haswell", "Haswell-IBRS",
		"Haswell-noTSX", "Haswell-noTSX-IBRS", "Icelake-Server", "Icelake-Server-noTSX", "IvyBridge", "IvyBridge-IBRS", "Nehalem", "Nehalem-IBRS",
		"Opteron_G1", "Opteron_G2", "Opteron_G3", "Opteron_G4", "Opteron_G5", "Penryn", "SandyBridge", "SandyBridge-IBRS", "SapphireRapids",
		"SierraForest", "Skylake-Client", "Skylake-Client-IBRS", "Skylake-Client-noTSX-IBRS", "Skylake-Server", "Skylake-Server-IBRS",
		"Skylake-Server-noTSX-IBRS", "Snowridge", "Westmere", "Westmere-IBRS", "core2duo", "kvm64", "phenom", "qemu64",
	}
}

// Known reports whether there is a model of the name.
func Known(name string) bool {
	_, ok := slices.BinarySearch(Names(), name)
	return ok
}
