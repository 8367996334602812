package resource

import "github.com/nearmetal/nearmetal/api"

// What a virtual machine takes of its node besides its guest's memory: QEMU itself with its devices and buffers, a stack and a queue pair of each
// network for each processor, and what the kernel keeps for the guest's pages (8 bytes of page tables for each 4 KiB, twice with nested paging).
// Measured with Debian's QEMU 7.2 under TCG, which needs most: 84 MiB in private memory with 1 core and 512 MiB, 89 MiB with 4 cores and 1 GiB.
const (
	machineBytes          = 96 << 20
	machineBytesPerCore   = 4 << 20
	machineShareOfMemory  = 256 // one part in so many
	machineReserveRounded = 1 << 20
)

// displayBytes is the memory of a machine's screen, of which QEMU maps all.
const displayBytes = 16 << 20

// HomeServerBytes is what the server of a machine's home takes, outside of the machine's control group: its memory limit (package homeserver).
const HomeServerBytes = 32 << 20

// Reserve returns what a member of the group takes of its node's memory besides what it gets.
func Reserve(g *api.Group) int64 {
	if g.Stack != api.StackVM {
		return 0
	}
	return MachineReserve(g.Shape, g.Display) + HomeServerBytes
}

// MachineReserve returns what a virtual machine takes within its own control group besides its guest's memory.
func MachineReserve(s api.Shape, display bool) int64 {
	bytes := machineBytes + multiply(machineBytesPerCore, int64(s.Cores)) + least(int64(s.Memory))/machineShareOfMemory
	if display {
		bytes += displayBytes
	}
	return (bytes + machineReserveRounded - 1) / machineReserveRounded * machineReserveRounded
}

// OnNode returns what one member of the group takes of its node.
func OnNode(g *api.Group) Vector {
	v := OfShape(g.Shape)
	v[Memory] = sumOf(v[Memory], Reserve(g))
	return v
}
