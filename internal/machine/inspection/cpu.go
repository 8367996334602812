package inspection

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// machines are the names that uname(2) has for what the Go toolchain calls an architecture.
var machines = map[string]string{"amd64": "x86_64", "arm64": "aarch64", "riscv64": "riscv64", "ppc64le": "ppc64le"}

// architecture is what the kernel says (/proc/sys/kernel/arch, since Linux 6.1), else what this program runs on.
func (s source) architecture() (string, error) {
	if name := s.tree.Text("proc/sys/kernel/arch"); name != "" {
		return name, nil
	}
	if name := machines[runtime.GOARCH]; name != "" && s.tree.Live() {
		return name, nil
	}
	return "", errors.New("the architecture is unknown: /proc/sys/kernel/arch does not exist")
}

// readCPU reads model and flags of the first processor, and counts sockets, cores and threads of all that are there, on or not.
func readCPU(_ context.Context, s source) (func(*api.Hardware), []string) {
	info := firstProcessor(s.tree.Text("proc/cpuinfo"))
	cpu := api.CPU{
		Model:  strings.Join(strings.Fields(info["model name"]), " "),
		Vendor: info["vendor_id"],
		Flags:  strings.Fields(info["flags"]),
	}
	if implementer := info["CPU implementer"]; implementer != "" { // arm64 has numbers only
		cpu.Vendor = armVendors[implementer]
		cpu.Model = strings.TrimSpace(cpu.Vendor + " part " + info["CPU part"])
		cpu.Flags = strings.Fields(info["Features"])
	}
	slices.Sort(cpu.Flags)
	// Linux takes the flag away where the firmware has switched VMX or SVM off.
	cpu.Virtualization = slices.Contains(cpu.Flags, "vmx") || slices.Contains(cpu.Flags, "svm")

	const dir = "sys/devices/system/cpu/"
	sockets, cores := map[string]bool{}, map[[3]string]bool{}
	for _, name := range s.tree.Names(dir) {
		if number, ok := strings.CutPrefix(name, "cpu"); !ok || strings.Trim(number, "0123456789") != "" || number == "" {
			continue
		}
		cpu.Threads++
		if !s.tree.Exists(dir + name + "/topology") {
			continue // it is off: the kernel knows nothing of it
		}
		id := func(what string) string { return s.tree.Text(dir + name + "/topology/" + what) }
		sockets[id("physical_package_id")] = true
		cores[[3]string{id("physical_package_id"), id("die_id"), id("core_id")}] = true
	}
	cpu.Sockets, cpu.Cores = len(sockets), len(cores)
	if cpu.Threads == 0 {
		return nothing, []string{"/sys/devices/system/cpu lists no CPU; is /sys mounted?"}
	}
	cpu.NUMANodes = s.numaNodes()
	return func(hw *api.Hardware) { hw.CPU = cpu }, nil
}

// numaNodes returns the NUMA node of each CPU by its number, -1 for one that is off; nothing when the kernel does not tell.
func (s source) numaNodes() []int {
	var of []int
	for _, name := range s.tree.Names("sys/devices/system/node") {
		var id int
		if n, err := fmt.Sscanf(name, "node%d", &id); n != 1 || err != nil {
			continue
		}
		cpus, err := inventory.ParseList(strings.TrimSpace(s.tree.Text("sys/devices/system/node/" + name + "/cpulist")))
		if err != nil {
			return nil
		}
		for _, cpu := range cpus {
			for len(of) <= cpu {
				of = append(of, -1)
			}
			of[cpu] = id
		}
	}
	return of
}

// armVendors are implementers as the register MIDR_EL1 numbers them (Arm Architecture Reference Manual).
var armVendors = map[string]string{
	"0x41": "Arm", "0x42": "Broadcom", "0x43": "Cavium", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0x50": "APM",
	"0x51": "Qualcomm", "0x61": "Apple", "0xc0": "Ampere",
}

// firstProcessor reads the first paragraph of /proc/cpuinfo.
func firstProcessor(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, found := strings.Cut(line, ":")
		if !found && len(info) > 0 {
			break
		}
		info[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return info
}
