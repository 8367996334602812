package inspection

import (
	"context"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

const pciDevices = "sys/bus/pci/devices/"

// addressPattern is a PCI function's address as Linux writes it: domain, bus, device, function.
var addressPattern = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pciAddress is the last PCI function in a device's path, "" when it hangs on none.
func pciAddress(real string) string {
	names := strings.Split(real, "/")
	for _, name := range slices.Backward(names) {
		if addressPattern.MatchString(name) {
			return name
		}
	}
	return ""
}

// numaNode is the NUMA node of a device: the first that it or what it hangs on tells. The kernel says -1 for none, which on a machine
// with one node is node 0.
func (s source) numaNode(real string) int {
	for dir := real; strings.Contains(dir, "/devices/"); dir = path.Dir(dir) {
		if node, ok := s.tree.Int(dir + "/numa_node"); ok && node >= 0 {
			return int(node)
		}
	}
	if s.tree.Exists("sys/devices/system/node/node1") {
		return -1
	}
	return 0
}

// totalVFs is the number of virtual functions a PCI function can have.
func (s source) totalVFs(address string) int {
	n, _ := s.tree.Int(pciDevices + address + "/sriov_totalvfs")
	return int(n)
}

// uninteresting PCI classes are what every machine is made of by the hundred: bridges, system peripherals, and the performance counters
// that processors show as signal processing controllers.
var uninteresting = []string{"06", "08", "11"}

// readPCI reads the PCI functions, but for bridges and the like and virtual functions, and which of them are GPUs.
func readPCI(_ context.Context, s source) (func(*api.Hardware), []string) {
	functions := []api.PCI{}
	for _, address := range s.tree.Names(pciDevices) {
		dir := pciDevices + address
		class, vendor, device := s.hexadecimal(dir+"/class"), s.hexadecimal(dir+"/vendor"), s.hexadecimal(dir+"/device")
		if len(class) != 6 || slices.Contains(uninteresting, class[:2]) || s.tree.Exists(dir+"/physfn") {
			continue
		}
		functions = append(functions, api.PCI{
			Address:  address,
			Class:    class,
			Device:   vendor + ":" + device,
			Driver:   s.tree.Link(dir + "/driver"),
			Module:   s.tree.Link(dir + "/driver/module"),
			TotalVFs: s.totalVFs(address),
			NUMANode: s.numaNode(s.tree.Real(dir)),
		})
	}
	s.nameFunctions(functions)
	gpus := []api.GPU{}
	for _, f := range functions {
		if isGPU(f) {
			gpus = append(gpus, api.GPU{Model: s.gpuModel(f), PCI: f.Address, NUMANode: f.NUMANode})
		}
	}
	return func(hw *api.Hardware) { hw.PCI, hw.GPUs = functions, gpus }, nil
}

// hexadecimal is a file's number without its 0x.
func (s source) hexadecimal(name string) string {
	digits, _ := strings.CutPrefix(strings.ToLower(s.tree.Text(name)), "0x")
	return digits
}

// screens are vendors whose display adapters only draw a console: those of BMCs, and of emulators.
var screens = []string{
	"1a03" /* ASPEED */, "102b" /* Matrox */, "1234" /* QEMU */, "1013" /* Cirrus */, "1b36" /* Red Hat */, "1af4" /* virtio */, "15ad", /* VMware */
}

// isGPU tells whether a function is one that computes: of display or 3D class (03), or a processing accelerator (1200) of a maker of
// GPUs, as the newest of them call themselves.
func isGPU(f api.PCI) bool {
	vendor, _, _ := strings.Cut(f.Device, ":")
	if strings.HasPrefix(f.Class, "03") {
		return !slices.Contains(screens, vendor)
	}
	return strings.HasPrefix(f.Class, "1200") && (vendor == "10de" || vendor == "1002")
}

// gpuModel is what the driver calls the GPU, else its name.
func (s source) gpuModel(f api.PCI) string {
	for line := range strings.Lines(s.tree.Text("proc/driver/nvidia/gpus/" + f.Address + "/information")) {
		if key, value, _ := strings.Cut(line, ":"); key == "Model" && strings.TrimSpace(value) != "" {
			return strings.TrimSpace(value)
		}
	}
	return f.Name
}
