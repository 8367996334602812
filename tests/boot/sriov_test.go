package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const (
	// functions is how many virtual functions an igb has (Intel 82576).
	functions = 7
	// hostDeadline is how long an emulated host may take to boot, with its IOMMU, on a busy machine.
	hostDeadline = 20 * time.Minute
	// wireMiB is enough for debian-mpi, its root, and a few namespaces.
	wireMiB = 1536
	// sriovHost is a host that gives functions away, with what the test looks at networks with.
	sriovHost = `name: sriov-host
base: {environment: debian-mpi}
packages: [iputils-ping]
kernel: {arguments: intel_iommu=on iommu=pt}
stacks: [container, metal]
`
)

// Two hosts with SR-IOV that were off boot over the network, and each has a tenant's function on VLAN 10 and another's on VLAN 20, in a namespace of
// its own. Functions of one tenant reach each other between the hosts; those of different tenants do not, within a host or between them, and a
// tenant that tags its frames stays on its VLAN. When a host loses its power, its functions are as they were after the next boot.
func TestVirtualFunctionsOfTwoHostsKeepTenantsApart(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "h1", Firmware: api.FirmwareBIOS, MemoryMiB: wireMiB, CPUs: 1, SRIOV: true},
		{Name: "h2", Firmware: api.FirmwareBIOS, MemoryMiB: wireMiB, CPUs: 1, SRIOV: true},
	}, "--boot-deadline", hostDeadline.String())
	s.buildRecipe(sriovHost)
	s.enroll("h1", api.PowerRedfish)
	s.enroll("h2", api.PowerIPMI)
	hosts := []string{"h1", "h2"}
	s.run("node", "power", "on", "h1", "h2", "--env", "sriov-host")
	for _, name := range hosts {
		wantWholeBoot(t, s.waitFor(name, api.MachineReady, hostDeadline))
		s.onHost(name, wantFunctions)
	}
	for i, name := range hosts {
		s.onHost(name, func(h *host) { h.tenants(i + 1) })
	}
	s.wantApart()
	s.onHost("h1", func(h *host) { h.wantSpoofs(s) })

	t.Log("the power of a host is cut, and it boots again")
	must(t, s.dc.CutPower("h1"))
	s.waitFor("h1", api.MachineOff, hostDeadline)
	s.run("node", "power", "on", "h1", "--env", "sriov-host")
	s.waitFor("h1", api.MachineReady, hostDeadline)
	s.onHost("h1", func(h *host) {
		if left := h.ask("cat $pf/sriov_numvfs"); left != "0" {
			t.Errorf("host h1 booted with %s functions, want none", left)
		}
		wantFunctions(h)
		h.tenants(1)
	})
	s.wantApart()
	s.run("node", "power", "off", "h1", "h2")
	for _, name := range hosts {
		s.waitFor(name, api.MachineOff, hostDeadline)
	}
}

// buildRecipe builds an environment of a test.
func (s *site) buildRecipe(recipe string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "recipe.yaml")
	must(s.t, os.WriteFile(file, []byte(recipe), 0o600))
	s.run("env", "build", "--quiet", "-f", file)
}

// host is a root shell on the console of a host with SR-IOV. Its variable pf is the adapter in sysfs, dev its link.
type host struct {
	t        *testing.T
	name     string
	terminal *terminal
}

// onHost logs in on a host, does something there and logs out.
func (s *site) onHost(name string, do func(*host)) {
	s.t.Helper()
	s.login(name, func(terminal *terminal) {
		terminal.patience = hostDeadline
		h := &host{t: s.t, name: name, terminal: terminal}
		h.ask("dmesg -n 1")
		h.ask("pf=$(readlink -f /sys/bus/pci/drivers/igb/0000:*); dev=$(ls $pf/net)")
		do(h)
		terminal.say("exit\r") // the next one logs in anew
		terminal.expect("login:")
	})
}

// ask runs a command, and returns what it printed and its exit status if that is not zero.
func (h *host) ask(command string) string {
	h.t.Helper()
	said := h.terminal.answer("echo begin-$((40+1)); " + command + " || echo status-$?")
	_, said, _ = strings.Cut(said, "begin-41")
	return strings.TrimSpace(strings.ReplaceAll(said, "\r", ""))
}

// must runs a command that prints nothing and succeeds.
func (h *host) must(command string) {
	h.t.Helper()
	if said := h.ask(command + " 2>&1"); said != "" {
		h.t.Fatalf("on %s, %s: %s", h.name, command, said)
	}
}

// wantFunctions makes all functions of a host and checks what a function needs to be given to a virtual machine: an IOMMU group of its own, a reset of its
// own, and vfio-pci as its driver.
func wantFunctions(h *host) {
	h.t.Helper()
	if total := h.ask("cat $pf/sriov_totalvfs"); total != fmt.Sprint(functions) {
		h.t.Fatalf("the adapter of %s has %s functions, want %d", h.name, total, functions)
	}
	h.must("ip link set $dev up")
	h.must(fmt.Sprintf("echo %d > $pf/sriov_numvfs", functions))
	if links := h.ask("for i in $(seq 1500); do [ $(ls -d $pf/virtfn*/net/* 2>/dev/null | wc -l) = 7 ] && break; sleep 0.2; done; ls -d $pf/virtfn*/net/* | wc -l"); links != fmt.Sprint(functions) {
		h.t.Fatalf("%s functions of %s have a link, want %d", links, h.name, functions)
	}
	groups := strings.Fields(h.ask("for f in $pf/virtfn*; do g=$(readlink -f $f/iommu_group); echo $(ls $g/devices | wc -l):$g; done"))
	seen := map[string]bool{}
	for _, group := range groups {
		if !strings.HasPrefix(group, "1:/sys/kernel/iommu_groups/") || seen[group] {
			h.t.Errorf("a function of %s is not alone in its IOMMU group: %s of %v", h.name, group, groups)
		}
		seen[group] = true
	}
	if len(seen) != functions {
		h.t.Errorf("the functions of %s are in the IOMMU groups %v, want %d groups", h.name, groups, functions)
	}
	h.t.Logf("host %s has %d functions in the IOMMU groups %v", h.name, functions, groups)

	h.must("modprobe vfio-pci")
	h.must("f=$(readlink -f $pf/virtfn6); a=${f##*/}; echo vfio-pci > $f/driver_override; echo $a > $f/driver/unbind; echo $a > /sys/bus/pci/drivers_probe")
	if driver := h.ask("basename $(readlink $f/driver); ls /dev/vfio | grep -v vfio"); !strings.HasPrefix(driver, "vfio-pci\n") || strings.Contains(driver, "status") {
		h.t.Errorf("a function of %s has the driver and the VFIO group %q, want vfio-pci and a group", h.name, driver)
	}
	if method := h.ask("cat $f/reset_method"); !strings.Contains(method, "flr") {
		h.t.Errorf("a function of %s is reset by %q, want flr among them", h.name, method)
	}
	h.must("echo flr > $f/reset_method && echo 1 > $f/reset")
	h.must("echo > $f/driver_override; echo $a > $f/driver/unbind; echo $a > /sys/bus/pci/drivers_probe")
	if driver := h.ask("basename $(readlink $f/driver)"); driver != "igbvf" {
		h.t.Errorf("a function of %s has the driver %s after all, want igbvf", h.name, driver)
	}
}

// tenants puts function 0 of a host on VLAN 10 and into the namespace a, and function 1 on VLAN 20 and into b.
func (h *host) tenants(number int) {
	h.t.Helper()
	for i, tenant := range []string{"a", "b"} {
		// All are in one subnet, which only the VLANs divide.
		mac := fmt.Sprintf("52:54:00:aa:0%d:0%d", i, number)
		h.must(fmt.Sprintf("ip link set $dev vf %d mac %s vlan %d spoofchk on", i, mac, 10*(i+1)))
		// A driver that starts anew takes the address that the adapter's own driver has set.
		h.must(fmt.Sprintf("f=$(readlink -f $pf/virtfn%d); a=${f##*/}; echo $a > $f/driver/unbind; echo $a > /sys/bus/pci/drivers_probe; "+
			"for i in $(seq 300); do l=$(ls $f/net 2>/dev/null) && break; sleep 0.2; done", i))
		if got := h.ask("cat $f/net/*/address"); got != mac {
			h.t.Errorf("function %d of %s has the address %s, want %s", i, h.name, got, mac)
		}
		h.must(fmt.Sprintf("ip netns add %s; ip link set $l netns %[1]s; ip -n %[1]s link set $l name eth0; "+
			"ip -n %[1]s address add 10.1.0.%d/24 dev eth0; ip -n %[1]s link set eth0 up", tenant, 10*i+number))
		if got := h.ask(fmt.Sprintf("ip link show $dev | grep 'vf %d '", i)); !strings.Contains(got, mac) || !strings.Contains(got, fmt.Sprintf("vlan %d,", 10*(i+1))) ||
			!strings.Contains(got, "spoof checking on") {
			h.t.Errorf("function %d of %s reads back as %q", i, h.name, got)
		}
	}
	h.must("for n in a b; do for i in $(seq 300); do [ \"$(ip netns exec $n cat /sys/class/net/eth0/carrier)\" = 1 ] && break; sleep 0.2; done; done")
}

// reaches reports whether a tenant's namespace gets an answer from an address.
func (h *host) reaches(tenant, address string) bool {
	h.t.Helper()
	return !strings.Contains(h.ask(fmt.Sprintf("ip netns exec %s ping -q -c 8 -i 0.5 -W 2 -w 20 %s", tenant, address)), " 0 received")
}

// wantApart checks who reaches whom, from host h1.
func (s *site) wantApart() {
	s.t.Helper()
	s.onHost("h1", func(h *host) {
		for _, row := range []struct {
			name, from, to string
			want           bool
		}{
			{"a tenant reaches its own function on the other host", "a", "10.1.0.2", true},
			{"the other tenant reaches its own function on the other host", "b", "10.1.0.12", true},
			{"a tenant does not reach another's function on the other host", "a", "10.1.0.12", false},
			{"a tenant does not reach another's function on the same adapter", "a", "10.1.0.11", false},
			{"the other tenant does not reach the first one's function on the other host", "b", "10.1.0.2", false},
		} {
			if got := h.reaches(row.from, row.to); got != row.want {
				s.t.Errorf("%s: reaches is %v", row.name, got)
			}
		}
	})
}

// wantSpoofs lets the tenant on VLAN 10 of h1 send frames tagged for VLAN 20, and frames of a MAC that is not its own. QEMU's igb puts a function's frames on
// its VLAN whatever tag they have, as the adapter does, and checks no source addresses, which the adapter does: the spoof check is read back only.
func (h *host) wantSpoofs(s *site) {
	h.t.Helper()
	// Tags above a bridge ask no filter of the function's driver.
	h.must("ip -n a link add br0 type bridge; ip -n a link set eth0 master br0; ip -n a link set br0 up; ip -n a link add link br0 name tag type vlan id 20; " +
		"ip -n a address add 10.1.0.88/24 dev tag; ip -n a link set tag up")
	const forge = "ip netns exec a ping -q -c 3 -W 3 -I tag 10.1.0.12" // whose ARP requests are heard, or not
	h.ask(forge)
	if s.heard("h2", "b", "10.1.0.88") {
		h.t.Error("frames that a tenant on VLAN 10 tagged for VLAN 20 came to the other tenant's function")
	}
	h.t.Log("without its VLAN, the same frames get through")
	h.must("ip link set $dev vf 0 vlan 0")
	h.ask(forge)
	if !s.heard("h2", "b", "10.1.0.88") {
		h.t.Error("frames tagged for VLAN 20 came to nobody although the function had no VLAN: the check above proves nothing")
	}
	h.must("ip link set $dev vf 0 vlan 10; ip -n a link del tag")
	h.ask("ip -n a link set br0 address 52:54:00:bb:00:01; ip -n a address add 10.1.0.77/24 dev br0; ip netns exec a ping -q -c 3 -W 3 -I br0 10.1.0.2")
	h.t.Logf("frames of a forged MAC, with the spoof check on, reach the same tenant's function on the other host: %v", s.heard("h2", "a", "10.1.0.77"))
	h.must("ip -n a link del br0")
	if !h.reaches("a", "10.1.0.2") {
		h.t.Error("the tenant does not reach its function on the other host any more")
	}
}

// heard reports whether a namespace of a host learned a neighbour's address, and forgets it.
func (s *site) heard(name, tenant, address string) (heard bool) {
	s.t.Helper()
	s.onHost(name, func(h *host) {
		heard = strings.Contains(h.ask(fmt.Sprintf("ip -n %s neigh show %s", tenant, address)), "lladdr")
		h.ask(fmt.Sprintf("ip -n %s neigh flush %s", tenant, address))
	})
	return heard
}
