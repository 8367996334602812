package container

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
)

// specInput is all a container's OCI configuration follows from.
type specInput struct {
	member driver.Member
	root   environment.Root
	// rootDir is the member's root directory, /etc included.
	rootDir string
	// etcBinds are the host entries below /etc that no generated file replaces.
	etcBinds     []environment.Bind
	memberBinary string
	rankLibrary  string
	args         []string
	cgroupPath   string
	limits       limits
	// devices are those of its RDMA devices.
	devices []specs.LinuxDevice
	// gpus are what it needs for its GPUs; nil: it holds none. loaderCache is the file on the host of its own loader cache; empty: it has its environment's.
	gpus        *gpu.Edits
	loaderCache string
	// shared are the namespaces of its cluster on this node; nil: it has its own.
	shared *sharedSpaces
}

// limits are what this host and this agent can hand out.
type limits struct {
	// openFiles and lockedBytes are the agent's hard limits.
	openFiles, lockedBytes uint64
	// swap is true when the kernel can limit swap.
	swap bool
	// lowerOOMScore is true when the agent itself is protected from the kernel's OOM killer, which members must not inherit.
	lowerOOMScore bool
}

// capabilities are what the member's root keeps, within its user namespace. sshd needs them: to bind port 22, to become the
// user, to separate privileges in an empty root, to hand terminals over; and root itself to manage the user's files and
// processes. There is no SYS_ADMIN (mounts, names), NET_ADMIN (addresses, filters), NET_RAW, MKNOD, SYS_PTRACE or SYS_RESOURCE.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE",
	"CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// maskedPaths tell of the host or reach into its kernel; they read as empty. Container engines mask most of them. The kernel's
// arguments may hold a machine's boot token, and DMI tells its serial numbers.
var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/bootconfig", "/proc/cmdline", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
	"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/class/dmi",
	"/sys/devices/virtual/dmi", "/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel/boot_params",
}

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// processesPerCore bounds a member's processes and threads.
const processesPerCore = 4096

// renderSpec renders the configuration; see the OCI runtime specification's config.md and config-linux.md.
func renderSpec(in specInput) (*specs.Spec, error) {
	m := in.member
	spec := &specs.Spec{
		Version:  "1.0.2", // what both crun 1.8 and runc 1.1 accept
		Hostname: m.Assignment.Member,
		Root:     &specs.Root{Path: in.rootDir, Readonly: true},
		Process:  process1(in),
		Mounts:   mounts(in),
		Annotations: map[string]string{
			"org.nearmetal.cluster": m.Assignment.Cluster,
			"org.nearmetal.member":  m.Assignment.Member,
		},
		Linux: &specs.Linux{
			Namespaces:    namespaces(in.shared),
			UIDMappings:   []specs.LinuxIDMapping{{HostID: m.Assignment.UserIDs.First, Size: m.Assignment.UserIDs.Count}},
			GIDMappings:   []specs.LinuxIDMapping{{HostID: m.Assignment.UserIDs.First, Size: m.Assignment.UserIDs.Count}},
			CgroupsPath:   in.cgroupPath,
			Devices:       in.devices,
			Resources:     resources(in),
			MaskedPaths:   maskedPaths,
			ReadonlyPaths: readonlyPaths,
			// Whoever is in the member may use ping without a raw socket.
			Sysctl: map[string]string{"net.ipv4.ping_group_range": "0 " + strconv.FormatUint(uint64(m.Assignment.UserIDs.Count)-1, 10)},
		},
	}
	profile, err := seccomp.GetDefaultProfile(spec)
	if err != nil {
		return nil, fmt.Errorf("rendering the seccomp profile: %w", err)
	}
	// Native calls only: the profile lists 32-bit ones too, which triples the filter and what an attacker can try.
	profile.Architectures = profile.Architectures[:min(1, len(profile.Architectures))]
	spec.Linux.Seccomp = profile
	return spec, nil
}

// namespaces lists what a member has for itself, and what it shares with the others of its cluster on this node.
func namespaces(shared *sharedSpaces) []specs.LinuxNamespace {
	list := []specs.LinuxNamespace{
		{Type: specs.UserNamespace},
		{Type: specs.PIDNamespace},
		{Type: specs.IPCNamespace},
		{Type: specs.NetworkNamespace},
		{Type: specs.UTSNamespace},
		{Type: specs.MountNamespace},
		{Type: specs.CgroupNamespace},
	}
	if shared != nil {
		for i, file := range []*os.File{shared.user, shared.pid, shared.ipc} {
			list[i].Path = shared.path(file)
		}
	}
	return list
}

func process1(in specInput) *specs.Process {
	p := &specs.Process{
		Args: argsOf(in),
		Env: []string{
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"HOME=/root", "LANG=C.UTF-8", "container=nearmetal",
		},
		Cwd:             "/",
		NoNewPrivileges: true,
		Capabilities: &specs.LinuxCapabilities{
			Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
		},
		Rlimits: []specs.POSIXRlimit{
			{Type: "RLIMIT_NOFILE", Soft: in.limits.openFiles, Hard: in.limits.openFiles},
			{Type: "RLIMIT_MEMLOCK", Soft: in.limits.lockedBytes, Hard: in.limits.lockedBytes},
			{Type: "RLIMIT_CORE", Soft: 0, Hard: 0}, // the host's core_pattern must not act on members' crashes
		},
	}
	if in.gpus != nil {
		p.Env = append(p.Env, in.gpus.Env...)
	}
	if in.limits.lowerOOMScore {
		zero := 0
		p.OOMScoreAdj = &zero
	}
	return p
}

// argsOf is the command line of the first process.
func argsOf(in specInput) []string {
	if in.member.Assignment.ServesGPU() {
		return gpuServerArgs(&in.member.Assignment)
	}
	return in.args
}

func resources(in specInput) *specs.LinuxResources {
	a := in.member.Assignment
	memory := a.MemoryBytes()
	pids := int64(processesPerCore * max(1, len(a.CPUs)))
	r := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Cpus: numberList(a.CPUs), Mems: numberList(a.MemoryNodes())},
		Memory: &specs.LinuxMemory{Limit: &memory},
		Pids:   &specs.LinuxPids{Limit: &pids},
	}
	r.Devices = deviceRules(in.devices, in.gpus)
	if in.limits.swap {
		r.Memory.Swap = &memory // memory and swap together, so no swap
	}
	return r
}

func numberList(numbers []int) string {
	text := make([]string, len(numbers))
	for i, n := range numbers {
		text[i] = strconv.Itoa(n)
	}
	return strings.Join(text, ",")
}

// mounts lists what is mounted in the member, in order. All that is writable is memory charged to the member, its home, or a volume.
func mounts(in specInput) []specs.Mount {
	m := in.member
	half := m.Assignment.MemoryBytes() / 2
	tmpfs := func(target string, mode string, bytes int64, more ...string) specs.Mount {
		options := append([]string{"nosuid", "nodev", "mode=" + mode, "size=" + strconv.FormatInt(bytes, 10)}, more...)
		return specs.Mount{Destination: target, Type: "tmpfs", Source: "tmpfs", Options: options}
	}
	bind := func(source, target string, options ...string) specs.Mount {
		options = append([]string{"bind", "nosuid", "nodev"}, options...)
		return specs.Mount{Destination: target, Type: "bind", Source: source, Options: options}
	}
	home := bind(m.HomeDir, "/home")
	if m.HomeDir == "" {
		home = tmpfs("/home", "755", half, "tmpcopyup")
	}
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "mode=755", "size=65536k"}},
		// gid 5 is Debian's tty, which sshd gives terminals to.
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		tmpfs("/dev/shm", "1777", half, "noexec"),
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		tmpfs("/tmp", "1777", half),
		tmpfs("/var", "755", half, "tmpcopyup"),
		tmpfs("/run", "755", half, "tmpcopyup"),
		tmpfs("/root", "700", half),
		home,
	}
	if dir := gpuSocketSource(&m); dir != "" && m.Assignment.ServesGPU() {
		list = append(list, bind(dir, gpuSocketDir, "noexec"))
	} else if list = append(list, bind(m.ControlDir, "/run/nearmetal", "ro"), bind(in.memberBinary, MemberPath, "ro")); dir != "" {
		list = append(list, bind(dir, gpuSocketDir, "ro"))
	}
	if m.Assignment.SharesMemory && in.rankLibrary != "" {
		list = append(list, bind(in.rankLibrary, memberconfig.RankLibrary, "ro"))
	}
	// The host's own files keep the host's owners, who are nobody in a member: only what everyone may read can be read there. With
	// owners mapped (idmapped mounts), the member's user 1000 would read what is the host's user 1000's alone, its root all of root's.
	for _, b := range in.root.Binds {
		if !belowEtc(b.Target) {
			list = append(list, bind(b.Source, b.Target, "ro"))
		}
	}
	for _, b := range in.etcBinds {
		list = append(list, bind(b.Source, b.Target, "ro"))
	}
	for _, v := range m.Mounts {
		if v.ReadOnly {
			list = append(list, bind(v.Source, v.Path, "ro"))
		} else {
			list = append(list, bind(v.Source, v.Path))
		}
	}
	return append(list, gpuMounts(in.gpus, in.loaderCache)...)
}

func belowEtc(path string) bool { return strings.HasPrefix(path, "/etc/") }
