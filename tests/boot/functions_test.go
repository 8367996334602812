package boot

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

const (
	// adapter is where a machine of the data centre has its adapter with virtual functions.
	adapter = "0000:01:00.0"
	// functionsMiB is the most that a machine with an adapter may have: room for a host's root, an image, and two virtual machines.
	functionsMiB = 2800
	// rooted is an environment whose users can become root, as those of a system of their own can.
	rooted = `name: rooted
base: {environment: debian-mpi}
commands: ["install -m 4755 /bin/dash /usr/local/bin/as-root"]
stacks: [container, vm]
`
	// clean is what an adapter says of a function that nobody has.
	clean = "no driver, no address, no VLAN"
)

// Two hosts that were off boot as nodes whose adapters have seven functions each. Members of two tenants, virtual machines and containers, have
// functions that carry their networks between the hosts and cut the tenants off from each other. The machines have no other network interface, and are
// moved, saved and restored. Members have all fourteen functions at once; one that needs eight is refused with the name of an adapter. Whatever ends, a
// machine, its QEMU or its host, each function ends as it was before. The hosts have one processor each: on several, QEMU's emulation of AMD's
// virtualization makes machines reboot at random.
func TestTenantsHaveVirtualFunctionsOfTwoHosts(t *testing.T) {
	hosts := []string{"h1", "h2"}
	s := newSite(t, []vdc.MachineConfig{
		{Name: "h1", Firmware: api.FirmwareBIOS, MemoryMiB: functionsMiB, CPUs: 1, SRIOV: true}, {Name: "h2", Firmware: api.FirmwareBIOS, MemoryMiB: functionsMiB, CPUs: 1, SRIOV: true},
	}, "--vlan-pool", "100-199", "--boot-deadline", hostDeadline.String(), "--start-deadline", nestedDeadline.String())
	s.build("debian-vm")
	s.buildRecipe(rooted)
	for i, name := range hosts {
		s.enroll(name, []api.PowerKind{api.PowerRedfish, api.PowerIPMI}[i], "--fabric", "lan1="+adapter, "--virtual-functions", fmt.Sprintf("%s=%d", adapter, functions))
	}
	s.run(append([]string{"node", "power", "on", "--env", "debian-vm"}, hosts...)...)
	for _, name := range hosts {
		wantWholeBoot(t, s.waitFor(name, api.MachineReady, hostDeadline))
		s.wantAdapter(name)
		s.wantHeldOn(name, 0)
	}
	s.run("node", "drain", "n1")
	s.run("network", "create", "other", "--technology", "vlan", "--vlan", "120")

	t.Log("containers of a tenant")
	s.withFunctions("c", "container", 2, "project/other")
	s.wantTalk("c", true)
	s.wantHeld(1, 1)
	s.run("cluster", "delete", "c", "--yes")
	s.wantHeld(0, 0)

	t.Log("a virtual machine, with a function as its only network interface, and a container of another tenant")
	s.withFunctions("v", "vm", 1)
	s.withFunctions("w", "container", 1, "project/other")
	s.wantNoWayTo("v", "w")
	s.run("cluster", "delete", "w", "--yes")

	t.Log("the virtual machine moves to the other host while it runs, and back while it stands still")
	boots := s.bootIDs("v")
	first := s.cluster("v").Status.Members[0].Node
	second := hosts[1-slices.Index(hosts, first)]
	s.wantMoved("v", "v-0", second)
	s.wantHeldOn(first, 0)
	s.wantHeldOn(second, 1)
	s.wantMoved("v", "v-0", first, "--offline")
	s.wantHeldOn(first, 1)
	s.wantHeldOn(second, 0)
	s.wantBoots("v", boots)

	t.Log("another joins it on the other host, and they talk")
	s.run("cluster", "scale", "v", "--size", "2")
	s.wantRanks("v")
	s.wantHeld(1, 1)

	t.Log("the virtual machines are saved and restored")
	boots = s.bootIDs("v")
	s.run("cluster", "save", "v", "--timeout", nestedDeadline.String())
	s.wantHeld(0, 0)
	s.run("cluster", "restore", "v", "--timeout", nestedDeadline.String())
	s.wantHeld(1, 1)
	s.wantBoots("v", boots)
	s.wantRanks("v")

	t.Log("the QEMU of a virtual machine is killed")
	lost := s.cluster("v").Status.Members[0]
	s.onHost(lost.Node, func(h *host) { h.must("pkill -9 -x qemu-system-x86") })
	s.until(nestedDeadline, lost.Name+" to be replaced", func() bool { return s.whole("v", 2) && s.bootIDs("v")["v-0"] != boots["v-0"] })
	s.wantHeld(1, 1)
	s.wantRanks("v")

	t.Log("the power of a host is cut")
	s.run("cluster", "scale", "v", "--size", "1")
	lost = s.cluster("v").Status.Members[0]
	must(t, s.dc.CutPower(lost.Node))
	left := hosts[1-slices.Index(hosts, lost.Node)]
	s.until(nestedDeadline, lost.Name+" to be on "+left, func() bool {
		return s.whole("v", 1) && slices.ContainsFunc(s.cluster("v").Status.Members, func(m api.MemberStatus) bool { return m.Node == left })
	})
	s.wantHeldOn(left, 1)

	t.Log("the host boots again, and has its functions again")
	s.waitFor(lost.Node, api.MachineOff, hostDeadline)
	s.run("node", "power", "on", lost.Node, "--env", "debian-vm")
	s.waitFor(lost.Node, api.MachineReady, hostDeadline)
	s.wantAdapter(lost.Node)
	s.wantHeldOn(lost.Node, 0)
	s.run("cluster", "delete", "v", "--yes")
	s.wantHeld(0, 0)

	t.Log("members take all functions that there are")
	s.wantNoRoomForEight()
	all := []string{}
	for n := range functions {
		all = append(all, fmt.Sprintf("project/net%d", n))
	}
	s.withFunctions("all", "container", 2, all...)
	s.wantTalk("all", true)
	s.wantHeld(functions, functions)
	s.run("cluster", "delete", "all", "--yes")
	s.wantHeld(0, 0)
	s.run(append([]string{"node", "power", "off"}, hosts...)...)
	for _, name := range hosts {
		s.waitFor(name, api.MachineOff, hostDeadline)
	}
	s.wantUntouched()
}

// withFunctions makes a cluster whose members' ports on these networks are virtual functions; without networks, those on its own are. A host has room
// for one member.
func (s *site) withFunctions(name, stack string, size int, networks ...string) {
	s.t.Helper()
	args := []string{"cluster", "create", name, "--stack", stack, "--size", strconv.Itoa(size), "--memory", "512MiB", "--env", "rooted", "--timeout", nestedDeadline.String()}
	for _, network := range networks {
		args = append(args, "--network", network, "--interface", network+":vf")
	}
	if len(networks) == 0 {
		args = append(args, "--interface", "vf")
	}
	begun := time.Now()
	s.run(args...)
	s.t.Logf("measured: %s, %d members of stack %s with %d functions each, was ready after %.0f s", name, size, stack, max(1, len(networks)), time.Since(begun).Seconds())
}

// wantNoRoomForEight checks that a member that needs eight functions is refused, since no adapter has more than seven.
func (s *site) wantNoRoomForEight() {
	s.t.Helper()
	args := []string{"cluster", "create", "eight", "--memory", "256MiB", "--env", "debian-mpi", "--interface", "vf"}
	for n := range functions {
		name := fmt.Sprintf("net%d", n)
		s.run("network", "create", name, "--technology", "vlan")
		args = append(args, "--network", "project/"+name, "--interface", "project/"+name+":vf")
	}
	s.refused(adapter, args...)
}

// wantRanks checks that the two members of a cluster have one network interface, and that the ranks of an MPI job talk by it.
func (s *site) wantRanks(cluster string) {
	s.t.Helper()
	if links := s.run("cluster", "ssh", cluster, "--", "ls /sys/class/net"); !slices.Equal(strings.Fields(links), []string{"eth0", "lo"}) {
		s.t.Errorf("a member of %s has the network interfaces %q, want a function alone", cluster, links)
	}
	ranks := s.saidByRanks(cluster, 2, "hostname")
	slices.Sort(ranks)
	if want := []string{cluster + "-0", cluster + "-1"}; !slices.Equal(ranks, want) {
		s.t.Errorf("the ranks of an MPI job ran on %v, want %v", ranks, want)
	}
}

// wantBoots checks that the members of a cluster run in the boots in which they ran.
func (s *site) wantBoots(cluster string, want map[string]string) {
	s.t.Helper()
	if got := s.bootIDs(cluster); !maps.Equal(got, want) {
		s.t.Errorf("the members of %s are in the boots %v, want %v", cluster, got, want)
	}
}

// whole reports whether a cluster has so many members that are ready, whatever is left of those on a host that is off.
func (s *site) whole(cluster string, size int) bool {
	c := s.cluster(cluster).Status
	live := slices.DeleteFunc(c.Members, func(m api.MemberStatus) bool { return m.Phase == api.MemberReleasing })
	return c.Phase == api.ClusterReady && len(live) == size && !slices.ContainsFunc(live, func(m api.MemberStatus) bool { return m.Phase != api.MemberReady })
}

// wantAdapter waits until a node offers its adapter.
func (s *site) wantAdapter(name string) {
	s.t.Helper()
	var seen []api.Adapter
	s.until(2*time.Minute, "the adapter of "+name, func() bool {
		if agent := s.node(name).Agent; agent != nil {
			seen = agent.Adapters
		}
		return len(seen) == 1 && seen[0].VirtualFunctions == functions
	})
	if a := seen[0]; a.ID != adapter || a.Cell != "lan1" || !a.Up || len(a.Problems) > 0 {
		s.t.Errorf("node %s has the adapter %+v", name, a)
	}
}

// functionsOf says what each function of a host is set to.
func (s *site) functionsOf(name string) (all []string) {
	s.t.Helper()
	s.onHost(name, func(h *host) {
		for n := range functions {
			var set []string
			driver := h.ask(fmt.Sprintf("basename $(readlink $pf/virtfn%d/driver)", n))
			if driver == "" || strings.Contains(driver, "status") || strings.Contains(driver, "missing") {
				driver = "no driver"
			}
			set = append(set, driver)
			line := h.ask(fmt.Sprintf("ip link show $dev | grep 'vf %d '", n))
			if strings.Contains(line, "00:00:00:00:00:00") {
				set = append(set, "no address")
			} else {
				set = append(set, line)
			}
			if !strings.Contains(line, "vlan") {
				set = append(set, "no VLAN")
			}
			all = append(all, strings.Join(set, ", "))
		}
	})
	return all
}

// wantHeld checks how many functions members hold on each host.
func (s *site) wantHeld(h1, h2 int) {
	s.t.Helper()
	s.wantHeldOn("h1", h1)
	s.wantHeldOn("h2", h2)
}

// wantHeldOn checks that members hold so many functions of a host, and that nothing of anybody is left on the others.
func (s *site) wantHeldOn(name string, want int) {
	s.t.Helper()
	seen := s.functionsOf(name)
	held := slices.DeleteFunc(slices.Clone(seen), func(set string) bool { return set == clean })
	if half := slices.ContainsFunc(held, func(set string) bool {
		return strings.Contains(set, "no address") || strings.Contains(set, "no VLAN") || strings.Contains(set, "no driver")
	}); len(held) != want || half {
		s.t.Errorf("members hold %d functions of %s, want %d whole ones:\n%s", len(held), name, want, strings.Join(seen, "\n"))
	}
}

// wantNoWayTo checks that a member's root reaches no member of another tenant by its function, also with an address of the other's network.
func (s *site) wantNoWayTo(from, to string) {
	s.t.Helper()
	var victim string
	for _, port := range s.cluster(to).Status.Members[0].Networks {
		victim = port.Address
	}
	foreign := victim[:strings.LastIndex(victim, ".")] + ".99/20"
	if has := s.in(from, from+"-0", "as-root -p -c 'ip address add "+foreign+" dev eth0 && ip -o address show dev eth0'"); !strings.Contains(has, foreign) {
		s.t.Fatalf("a member of %s has the addresses %q, want %s among them", from, has, foreign)
	}
	said, err := s.try("cluster", "ssh", from, "--", "timeout 20 bash -c 'until head -c 4 </dev/tcp/"+victim+"/22; do :; done'")
	if err == nil || strings.Contains(said, "SSH-") {
		s.t.Errorf("a member of %s reaches %s at %s: %q", from, to, victim, said)
	}
	s.in(from, from+"-0", "as-root -p -c 'ip address del "+foreign+" dev eth0'")
}
