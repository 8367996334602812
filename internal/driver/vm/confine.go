package vm

import (
	"context"
	"fmt"
	"slices"

	"github.com/digitalocean/go-libvirt"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cgroup"
	"github.com/nearmetal/nearmetal/internal/inventory"
	"github.com/nearmetal/nearmetal/internal/resource"
)

// groups are the control groups of this node's machines, apart from those of containers.
func (d *Driver) groups() (*cgroup.Groups, error) {
	return cgroup.Find(cgroup.NodeGroup(d.cfg.Node, d.cfg.StateDir) + "-vm")
}

// limitsOf is a machine's share of its node: the guest's memory, unless that is of huge pages, which count elsewhere, and what QEMU takes for itself, which is the member's reserve without the server
// of its home. An assignment made by a version that reserved less gets that, too, as QEMU needs it all the same. spare are CPUs for what else QEMU does.
func limitsOf(a *api.Assignment, spare []int) cgroup.Limits {
	needs := resource.MachineReserve(api.Shape{Cores: max(len(a.Slots), len(a.CPUs)), Memory: api.Bytes(a.MemoryBytes())}, a.Display)
	reserve := max(needs, a.ReserveBytes-resource.HomeServerBytes)
	cpus := slices.Concat(a.CPUs, spare)
	slices.Sort(cpus)
	return cgroup.Limits{MemoryBytes: a.NodeMemoryBytes() - a.ReserveBytes + reserve, CPUs: slices.Compact(cpus), MemoryNodes: a.MemoryNodes()}
}

// confine makes the control groups of a member before there is a machine: one without limits never runs.
func (d *Driver) confine(a *api.Assignment) error {
	groups, err := d.groups()
	if err != nil {
		return err
	}
	return groups.Make(a.ID, limitsOf(a, d.cfg.SpareCPUs))
}

// release lets a machine run that libvirt has started paused, once its QEMU is in the member's control groups. What QEMU took until then, some
// 20 MiB for itself and nothing for the guest, stays charged to the agent's.
func (d *Driver) release(ctx context.Context, host *daemon, a *api.Assignment) error {
	if err := d.join(a); err != nil {
		return err
	}
	if err := d.boundDisk(a); err != nil {
		return fmt.Errorf("bounding its disk: %w", err)
	}
	return host.domain(ctx, a.ID, func(rpc *libvirt.Libvirt, domain libvirt.Domain) error { return rpc.DomainResume(domain) })
}

// join moves a member's QEMU into the member's control groups, and its threads to their CPUs.
func (d *Driver) join(a *api.Assignment) error {
	pid, err := d.pid(a.ID)
	if err != nil {
		return err
	}
	groups, err := d.groups()
	if err != nil {
		return err
	}
	if err := groups.Join(a.ID, pid); err != nil {
		return err
	}
	return pinThreads(pid, vcpus(a), d.cfg.SpareCPUs)
}

// unconfine removes the control groups of a member, and those of the node with the last.
func (d *Driver) unconfine(ctx context.Context, id string) error {
	groups, err := d.groups()
	if err != nil {
		return err
	}
	if err := groups.Remove(ctx, id); err != nil {
		return err
	}
	groups.RemoveParents()
	return nil
}

// OutOfMemory returns how often the kernel has ended a member's QEMU for want of memory; it implements driver.MemoryAccountant. What a guest's own
// kernel ends for want of the guest's memory is not counted.
func (d *Driver) OutOfMemory(id string) (int, error) {
	if !validName(id) {
		return 0, nil
	}
	groups, err := d.groups()
	if err != nil {
		return 0, err
	}
	return groups.OutOfMemory(id)
}

// pagesText explains why a machine in huge pages did not start, if fewer are free than it needs; empty otherwise.
func pagesText(a *api.Assignment) string {
	page, needed := a.HugePages()
	if page == 0 {
		return ""
	}
	free, err := inventory.FreeHugePages("/", page)
	if err != nil || free >= needed/page {
		return ""
	}
	return fmt.Sprintf("; the machine needs %d huge pages of %s, and %d are free: another program holds some that this node offers; end that program, "+
		"or reserve more huge pages and restart the agent", needed/page, api.Bytes(page), free)
}

// memoryText is what people are told of a machine whose QEMU ran out of memory; empty when it did not.
func (d *Driver) memoryText(id string, a *api.Assignment) string {
	kills, err := d.OutOfMemory(id)
	if err != nil || kills == 0 { // a machine's end is worth reporting without its reason, too
		return ""
	}
	return fmt.Sprintf("; it ran out of memory: its limit is %s, of which the guest has %s, and the kernel killed it", api.Bytes(limitsOf(a, nil).MemoryBytes), api.Bytes(a.MemoryBytes()))
}
