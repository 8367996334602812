package adapter

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/machine/inspection/inspectiontest"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

const (
	inGroup = "../../../../kernel/iommu_groups/"
	first   = "sys/bus/pci/devices/0000:3b:00.0"
)

func TestAdaptersAreReadWithWhatSharesAGroupWithTheirFunctions(t *testing.T) {
	link := func(to string) string { return inspectiontest.LinkTo + to }
	tree := inspectiontest.Tree{
		first + "/class": "0x020000\n", first + "/vendor": "0x8086\n", first + "/sriov_totalvfs": "7\n", first + "/sriov_numvfs": "1\n",
		first + "/driver": link("../../../drivers/igb"), first + "/net/ens1/carrier": "1\n", first + "/iommu_group": link(inGroup + "30"),
		first + "/virtfn0":                                link("../0000:3b:10.0"),
		"sys/bus/pci/devices/0000:3b:10.0/class":          "0x020000\n",
		"sys/bus/pci/devices/0000:3b:10.0/physfn":         link("../0000:3b:00.0"),
		"sys/bus/pci/devices/0000:3b:10.0/iommu_group":    link(inGroup + "31"),
		"sys/bus/pci/devices/0000:3a:00.0/class":          "0x060400\n",
		"sys/bus/pci/devices/0000:3c:00.0/class":          "0x010802\n",
		"sys/bus/pci/devices/0000:5e:00.0/class":          "0x020700\n",
		"sys/bus/pci/devices/0000:5e:00.0/vendor":         "0x15b3\n",
		"sys/bus/pci/devices/0000:5f:00.0/class":          "0x020000\n",
		"sys/bus/pci/devices/0000:5f:00.0/vendor":         "0x10ec\n",
		"sys/kernel/iommu_groups/30/devices/0000:3b:00.0": "",
		"sys/kernel/iommu_groups/31/devices/0000:3b:10.0": "",
		"sys/kernel/iommu_groups/31/devices/0000:3a:00.0": "",
		"sys/kernel/iommu_groups/31/devices/0000:3c:00.0": "",
	}
	want := []Adapter{
		{PCI: "0000:3b:00.0", Interface: "ens1", Driver: "igb", TotalVFs: 7, VFs: 1, Up: true, Group: "30", Company: []string{"0000:3c:00.0"}},
		{PCI: "0000:5e:00.0", TotalVFs: -1}, // SR-IOV is off in its firmware
	}
	if diff := cmp.Diff(want, Read(sysfs.At(tree.Unpack(t)))); diff != "" {
		t.Error(diff)
	}
}
