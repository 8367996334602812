// Package adapter reads a machine's adapters with SR-IOV from sysfs: how many virtual functions they can have, and what keeps those apart.
//
// Checks of hosts and inspection of machines share it, so that both say the same of an adapter. It reads files alone, and must never change one. Start with
// Read.
package adapter

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// Adapter is what matters of an adapter with SR-IOV.
type Adapter struct {
	// PCI is its address, Interface the name of its network interface, empty for none, and Driver the kernel's driver.
	PCI, Interface, Driver string
	// TotalVFs is the highest number of virtual functions, -1 where its firmware has SR-IOV off. VFs is the present one.
	TotalVFs, VFs int
	Up            bool
	// Group is its IOMMU group, empty for none, and Company what else is in it or in the groups of its functions, but for bridges. Functions have company
	// where a switch or root port before them lacks ACS.
	Group   string
	Company []string
	// Ports are the link layers of the ports whose layer the driver can choose (mlx4): ib, eth, or auto.
	Ports []string
}

const (
	devices = "sys/bus/pci/devices"
	groups  = "sys/kernel/iommu_groups"
	// vendorMellanox is NVIDIA's number for its ConnectX adapters (pci.ids).
	vendorMellanox = "0x15b3"
	// Classes of network controllers and of bridges between PCI buses (pci.ids).
	classNetwork = "0x02"
	classBridge  = "0x0604"
)

// Read returns the adapters of a machine that have SR-IOV, or could have it.
func Read(tree sysfs.Tree) (all []Adapter) {
	for _, pci := range tree.Names(devices) {
		dir := devices + "/" + pci
		if !strings.HasPrefix(tree.Text(dir+"/class"), classNetwork) || tree.Exists(dir+"/physfn") {
			continue
		}
		if a, has := Of(tree, pci); has {
			all = append(all, a)
		}
	}
	return all
}

// Of returns the adapter at an address, and whether it has SR-IOV or could have it.
func Of(tree sysfs.Tree, pci string) (a Adapter, has bool) {
	dir := devices + "/" + pci
	total, has := tree.Int(dir + "/sriov_totalvfs")
	if !has {
		if tree.Text(dir+"/vendor") != vendorMellanox {
			return Adapter{}, false // most adapters have none, and need none
		}
		total = -1
	}
	vfs, _ := tree.Int(dir + "/sriov_numvfs")
	a = Adapter{PCI: pci, Driver: tree.Link(dir + "/driver"), TotalVFs: int(total), VFs: int(vfs), Group: tree.Link(dir + "/iommu_group")}
	if names := tree.Names(dir + "/net"); len(names) > 0 {
		a.Interface = names[0]
		a.Up = tree.Text(dir+"/net/"+a.Interface+"/carrier") == "1"
	}
	for port := 1; tree.Exists(fmt.Sprintf("%s/mlx4_port%d", dir, port)); port++ {
		a.Ports = append(a.Ports, tree.Text(fmt.Sprintf("%s/mlx4_port%d", dir, port)))
	}
	own := []string{pci}
	for index := range a.VFs {
		own = append(own, tree.Link(fmt.Sprintf("%s/virtfn%d", dir, index)))
	}
	a.Company = company(tree, own)
	return a, true
}

// company lists what shares an IOMMU group with one of an adapter's functions. Its own functions count: they are for different members.
func company(tree sysfs.Tree, own []string) []string {
	found := map[string]bool{}
	for _, pci := range own {
		group := tree.Link(devices + "/" + pci + "/iommu_group")
		if pci == "" || group == "" {
			continue
		}
		for _, other := range tree.Names(groups + "/" + group + "/devices") {
			if other != pci && !strings.HasPrefix(tree.Text(devices+"/"+other+"/class"), classBridge) { // bridges may be there
				found[other] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}
