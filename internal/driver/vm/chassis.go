package vm

import (
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// chassis is what a machine was built with. It bounds the sizes that the machine can have without a reboot, and stays the same until then.
// A machine that moves or is saved goes on in the same chassis.
type chassis struct {
	// Processors is how many processors the machine can have.
	Processors int `json:"processors"`
	// Queues is how many queues each NIC and each disk has.
	Queues int `json:"queues"`
	// BootBytes is the memory that the machine has at least, RoomBytes how much more it can have.
	BootBytes int64 `json:"boot_bytes"`
	RoomBytes int64 `json:"room_bytes,omitempty"`
}

const (
	// mostAdded bounds how many processors a machine can be given. A guest's kernel keeps memory for each processor that may come.
	mostAdded = 16
	// mostTimes bounds a machine's memory to so many times that of its boot. Memory that comes later is movable, and the kernel keeps its own
	// data about it, such as page tables, in the memory of the boot.
	mostTimes = 4
	// mostMemory bounds the memory that a machine can grow to: QEMU refuses machines whose memory exceeds the 40 bits of a model's addresses.
	mostMemory = 512 << 30
	// memoryBlock is the unit in which memory comes and goes: a huge page of the host.
	memoryBlock = 2 << 20
)

// newChassis returns what a machine of this size is built with on a host, or nil for a machine whose size is fixed. A guest with several NUMA
// nodes is one: each processor and each byte has its place in the layout, which a guest reads once, when it boots.
func newChassis(a *api.Assignment, h hardware) *chassis {
	if len(cellsOf(a, h.NUMANodes)) > 1 {
		return nil
	}
	has := len(vcpus(a))
	c := &chassis{Processors: max(has, min(has+mostAdded, h.Processors)), Queues: queuesOf(a), BootBytes: a.MemoryBytes()}
	// libvirt rounds up to cellUnit, which would exceed the most that the machine can have.
	if page, _ := a.HugePages(); page == 0 && c.BootBytes%cellUnit == 0 {
		room := min(mostTimes*c.BootBytes, mostMemory, h.MemoryBytes) - c.BootBytes
		c.RoomBytes = max(0, room-room%memoryBlock)
	}
	return c
}

// takes reports whether a machine that has one size can have another one without a reboot.
func (c *chassis) takes(has, wants *api.Assignment, nodes map[int]int) bool {
	if c == nil || len(vcpus(wants)) > c.Processors {
		return false
	}
	hadPage, _ := has.HugePages()
	page, _ := wants.HugePages()
	plugged := c.plugged(wants)
	if page != hadPage || plugged < 0 || plugged > c.RoomBytes || plugged%memoryBlock != 0 {
		return false
	}
	was, will := cellsOf(has, nodes), cellsOf(wants, nodes)
	return len(will) < 2 && slices.EqualFunc(was, will, func(x, y cell) bool { return slices.Equal(x.HostNodes, y.HostNodes) })
}

// plugged returns how much memory a machine of this size has besides that of its boot.
func (c *chassis) plugged(a *api.Assignment) int64 { return a.MemoryBytes() - c.BootBytes }

// queues returns how many queues each NIC of a member's machine has.
func (c *chassis) queues(a *api.Assignment) int {
	if c == nil {
		return queuesOf(a)
	}
	return c.Queues
}

// cells returns the guest's NUMA nodes: that of a machine that can grow has all the processors that may come, and the memory of the boot.
func (c *chassis) cells(a *api.Assignment, nodes map[int]int) []cell {
	cells := cellsOf(a, nodes)
	if c == nil || len(cells) > 1 {
		return cells
	}
	if len(cells) == 0 {
		if c.RoomBytes == 0 {
			return nil
		}
		cells = []cell{{}} // libvirt adds memory to NUMA nodes only
	}
	cells[0].Bytes, cells[0].CPUs = c.BootBytes, nil
	for n := range c.Processors {
		cells[0].CPUs = append(cells[0].CPUs, n)
	}
	return cells
}
