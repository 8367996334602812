package hostcheck

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/nearmetal/nearmetal/internal/machine/inspection/adapter"
)

// ModuleState is how a kernel has a module.
type ModuleState string

// The states of a module.
const (
	ModuleReady    ModuleState = "ready"    // loaded, or built in
	ModuleLoadable ModuleState = "loadable" // it can be loaded
	ModuleAbsent   ModuleState = "absent"   // this kernel does not have it
)

// module is a kernel module that a node needs, or a kernel's part that may be built in.
type module struct {
	Name    string
	Area    Area
	Purpose string
	// Shown is a path that is there while it works, Lists a file that has Line then; both may be empty.
	Shown, Lists, Line string
	// Status is how bad it is to lack it.
	Status Status
	// OnDemand: the kernel loads it when it is first needed.
	OnDemand bool
}

var modules = []module{
	{Name: "overlay", Area: Container, Purpose: "writable roots of members", Lists: "proc/filesystems", Line: "overlay", Status: Missing, OnDemand: true},
	{Name: "erofs", Area: Container, Purpose: "roots of built environments", Lists: "proc/filesystems", Line: "erofs", Status: Warning, OnDemand: true},
	{Name: "loop", Area: Container, Purpose: "roots of built environments", Shown: "dev/loop-control", Status: Warning},
	{Name: "tun", Area: VM, Purpose: "machines' networks", Shown: "dev/net/tun", Status: Missing},
	{Name: "vhost_net", Area: VM, Purpose: "machines' networks without QEMU in the way of each packet", Shown: "dev/vhost-net", Status: Warning},
	{Name: "vhost_vsock", Area: VM, Purpose: "streams between machines and host", Shown: "dev/vhost-vsock", Status: Warning},
	{Name: "xfs", Area: Volume, Purpose: "the pool of volumes, unless the state directory is on Btrfs", Lists: "proc/filesystems", Line: "xfs", Status: Warning, OnDemand: true},
	{Name: "bridge", Area: Network, Purpose: "clusters' networks", Status: Missing, OnDemand: true},
	{Name: "veth", Area: Network, Purpose: "containers' ports", Status: Missing, OnDemand: true},
	{Name: "vxlan", Area: Network, Purpose: "clusters' networks across nodes", Status: Missing, OnDemand: true},
	{Name: "nf_tables", Area: Network, Purpose: "isolation of clusters", Status: Missing, OnDemand: true},
}

// kvmModules are the modules that virtualize processors, by the flag of those that they are for.
var kvmModules = map[string]string{"vmx": "kvm_intel", "svm": "kvm_amd"}

func modulesOf(area Area) (all []module) {
	for _, m := range modules {
		if m.Area == area {
			all = append(all, m)
		}
	}
	return all
}

// Facts are what matters of a host.
type Facts struct {
	Root   bool
	Debian bool
	// Kernel is its release. KnowsModules: its modules' index is on this host.
	Kernel       string
	KnowsModules bool
	Modules      map[string]ModuleState
	// Installed are those of the packages that Plan may install that are.
	Installed map[string]bool
	// Programs are those that volumes are made with, by whether they are installed.
	Programs map[string]bool
	// Versions are those of programs that are installed, "" where they don't report any.
	Versions map[string]string
	// Virtualization is "vmx", "svm", or "" for a processor with neither.
	Virtualization string
	KVM            bool
	Nested         string
	IOMMUGroups    int
	CgroupVersion  int
	// HugePageBytes is the default size, HugePages how many are reserved.
	HugePageBytes, HugePages int64
	// UserNamespaces is user.max_user_namespaces, -1 where the kernel has no such setting.
	UserNamespaces int64
	// Adapters are those with SR-IOV, and those whose firmware could have it on, by address.
	Adapters []adapter.Adapter
	// KernelArguments are those that the kernel was booted with. Grub and InitialRAMDisk: Debian's scripts for these are there.
	KernelArguments      []string
	Grub, InitialRAMDisk bool
	// Kept are the files that Plan writes, by path; those that are not there are missing.
	Kept map[string]string
}

// Host is how a host is looked at and changed.
type Host struct {
	// Dir is its root directory: "/" but for tests.
	Dir string
	// Run runs a program and returns what it printed.
	Run func(ctx context.Context, program string, args ...string) (string, error)
}

func (h Host) path(name string) string { return filepath.Join(h.Dir, name) }

func (h Host) text(name string) string {
	text, _ := os.ReadFile(h.path(name))
	return strings.TrimSpace(string(text))
}

func (h Host) has(name string) bool {
	_, err := os.Stat(h.path(name))
	return err == nil
}

// versionText finds a version in what programs print.
var versionText = regexp.MustCompile(`[0-9]+\.[0-9]+(\.[0-9]+)?`)

// Look reads a host and changes nothing.
func Look(ctx context.Context, h Host) Facts {
	f := Facts{
		Root: os.Geteuid() == 0, Kernel: h.text("proc/sys/kernel/osrelease"), Modules: map[string]ModuleState{}, Installed: map[string]bool{}, Programs: map[string]bool{},
		Versions: map[string]string{}, KVM: h.has("dev/kvm"), CgroupVersion: 1, UserNamespaces: -1, Kept: map[string]string{},
	}
	f.Debian = h.has("etc/debian_version") && h.has("usr/bin/apt-get")
	if h.has("sys/fs/cgroup/cgroup.controllers") {
		f.CgroupVersion = 2
	}
	for _, line := range strings.Split(h.text("proc/cpuinfo"), "\n") {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "flags" {
			for flag := range strings.FieldsSeq(value) {
				if kvmModules[flag] != "" {
					f.Virtualization = flag
				}
			}
			break
		}
	}
	f.Nested = h.text("sys/module/" + f.kvm() + "/parameters/nested")
	groups, _ := os.ReadDir(h.path("sys/kernel/iommu_groups"))
	f.IOMMUGroups = len(groups)
	f.HugePageBytes, f.HugePages = h.hugePages()
	if n, err := strconv.ParseInt(h.text("proc/sys/user/max_user_namespaces"), 10, 64); err == nil {
		f.UserNamespaces = n
	}
	h.lookAtModules(&f)
	for program := range packageOf {
		if h.installed(program) {
			said, _ := h.Run(ctx, program, "--version")
			f.Versions[program] = versionText.FindString(said)
		}
	}
	h.lookAtVolumePrograms(&f)
	if f.Debian {
		h.lookAtPackages(ctx, &f)
	}
	h.lookAtAdapters(&f)
	for _, path := range []string{modulesFile, sysctlFile, grubFile, functionFile} {
		if text, err := os.ReadFile(h.path(path)); err == nil {
			f.Kept[path] = string(text)
		}
	}
	return f
}

// installed reports whether a program is where programs are.
func (h Host) installed(program string) bool {
	for _, dir := range []string{"usr/local/sbin", "usr/local/bin", "usr/sbin", "usr/bin", "sbin", "bin"} {
		if h.has(filepath.Join(dir, program)) {
			return true
		}
	}
	return false
}

// hugePages reads the default size of huge pages and how many there are (proc_meminfo(5)).
func (h Host) hugePages() (size, count int64) {
	for _, line := range strings.Split(h.text("proc/meminfo"), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "HugePages_Total:":
			count = n
		case "Hugepagesize:":
			size = n << 10
		}
	}
	return size, count
}

func (h Host) lookAtModules(f *Facts) {
	index := filepath.Join("lib/modules", f.Kernel)
	builtin, loadable := h.text(filepath.Join(index, "modules.builtin")), h.text(filepath.Join(index, "modules.dep"))
	f.KnowsModules = loadable != ""
	all := append(append([]module(nil), modules...), sriovModules...)
	for _, name := range kvmModules {
		all = append(all, module{Name: name})
	}
	for _, m := range all {
		switch {
		case h.has("sys/module/"+m.Name) || m.Shown != "" && h.has(m.Shown) || m.Lists != "" && hasWord(h.text(m.Lists), m.Line) || listsModule(builtin, m.Name):
			f.Modules[m.Name] = ModuleReady
		case listsModule(loadable, m.Name):
			f.Modules[m.Name] = ModuleLoadable
		default:
			f.Modules[m.Name] = ModuleAbsent
		}
	}
}

func hasWord(text, word string) bool {
	for w := range strings.FieldsSeq(text) {
		if w == word {
			return true
		}
	}
	return false
}

// listsModule looks for a module in one of the index files (modules.dep(5)). Files' names may have dashes where modules have underscores.
func listsModule(index, name string) bool {
	for line := range strings.SplitSeq(index, "\n") {
		file, _, _ := strings.Cut(line, ":")
		base, _, _ := strings.Cut(filepath.Base(file), ".ko")
		if strings.ReplaceAll(base, "-", "_") == name {
			return true
		}
	}
	return false
}

// lookAtPackages asks dpkg for those of the packages that are installed. It exits with 1 if it knows one of them not.
func (h Host) lookAtPackages(ctx context.Context, f *Facts) {
	args := []string{"-W", "-f", "${Package} ${db:Status-Status}\n"}
	for _, area := range []Area{Container, VM, Builder, Volume} {
		args = append(args, packages[area]...)
	}
	said, _ := h.Run(ctx, "dpkg-query", args...)
	for line := range bytes.Lines([]byte(said)) {
		if fields := bytes.Fields(line); len(fields) == 2 && string(fields[1]) == "installed" {
			f.Installed[string(fields[0])] = true
		}
	}
}

// kvm is the module for this host's processor.
func (f Facts) kvm() string { return kvmModules[f.Virtualization] }

func (f Facts) iommuArgument() string {
	if f.Virtualization == "svm" {
		return "amd_iommu=on"
	}
	return "intel_iommu=on"
}

func (f Facts) hugePages() string {
	return fmt.Sprintf("%d of %d KiB are reserved", f.HugePages, f.HugePageBytes>>10)
}

// modules reports on the modules for one area. Where nothing can be seen of one, nothing is said of it.
func (f Facts) modules(area Area) (all []Finding) {
	for _, m := range modulesOf(area) {
		if m.Name == "tun" { // for the driver to report
			continue
		}
		if f.Modules[m.Name] != ModuleAbsent || f.KnowsModules || m.Shown+m.Lists != "" {
			all = append(all, f.module(m))
		}
	}
	return all
}

func (f Facts) module(m module) Finding {
	found := Finding{Area: m.Area, Name: "module " + m.Name, Status: OK, Detail: m.Purpose}
	switch state := f.Modules[m.Name]; {
	case state == ModuleReady || state == ModuleLoadable && m.OnDemand:
	case state == ModuleLoadable:
		found.Status, found.Fix = Warning, "modprobe "+m.Name
		found.Detail += ": it is not loaded"
	default:
		found.Status, found.Fix = m.Status, "boot a kernel that has it"
		found.Detail += ": kernel " + f.Kernel + " does not have it"
	}
	return found
}
