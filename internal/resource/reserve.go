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

// StateBound returns how large the state of a virtual machine can become on a disk: its pages with their headers, and its devices.
func StateBound(memory int64) int64 {
	const devices = 64 << 20
	return (sumOf(memory, memory/100+devices) + machineReserveRounded - 1) / machineReserveRounded * machineReserveRounded
}

// OnNode returns what one member of the group takes of its node.
func OnNode(g *api.Group) Vector {
	v := OfShape(g.Shape)
	if class, huge := HugePages(int64(g.HugePages)); huge {
		v[class], v[Memory] = v[Memory], 0
	}
	v[Memory] = sumOf(v[Memory], Reserve(g))
	v[Uplink] = minimumRates(g)
	return v
}

// HugePages returns the class of huge pages of a size; false when there is none of that size.
func HugePages(size int64) (Class, bool) {
	switch size {
	case 2 << 20:
		return HugePages2MiB, true
	case 1 << 30:
		return HugePages1GiB, true
	default:
		return 0, false
	}
}

// HeldOnNode returns what an assignment holds of its node besides cores and ordinary memory.
func HeldOnNode(a *api.Assignment) Vector {
	v := Vector{Disk: least(a.DiskBytes)}
	size, bytes := a.HugePages()
	if class, huge := HugePages(size); huge {
		v[class] = bytes
	}
	v[Uplink] = heldRates(a)
	return v
}

// OfferedBesides returns what a node offers besides cores and ordinary memory.
func OfferedBesides(c *api.NodeCapacity) Vector {
	v := Vector{Disk: least(c.DiskBytes), Uplink: offeredRate(c)}
	for _, n := range c.NUMANodes {
		for _, pool := range n.HugePages {
			if class, ok := HugePages(pool.PageBytes); ok {
				v[class] = sumOf(v[class], least(pool.Bytes))
			}
		}
	}
	return v
}
