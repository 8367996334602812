package hostcheck

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// The files that Apply writes. Nothing else on the host is edited.
const (
	modulesFile = "etc/modules-load.d/nearmetal.conf"
	sysctlFile  = "etc/sysctl.d/60-nearmetal.conf"
)

// packages are what a host needs installed, by what for.
var packages = map[Area][]string{
	Container: {"crun", "nftables", "openssh-server", "openssh-client", "openmpi-bin"},
	VM:        {"libvirt-daemon", "libvirt-daemon-driver-qemu", "qemu-system-x86", "nftables"},
	Builder:   {"mmdebstrap", "erofs-utils", "squashfs-tools", "crun"},
	Volume:    {"e2fsprogs", "xfsprogs"},
}

// Wanted is what a host is to be prepared for.
type Wanted struct {
	// For are the stacks, and Builder.
	For []Area
	// HugePages is the memory to be reserved in huge pages of the default size; 0: none needed.
	HugePages api.Bytes
	// Functions is how many virtual functions adapters are to have, by PCI address or network interface.
	Functions map[string]int
}

// leastUserNamespaces is what members of a full node take, with room to spare.
const leastUserNamespaces = 10000

// Change is one thing that Apply does.
type Change struct {
	// Command is run, if it is set.
	Command []string `json:"command,omitempty"`
	// Path gets Text, if it is set.
	Path string `json:"path,omitempty"`
	Text string `json:"text,omitempty"`
	// Attribute is a file of sysfs that gets Value, if it is set.
	Attribute string `json:"attribute,omitempty"`
	// Setting is a sysctl that gets Value, if it is set.
	Setting string `json:"setting,omitempty"`
	Value   string `json:"value,omitempty"`
	// Why says what it is for.
	Why string `json:"why"`
}

// String is the change for people, with its reason.
func (c Change) String() string {
	switch {
	case c.Path != "":
		return fmt.Sprintf("write /%s, %s:\n    %s", c.Path, c.Why, strings.ReplaceAll(strings.TrimSuffix(c.Text, "\n"), "\n", "\n    "))
	case c.Setting != "":
		return "sysctl -w " + c.Setting + "=" + c.Value + "  # " + c.Why
	case c.Attribute != "":
		return "echo " + c.Value + " >/" + c.Attribute + "  # " + c.Why
	default:
		return strings.Join(c.Command, " ") + "  # " + c.Why
	}
}

// Prepared is what is to be done for a host, and what no software can do.
type Prepared struct {
	Changes []Change `json:"changes"`
	// Left is for people: firmware, kernels, reboots.
	Left []string `json:"left"`
}

// Plan returns what changes a host into one that is prepared; no changes for one that is. It is pure.
func Plan(f Facts, w Wanted) Prepared {
	p := Prepared{Changes: []Change{}, Left: []string{}}
	p.install(f, w)
	p.load(f, w)
	p.set(f, w)
	p.functions(f, w)
	if slices.Contains(w.For, VM) {
		p.leftForMachines(f)
	}
	return p
}

func (p *Prepared) left(format string, args ...any) {
	p.Left = append(p.Left, fmt.Sprintf(format, args...))
}

// install plans packages.
func (p *Prepared) install(f Facts, w Wanted) {
	var absent []string
	areas := slices.Clone(w.For)
	if slices.Contains(areas, Container) || slices.Contains(areas, VM) {
		areas = append(areas, Volume) // which members of either have
	}
	for _, area := range areas {
		for _, name := range packages[area] {
			if !f.Installed[name] && !slices.Contains(absent, name) {
				absent = append(absent, name)
			}
		}
	}
	slices.Sort(absent)
	switch {
	case len(absent) == 0:
	case !f.Debian:
		p.left("this is no Debian system: install what provides the Debian packages %s", strings.Join(absent, " "))
	default:
		p.Changes = append(
			p.Changes,
			Change{Command: []string{"apt-get", "update", "-q"}, Why: "the package lists"},
			Change{Command: append([]string{"apt-get", "install", "-q", "-y", "--no-install-recommends"}, absent...), Why: "programs that members need"},
		)
	}
}

// load plans modules. Those that are loaded in any case are not listed.
func (p *Prepared) load(f Facts, w Wanted) {
	wanted := modulesOf(Network)
	for _, area := range w.For {
		wanted = append(wanted, modulesOf(area)...)
	}
	if slices.Contains(w.For, VM) && f.Virtualization != "" && !f.KVM {
		wanted = append(wanted, module{Name: f.kvm(), Purpose: "virtualized processors", Status: Missing})
	}
	if slices.Contains(w.For, VM) && len(w.Functions) > 0 {
		wanted = append(wanted, sriovModules...)
	}
	lines := keptLines(f.Kept[modulesFile])
	before := len(lines)
	for _, m := range wanted {
		switch {
		case f.Modules[m.Name] == ModuleLoadable && m.OnDemand:
		case f.Modules[m.Name] == ModuleLoadable:
			p.Changes = append(p.Changes, Change{Command: []string{"modprobe", m.Name}, Why: m.Purpose})
			if !slices.Contains(lines, m.Name) {
				lines = append(lines, m.Name)
			}
		case f.Modules[m.Name] != ModuleReady && f.KnowsModules:
			p.left("kernel %s has no module %s, for %s: boot one that has it", f.Kernel, m.Name, m.Purpose)
		}
	}
	if len(lines) > before {
		p.keep(modulesFile, lines, "so that they are loaded at boot")
	}
}

// set plans settings of the kernel.
func (p *Prepared) set(f Facts, w Wanted) {
	lines := keptLines(f.Kept[sysctlFile])
	before := slices.Clone(lines)
	set := func(setting, value, why string) {
		p.Changes = append(p.Changes, Change{Setting: setting, Value: value, Why: why})
	}
	keep := func(setting, value string) {
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, setting+" ") })
		lines = append(lines, setting+" = "+value)
	}
	if f.UserNamespaces >= 0 && f.UserNamespaces < leastUserNamespaces {
		value := fmt.Sprint(leastUserNamespaces)
		set("user.max_user_namespaces", value, "members' user namespaces")
		keep("user.max_user_namespaces", value)
	}
	if w.HugePages > 0 && f.HugePageBytes > 0 {
		pages := (int64(w.HugePages) + f.HugePageBytes - 1) / f.HugePageBytes
		if f.HugePages < pages {
			value := fmt.Sprint(pages)
			set("vm.nr_hugepages", value, "machines' memory")
			keep("vm.nr_hugepages", value)
		}
	}
	if !slices.Equal(lines, before) {
		p.keep(sysctlFile, lines, "so that it is set at boot")
	}
}

// leftForMachines lists what the firmware and the boot loader have to do.
func (p *Prepared) leftForMachines(f Facts) {
	if f.Virtualization == "" {
		p.left("the processor shows neither VMX (Intel) nor SVM (AMD): enable virtualization in the firmware, or nesting if this host is a virtual machine itself; until then processors are emulated, and slow")
	}
	if f.IOMMUGroups == 0 {
		p.left("the kernel has no IOMMU groups, so no PCI device can be given to a machine: enable VT-d or AMD-Vi in the firmware, and boot with %s", f.iommuArgument())
	}
}

// header begins the files that Apply writes.
const header = "# Written by nearmetal node prepare.\n"

func (p *Prepared) keep(path string, lines []string, why string) {
	p.Changes = append(p.Changes, Change{Path: path, Text: header + strings.Join(lines, "\n") + "\n", Why: why})
}

// keptLines are the lines of such a file that say something.
func keptLines(text string) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines
}
