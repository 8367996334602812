// Package hostcheck reports what a host lacks to be a node, and makes of a host what software can make of it.
//
// Look reads the host, Check and Plan are pure, and Apply carries a plan out, one change at a time, as it was shown. It must never change what
// need not be changed: after Apply, Plan is empty. What the drivers check themselves comes in as their word. Start with Look.
package hostcheck

import (
	"regexp"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Status is how a finding is.
type Status string

// The statuses. A missing thing keeps the node from something, a warning makes it slower or leaves something out.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Missing Status = "missing"
)

// Area is what a finding is about: a stack, or something beside them.
type Area string

// The areas.
const (
	Container Area = "container"
	VM        Area = "vm"
	Network   Area = "network"
	Builder   Area = "builder"
	Volume    Area = "volume"
	GPU       Area = "gpu"
)

// Finding is one line of a check.
type Finding struct {
	Area   Area   `json:"area"`
	Name   string `json:"name"`
	Status Status `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Fix is the command that fixes it, or what else to do; empty where nothing is to be done.
	Fix string `json:"fix,omitempty"`
}

// Word is what the parts of the agent that use the host say about it.
type Word struct {
	Stacks []api.StackCheck
	// Local are the problems of the environment that is the host's own system.
	Local   []string
	Builder api.BuilderCheck
	// Groups is why the kernel can't enforce security groups, "" if it can.
	Groups string
	// Rates is why the kernel can't hold ports to rates and mark their packets, "" if it can.
	Rates string
	// WireGuard is why the kernel can't encrypt the underlay, "" if it can.
	WireGuard string
	// GPUs are those that were found, GPUProblems why there may be more.
	GPUs        []api.NodeGPU
	GPUProblems []string
}

// fix is what a problem's text says to do.
var fix = regexp.MustCompile(`^(.*?)[;:,]? run: (.+?)( \(.*\))?$`)

// finding makes one of a problem in words.
func finding(area Area, name string, status Status, text string) Finding {
	f := Finding{Area: area, Name: name, Status: status, Detail: text}
	if m := fix.FindStringSubmatch(text); m != nil {
		f.Detail, f.Fix = m[1]+m[3], m[2]
	}
	return f
}

// Stack returns the findings in a driver's word about its stack.
func Stack(check api.StackCheck) []Finding {
	area := Area(check.Stack)
	var all []Finding
	for _, text := range check.Problems {
		all = append(all, finding(area, "stack", Missing, text))
	}
	for _, text := range check.Warnings {
		all = append(all, finding(area, "stack", Warning, text))
	}
	if len(all) == 0 {
		all = append(all, Finding{Area: area, Name: "stack", Status: OK, Detail: "offered"})
	}
	return all
}

// Check reports on a host, in a fixed order. It is pure.
func Check(f Facts, w Word) []Finding {
	var all []Finding
	for _, check := range w.Stacks {
		all = append(all, Stack(check)...)
		switch check.Stack {
		case api.StackContainer:
			all = append(all, containers(f, w)...)
		case api.StackVM:
			all = append(all, machines(f)...)
		}
	}
	all = append(all, networks(f)...)
	all = append(all, adapters(f)...)
	all = append(all, gpus(w)...)
	all = append(all, groups(w), rates(w), encryption(w))
	all = append(all, volumes(f)...)
	if w.Builder.OK {
		return append(all, Finding{Area: Builder, Name: "programs", Status: OK, Detail: "environments can be built here"})
	}
	for _, text := range w.Builder.Problems {
		all = append(all, finding(Builder, "programs", Warning, text))
	}
	return all
}

func containers(f Facts, w Word) []Finding {
	all := []Finding{version(f, Container, "crun", "crun", "")}
	for _, text := range w.Local {
		all = append(all, finding(Container, "environment local", Warning, text))
	}
	if len(w.Local) == 0 {
		all = append(all, Finding{Area: Container, Name: "environment local", Status: OK})
	}
	groups := Finding{Area: Container, Name: "control groups", Status: OK, Detail: "version 2"}
	if f.CgroupVersion != 2 {
		groups.Detail = "version 1; version 2 is measured more exactly"
	}
	return append(append(all, groups), f.modules(Container)...)
}

func machines(f Facts) []Finding {
	all := []Finding{
		version(f, VM, "libvirt", "libvirtd", oldestLibvirt), version(f, VM, "QEMU", "qemu-system-x86_64", oldestQEMU),
	}
	all = append(all, f.modules(VM)...)
	nesting := Finding{Area: VM, Name: "nesting", Status: OK, Detail: "machines can have machines"}
	switch {
	case f.Nested == "":
		nesting = Finding{Area: VM, Name: "nesting", Status: Warning, Detail: "machines can't have machines with virtualized processors: KVM is not in use"}
	case f.Nested != "Y" && f.Nested != "1":
		nesting.Status, nesting.Detail = Warning, "machines can't have machines with virtualized processors"
		nesting.Fix = "echo options " + f.kvm() + " nested=1 >/etc/modprobe.d/nearmetal.conf, then reboot"
	}
	iommu := Finding{Area: VM, Name: "IOMMU", Status: OK, Detail: "whole PCI devices can be given to machines"}
	if f.IOMMUGroups == 0 {
		iommu.Status, iommu.Detail = Warning, "PCI devices can't be given to machines: the kernel has no IOMMU groups"
		iommu.Fix = "enable VT-d or AMD-Vi in the firmware, boot with " + f.iommuArgument()
	}
	huge := Finding{Area: VM, Name: "huge pages", Status: OK, Detail: f.hugePages()}
	if f.HugePages == 0 {
		huge.Status, huge.Detail, huge.Fix = Warning, "none are reserved; memory of machines is in ordinary and transparent huge pages", "nearmetal node prepare --huge-pages SIZE"
	}
	return append(all, nesting, iommu, huge)
}

func rates(w Word) Finding {
	if w.Rates == "" {
		return Finding{Area: Network, Name: "rates and DSCP", Status: OK, Detail: "ports can have them"}
	}
	return Finding{
		Area: Network, Name: "rates and DSCP", Status: Warning, Detail: "ports can't have them: " + w.Rates,
		Fix: "modprobe -a ifb sch_htb sch_tbf cls_bpf act_mirred",
	}
}

func groups(w Word) Finding {
	if w.Groups == "" {
		return Finding{Area: Network, Name: "security groups", Status: OK, Detail: "ports can have them"}
	}
	return Finding{
		Area: Network, Name: "security groups", Status: Warning, Detail: "ports can't have them: " + w.Groups,
		Fix: "use Linux 5.6 or later with nf_tables for bridges, and nft 0.9.4 or later",
	}
}

func encryption(w Word) Finding {
	if w.WireGuard == "" {
		return Finding{Area: Network, Name: "WireGuard", Status: OK, Detail: "the underlay can be encrypted"}
	}
	return Finding{
		Area: Network, Name: "WireGuard", Status: Warning, Detail: "a site with an encrypted underlay places no members here: " + w.WireGuard,
		Fix: "modprobe wireguard, or boot a kernel that has it; then restart the agent",
	}
}

func networks(f Facts) []Finding {
	return append([]Finding{version(f, Network, "nftables", "nft", "")}, f.modules(Network)...)
}

// The oldest versions that this project is tested with.
const (
	oldestLibvirt = "9.0"
	oldestQEMU    = "7.2"
)

// packageOf names the Debian package of a program.
var packageOf = map[string]string{
	"crun": "crun", "nft": "nftables", "libvirtd": "libvirt-daemon libvirt-daemon-driver-qemu", "qemu-system-x86_64": "qemu-system-x86",
}

// version reports the version of a program. One that is missing is the driver's to report where a stack needs it.
func version(f Facts, area Area, name, program, oldest string) Finding {
	v, there := f.Versions[program]
	switch {
	case !there:
		return Finding{Area: area, Name: name, Status: Missing, Detail: program + " is not installed", Fix: "apt-get install " + packageOf[program]}
	case v == "":
		return Finding{Area: area, Name: name, Status: Warning, Detail: program + " does not report its version"}
	case oldest != "" && older(v, oldest):
		return Finding{Area: area, Name: name, Status: Warning, Detail: "version " + v + "; Nearmetal is tested with " + oldest + " and later", Fix: "upgrade the distribution"}
	}
	return Finding{Area: area, Name: name, Status: OK, Detail: "version " + v}
}

// older compares versions like 7.2.1, number by number.
func older(v, than string) bool {
	a, b := strings.Split(v, "."), strings.Split(than, ".")
	for i := range b {
		if i >= len(a) {
			return true
		}
		if x, y := number(a[i]), number(b[i]); x != y {
			return x < y
		}
	}
	return false
}

func number(text string) (n int) {
	for _, r := range text {
		if r < '0' || r > '9' || n > 1<<20 {
			break
		}
		n = 10*n + int(r-'0')
	}
	return n
}

// Worst is the worst status of findings.
func Worst(all []Finding) Status {
	worst := OK
	for _, f := range all {
		switch {
		case f.Status == Missing:
			return Missing
		case f.Status == Warning:
			worst = Warning
		}
	}
	return worst
}
