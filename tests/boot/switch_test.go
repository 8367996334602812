package boot

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// cell is that of the managed switch.
const cell = "lan"

// newSwitchedSite is newSite with a data network on a managed switch. Its settings have the ports of these machines only.
func newSwitchedSite(t *testing.T, machines []vdc.MachineConfig, managed []string, args ...string) *site {
	t.Helper()
	needTestbed(t)
	s := prepareData(t, machines, true, args)
	ports := make([]string, len(managed))
	for i, name := range managed {
		ports[i] = s.machine(name).SwitchPort
	}
	file := filepath.Join(t.TempDir(), "switches.yaml")
	must(t, os.WriteFile(file, []byte(s.dc.Switch().Settings("100-199", ports...)), 0o600))
	s.args = append(s.args, "--ethernet", cell+"="+file)
	s.connect()
	s.copyTemplate()
	s.start()
	return s
}

// onSwitch says which port of the switch a machine's NIC is connected to.
func (s *site) onSwitch(name string) []string {
	s.t.Helper()
	m := s.machine(name)
	return []string{"--switch-port", m.DataMAC + "=" + cell + ":" + vdc.SwitchName + "/" + m.SwitchPort}
}

// vsctl runs ovs-vsctl at the switch.
func (s *site) vsctl(args ...string) string {
	s.t.Helper()
	out, err := exec.CommandContext(s.t.Context(), "ovs-vsctl", append([]string{"--timeout=20", "--db=" + s.dc.Switch().Address}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("ovs-vsctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// tag is the VLAN of a machine's port at the switch; "[]" is none.
func (s *site) tag(name string) string {
	s.t.Helper()
	return s.vsctl("get", "port", s.machine(name).SwitchPort, "tag")
}

// wantInNoNetwork waits until the ports of machines carry no VLAN that any other port has, by the switch and by what users are shown.
func (s *site) wantInNoNetwork(names ...string) {
	s.t.Helper()
	for _, name := range names {
		port := s.machine(name).SwitchPort
		s.until(time.Minute, "port "+port+" to be in no network", func() bool {
			return s.tag(name) == "[]" && s.vsctl("get", "port", port, "vlan_mode", "trunks", "protected") == "trunk\n[4095]\ntrue"
		})
	}
	if f := read[api.Fabric](s, "fabric", "show", cell); len(f.Partitions) != 0 || len(f.Alarms) != 0 || len(f.Faults) != 0 {
		s.t.Errorf("the fabric of the switch has networks %v, alarms %v and faults %v; want none", f.Partitions, f.Alarms, f.Faults)
	}
}

// addressOf is a member's address on its cluster's own network.
func (s *site) addressOf(cluster, member string) string {
	s.t.Helper()
	members := s.cluster(cluster).Status.Members
	i := slices.IndexFunc(members, func(m api.MemberStatus) bool { return m.Name == member })
	if i < 0 || members[i].Address == "" {
		s.t.Fatalf("member %s of %s has no address: %+v", member, cluster, members)
	}
	return members[i].Address
}

// reaches tries once, as root of a member, to open a connection to SSH at an address. The other side speaks first. Without an answer to ARP, the kernel gives up.
func (s *site) reaches(cluster, address string) (bool, string) {
	s.t.Helper()
	said := s.run("cluster", "ssh", cluster, "--root", "--", fmt.Sprintf("ip neigh flush all; timeout 60 bash -c 'head -c 4 </dev/tcp/%s/22' 2>&1; ip neigh show %[1]s", address))
	return strings.Contains(said, "SSH-"), said
}

// Two machines become a cluster whose network is a VLAN of a managed switch, and MPI runs over it. A third machine's user, who is root there and takes an
// address of that network, reaches nobody until the switch itself would let him. In the end the ports are in no network.
func TestMachinesOnAManagedSwitchAreInTheVLANOfTheirClusterAlone(t *testing.T) {
	names := []string{"b1", "b2", "b3"}
	var machines []vdc.MachineConfig
	for _, name := range names {
		machines = append(machines, vdc.MachineConfig{Name: name, Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, CPUs: 1, DiskBytes: []int64{}})
	}
	s := newSwitchedSite(t, machines, names)
	for _, name := range names {
		s.enrollInspected(name, api.PowerRedfish, s.onSwitch(name)...)
	}
	s.awaitInspected(names...)
	s.wantInNoNetwork(names...)
	s.run("cluster", "create", "m1", "--stack", "metal", "--size", "2", "--env", "debian-mpi", "--no-wait")
	s.run("cluster", "create", "m2", "--stack", "metal", "--env", "debian-mpi")
	s.until(bootDeadline, "m1 to be ready", func() bool { return s.cluster("m1").Status.Phase == api.ClusterReady })

	members, intruder := s.cluster("m1").Status.Members, s.cluster("m2").Status.Members[0]
	tag := s.tag(members[0].Node)
	if tag == "[]" || s.tag(members[1].Node) != tag || s.tag(intruder.Node) == tag || s.tag(intruder.Node) == "[]" {
		t.Errorf("the ports of m1's machines are in VLANs %s and %s, that of m2 in %s; want the same one and another", tag, s.tag(members[1].Node), s.tag(intruder.Node))
	}
	if shown := s.run("cluster", "show", "m1"); strings.Contains(shown, "Data network") {
		t.Errorf("m1 is shown as a cluster on a shared network:\n%s", shown)
	}
	if hosts := s.saidByRanks("m1", 2, "hostname"); sorted(strings.Join(hosts, " ")) != "m1-0 m1-1" {
		t.Errorf("two ranks ran on %v, want one on each machine", hosts)
	}
	for _, m := range members {
		nic := strings.TrimSpace(s.in("m1", m.Name, fmt.Sprintf("cat /sys/class/net/$(ip -o -4 addr show to %s | cut -d' ' -f2)/address", m.Address)))
		if want := s.machine(m.Node).DataMAC; nic != want {
			t.Errorf("member %s has its address on NIC %s, want %s", m.Name, nic, want)
		}
	}

	target := members[1].Address
	if reached, said := s.reaches("m1", target); !reached {
		t.Errorf("m1-0 does not reach m1-1 at %s: %s", target, said)
	}
	if reached, said := s.reaches("m2", target); reached {
		t.Errorf("m2 reaches m1-1 by its own address: %s", said)
	}
	s.takeAddress(intruder, s.cluster("m1").Status.CIDR)
	if reached, said := s.reaches("m2", target); reached || !strings.Contains(said, "FAILED") && !strings.Contains(said, "INCOMPLETE") {
		t.Errorf("m2 with an address of m1's network: reached m1-1: %v; want nobody to answer for its address: %s", reached, said)
	}
	// Only the switch keeps them apart. The site puts the VLAN right again, so this is tried until it got there first.
	s.until(2*time.Minute, "m2 to reach m1-1 once its port is in m1's VLAN", func() bool {
		s.vsctl("set", "port", s.machine(intruder.Node).SwitchPort, "tag="+tag)
		reached, _ := s.reaches("m2", target)
		return reached
	})
	s.run("cluster", "delete", "m2", "--yes", "--no-wait")
	s.run("cluster", "delete", "m1", "--yes")
	for _, name := range names {
		s.waitUntil(name, "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil })
	}
	s.wantInNoNetwork(names...)
}

// takeAddress puts the last address of another cluster's subnet on the data NIC of a member, as its user can.
func (s *site) takeAddress(m api.MemberStatus, cidr string) {
	s.t.Helper()
	subnet := netip.MustParsePrefix(cidr)
	last := subnet.Masked().Addr().As4()
	last[3] |= byte(0xff>>max(subnet.Bits()-24, 0)) &^ 1
	words := fmt.Sprintf("dev=$(basename $(dirname $(grep -l %s /sys/class/net/*/address))); ip addr add %d.%d.%d.%d/%d dev $dev && ip -4 addr show dev $dev",
		s.machine(m.Node).DataMAC, last[0], last[1], last[2], last[3], subnet.Bits())
	s.t.Logf("%s has now: %s", m.Name, s.run("cluster", "ssh", "m2", "--root", "--", words))
}

// twoStacks is a cluster of a container and a whole machine.
const twoStacks = `name: x
groups:
- {name: c, size: 1, stack: container, cores: 1, memory: 256MiB, environment: debian-mpi}
- {name: w, size: 1, stack: metal, environment: debian-mpi}
`

// A machine that carries containers, and one that is a member itself: both groups of one cluster are on a VLAN, on the node's trunk and on the other's own
// port. They know each other's names, log in to each other, and run MPI together. Virtual machines would need nested virtualization, which an emulated
// machine has only by more emulation.
func TestAMixedClusterOfAContainerAndAWholeMachineIsOnOneVLAN(t *testing.T) {
	s := newSwitchedSite(t, []vdc.MachineConfig{
		{Name: "h1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, CPUs: 1, DiskBytes: []int64{}},
		{Name: "w1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, CPUs: 1, DiskBytes: []int64{}},
	}, []string{"w1"}, "--boot-deadline", hostDeadline.String())
	file := filepath.Join(t.TempDir(), "x.yaml")
	must(t, os.WriteFile(file, []byte(twoStacks), 0o600))
	s.refused("no node has a usable trunk", "cluster", "create", "-f", file)
	s.enroll("h1", api.PowerRedfish, "--trunk-mac", s.machine("h1").DataMAC)
	s.enrollInspected("w1", api.PowerIPMI, s.onSwitch("w1")...)
	s.run("node", "power", "on", "h1", "--env", "debian-mpi")
	s.waitFor("h1", api.MachineReady, hostDeadline)
	s.awaitInspected("w1")
	s.until(time.Minute, "the trunk of h1 to be usable", func() bool {
		agent := s.node("h1").Agent
		return agent != nil && agent.Trunk.Usable()
	})
	s.run("node", "drain", "n1")
	s.run("cluster", "create", "-f", file, "--timeout", hostDeadline.String())

	c := s.cluster("x")
	if c.Spec.Technology != api.TechnologyVLAN {
		t.Errorf("the cluster's network is of technology %q, want %s", c.Spec.Technology, api.TechnologyVLAN)
	}
	on := map[string]string{}
	for _, m := range c.Status.Members {
		on[m.Name] = m.Node
	}
	if on["c-0"] != "h1" || on["w-0"] != "w1" {
		t.Fatalf("the members are on %v, want c-0 on h1 and w-0 on w1", on)
	}
	if tag := s.tag("w1"); tag == "[]" {
		t.Error("the port of the whole machine is in no VLAN")
	}
	if tag, trunks := s.tag("h1"), s.vsctl("get", "port", s.machine("h1").SwitchPort, "trunks"); tag != "[]" || trunks != "[]" {
		t.Errorf("the port of the node, which the settings don't name, has tag %s and trunks %s, want neither", tag, trunks)
	}
	for from, to := range map[string]string{"c-0": "w-0", "w-0": "c-0"} {
		if got := strings.Fields(s.in("x", from, "getent ahostsv4 "+to+" | head -1; ssh "+to+" hostname")); len(got) < 2 || got[0] != s.addressOf("x", to) || got[len(got)-1] != to {
			t.Errorf("%s resolves and logs in to %s: %v; want address %s and %s", from, to, got, s.addressOf("x", to), to)
		}
	}
	if hosts := s.saidByRanks("x", 2, "hostname"); sorted(strings.Join(hosts, " ")) != "c-0 w-0" {
		t.Errorf("two ranks ran on %v, want one on each member", hosts)
	}
	s.wantMessages("x", 2, "c-0", "w-0")
	s.run("cluster", "delete", "x", "--yes")
	s.waitUntil("w1", "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil })
	s.wantInNoNetwork("w1")
	s.run("node", "power", "off", "h1")
	s.waitFor("h1", api.MachineOff, hostDeadline)
}
