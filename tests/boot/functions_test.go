package boot

import (
	"fmt"
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
	// functionsMiB is enough for a host's root, an image, a virtual machine and a container.
	functionsMiB = 4096
	// clean is what an adapter says of a function that nobody has.
	clean = "no driver, no address, no VLAN"
)

// Two hosts that were off boot as nodes whose adapters have seven functions each. Two tenants have members on both hosts, virtual machines and
// containers, whose functions carry their networks between the hosts and cut the tenants off from each other. Fourteen functions are all there are: the next member
// is refused with the name of an adapter. Whatever ends, a machine, its QEMU or its host, each function ends as it was before.
func TestTenantsHaveVirtualFunctionsOfTwoHosts(t *testing.T) {
	hosts := []string{"h1", "h2"}
	s := newSite(t, []vdc.MachineConfig{
		{Name: "h1", Firmware: api.FirmwareBIOS, MemoryMiB: functionsMiB, CPUs: 3, SRIOV: true}, {Name: "h2", Firmware: api.FirmwareBIOS, MemoryMiB: functionsMiB, CPUs: 3, SRIOV: true},
	}, "--vlan-pool", "100-199", "--boot-deadline", hostDeadline.String())
	s.build("debian-vm")
	for i, name := range hosts {
		s.enroll(name, []api.PowerKind{api.PowerRedfish, api.PowerIPMI}[i], "--fabric", "lan1="+adapter, "--virtual-functions", fmt.Sprintf("%s=%d", adapter, functions))
	}
	s.run(append([]string{"node", "power", "on", "--env", "debian-vm"}, hosts...)...)
	for _, name := range hosts {
		wantWholeBoot(t, s.waitFor(name, api.MachineReady, hostDeadline))
		s.wantAdapter(name)
		s.wantFree(name)
	}
	s.run("node", "drain", "n1")
	s.run("network", "create", "fast", "--technology", "vlan", "--vlan", "110")
	s.run("network", "create", "other", "--technology", "vlan", "--vlan", "120")

	t.Log("containers of a tenant")
	s.withFunctions("w", "container", 2, "project/other")
	s.wantTalk("w", true)

	t.Log("virtual machines of another tenant")
	s.withFunctions("v", "vm", 1, "project/fast")
	s.wantTalk("v", true)
	ranks := s.saidByRanks("v", 2, "hostname")
	slices.Sort(ranks)
	if want := []string{"v-0", "v-1"}; !slices.Equal(ranks, want) {
		t.Errorf("the ranks of an MPI job ran on %v, want %v", ranks, want)
	}
	s.wantNoWayTo("v", "w")

	t.Log("the QEMU of a virtual machine is killed")
	boots := s.bootIDs("v")
	lost := s.cluster("v").Status.Members[0]
	s.onHost(lost.Node, func(h *host) { h.must("pkill -9 -x qemu-system-x86") })
	s.until(nestedDeadline, lost.Name+" to be replaced", func() bool { return s.whole("v") && s.bootIDs("v")["v-0"] != boots["v-0"] })
	s.wantTalk("v", true)

	t.Log("the power of a host is cut")
	s.run("cluster", "delete", "w", "--yes")
	must(t, s.dc.CutPower(lost.Node))
	left := hosts[1-slices.Index(hosts, lost.Node)]
	s.until(nestedDeadline, "both members to be on "+left, func() bool {
		return s.whole("v") && !slices.ContainsFunc(s.cluster("v").Status.Members, func(m api.MemberStatus) bool { return m.Node != left })
	})
	s.wantTalk("v", true)
	s.run("cluster", "delete", "v", "--yes")
	s.wantFree(left)

	t.Log("a host that boots again has its functions again, and members take all that there are")
	s.waitFor(lost.Node, api.MachineOff, hostDeadline)
	s.run("node", "power", "on", lost.Node, "--env", "debian-vm")
	s.waitFor(lost.Node, api.MachineReady, hostDeadline)
	s.wantAdapter(lost.Node)
	all := []string{}
	for n := range functions {
		name := fmt.Sprintf("net%d", n)
		s.run("network", "create", name, "--technology", "vlan")
		all = append(all, "project/"+name)
	}
	s.withFunctions("all", "container", 2, all...)
	for _, name := range hosts {
		if taken := s.functionsOf(name); slices.Contains(taken, clean) {
			t.Errorf("a member of %s has seven ports, and the functions are: %s", name, strings.Join(taken, "\n"))
		}
	}
	s.refused(adapter, "cluster", "create", "more", "--size", "1", "--cores", "1", "--memory", "256MiB", "--env", "debian-mpi", "--network", "project/fast",
		"--interface", "project/fast:vf")
	s.run("cluster", "delete", "all", "--yes")
	for _, name := range hosts {
		s.wantFree(name)
	}
	s.run(append([]string{"node", "power", "off"}, hosts...)...)
	for _, name := range hosts {
		s.waitFor(name, api.MachineOff, hostDeadline)
	}
	s.wantUntouched()
}

// withFunctions makes a cluster with a member on each host, whose ports on these networks are virtual functions. No host has room for two members.
func (s *site) withFunctions(name, stack string, cores int, networks ...string) {
	s.t.Helper()
	args := []string{"cluster", "create", name, "--stack", stack, "--size", "2", "--cores", strconv.Itoa(cores), "--memory", "512MiB", "--env", "debian-mpi", "--timeout", nestedDeadline.String()}
	for _, network := range networks {
		args = append(args, "--network", network, "--interface", network+":vf")
	}
	begun := time.Now()
	s.run(args...)
	s.t.Logf("measured: %s, two members of stack %s with %d functions each, was ready after %.0f s", name, stack, len(networks), time.Since(begun).Seconds())
	if members := s.cluster(name).Status.Members; len(members) != 2 || members[0].Node == members[1].Node {
		s.t.Fatalf("the members of %s are on %+v, want one on each host", name, members)
	}
}

// whole reports whether a cluster of two members is as it should be.
func (s *site) whole(cluster string) bool {
	c := s.cluster(cluster).Status
	return c.Phase == api.ClusterReady && len(c.Members) == 2 && !slices.ContainsFunc(c.Members, func(m api.MemberStatus) bool { return m.Phase != api.MemberReady })
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

// wantFree checks that nothing of anybody is left on a host's functions.
func (s *site) wantFree(name string) {
	s.t.Helper()
	for n, set := range s.functionsOf(name) {
		if set != clean {
			s.t.Errorf("function %d of %s is not free: %s", n, name, set)
		}
	}
}

// wantNoWayTo checks that a member's root reaches no member of another tenant by its function, also with an address of the other's network.
func (s *site) wantNoWayTo(from, to string) {
	s.t.Helper()
	var victim string
	for _, port := range s.cluster(to).Status.Members[0].Networks {
		victim = port.Address
	}
	foreign := victim[:strings.LastIndex(victim, ".")] + ".99"
	reaches := func() bool {
		_, err := s.try("cluster", "ssh", from, "--", "sudo ip address replace "+foreign+"/24 dev eth1; timeout 20 bash -c 'until head -c 4 </dev/tcp/"+victim+"/22; do :; done'")
		return err == nil
	}
	if reaches() {
		s.t.Errorf("a member of %s reaches %s at %s", from, to, victim)
	}
	s.in(from, from+"-0", "sudo ip address del "+foreign+"/24 dev eth1")
}
