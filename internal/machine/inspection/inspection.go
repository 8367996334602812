// Package inspection finds out what a machine is made of, for the boot agent to report.
//
// It reads sysfs, procfs and the firmware's tables, asks devices what no file tells, and listens to the switches. It is part of the boot
// agent, so it imports little. Besides taking NICs up (Run only) it changes nothing on a machine, and decides nothing: whether a machine is fit for
// something is internal/machine/compatibility's and the leader's to say. Start with Run.
package inspection

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/inventory"
	"github.com/nearmetal/nearmetal/internal/machine/inspection/sysfs"
)

// Source is the machine to look at.
type Source struct {
	// Root is where the machine's files are: "/", or a recorded tree.
	Root string
	// BootMAC is of the NIC it booted from; may be empty.
	BootMAC string
	// Devices asks devices what no file tells; nil for a recorded tree.
	Devices Devices
	// PartDeadline bounds the reading of each part; 0: five seconds.
	PartDeadline time.Duration
}

// Devices asks devices what no file tells.
type Devices interface {
	// WakeOn is what a NIC can be woken by, in letters of ethtool; "" for nothing.
	WakeOn(nic string) (string, error)
	// BMCAddress is the LAN address the management controller has, "" when it has none or none is there.
	BMCAddress(ctx context.Context) (string, error)
}

// Problem is something that could not be found out, though it is there.
type Problem struct {
	Part    string
	Message string
}

func (p Problem) String() string { return p.Part + ": " + p.Message }

const defaultPartDeadline = 5 * time.Second

// part finds out one part of a machine and returns what to set in the whole.
type part struct {
	name string
	read func(ctx context.Context, s source) (set func(*api.Hardware), problems []string)
}

// source is a Source with its tree opened.
type source struct {
	Source
	tree sysfs.Tree
}

var parts = []part{
	{"firmware", readFirmware},
	{"cpu", readCPU},
	{"memory", readMemory},
	{"disks", readDisks},
	{"nics", readNICs},
	{"hcas", readHCAs},
	{"pci", readPCI},
	{"bmc", readBMC},
	{"watchdog", readWatchdog},
}

// Collect finds out what the machine is made of. A part that can't be read, or whose driver does not answer in time, is left empty and told
// as a problem; what a machine does not have is none.
func Collect(ctx context.Context, s Source) (api.Hardware, []Problem) {
	src := source{Source: s, tree: sysfs.At(s.Root)}
	type answer struct {
		part     int
		set      func(*api.Hardware)
		problems []string
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(s.PartDeadline, defaultPartDeadline))
	defer cancel()
	answers := make(chan answer, len(parts)) // a part that hangs in its driver is left behind
	for i, p := range parts {
		go func() {
			set, problems := p.read(ctx, src)
			answers <- answer{i, set, problems}
		}()
	}

	hw := api.Hardware{NUMANodes: []api.NUMANode{}, Disks: []api.Disk{}, NICs: []api.NIC{}, HCAs: []api.HCA{}, GPUs: []api.GPU{}, PCI: []api.PCI{}}
	problems := make([][]string, len(parts))
	waiting := len(parts)
	answered := make([]bool, len(parts))
	for waiting > 0 {
		select {
		case a := <-answers:
			waiting--
			answered[a.part] = true
			problems[a.part] = a.problems
			a.set(&hw)
		case <-ctx.Done():
			waiting = 0
			for i := range parts {
				if !answered[i] {
					problems[i] = []string{"its driver did not answer in time"}
				}
			}
		}
	}
	var out []Problem
	for i, p := range parts {
		for _, message := range problems[i] {
			out = append(out, Problem{Part: p.name, Message: message})
		}
	}
	assignRoles(&hw, src.BootMAC)
	return hw, out
}

// The roles of NICs that can be told from inside a machine.
const (
	RoleProvisioning = "provisioning"
	RoleData         = "data"
	RoleManagement   = "management"
)

// hostInterfaceDrivers drive the USB NIC by which a BMC talks with its host (Redfish Host Interface, DMTF DSP0270).
var hostInterfaceDrivers = []string{"cdc_ether", "cdc_ncm", "cdc_subset", "rndis_host"}

// assignRoles says what NICs are for as far as it is known: the one it booted from provisions it, those that do RDMA carry data.
func assignRoles(hw *api.Hardware, bootMAC string) {
	for i := range hw.NICs {
		nic := &hw.NICs[i]
		switch {
		case bootMAC != "" && strings.EqualFold(nic.MAC, bootMAC):
			nic.Role = RoleProvisioning
		case slices.Contains(hostInterfaceDrivers, nic.Driver):
			nic.Role = RoleManagement
		case nic.PCI != "" && slices.ContainsFunc(hw.HCAs, func(h api.HCA) bool { return h.PCI == nic.PCI }):
			nic.Role = RoleData
		}
	}
}

// nothing is set when there is nothing to set.
func nothing(*api.Hardware) {}

// readMemory reads the memory the kernel has, as a whole and by NUMA node.
func readMemory(_ context.Context, s source) (func(*api.Hardware), []string) {
	total, ok := memTotal(s.tree.Text("proc/meminfo"))
	if !ok {
		return nothing, []string{"/proc/meminfo has no MemTotal; is /proc mounted?"}
	}
	var nodes []api.NUMANode
	for _, name := range s.tree.Names("sys/devices/system/node") {
		var id int
		if n, err := fmt.Sscanf(name, "node%d", &id); n != 1 || err != nil {
			continue
		}
		bytes, _ := memTotal(s.tree.Text("sys/devices/system/node/" + name + "/meminfo"))
		nodes = append(nodes, api.NUMANode{ID: id, MemoryBytes: bytes})
	}
	if len(nodes) == 0 {
		nodes = []api.NUMANode{{ID: 0, MemoryBytes: total}}
	}
	return func(hw *api.Hardware) { hw.MemoryBytes, hw.NUMANodes = total, inventory.ShareMemory(total, nodes) }, nil
}

// memTotal reads the line "MemTotal: N kB" (proc(5)), which in a NUMA node's file begins with "Node N".
func memTotal(text string) (int64, bool) {
	for line := range strings.Lines(text) {
		_, rest, found := strings.Cut(line, "MemTotal:")
		var kib int64
		if n, err := fmt.Sscan(rest, &kib); found && n == 1 && err == nil {
			return kib << 10, true
		}
	}
	return 0, false
}
