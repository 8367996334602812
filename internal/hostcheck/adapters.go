package hostcheck

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/machine/inspection/adapter"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// The files that Plan writes for adapters.
const (
	grubFile     = "etc/default/grub.d/nearmetal.cfg"
	functionFile = "etc/modprobe.d/nearmetal-sriov.conf"
)

const (
	pciDevices = "sys/bus/pci/devices"
	driverMLX4 = "mlx4_core"
	moduleVFIO = "vfio_pci"
)

// sriovModules are those that hand functions to virtual machines.
var sriovModules = []module{{Name: moduleVFIO, Area: VM, Purpose: "adapters' functions for virtual machines", Shown: "sys/bus/pci/drivers/vfio-pci", Status: Warning}}

// lookAtAdapters reads the adapters that have SR-IOV, or could have it.
func (h Host) lookAtAdapters(f *Facts) {
	f.Adapters = adapter.Read(sysfs.At(h.Dir))
	f.KernelArguments = strings.Fields(h.text("proc/cmdline"))
	f.Grub = h.has("etc/default/grub") && h.has("usr/sbin/update-grub")
	f.InitialRAMDisk = h.has("usr/sbin/update-initramfs")
}

// adapters reports on the adapters with SR-IOV. A host without any needs none.
func adapters(f Facts) []Finding {
	var all []Finding
	for _, a := range f.Adapters {
		all = append(all, adapterFinding(f, a))
	}
	if len(all) == 0 {
		return nil
	}
	for _, m := range sriovModules {
		all = append(all, f.module(m))
	}
	return all
}

func adapterFinding(f Facts, a adapter.Adapter) Finding {
	found := Finding{Area: Network, Name: "adapter " + a.PCI, Status: OK, Detail: adapterText(a)}
	warn := func(fix, format string, args ...any) Finding {
		found.Status, found.Detail, found.Fix = Warning, adapterText(a)+": "+fmt.Sprintf(format, args...), fix
		return found
	}
	switch {
	case a.TotalVFs < 0:
		return warn(fmt.Sprintf("mstconfig -d %s set SRIOV_EN=1 NUM_OF_VFS=8, enable SR-IOV in the machine's firmware, then reboot", a.PCI), "SR-IOV is off in its firmware")
	case a.TotalVFs == 0:
		return warn("enable SR-IOV in the machine's firmware, then reboot", "it can have no virtual functions")
	case a.Driver == "":
		return warn("modprobe the driver of the adapter ('lspci -k -s "+a.PCI+"' names it)", "no driver has it")
	case f.IOMMUGroups == 0:
		return warn("enable VT-d or AMD-Vi in the firmware; "+f.bootWith(), "virtual machines can't have its functions: the kernel has no IOMMU groups")
	case len(a.Company) > 0:
		return warn("enable ACS in the machine's firmware, or put the adapter into another slot", "virtual machines can't have functions that share an IOMMU group with %s", strings.Join(a.Company, ", "))
	case !a.Up:
		return warn("ip link set "+a.Interface+" up, plug its cable in, or switch the other end on", "its link is down")
	case a.VFs == 0:
		return warn("nearmetal agent --fabric CELL="+a.PCI+" --virtual-functions "+a.PCI+"=N", "it has no virtual functions yet")
	}
	return found
}

func adapterText(a adapter.Adapter) string {
	text := a.PCI
	if a.Interface != "" {
		text = a.Interface
	}
	if a.Driver != "" {
		text += " (" + a.Driver + ")"
	}
	if a.TotalVFs > 0 {
		text += fmt.Sprintf(", %d of %d virtual functions", a.VFs, a.TotalVFs)
	}
	if len(a.Ports) > 0 {
		text += ", ports " + strings.Join(a.Ports, " and ")
	}
	return text
}

// bootWith says how to give the kernel the argument that turns the IOMMU on.
func (f Facts) bootWith() string {
	if slices.Contains(f.KernelArguments, f.iommuArgument()) {
		return "the kernel has been booted with " + f.iommuArgument() + " already"
	}
	return "nearmetal node prepare --virtual-functions ADAPTER=N, or boot with " + f.iommuArgument()
}

// functions plans what the wanted virtual functions need.
func (p *Prepared) functions(f Facts, w Wanted) {
	if len(w.Functions) == 0 {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(w.Functions)) {
		i := slices.IndexFunc(f.Adapters, func(a adapter.Adapter) bool { return a.PCI == name || a.Interface == name && name != "" })
		if i < 0 {
			p.left("this host has no adapter %s with SR-IOV; 'nearmetal node check' lists those it has", name)
			continue
		}
		p.functionsOf(f, f.Adapters[i], w.Functions[name])
	}
	if slices.Contains(w.For, VM) {
		p.iommu(f)
	}
}

func (p *Prepared) functionsOf(f Facts, a adapter.Adapter, n int) {
	switch {
	case a.TotalVFs < 0:
		p.left("SR-IOV is off in the firmware of adapter %s: run mstconfig -d %s set SRIOV_EN=1 NUM_OF_VFS=%d, enable SR-IOV in the machine's firmware, then reboot", a.PCI, a.PCI, n)
	case n > a.TotalVFs:
		p.left("adapter %s has at most %d virtual functions, not %d; its firmware sets that limit", a.PCI, a.TotalVFs, n)
	case a.Driver == driverMLX4:
		p.moduleOption(f, a, n)
	case a.VFs == n:
	case a.VFs > 0:
		p.left("adapter %s has %d virtual functions, which may be in use: the agent's option --virtual-functions %s=%d changes that when none is", a.PCI, a.VFs, a.PCI, n)
	default:
		dir := pciDevices + "/" + a.PCI
		p.Changes = append(
			p.Changes,
			Change{Attribute: dir + "/sriov_drivers_autoprobe", Value: "0", Why: "so that new functions become no interfaces of this host"},
			Change{Attribute: dir + "/sriov_numvfs", Value: strconv.Itoa(n), Why: "virtual functions; the agent's option --virtual-functions makes them after each boot"},
		)
	}
}

// moduleOption plans the number of functions of adapters whose driver takes it only when it is loaded. It is one for all adapters of the driver.
func (p *Prepared) moduleOption(f Facts, a adapter.Adapter, n int) {
	line := fmt.Sprintf("options %s num_vfs=%d probe_vf=0", driverMLX4, n)
	if types := portTypes(a.Ports); types != "" {
		line += " port_type_array=" + types
	}
	if !slices.Contains(keptLines(f.Kept[functionFile]), line) {
		p.keep(functionFile, []string{line}, "which the driver reads when it is loaded")
		if f.InitialRAMDisk {
			p.Changes = append(p.Changes, Change{Command: []string{"update-initramfs", "-u"}, Why: "the driver may be loaded before the root is mounted"})
		}
	}
	if a.VFs != n {
		p.left("adapter %s gets its %d virtual functions when %s is loaded again: reboot", a.PCI, n, driverMLX4)
	}
}

// portTypes writes the present link layers of ports as the driver's option takes them: 1 InfiniBand, 2 Ethernet, 3 by the other end.
func portTypes(ports []string) string {
	numbers := map[string]string{"ib": "1", "eth": "2", "auto": "3"}
	var all []string
	for _, port := range ports {
		if numbers[port] == "" {
			return ""
		}
		all = append(all, numbers[port])
	}
	return strings.Join(all, ",")
}

// iommu plans the modules and the kernel argument by which machines get functions.
func (p *Prepared) iommu(f Facts) {
	argument := f.iommuArgument()
	line := `GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX ` + argument + ` iommu=pt"`
	switch {
	case f.IOMMUGroups > 0 || slices.Contains(f.KernelArguments, argument):
		return // what is missing then, is for the firmware
	case !f.Grub:
		return // said among what is left for machines
	case !slices.Contains(keptLines(f.Kept[grubFile]), line):
		p.keep(grubFile, []string{line}, "so that the kernel uses the IOMMU")
		p.Changes = append(p.Changes, Change{Command: []string{"update-grub"}, Why: "the boot loader's list of kernels"})
	}
	p.left("reboot, so that the kernel uses the IOMMU")
}

// setAttribute writes a file of the kernel and reads it back.
func (h Host) setAttribute(name, value string) error {
	if h.text(name) == value {
		return nil
	}
	if err := overwrite(h.path(name), value); err != nil {
		return err
	}
	if got := h.text(name); got != value {
		return fmt.Errorf("read back, %s is %s", filepath.Base(name), got)
	}
	return nil
}
