package hostcheck

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// link makes a symbolic link of the pretended host.
func (p *pretended) link(name, target string) {
	at := filepath.Join(p.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.Symlink(target, at)); err != nil {
		p.t.Fatal(err)
	}
}

const pci = "sys/bus/pci/devices/0000:3b:00.0"

// adapterFiles are those of an igb adapter with 7 functions, none made, whose link is up.
func adapterFiles(more map[string]string) map[string]string {
	all := map[string]string{
		pci + "/class": "0x020000\n", pci + "/vendor": "0x8086\n", pci + "/sriov_totalvfs": "7\n", pci + "/sriov_numvfs": "0\n", pci + "/sriov_drivers_autoprobe": "1\n",
		pci + "/net/enp59s0/carrier": "1\n", "proc/sys/user/max_user_namespaces": "20000\n", "proc/cmdline": "quiet\n", "etc/default/grub": "", "usr/sbin/update-grub": "",
		"usr/sbin/update-initramfs": "", "sys/module/vfio_pci/x": "", "dev/loop-control": "", "dev/kvm": "", "dev/vhost-vsock": "", "dev/net/tun": "", "dev/vhost-net": "",
	}
	for name, text := range more {
		all[name] = text
	}
	return all
}

func preparedHost(t *testing.T, files map[string]string, driver string) *pretended {
	p := newPretended(t, adapterFiles(files))
	for _, name := range slices.Concat(packages[VM], packages[Container], packages[Volume]) {
		p.installed[name] = true
	}
	p.link(pci+"/driver", "../../../bus/pci/drivers/"+driver)
	return p
}

func TestVirtualFunctionsArePlanned(t *testing.T) {
	sevenVFs := Wanted{For: []Area{VM}, Functions: map[string]int{"enp59s0": 7}}
	const grub = "write /etc/default/grub.d/nearmetal.cfg, so that the kernel uses the IOMMU:\n    # Written by nearmetal node prepare.\n" +
		`    GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_iommu=on iommu=pt"`
	const count = "echo 7 >/" + pci + "/sriov_numvfs"
	const probe = "echo 0 >/" + pci + "/sriov_drivers_autoprobe"
	for _, c := range []struct {
		name   string
		files  map[string]string
		driver string
		want   Wanted
		plan   []string
		left   string
	}{
		{"nothing is there yet", nil, "igb", sevenVFs, []string{probe, count, grub, "update-grub"}, "reboot, so that the kernel uses the IOMMU"},
		{"the kernel has IOMMU groups", map[string]string{"sys/kernel/iommu_groups/1/x": ""}, "igb", sevenVFs, []string{probe, count}, ""},
		{"the kernel has the argument, and the firmware no IOMMU", map[string]string{"proc/cmdline": "quiet intel_iommu=on\n"}, "igb", sevenVFs, []string{probe, count}, "enable VT-d"},
		{"containers need no IOMMU", nil, "igb", Wanted{For: []Area{Container}, Functions: map[string]int{"0000:3b:00.0": 7}}, []string{probe, count}, ""},
		{"vfio-pci is not loaded", map[string]string{
			"sys/module/vfio_pci/x": "none", "sys/kernel/iommu_groups/1/x": "", "lib/modules/6.1.0-56-amd64/modules.dep": "kernel/drivers/vfio/pci/vfio-pci.ko:\n",
		}, "igb", sevenVFs, []string{
			"modprobe vfio_pci", "write /etc/modules-load.d/nearmetal.conf, so that they are loaded at boot:\n    # Written by nearmetal node prepare.\n    vfio_pci", probe, count,
		}, ""},
		{"all functions are there", map[string]string{pci + "/sriov_numvfs": "7\n", "sys/kernel/iommu_groups/1/x": ""}, "igb", sevenVFs, nil, ""},
		{"another number is there, and may be in use", map[string]string{pci + "/sriov_numvfs": "4\n", "sys/kernel/iommu_groups/1/x": ""}, "igb", sevenVFs, nil, "which may be in use"},
		{"more than the firmware allows", map[string]string{"sys/kernel/iommu_groups/1/x": ""}, "igb", Wanted{For: []Area{VM}, Functions: map[string]int{"enp59s0": 8}}, nil, "at most 7 virtual functions, not 8"},
		{"an adapter that is not there", map[string]string{"sys/kernel/iommu_groups/1/x": ""}, "igb", Wanted{For: []Area{VM}, Functions: map[string]int{"enp9": 1}}, nil, "no adapter enp9"},
		{"mlx4 takes the number at load", map[string]string{
			"sys/kernel/iommu_groups/1/x": "", pci + "/vendor": "0x15b3\n", pci + "/mlx4_port1": "ib\n", pci + "/mlx4_port2": "eth\n",
		}, "mlx4_core", sevenVFs, []string{
			"write /etc/modprobe.d/nearmetal-sriov.conf, which the driver reads when it is loaded:\n    # Written by nearmetal node prepare.\n    options mlx4_core num_vfs=7 probe_vf=0 port_type_array=1,2",
			"update-initramfs -u",
		}, "when mlx4_core is loaded again: reboot"},
		{"mlx4 with its option", map[string]string{
			"sys/kernel/iommu_groups/1/x": "", pci + "/mlx4_port1": "ib\n", pci + "/sriov_numvfs": "7\n", functionFile: "options mlx4_core num_vfs=7 probe_vf=0 port_type_array=1\n",
		}, "mlx4_core", sevenVFs, nil, ""},
		{"SR-IOV is off in the adapter's firmware", map[string]string{"sys/kernel/iommu_groups/1/x": "", pci + "/vendor": "0x15b3\n", pci + "/sriov_totalvfs": "none", pci + "/sriov_numvfs": "none"}, "mlx5_core", sevenVFs, nil, "set SRIOV_EN=1 NUM_OF_VFS=7"},
	} {
		p := preparedHost(t, c.files, c.driver)
		plan := Plan(Look(t.Context(), p.host()), c.want)
		changes := planned(plan)
		modules := func(change string) bool { // of virtual machines, for another test
			return strings.Contains(change, "vhost") || strings.Contains(change, "kvm") || strings.HasSuffix(change, " tun")
		}
		if diff := cmp.Diff(c.plan, slices.DeleteFunc(changes, modules)); diff != "" && (len(c.plan) > 0 || len(changes) > 0) {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if left := strings.Join(plan.Left, "\n"); !strings.Contains(left, c.left) {
			t.Errorf("%s: left %q, want %q", c.name, left, c.left)
		}
	}
}

func TestVirtualFunctionsAreMadeAsShownAndOnce(t *testing.T) {
	p := preparedHost(t, map[string]string{"sys/kernel/iommu_groups/1/x": ""}, "igb")
	wanted := Wanted{For: []Area{Container}, Functions: map[string]int{"0000:3b:00.0": 7}}
	f := Look(t.Context(), p.host())
	f.Root = true
	if err := Apply(t.Context(), p.host(), f, Plan(f, wanted).Changes, func(Change) {}); err != nil {
		t.Fatal(err)
	}
	after := Look(t.Context(), p.host())
	if after.Adapters[0].VFs != 7 || p.host().text(pci+"/sriov_drivers_autoprobe") != "0" {
		t.Errorf("got adapters %+v", after.Adapters)
	}
	if again := Plan(after, wanted); len(again.Changes) > 0 {
		t.Errorf("a second run would change %q", planned(again))
	}
}

func TestTheCheckSaysWhatKeepsAnAdapterFromMembers(t *testing.T) {
	groups := map[string]string{"sys/kernel/iommu_groups/1/x": ""}
	with := func(more map[string]string) map[string]string {
		for name, text := range groups {
			more[name] = text
		}
		return more
	}
	for _, c := range []struct {
		name, driver string
		files        map[string]string
		shared       bool
		status       Status
		says, fix    string
	}{
		{name: "in order", driver: "igb", files: with(map[string]string{pci + "/sriov_numvfs": "7\n"}), status: OK, says: "enp59s0 (igb), 7 of 7 virtual functions"},
		{name: "no functions yet", driver: "igb", files: with(map[string]string{}), status: Warning, says: "no virtual functions yet", fix: "--virtual-functions 0000:3b:00.0=N"},
		{name: "no IOMMU", driver: "igb", status: Warning, says: "the kernel has no IOMMU groups", fix: "boot with intel_iommu=on"},
		{name: "company", driver: "igb", files: with(map[string]string{"sys/kernel/iommu_groups/7/devices/0000:3c:00.0": "", "sys/kernel/iommu_groups/7/devices/0000:00:01.0": "", "sys/bus/pci/devices/0000:00:01.0/class": "0x060400\n"}), shared: true, status: Warning, says: "share an IOMMU group with 0000:3c:00.0", fix: "ACS"},
		{name: "no link", driver: "igb", files: with(map[string]string{pci + "/net/enp59s0/carrier": "0\n"}), status: Warning, says: "its link is down", fix: "ip link set enp59s0 up"},
		{name: "off in the firmware", driver: "mlx5_core", files: with(map[string]string{pci + "/vendor": "0x15b3\n", pci + "/sriov_totalvfs": "none"}), status: Warning, says: "SR-IOV is off", fix: "mstconfig -d 0000:3b:00.0 set SRIOV_EN=1"},
		{name: "no room in the machine's firmware", driver: "igb", files: with(map[string]string{pci + "/sriov_totalvfs": "0\n"}), status: Warning, says: "can have no virtual functions", fix: "firmware"},
	} {
		p := preparedHost(t, c.files, c.driver)
		if c.shared {
			p.link(pci+"/iommu_group", "../../../../kernel/iommu_groups/7")
		}
		found := adapters(Look(t.Context(), p.host()))
		if len(found) != 2 || found[0].Status != c.status || !strings.Contains(found[0].Detail, c.says) || !strings.Contains(found[0].Fix, c.fix) {
			t.Errorf("%s: found %+v, want %s, %q and fix %q", c.name, found, c.status, c.says, c.fix)
		}
	}
	if found := adapters(Look(t.Context(), newPretended(t, nil).host())); len(found) > 0 {
		t.Errorf("a host without adapters has findings %+v", found)
	}
}
