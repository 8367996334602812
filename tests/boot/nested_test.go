package boot

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const (
	// hostMiB is enough for debian-vm, its root, an image of a cluster and a virtual machine.
	hostMiB = 3072
	// onKVM keeps members off the node beside the server, which has no KVM.
	onKVM = "vm-processors=kvm"
	// nestedDeadline is how long virtual machines on emulated hosts may take.
	nestedDeadline = 25 * time.Minute
)

// Machines that were off boot as hosts of virtual machines. Their emulated processors have AMD's virtualization, so that KVM runs on them. Each carries
// a virtual machine of a cluster, which reach each other over the tunnel between the hosts. When the power of a host is cut, its virtual machine is
// replaced on the other host, and nothing of it is left there in the end.
func TestVirtualMachinesOfTwoHostsMeetAndOneIsReplacedWhenItsHostLosesPower(t *testing.T) {
	hosts := []string{"h1", "h2"}
	s := newSite(t, []vdc.MachineConfig{
		{Name: "h1", Firmware: api.FirmwareBIOS, MemoryMiB: hostMiB, CPUs: 1}, {Name: "h2", Firmware: api.FirmwareBIOS, MemoryMiB: hostMiB, CPUs: 1},
	})
	s.build("debian-vm")
	s.enroll("h1", api.PowerRedfish)
	s.enroll("h2", api.PowerIPMI)
	s.run("node", "power", "on", "h1", "h2", "--env", "debian-vm")
	before := map[string]hostState{}
	for _, name := range hosts {
		wantWholeBoot(t, s.waitFor(name, api.MachineReady, bootDeadline))
		before[name] = s.look(name)
		if len(before[name].machines)+len(before[name].daemons) > 0 {
			t.Errorf("host %s has no member yet, and has QEMU's processes %v and libvirt's %v", name, before[name].machines, before[name].daemons)
		}
	}
	t.Log("containers bring the image to the hosts, so that the time of a start is the virtual machines' alone")
	s.run("cluster", "create", "c", "--size", "2", "--env", "debian-mpi", "--node-selector", onKVM, "--timeout", nestedDeadline.String())
	s.run("cluster", "delete", "c", "--yes")

	t.Log("a cluster has a virtual machine on each host")
	s.createNested("v", 2)
	s.wantNested("v", hosts, before)
	s.run("cluster", "delete", "v", "--yes")

	t.Log("the power of a virtual machine's host is cut")
	s.createNested("w", 1)
	lost, boot := s.cluster("w").Status.Members[0].Node, s.bootIDs("w")["w-0"]
	left := hosts[1-slices.Index(hosts, lost)]
	begun := time.Now()
	must(t, s.dc.CutPower(lost))
	s.until(nestedDeadline, "the member of "+lost+" to be replaced on "+left, func() bool {
		c := s.cluster("w").Status
		return c.Phase == api.ClusterReady && len(c.Members) == 1 && c.Members[0].Node == left && c.Members[0].Phase == api.MemberReady
	})
	t.Logf("measured: a member whose host lost its power was ready on the other host after %.0f s", time.Since(begun).Seconds())
	s.waitFor(lost, api.MachineOff, bootDeadline)
	s.wantPower(lost, api.PowerOff)
	if after := s.bootIDs("w")["w-0"]; after == boot {
		t.Errorf("the replacement is in boot %s, as the lost member was", after)
	}

	t.Log("nothing of the clusters is left on the host")
	s.run("cluster", "delete", "w", "--yes")
	if after := s.look(left); fmt.Sprint(after) != fmt.Sprint(before[left]) {
		t.Errorf("host %s was %+v before it had members, and is %+v", left, before[left], after)
	}
	s.run("node", "power", "off", left)
	s.waitFor(left, api.MachineOff, bootDeadline)
	s.wantPower(left, api.PowerOff)
	s.wantUntouched()
}

// createNested makes a cluster of virtual machines on the hosts.
func (s *site) createNested(name string, size int) {
	s.t.Helper()
	begun := time.Now()
	s.run("cluster", "create", name, "--stack", "vm", "--size", strconv.Itoa(size), "--memory", "512MiB", "--env", "debian-mpi",
		"--node-selector", onKVM, "--timeout", nestedDeadline.String())
	s.t.Logf("measured: the virtual machines of %s, %d on emulated hosts, were ready after %.0f s", name, size, time.Since(begun).Seconds())
}

// wantNested checks that a cluster has one virtual machine on each host, and that its members reach each other.
func (s *site) wantNested(cluster string, hosts []string, before map[string]hostState) {
	s.t.Helper()
	own, err := os.ReadFile(bootIDPath)
	must(s.t, err)
	boots := map[string]string{strings.TrimSpace(string(own)): "this host"}
	for member, id := range s.bootIDs(cluster) {
		boots[id] = member
	}
	for _, name := range hosts {
		host := s.look(name)
		boots[host.bootID] = name
		if host.bootID != before[name].bootID || len(host.machines) != 1 {
			s.t.Errorf("host %s is in boot %s, was in boot %s, and has the QEMU processes %v, want one", name, host.bootID, before[name].bootID, host.machines)
		}
	}
	if len(boots) != 5 {
		s.t.Errorf("two members, two hosts and their host have the boots %v, want five", boots)
	}
	ranks := s.saidByRanks(cluster, 2, "hostname")
	slices.Sort(ranks)
	if want := []string{cluster + "-0", cluster + "-1"}; !slices.Equal(ranks, want) {
		s.t.Errorf("the ranks of an MPI job ran on %v, want %v", ranks, want)
	}
}

// bootIDs are the boots of a cluster's members, by name. All but the first are asked by way of the first, over the cluster's network.
func (s *site) bootIDs(cluster string) map[string]string {
	s.t.Helper()
	boots := map[string]string{}
	for i, m := range s.cluster(cluster).Status.Members {
		command := []string{"cluster", "ssh", cluster, "--", "cat", bootIDPath}
		if i > 0 {
			command = []string{"cluster", "ssh", cluster, "--", "ssh", m.Name, "cat", bootIDPath}
		}
		boots[m.Name] = strings.TrimSpace(s.run(command...))
	}
	return boots
}

// hostState is what a host of virtual machines has.
type hostState struct {
	bootID   string
	machines []string // PIDs of QEMU processes
	daemons  []string // PIDs of libvirtd, which runs while the host has virtual machines
	links    []string
}

// words are what look makes a host print.
var words = regexp.MustCompile(`(?m)^(boot|machine|daemon|link)=(\S+)`)

// look asks a host on its serial console.
func (s *site) look(host string) (state hostState) {
	s.t.Helper()
	s.login(host, func(terminal *terminal) {
		terminal.patience = bootDeadline
		terminal.say("dmesg -n 1\r")
		said := terminal.answer(`echo; echo boot=$(cat ` + bootIDPath + `); for p in $(pgrep -x qemu-system-x86); do echo machine=$p; done; ` +
			`for p in $(pgrep -x libvirtd); do echo daemon=$p; done; for l in $(ls /sys/class/net); do echo link=$l; done`)
		terminal.say("exit\r") // the next look logs in anew
		terminal.expect("login:")
		for _, m := range words.FindAllStringSubmatch(strings.ReplaceAll(said, "\r", ""), -1) {
			switch m[1] {
			case "boot":
				state.bootID = m[2]
			case "machine":
				state.machines = append(state.machines, m[2])
			case "link":
				state.links = append(state.links, m[2])
			case "daemon":
				state.daemons = append(state.daemons, m[2])
			}
		}
	})
	if len(state.bootID) != 36 || len(state.links) < 2 {
		s.t.Errorf("host %s says of itself %+v", host, state)
	}
	return state
}
