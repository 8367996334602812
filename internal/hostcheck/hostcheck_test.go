package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

// pretended is a Debian host in a directory, with programs that do there what dpkg, apt-get and modprobe do.
type pretended struct {
	t         *testing.T
	dir       string
	installed map[string]bool
	// broken is a program that fails.
	broken string
}

// newPretended makes a host with virtualization that has nothing installed and nothing loaded. files are set over its own; "" removes one.
func newPretended(t *testing.T, files map[string]string) *pretended {
	t.Helper()
	p := &pretended{t: t, dir: t.TempDir(), installed: map[string]bool{}}
	all := map[string]string{
		"etc/debian_version": "12.11\n", "usr/bin/apt-get": "", "proc/sys/kernel/osrelease": "6.1.0-56-amd64\n",
		"proc/cpuinfo": "processor\t: 0\nflags\t\t: fpu vmx lm\n", "proc/meminfo": "HugePages_Total:       0\nHugepagesize:       2048 kB\n",
		"proc/sys/user/max_user_namespaces": "100\n", "proc/sys/vm/nr_hugepages": "0\n", "proc/filesystems": "nodev\tproc\n", "dev/loop-control": "",
		"lib/modules/6.1.0-56-amd64/modules.builtin": "kernel/fs/ext4/ext4.ko\n",
		"lib/modules/6.1.0-56-amd64/modules.dep":     "",
	}
	for _, name := range []string{"overlay", "erofs", "tun", "vhost_net", "vhost-vsock", "bridge", "veth", "vxlan", "nf_tables", "kvm-intel", "xfs"} {
		all["lib/modules/6.1.0-56-amd64/modules.dep"] += "kernel/drivers/" + name + ".ko.xz: kernel/other.ko.xz\n"
	}
	for path, text := range files {
		all[path] = text
	}
	for path, text := range all {
		if text == "none" {
			continue
		}
		p.file(path, text)
	}
	return p
}

func (p *pretended) file(path, text string) {
	at := filepath.Join(p.dir, path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o644)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pretended) host() Host { return Host{Dir: p.dir, Run: p.run} }

func (p *pretended) run(_ context.Context, program string, args ...string) (string, error) {
	if program == "env" {
		program, args = args[1], args[2:]
	}
	switch {
	case program == p.broken:
		return "first\nno such thing", errors.New("exit status 1")
	case program == "dpkg-query":
		said := ""
		for _, name := range args[3:] {
			if p.installed[name] {
				said += name + " installed\n"
			}
		}
		return said, errors.New("exit status 1") // as it does when it knows one of them not
	case program == "apt-get" && args[0] == "install":
		if _, err := os.Stat(filepath.Join(p.dir, policyFile)); err != nil {
			p.t.Error("packages are installed, and their services started")
		}
		for _, name := range args {
			p.installed[name] = true
		}
		for program, names := range packageOf {
			if p.installed[strings.Fields(names)[0]] {
				p.file("usr/bin/"+program, "")
			}
		}
		return "", nil
	case program == "apt-get":
		return "", nil
	case program == "modprobe":
		p.file("sys/module/"+args[0]+"/refcnt", "0")
		return "", nil
	case packageOf[program] != "":
		return program + " (Debian) v9.8.7\n", nil
	}
	return "", fmt.Errorf("%s: not found", program)
}

// tree lists the files of the host but those of the kernel.
func (p *pretended) tree() (all []string) {
	err := filepath.WalkDir(p.dir, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(p.dir, path)
		if err == nil && !d.IsDir() && !strings.HasPrefix(name, "sys/") && !strings.HasPrefix(name, "proc/") && !strings.HasPrefix(name, "usr/bin/") {
			all = append(all, name)
		}
		return err
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

func planned(p Prepared) (all []string) {
	for _, c := range p.Changes {
		all = append(all, strings.TrimSuffix(c.String(), "  # "+c.Why))
	}
	return all
}

var everything = Wanted{For: []Area{Container, VM, Builder}, HugePages: 1<<30 + 1}

func TestAHostIsPreparedAsShownAndOnce(t *testing.T) {
	p := newPretended(t, nil)
	before := p.tree()
	f := Look(t.Context(), p.host())
	f.Root = true
	plan := Plan(f, everything)
	want := []string{
		"apt-get update -q",
		"apt-get install -q -y --no-install-recommends crun e2fsprogs erofs-utils libvirt-daemon libvirt-daemon-driver-qemu mmdebstrap nftables openmpi-bin openssh-client openssh-server qemu-system-x86 squashfs-tools xfsprogs",
		"modprobe tun", "modprobe vhost_net", "modprobe vhost_vsock", "modprobe kvm_intel",
		"write /etc/modules-load.d/nearmetal.conf, so that they are loaded at boot:\n    # Written by nearmetal node prepare.\n    tun\n    vhost_net\n    vhost_vsock\n    kvm_intel",
		"sysctl -w user.max_user_namespaces=10000", "sysctl -w vm.nr_hugepages=513",
		"write /etc/sysctl.d/60-nearmetal.conf, so that it is set at boot:\n    # Written by nearmetal node prepare.\n    user.max_user_namespaces = 10000\n    vm.nr_hugepages = 513",
	}
	if diff := cmp.Diff(want, planned(plan)); diff != "" {
		t.Errorf("planned (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, p.tree()); diff != "" {
		t.Errorf("looking and planning changed the host:\n%s", diff)
	}
	var shown []Change
	if err := Apply(t.Context(), p.host(), f, plan.Changes, func(c Change) { shown = append(shown, c) }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan.Changes, shown); diff != "" {
		t.Errorf("what was shown is not what was planned:\n%s", diff)
	}
	wantTree := append(slices.Clone(before), modulesFile, sysctlFile)
	slices.Sort(wantTree)
	if diff := cmp.Diff(wantTree, p.tree()); diff != "" {
		t.Errorf("files of the host (-want +got):\n%s", diff)
	}
	p.file("proc/meminfo", "HugePages_Total:     513\nHugepagesize:       2048 kB\n") // the kernel's own doing
	p.file("dev/kvm", "")
	if again := Plan(Look(t.Context(), p.host()), everything); len(again.Changes) > 0 {
		t.Errorf("a second run would change: %q", planned(again))
	}
	for _, finding := range Check(Look(t.Context(), p.host()), Word{Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}, {Stack: api.StackVM, OK: true}}}) {
		if finding.Status == Missing {
			t.Errorf("a host that was prepared still lacks: %+v", finding)
		}
	}
}

func TestOnlyWhatIsNotInOrderIsChanged(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Wanted
		plan  []string
	}{
		{"lines of an earlier run stay, and are not repeated", map[string]string{
			modulesFile: "# mine\nkvm_intel\nvhost_net\n", "sys/module/kvm_intel/x": "", "dev/kvm": "", "dev/vhost-vsock": "", "dev/net/tun": "",
			"proc/sys/user/max_user_namespaces": "20000\n",
		}, Wanted{For: []Area{VM}}, []string{"modprobe vhost_net"}},
		{"another number of huge pages replaces the one before", map[string]string{
			sysctlFile: "vm.nr_hugepages = 8\nvm.nr_hugepages_mempolicy = 1\n", "proc/sys/user/max_user_namespaces": "20000\n",
			"proc/meminfo": "HugePages_Total:       8\nHugepagesize:       2048 kB\n",
		}, Wanted{HugePages: 32 << 20}, []string{
			"sysctl -w vm.nr_hugepages=16",
			"write /etc/sysctl.d/60-nearmetal.conf, so that it is set at boot:\n    # Written by nearmetal node prepare.\n    vm.nr_hugepages_mempolicy = 1\n    vm.nr_hugepages = 16",
		}},
		{"more huge pages than wanted stay", map[string]string{
			"proc/meminfo": "HugePages_Total:      80\nHugepagesize:       2048 kB\n", "proc/sys/user/max_user_namespaces": "20000\n",
		}, Wanted{HugePages: 32 << 20}, nil},
		{"modules that the kernel loads by itself are left to it", map[string]string{"proc/sys/user/max_user_namespaces": "20000\n", "dev/loop-control": ""}, Wanted{}, nil},
	} {
		p := newPretended(t, tt.files)
		for _, name := range slices.Concat(packages[VM], packages[Volume]) {
			p.installed[name] = true
		}
		if diff := cmp.Diff(tt.plan, planned(Plan(Look(t.Context(), p.host()), tt.want))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestWhatSoftwareCanNotDoIsLeftToPeople(t *testing.T) {
	p := newPretended(t, map[string]string{
		"etc/debian_version": "none", "proc/cpuinfo": "flags : fpu\n", "lib/modules/6.1.0-56-amd64/modules.dep": "kernel/x.ko:\n", "proc/sys/user/max_user_namespaces": "none",
	})
	plan := Plan(Look(t.Context(), p.host()), Wanted{For: []Area{VM}})
	if len(plan.Changes) > 0 {
		t.Errorf("planned %q", planned(plan))
	}
	left := strings.Join(plan.Left, "\n")
	for _, want := range []string{"this is no Debian system", "has no module vhost_net", "neither VMX (Intel) nor SVM (AMD)", "no IOMMU groups"} {
		if !strings.Contains(left, want) {
			t.Errorf("left to people:\n%s\nwant %q", left, want)
		}
	}
}

func TestAChangeThatFailsEndsThePreparation(t *testing.T) {
	p := newPretended(t, nil)
	f := Look(t.Context(), p.host())
	f.Root = true
	p.broken = "modprobe"
	plan := Plan(f, everything)
	shown := 0
	err := Apply(t.Context(), p.host(), f, plan.Changes, func(Change) { shown++ })
	if err == nil || err.Error() != "modprobe tun: exit status 1: first; no such thing" || shown != 3 {
		t.Errorf("after %d changes: %v", shown, err)
	}
	if _, err := os.Stat(filepath.Join(p.dir, modulesFile)); err == nil {
		t.Error("a module that can't be loaded is to be loaded at boot")
	}
	// The next run goes on where this one ended.
	p.broken = ""
	if next := planned(Plan(Look(t.Context(), p.host()), everything)); next[0] != "modprobe tun" {
		t.Errorf("the next run begins with %q", next[0])
	}
	f.Root = false
	if err := Apply(t.Context(), p.host(), f, plan.Changes, func(Change) { t.Error("a change is shown that is not made") }); !errors.Is(err, errNotRoot) {
		t.Errorf("without root: %v", err)
	}
}

func TestAProblemInWordsIsTakenApart(t *testing.T) {
	for _, tt := range []struct{ text, detail, fix string }{
		{"QEMU is missing; run: apt-get install qemu-system-x86", "QEMU is missing", "apt-get install qemu-system-x86"},
		{"open /dev/kvm: no such file: run: modprobe kvm_intel || modprobe kvm_amd", "open /dev/kvm: no such file", "modprobe kvm_intel || modprobe kvm_amd"},
		{"no namespace; run: sysctl -w a=1 (EPERM)", "no namespace (EPERM)", "sysctl -w a=1"},
		{"it is Tuesday", "it is Tuesday", ""},
	} {
		got := Stack(api.StackCheck{Stack: api.StackVM, Problems: []string{tt.text}, Warnings: []string{tt.text}})
		want := []Finding{{VM, "stack", Missing, tt.detail, tt.fix}, {VM, "stack", Warning, tt.detail, tt.fix}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.text, diff)
		}
	}
	if got := Worst([]Finding{{Status: OK}, {Status: Warning}}); got != Warning {
		t.Errorf("the worst of ok and warning is %s", got)
	}
}

func TestFindingsNameWhatFixesThem(t *testing.T) {
	p := newPretended(t, map[string]string{"sys/module/kvm_intel/parameters/nested": "N\n", "sys/fs/cgroup/cgroup.controllers": "cpu", "usr/sbin/resize2fs": ""})
	f := Look(t.Context(), p.host())
	f.Versions["qemu-system-x86_64"], f.Versions["libvirtd"] = "7.1.9", "10.0.0"
	word := Word{
		Stacks: []api.StackCheck{{Stack: api.StackContainer, Problems: []string{"no runtime; run: apt-get install crun"}}, {Stack: api.StackVM, OK: true}},
		Local:  []string{"/usr/sbin/sshd is missing; run: apt-get install openssh-server"}, Builder: api.BuilderCheck{Problems: []string{"x is missing; run: y"}},
		GPUs: []api.NodeGPU{
			{ID: "GPU-a", Model: "NVIDIA H200", MemoryBytes: 143771 << 20}, {ID: "GPU-c", Slices: []api.GPUSlice{{ID: "MIG-a"}, {ID: "MIG-b", Problems: []string{"no CDI file has it; run: nvidia-ctk cdi generate"}}}}, {ID: "GPU-b", Problems: []string{"/dev/nvidia-uvm is not there; run: nvidia-modprobe -c 0 -u"}},
		},
		GPUProblems: []string{"nvidia-smi did not answer within 20s"},
		Rates:       "no ifb", Groups: "no nf_tables", WireGuard: "no module",
	}
	var got []string
	for _, f := range Check(f, word) {
		got = append(got, fmt.Sprintf("%s %s %s | %s", f.Status, f.Area, f.Name, f.Fix))
	}
	want := []string{
		"missing container stack | apt-get install crun", "missing container crun | apt-get install crun",
		"warning container environment local | apt-get install openssh-server", "ok container control groups | ",
		"ok container module overlay | ", "ok container module erofs | ", "ok container module loop | ",
		"ok vm stack | ", "ok vm libvirt | ", "warning vm QEMU | upgrade the distribution",
		"warning vm module vhost_net | modprobe vhost_net", "warning vm module vhost_vsock | modprobe vhost_vsock",
		"warning vm nesting | echo options kvm_intel nested=1 >/etc/modprobe.d/nearmetal.conf, then reboot",
		"warning vm IOMMU | enable VT-d or AMD-Vi in the firmware, boot with intel_iommu=on", "warning vm huge pages | nearmetal node prepare --huge-pages SIZE",
		"missing network nftables | apt-get install nftables", "ok network module bridge | ", "ok network module veth | ", "ok network module vxlan | ",
		"ok network module nf_tables | ", "ok gpu GPU-a | ", "ok gpu GPU-c | ", "warning gpu MIG-b | nvidia-ctk cdi generate", "warning gpu GPU-b | nvidia-modprobe -c 0 -u", "warning gpu driver | ", "warning network security groups | use Linux 5.6 or later with nf_tables for bridges, and nft 0.9.4 or later", "warning network rates and DSCP | modprobe -a ifb sch_htb sch_tbf cls_bpf act_mirred", "warning network WireGuard | modprobe wireguard, or boot a kernel that has it; then restart the agent",
		"warning volume mkfs.ext4 | apt-get install e2fsprogs", "ok volume resize2fs | ", "warning volume mkfs.xfs | apt-get install xfsprogs", "ok volume module xfs | ",
		"warning builder programs | y",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestASettingIsReadBack(t *testing.T) {
	p := newPretended(t, map[string]string{"proc/sys/vm/nr_hugepages": "none"})
	// Nothing is kept of what is written to it.
	at := filepath.Join(p.dir, "proc/sys/vm/nr_hugepages")
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink("/dev/null", at)); err != nil {
		t.Fatal(err)
	}
	err := p.host().setSysctl("vm.nr_hugepages", "8")
	if err == nil || !strings.Contains(err.Error(), "reboot") {
		t.Errorf("a setting that the kernel did not take: %v", err)
	}
}
