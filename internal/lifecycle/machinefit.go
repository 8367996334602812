package lifecycle

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/api"
)

// CantTake returns why a node can't take a machine's memory from another node, or "". It knows what nodes report of themselves; the nodes compare
// the rest before anything of the memory is sent. A node that reports nothing is not judged.
func CantTake(from, to *api.NodeRecord, cpuModel string) string {
	was, now := machineMaker(from), machineMaker(to)
	switch {
	case was == nil || now == nil:
		return ""
	case was.QEMU != now.QEMU:
		return fmt.Sprintf("node %s has QEMU %s, and node %s has QEMU %s", to.Name, now.QEMU, from.Name, was.QEMU)
	case was.Libvirt != now.Libvirt:
		return fmt.Sprintf("node %s has libvirt %s, and node %s has libvirt %s", to.Name, now.Libvirt, from.Name, was.Libvirt)
	case (was.Processor == nil) != (now.Processor == nil):
		return fmt.Sprintf("node %s %s, and node %s %s", to.Name, processorText(now.Processor), from.Name, processorText(was.Processor))
	case was.Processor == nil || cpuModel != "" && was.Processor.Vendor == now.Processor.Vendor || *was.Processor == *now.Processor:
		return ""
	case cpuModel != "":
		return fmt.Sprintf("node %s has a processor of %s, and node %s one of %s", to.Name, now.Processor.Vendor, from.Name, was.Processor.Vendor)
	default:
		return fmt.Sprintf("node %s %s, and node %s %s; a cluster with a CPU model by name can move between them", to.Name, processorText(now.Processor),
			from.Name, processorText(was.Processor))
	}
}

func machineMaker(n *api.NodeRecord) *api.MachineMaker {
	if n == nil {
		return nil
	}
	i := slices.IndexFunc(n.Stacks, func(s api.StackCheck) bool { return s.Stack == api.StackVM })
	if i < 0 {
		return nil
	}
	return n.Stacks[i].Machines
}

func processorText(p *api.ProcessorKind) string {
	if p == nil {
		return "emulates processors"
	}
	return fmt.Sprintf("has a processor of %s, family %s, model %s", p.Vendor, p.Family, p.Model)
}
