package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// part is what the bench measures by itself. It is chosen by its own name or that of its group.
type part struct {
	name, group, about string
	// took is about how long it takes on two cores with nothing else to do; 0: its plan knows (plan.go).
	took time.Duration
}

// The groups of parts.
const (
	groupMachines = "machines"
	groupNetboot  = "netboot"
	groupVM       = "vm"
	groupClusters = "clusters"
)

// The parts of the group clusters.
const (
	partSides     = "sides"
	partLife      = "life"
	partNoise     = "noise"
	partAcross    = "across"
	partThousand  = "thousand"
	partJobs      = "jobs"
	partPlacement = "placement"
	partDevices   = "devices"
	partNetworks  = "networks"
	partFabrics   = "fabrics"
	partVolumes   = "volumes"
	partCaches    = "caches"
	partGPU       = "gpuremote"
)

// allParts returns every part, in the order in which they run.
func allParts() []part {
	return []part{
		{partBuilds, groupMachines, "build environments, beside mmdebstrap and mkfs.erofs by hand", 10 * time.Minute},
		{"dhcp", groupNetboot, "answer DHCP requests, beside dnsmasq", 2 * time.Minute},
		{"transfers", groupNetboot, "send kernels and images, beside other servers", 3 * time.Minute},
		{"storms", groupNetboot, "serve 1,000 machines that boot at once", 4 * time.Minute},
		{partBoots, groupMachines, "boot a machine, beside a boot server by hand", 10 * time.Minute},
		{partRush, groupMachines, "boot emulated machines at once", 8 * time.Minute},
		{partEnrolment, groupMachines, "enroll 1,000 machines", 5 * time.Minute},
		{partWhole, groupMachines, "clusters of 1, 2 and 4 whole machines from off to MPI by stage, beside the same machines by hand", 35 * time.Minute},
		{partCycle, groupMachines, "clusters of whole machines that come, fail, heal and go on 1,000 simulated machines", 16 * time.Minute},
		{partStarts, groupVM, "start one virtual machine, beside the same QEMU by hand", 4 * time.Minute},
		{partMany, groupVM, "start eight virtual machines at once, beside eight by hand", 10 * time.Minute},
		{partSaves, groupVM, "save and restore a virtual machine, beside virsh", 3 * time.Minute},
		{partMemory, groupVM, "memory of the host that a virtual machine takes beyond the guest's own", 3 * time.Minute},
		{partIdle, groupVM, "processor time of eight idle virtual machines, beside eight by hand", 4 * time.Minute},
		{partQueues, groupVM, "shares of four virtual machines in their node's link, with one queue and with many", 5 * time.Minute},
		{partHomes, groupVM, "write and read a file in a virtual machine's home", 3 * time.Minute},
		{partMigrations, groupVM, "move a running virtual machine to another node, beside virsh", 3 * time.Minute},
		{partSides, groupClusters, "create and delete clusters, beside a script and Podman; what the idle site takes", 0},
		{partLife, groupClusters, "lose a node; with sides also scaling, healing, lists and watches", 2 * time.Minute},
		{partNoise, groupClusters, "noise of an idle site", 4 * time.Minute},
		{partAcross, groupClusters, "TCP between members on two nodes, beside bare processes", 2 * time.Minute},
		{partThousand, groupClusters, "a cluster of 1,000 members on simulated nodes", time.Minute},
		{partJobs, groupClusters, "jobs, beside Slurm's", 0},
		{partPlacement, groupClusters, "cost of placement and admission", 2 * time.Minute},
		{partDevices, groupClusters, "placement of devices, beside OpenStack Placement and Kubernetes", 5 * time.Minute},
		{partNetworks, groupClusters, "packets of networks, security groups, rates and routes, beside links by hand; a member more of 1,000; DHCP", time.Minute},
		{partFabrics, groupClusters, "partitions of a simulated InfiniBand and functions of adapters, beside doing it by hand; placement by topology", 90 * time.Second},
		{partVolumes, groupClusters, "volumes in members and disks of machines, beside the file system beneath and qemu-nbd; snapshots, clones and deletions with many files", 4 * time.Minute},
		{partCaches, groupClusters, "files read through a node's cache, beside an XCache by hand", time.Minute},
		{partGPU, groupClusters, "calls of remote GPUs, beside those of the local driver, on a stand-in for CUDA's", time.Minute},
	}
}

// choice is what is measured, by the names of parts.
type choice map[string]bool

// choose returns the parts that a list of names, separated by commas, chooses; an empty list chooses all.
func choose(list string) (choice, error) {
	chosen := choice{}
	for name := range strings.SplitSeq(list, ",") {
		found := false
		for _, p := range allParts() {
			if list == "" || name == p.name || name == p.group {
				chosen[p.name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("-only %q: there is no part %q; %s", list, name, partNames())
		}
	}
	return chosen, nil
}

// of returns the chosen parts of a group, in the order in which they run.
func (c choice) of(group string) (names []string) {
	for _, p := range allParts() {
		if p.group == group && c[p.name] {
			names = append(names, p.name)
		}
	}
	return names
}

// partNames lists all names for people.
func partNames() string {
	var words []string
	for _, group := range []string{groupClusters, groupMachines, groupNetboot, groupVM} {
		var names []string
		for _, p := range allParts() {
			if p.group == group {
				names = append(names, p.name)
			}
		}
		words = append(words, fmt.Sprintf("%s (%s)", group, strings.Join(names, ", ")))
	}
	return "the groups and their parts are: " + strings.Join(words, "; ")
}

// usage explains the parts.
func usage() string {
	var b strings.Builder
	b.WriteString("Parts, by group:\n")
	group := ""
	ordered := allParts()
	slices.SortStableFunc(ordered, func(a, b part) int { return strings.Compare(a.group, b.group) })
	for _, p := range ordered {
		if p.group != group {
			group = p.group
			fmt.Fprintf(&b, "  %s\n", group)
		}
		fmt.Fprintf(&b, "    %-11s %s\n", p.name, p.about)
	}
	return b.String()
}
