// Package compatibility tells whether an environment suits a machine: what inspection found against what an image needs.
//
// It is pure. A problem is a sentence with both numbers, without the names of node and environment, which whoever shows it puts in front.
// It never decides what happens then. Start with Check.
package compatibility

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// What a running machine holds in memory besides its root and what its environment asks for.
const (
	// baseBytes is for the kernel's own data (slabs, page tables, network buffers), the node agent and sshd, which need about half of it, and
	// for the page cache that programs of the root run from: with less, the machine reads the same pages again and again.
	baseBytes = 256 << 20
	// leastBytes is what an environment without stated requirements is given to work with.
	leastBytes = 128 << 20
)

// MemoryNeed is the memory, in bytes as the kernel counts it (MemTotal), that a machine needs to run an image:
//
//	root image + max(what it asks for, 128 MiB) + 256 MiB
//
// The root ends up on the machine as the image it is, compressed, in a RAM disk that can't be swapped or dropped: all of it
// counts, and what it unpacks to does not, because unpacked pages are page cache, which gives way. Kernel and initrd are not added: they are
// needed before the root is fetched and are given back, and before the root they must fit with the 256 MiB alone, which is why
// the sum is at least three times their size (the compressed initrd, what it unpacks to, and the kernel's image exist at once).
func MemoryNeed(img api.Image) int64 {
	need := img.RootBytes + max(int64(img.Requirements.MemoryBytes), leastBytes) + baseBytes
	return max(need, 3*img.MetalBytes)
}

// Check returns why an image does not suit a machine; nil when it does. What it does not need is not looked at: an image without requirements
// is still checked for architecture, kernel and size.
func Check(hw *api.Hardware, img api.Image) []string {
	if hw == nil {
		return []string{"the machine was never inspected; run: nearmetal node inspect"}
	}
	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }

	if img.MetalBytes == 0 {
		problem("the environment has no kernel, so it supports containers only; add a kernel to its recipe")
	}
	if want := img.Requirements.Firmware; want != "" && want != hw.Firmware {
		problem("the image needs %s firmware, but the machine boots by %s", want, cmp.Or(string(hw.Firmware), "an unknown kind"))
	}
	problems = append(problems, checkMemory(hw, img)...)
	problems = append(problems, checkDisk(hw, img)...)
	problems = append(problems, checkDrivers(hw, img)...)
	return append(problems, CheckMember(hw, img)...)
}

// CheckMember returns why members of a cluster can't have an image as their root on a machine that runs an environment of its own; nil when
// they can. They boot no kernel, and what memory and disk they have is their shape's, not the image's, business.
func CheckMember(hw *api.Hardware, img api.Image) []string {
	var problems []string
	problem := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	for _, want := range architectures(img) {
		if want != hw.Architecture {
			problem("the image is built for %s, but the machine is %s", want, cmp.Or(hw.Architecture, "of an unknown architecture"))
		}
	}
	if missing := without(img.Requirements.CPUFlags, hw.CPU.Flags); len(missing) > 0 {
		problem("the image needs the CPU flags %s, which %s lacks", strings.Join(missing, ", "), cmp.Or(hw.CPU.Model, "the machine's CPU"))
	}
	for _, class := range unique(img.Requirements.Devices) {
		if text := lacks(hw, class); text != "" {
			problem("%s", text)
		}
	}
	return problems
}

// architectures are those the image and its requirements name, without doubles.
func architectures(img api.Image) []string {
	return unique(slices.DeleteFunc([]string{img.Architecture, img.Requirements.Architecture}, func(a string) bool { return a == "" }))
}

// checkDrivers tells which storage and network controllers the image's kernel can't drive (PCI Code and ID Assignment, base classes 01 and 02): inspection
// found a module for them that the image does not have. What the kernel of the inspection has built in is not judged.
func checkDrivers(hw *api.Hardware, img api.Image) (problems []string) {
	if len(img.Drivers) == 0 {
		return nil
	}
	for _, f := range hw.PCI {
		kind := map[string]string{"01": "storage", "02": "network"}[f.Class[:min(2, len(f.Class))]]
		if kind == "" || f.Module == "" || slices.Contains(img.Drivers, f.Module) {
			continue
		}
		problems = append(problems, fmt.Sprintf("the image's kernel has no module %s for the %s controller %s (%s)", f.Module, kind, f.Address, cmp.Or(f.Name, f.Device)))
	}
	return problems
}

// checkMemory tells a root that never fits from an environment that has too little beside it.
func checkMemory(hw *api.Hardware, img api.Image) []string {
	need := MemoryNeed(img)
	switch {
	case hw.MemoryBytes >= need:
		return nil
	case hw.MemoryBytes < img.RootBytes+baseBytes:
		return []string{fmt.Sprintf("the image is too large for the machine: its root takes %s of memory and the system %s, but the machine has %s",
			size(img.RootBytes), size(baseBytes), size(hw.MemoryBytes))}
	case need == 3*img.MetalBytes:
		return []string{fmt.Sprintf("kernel and initrd of %s need %s of memory to start, but the machine has %s",
			size(img.MetalBytes), size(need), size(hw.MemoryBytes))}
	}
	return []string{fmt.Sprintf("the image needs %s of memory (%s for its root, %s for work, %s for the system), but the machine has %s",
		size(need), size(img.RootBytes), size(need-img.RootBytes-baseBytes), size(baseBytes), size(hw.MemoryBytes))}
}

// checkDisk compares with the largest disk: nothing spreads over several.
func checkDisk(hw *api.Hardware, img api.Image) []string {
	want := int64(img.Requirements.DiskBytes)
	if want == 0 {
		return nil
	}
	if len(hw.Disks) == 0 {
		return []string{fmt.Sprintf("the image needs a disk of %s, but the machine has none", size(want))}
	}
	largest := slices.MaxFunc(hw.Disks, func(a, b api.Disk) int { return cmp.Compare(a.SizeBytes, b.SizeBytes) })
	if largest.SizeBytes < want {
		return []string{fmt.Sprintf("the image needs a disk of %s, but the machine's largest is %s with %s", size(want), largest.Name, size(largest.SizeBytes))}
	}
	return nil
}

// The classes of devices that requirements name.
const (
	classHCA   = "hca"
	classGPU   = "gpu"
	classNVMe  = "nvme"
	classSRIOV = "sriov"
)

// Devices are the classes of devices that requirements may name.
func Devices() []string { return []string{classHCA, classGPU, classNVMe, classSRIOV} }

// lacks tells what of a class of devices the machine lacks; "" when one is there.
func lacks(hw *api.Hardware, class string) string {
	switch class {
	case classHCA:
		if len(hw.HCAs) == 0 {
			return "the image needs an HCA (InfiniBand or RoCE), but the machine has none"
		}
	case classGPU:
		if len(hw.GPUs) == 0 {
			return "the image needs a GPU, but the machine has none"
		}
	case classNVMe:
		if !slices.ContainsFunc(hw.Disks, func(d api.Disk) bool { return d.Transport == "nvme" }) {
			return fmt.Sprintf("the image needs an NVMe disk, but none of the machine's %d disks is one", len(hw.Disks))
		}
	case classSRIOV:
		if !slices.ContainsFunc(hw.NICs, func(n api.NIC) bool { return n.TotalVFs > 0 }) &&
			!slices.ContainsFunc(hw.HCAs, func(h api.HCA) bool { return h.TotalVFs > 0 }) {
			return fmt.Sprintf("the image needs a NIC or HCA with SR-IOV, but none of the machine's %d has virtual functions; SR-IOV may be off in its firmware",
				len(hw.NICs)+len(hw.HCAs))
		}
	default:
		return fmt.Sprintf("the image needs a device of class %q, which is unknown; the classes are %s", class, strings.Join(Devices(), ", "))
	}
	return ""
}

// Verdict tells whether one environment suits a machine.
type Verdict struct {
	Environment string   `json:"environment"`
	Digest      string   `json:"digest"`
	Problems    []string `json:"problems,omitempty"` // none: it suits
}

// Environments checks a machine against images, and returns a verdict for each, by name and then digest.
func Environments(hw *api.Hardware, images []api.Image) []Verdict {
	verdicts := make([]Verdict, 0, len(images))
	for _, img := range images {
		verdicts = append(verdicts, Verdict{Environment: img.Environment, Digest: img.Digest, Problems: Check(hw, img)})
	}
	slices.SortStableFunc(verdicts, func(a, b Verdict) int {
		return cmp.Or(strings.Compare(a.Environment, b.Environment), strings.Compare(a.Digest, b.Digest))
	})
	return verdicts
}

// without are the values of want that have lacks, in their order.
func without(want, have []string) []string {
	return slices.DeleteFunc(unique(want), func(w string) bool { return slices.Contains(have, w) })
}

// unique are the values in their order, each once.
func unique(values []string) []string {
	var out []string
	for _, v := range values {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// size is a number of bytes for people.
func size(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
}
