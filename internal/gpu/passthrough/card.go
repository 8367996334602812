package passthrough

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const (
	pciDevices = "/sys/bus/pci/devices/"
	pciDrivers = "/sys/bus/pci/drivers/"
	// vfioPCI is the driver by which machines get PCI devices.
	vfioPCI = "vfio-pci"
	// classDisplay and classBridge are the first two digits of the classes of display controllers and bridges (PCI Code and ID Assignment Specification).
	classDisplay = "03"
	classBridge  = "06"
)

var address = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)

// Card is a GPU as the PCI bus shows it.
type Card struct {
	// PCI is the address of its function 0, such as 0000:3b:00.0.
	PCI string
	// Vendor and Device are the numbers of its model, hexadecimal, such as 10de and 2330.
	Vendor, Device string
	// Group is its IOMMU group, "" without an IOMMU.
	Group string
	// Functions are those that belong to the GPU: its own first, then the others of the same slot and group, such as its audio.
	Functions []Function
	// Strangers are the addresses of the devices in its group that are not the GPU's, but for bridges, which no machine gets.
	Strangers []string
	// NUMANode is the NUMA node that it is attached to, -1 where the kernel does not know.
	NUMANode int
	// Console says by what the node shows its own console on it, "" where the node does not.
	Console string
	// Resets are the ways in which the kernel can reset it, in the kernel's words and order.
	Resets []string
	// VFIO: the driver vfio-pci is loaded.
	VFIO bool
	// Memory are its windows of memory without side effects.
	Memory []Window
}

// Function is a PCI function of a GPU.
type Function struct {
	PCI string `json:"pci"`
	// Driver is the one that has it, "" for none, and Override the only one that may, "" for any.
	Driver   string `json:"driver,omitempty"`
	Override string `json:"override,omitempty"`
}

// Window is a base address register (BAR) for prefetchable memory. Reads of such a window have no side effects, and it holds no control registers whose
// order of writes matters (PCI Local Bus Specification 3.0, 6.2.5.1).
type Window struct {
	// Number is that of the register, from 0 to 5, Bytes the size.
	Number int
	Bytes  int64
}

// The resets after which a function is as after power-on, in the kernel's words (Documentation/ABI/testing/sysfs-bus-pci, reset_method). A reset by power
// management (pm) is not among them: a function may keep its state through D3hot.
var goodResets = []string{"device_specific", "flr", "af_flr", "bus"}

// Reset returns the way in which the GPU is reset between its owners, the first good one of the kernel's order; "" where there is none.
func (c Card) Reset() string {
	for _, method := range c.Resets {
		if slices.Contains(goodResets, method) {
			return method
		}
	}
	return ""
}

// Problem says why the GPU can't be given to a machine; "" where it can.
func (c Card) Problem() string {
	switch {
	case c.Group == "":
		return "the node has no IOMMU; enable VT-d or AMD-Vi in the firmware, and boot with intel_iommu=on or amd_iommu=on"
	case len(c.Strangers) > 0:
		return fmt.Sprintf("its IOMMU group %s also holds %s, which could be reached from a machine; enable ACS in the firmware, or put the GPU into another slot",
			c.Group, strings.Join(c.Strangers, ", "))
	case c.Console != "":
		return fmt.Sprintf("the node uses it: %s; move the node's console elsewhere, or keep the driver off the GPU (kernel argument modprobe.blacklist=DRIVER)", c.Console)
	case c.Reset() == "":
		return fmt.Sprintf("the kernel can't reset it by itself: it knows the ways %q, and none of %s", strings.Join(c.Resets, " "), strings.Join(goodResets, ", "))
	case !c.VFIO:
		return "the driver vfio-pci is not loaded; run: modprobe vfio-pci"
	}
	return ""
}

// Others are the GPU's functions besides its own.
func (c Card) Others() []string {
	var all []string
	for _, f := range c.Functions[1:] {
		all = append(all, f.PCI)
	}
	return all
}

// ReadCards returns the GPUs on the PCI bus, sorted by their addresses. Virtual functions of GPUs are none.
func ReadCards(h Host) ([]Card, error) {
	names, err := h.Glob(pciDevices + "*")
	if err != nil {
		return nil, err
	}
	var cards []Card
	for _, name := range names {
		pci := path.Base(name)
		class, err := h.ReadFile(name + "/class")
		if err != nil || !address.MatchString(pci) || !strings.HasPrefix(hexadecimal(class), classDisplay) || exists(h, name+"/physfn") {
			continue // a device that goes while it is read is none
		}
		cards = append(cards, readCard(h, pci))
	}
	slices.SortFunc(cards, func(a, b Card) int { return cmp.Compare(a.PCI, b.PCI) })
	return cards, nil
}

// readCard reads one GPU. What can't be read is missing, and a missing group, reset or driver is a problem.
func readCard(h Host, pci string) Card {
	dir := pciDevices + pci
	text := func(name string) string {
		content, err := h.ReadFile(dir + "/" + name)
		if err != nil {
			return ""
		}
		return content
	}
	c := Card{
		PCI: pci, Vendor: hexadecimal(text("vendor")), Device: hexadecimal(text("device")), NUMANode: -1, Resets: strings.Fields(text("reset_method")),
		VFIO: exists(h, pciDrivers+vfioPCI), Memory: windows(text("resource")), Functions: []Function{readFunction(h, pci)},
	}
	if node, err := strconv.Atoi(text("numa_node")); err == nil && node >= 0 {
		c.NUMANode = node
	}
	c.Group, _ = h.Readlink(dir + "/iommu_group")
	members, _ := h.Glob(dir + "/iommu_group/devices/*")
	for _, member := range members {
		other := path.Base(member)
		class, err := h.ReadFile(pciDevices + other + "/class")
		switch {
		case other == pci, err == nil && strings.HasPrefix(hexadecimal(class), classBridge):
		case slot(other) == slot(pci):
			c.Functions = append(c.Functions, readFunction(h, other))
		default:
			c.Strangers = append(c.Strangers, other)
		}
	}
	if c.Functions[0].Driver != vfioPCI && c.Functions[0].Driver != "" {
		c.Console = console(h, dir, text("boot_vga"))
	}
	return c
}

// console says by what a node shows its own console on a GPU that has a driver of the host's; "" where it does not.
func console(h Host, dir, bootVGA string) string {
	if bootVGA == "1" {
		return "the firmware shows the node's console on it"
	}
	buffers, _ := h.Glob(dir + "/graphics/fb*")
	if len(buffers) > 0 {
		return "its driver has the frame buffer " + path.Base(buffers[0])
	}
	return ""
}

func readFunction(h Host, pci string) Function {
	f := Function{PCI: pci}
	f.Driver, _ = h.Readlink(pciDevices + pci + "/driver")
	if override, err := h.ReadFile(pciDevices + pci + "/driver_override"); err == nil && override != "(null)" {
		f.Override = override
	}
	return f
}

// The flags of a resource that are asked for (include/linux/ioport.h), and the number of a function's base address registers.
const (
	flagMemory   = 0x200
	flagPrefetch = 0x2000
	registers    = 6
)

// windows reads the file resource of a PCI function: a line for each of its resources, with its first and last address and its flags.
func windows(text string) []Window {
	var all []Window
	n := -1
	for line := range strings.Lines(text) {
		if n++; n == registers {
			break
		}
		var first, last, flags uint64
		if _, err := fmt.Sscanf(line, "0x%x 0x%x 0x%x", &first, &last, &flags); err != nil || last <= first || last-first >= 1<<50 {
			continue
		}
		if flags&flagMemory != 0 && flags&flagPrefetch != 0 {
			all = append(all, Window{Number: n, Bytes: int64(last - first + 1)})
		}
	}
	return all
}

// slot is a function's address without the function.
func slot(pci string) string {
	before, _, _ := strings.Cut(pci, ".")
	return before
}

func hexadecimal(text string) string {
	return strings.TrimPrefix(strings.ToLower(strings.TrimSpace(text)), "0x")
}

func exists(h Host, name string) bool {
	found, err := h.Glob(name)
	return err == nil && len(found) > 0
}
