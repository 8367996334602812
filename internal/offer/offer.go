// Package offer says what a node has for members: what its agent confirmed, or what follows from its inspected hardware while no agent runs there.
//
// It is pure: it knows records, and reads no machine. It must never promise what only an agent can check, such as a stack that needs a driver on
// the node. Start with Of here.
package offer

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// Site is what a site carries for all its machines, whether an agent runs on them or not.
type Site struct {
	// Metal: members of stack metal can be carried out, each on a whole machine that was off.
	Metal bool
	// Fabrics are the cells of the InfiniBand fabrics that the site has an executor for. Nobody could put a port of another fabric into a network, nor
	// prove it clean.
	Fabrics []string
	// Switches are the ports of Ethernet switches that the site manages, by cell and place. A true one is a provisioning port.
	Switches map[string]map[string]bool
}

// maxCPUs bounds the CPUs of a machine, as it tells them itself: more than Linux counts on any architecture (CONFIG_NR_CPUS).
const maxCPUs = 8192

// reservedPerMille of the memory stays with the host and its agent.
const reservedPerMille = 100

// LessReserve returns what of a machine's memory is for members.
func LessReserve(bytes int64) int64 { return bytes - bytes/1000*reservedPerMille }

// Of returns the offer of a node: the word of its agent, which is not confirmed while the machine is off, or else what was inspected. A machine that
// was inspected has the stacks besides that the site carries without an agent. agent and hardware may be nil; of a node without both nothing is
// known.
func Of(agent *api.NodeRecord, hardware *api.Hardware, off bool, site Site) api.Offer {
	var o api.Offer
	switch {
	case agent != nil:
		o = Told(agent, hardware)
		o.Confirmed = !off
		if off { // its agent is not there to carry a whole machine
			o.Stacks = slices.DeleteFunc(slices.Clone(o.Stacks), func(s api.StackCheck) bool { return s.Stack == api.StackMetal })
		}
		o.Capacity.Ports = controlled(o.Capacity.Ports, site)
	case hardware != nil:
		o = Inspected(hardware)
	default:
		return none()
	}
	o.Stacks = slices.Concat(o.Stacks, Carried(hardware, site))
	return o
}

// Carried are the stacks of a node that the site carries without an agent; hardware is nil where nobody looked.
func Carried(hardware *api.Hardware, site Site) []api.StackCheck {
	if hardware == nil || !site.Metal {
		return nil
	}
	return []api.StackCheck{{Stack: api.StackMetal, OK: true, By: api.ExecutorProvisioner}}
}

// controlled are the ports whose fabric the site has an executor for.
func controlled(ports []api.NodePort, site Site) []api.NodePort {
	var all []api.NodePort
	for _, p := range ports {
		p.Technology, p.MAC = "", ""
		provisioning, managed := site.Switches[p.Fabric][p.At]
		switch {
		case slices.Contains(site.Fabrics, p.Fabric):
			all = append(all, p)
		case managed && !provisioning:
			p.Technology = api.FabricEthernet
			all = append(all, p)
		}
	}
	return all
}

func none() api.Offer {
	return api.Offer{
		Capacity: api.NodeCapacity{Cores: []api.Core{}, NUMANodes: []api.NUMANode{}}, Stacks: []api.StackCheck{}, Environments: []api.EnvironmentOnNode{},
	}
}

// Inspected derives an offer from hardware: a core slot for each CPU, as an agent would offer them, and no stack.
func Inspected(hw *api.Hardware) api.Offer {
	o := none()
	o.Capacity.NUMANodes = append(o.Capacity.NUMANodes, hw.NUMANodes...)
	cpus := cpusOf(hw)
	for slot, cpu := range cpus {
		o.Capacity.Cores = append(o.Capacity.Cores, api.Core{Slot: slot, CPU: cpu, NUMANode: numaNode(hw, slot, len(cpus), cpu)})
	}
	o.Capacity.MemoryBytes = LessReserve(max(hw.MemoryBytes, 0))
	return o
}

// cpusOf are the numbers of the CPUs that are on.
func cpusOf(hw *api.Hardware) []int {
	var cpus []int
	for cpu, node := range hw.CPU.NUMANodes {
		if node >= 0 && len(cpus) < maxCPUs {
			cpus = append(cpus, cpu)
		}
	}
	if len(cpus) > 0 {
		return cpus
	}
	count := hw.CPU.Threads
	if count == 0 {
		count = hw.CPU.Cores
	}
	for cpu := range min(count, maxCPUs) {
		cpus = append(cpus, cpu)
	}
	return cpus
}

// numaNode is the NUMA node of a CPU. A machine that did not say is taken for one whose CPUs are spread evenly, in the order of their numbers.
func numaNode(hw *api.Hardware, slot, of, cpu int) int {
	switch {
	case cpu < len(hw.CPU.NUMANodes):
		return hw.CPU.NUMANodes[cpu]
	case len(hw.NUMANodes) == 0:
		return 0
	default:
		return hw.NUMANodes[slot*len(hw.NUMANodes)/of].ID
	}
}

// Told is what an agent offers. It says where that is not what was inspected; hardware is nil where nobody looked.
func Told(agent *api.NodeRecord, hardware *api.Hardware) api.Offer {
	o := api.Offer{
		Capacity: agent.Capacity, Stacks: agent.Stacks, Environments: agent.Environments, Oversubscribed: agent.Oversubscribed,
	}
	if hardware != nil {
		o.Differences = differences(Inspected(hardware), o)
	}
	return o
}

// tolerancePerMille is how much memory may differ and be called equal: kernels keep more or less of it to themselves.
const tolerancePerMille = 50

// differences tells, one a line, what the agent offers otherwise than was inspected.
func differences(inspected, told api.Offer) []string {
	var all []string
	if i, c := len(inspected.Capacity.Cores), len(told.Capacity.Cores); i != c && i > 0 {
		all = append(all, fmt.Sprintf("inspected %s, the agent offers %d", plural(i, "core"), c))
	}
	i, c := inspected.Capacity.MemoryBytes, told.Capacity.MemoryBytes
	if off := max(i-c, c-i); i > 0 && off > i/1000*tolerancePerMille {
		all = append(all, fmt.Sprintf("inspected %s of memory for members, the agent offers %s", mib(i), mib(c)))
	}
	if i, c := len(inspected.Capacity.NUMANodes), len(told.Capacity.NUMANodes); i != c && i > 0 {
		all = append(all, fmt.Sprintf("inspected %s, the agent sees %d", plural(i, "NUMA node"), c))
	}
	return all
}

// mib rounds: the last bytes say nothing to people.
func mib(bytes int64) api.Bytes { return api.Bytes(bytes >> 20 << 20) }

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
