package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/measure"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// enrollInspected takes a machine in, and has it inspected: only of inspected machines is it known what members can have of them.
func (s *site) enrollInspected(name string, kind api.PowerKind, more ...string) {
	s.t.Helper()
	m := s.machine(name)
	args := append([]string{"node", "enroll", name, "--mac", m.MAC, "--console", m.Console}, s.powerFlags(m, kind)...)
	s.run(append(args, more...)...)
}

// awaitInspected waits until machines are off, and known.
func (s *site) awaitInspected(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.waitUntil(name, "inspected and off", inspectDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.InspectedAt != nil })
	}
}

// wantMessages runs a program of MPI over members, whose ranks send each other messages, by as many ranks as are given: names alone say that ranks were
// started, and not that they reach each other.
func (s *site) wantMessages(cluster string, ranks int, members ...string) {
	s.t.Helper()
	programs, err := measure.BuildPrograms(s.t.Context(), s.t.TempDir())
	must(s.t, err)
	s.run("cp", programs.Hello, cluster+":hello")
	script := ""
	for _, other := range members[1:] {
		script += "scp -q hello " + other + ":hello && "
	}
	said := s.in(cluster, members[0], script+fmt.Sprintf("timeout 300 mpirun -n %d ./hello", ranks))
	for _, member := range members {
		if got := strings.Count(said, fmt.Sprintf(" of %d on %s\n", ranks, member)); got != ranks/len(members) {
			s.t.Errorf("%d ranks of %s sent a message, want %d:\n%s", got, member, ranks/len(members), said)
		}
	}
}

// Two machines that are off become a cluster of whole machines: logins, MPI over both, and everything off and nobody's in the end.
func TestMachinesThatWereOffBecomeAClusterOfWholeMachines(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: memoryMiB},
	})
	s.enrollInspected("b1", api.PowerRedfish)
	s.enrollInspected("u1", api.PowerIPMI)
	s.awaitInspected("b1", "u1")
	began := time.Now()
	s.run("cluster", "create", "m1", "--stack", "metal", "--size", "2", "--env", "debian-mpi")
	t.Logf("measured: a cluster of two machines that were off was ready after %.0f s", time.Since(began).Seconds())
	for _, m := range s.cluster("m1").Status.Members {
		if !slices.Contains([]string{"b1", "u1"}, m.Node) || m.Phase != api.MemberReady {
			t.Errorf("member %s is %s on %s", m.Name, m.Phase, m.Node)
		}
	}
	hosts := s.saidByRanks("m1", 4, "hostname") // a member has all cores of its machine
	slices.Sort(hosts)
	if want := []string{"m1-0", "m1-0", "m1-1", "m1-1"}; !slices.Equal(hosts, want) {
		t.Errorf("four ranks ran on %v, want %v", hosts, want)
	}
	s.wantMessages("m1", 4, "m1-0", "m1-1")
	if kernel := s.run("cluster", "ssh", "m1", "--", "cat /proc/cmdline"); !strings.Contains(kernel, "nearmetal.") {
		t.Errorf("the first member's kernel was started with %q, which is no machine's that booted from here", kernel)
	}
	s.refused("m1", "node", "power", "off", "b1")
	s.run("cluster", "delete", "m1", "--yes")
	for _, name := range []string{"b1", "u1"} {
		n := s.waitFor(name, api.MachineOff, 5*time.Minute)
		if n.Machine.Record.Tenant != nil {
			t.Errorf("machine %s is still of %+v", name, n.Machine.Record.Tenant)
		}
		s.wantPower(name, api.PowerOff)
	}
}

// Two users in turn on one machine: the first, as root, fills its disks and leaves variables in its firmware, and the second finds nothing of it, from inside
// and from outside.
func TestTheSecondUserOfAMachineFindsNothingOfTheFirst(t *testing.T) {
	found := secondUser(t, "nearmetal")
	if found.outside != [2]int{} {
		t.Errorf("%v traces of the first user are on the disks", found.outside)
	}
	if found.disks != 0 || found.variables != 0 {
		t.Errorf("the second user finds %d traces on the disks and %d in the firmware", found.disks, found.variables)
	}
}

// The same search, where the machine says that it was cleaned and was not: it finds all that the first user left.
func TestTheSecondUserOfAMachineThatWasNotCleanedFindsTheFirst(t *testing.T) {
	found := secondUser(t, "nearmetal-uncleaned")
	if found.outside[0] < 1000 || found.outside[1] < 1000 || found.disks < 1000 || found.variables != 1 {
		t.Errorf("the search finds %+v of a machine that was not cleaned: it is no proof", found)
	}
}

// leftovers are the traces of the first user: on each disk from outside, and what the second user finds on all disks and in the firmware's variables.
type leftovers struct {
	outside          [2]int
	disks, variables int
}

// secondUser gives a machine to two users in turn, and looks for what the first one left.
func secondUser(t *testing.T, program string) (found leftovers) {
	t.Helper()
	s := newSiteOf(t, program, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareUEFI, MemoryMiB: memoryMiB, DiskBytes: []int64{96 << 20, 64 << 20}, NVMe: true},
	})
	s.enrollInspected("b1", api.PowerRedfish)
	s.awaitInspected("b1")
	const disks, variables = "/dev/nvme0n1 /dev/vda", "/sys/firmware/efi/efivars"
	const mounted = "{ modprobe efivarfs; mountpoint -q " + variables + " || mount -t efivarfs efivarfs " + variables + "; }"
	s.run("cluster", "create", "first", "--stack", "metal", "--env", "debian-mpi")
	if name := strings.TrimSpace(s.run("cluster", "ssh", "first", "--", "id -un")); name != "hpc" {
		t.Errorf("who does not ask for root is %q", name)
	}
	wrote := s.run("cluster", "ssh", "first", "--root", "--",
		"id -un; for d in "+disks+"; do test -b $d || { echo no $d; ls /sys/block; continue; }; yes '"+secret+"' | dd of=$d bs=1M iflag=fullblock 2>&1; done; sync; "+
			// Attributes come before a variable's content (Linux, Documentation/filesystems/efivarfs.rst): 7 is one that lasts.
			mounted+" && printf '\\007\\000\\000\\000"+secret+"' >"+variables+"/TenantNote-"+tenantGUID)
	t.Logf("the first user wrote: %s", wrote)
	for n := range 2 {
		if left := leftOn(t, s.disk("b1", n)); left < 1000 {
			t.Fatalf("only %d traces of the first user are on disk %d: the search is no proof", left, n)
		}
	}
	s.run("cluster", "delete", "first", "--yes")
	s.waitUntil("b1", "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil })
	for n := range 2 {
		found.outside[n] = leftOn(t, s.disk("b1", n))
	}
	s.run("cluster", "create", "second", "--stack", "metal", "--env", "debian-mpi")
	search := s.run("cluster", "ssh", "second", "--root", "--",
		mounted+" && cat "+disks+" | grep -ac '"+secret+"'; grep -rls '"+secret+"' "+variables+" | wc -l; ls -A /home/hpc /dev/shm /tmp | grep -v :")
	if _, err := fmt.Sscan(search, &found.disks, &found.variables); err != nil {
		t.Fatalf("the second user's search says %q: %v", search, err)
	}
	t.Logf("the second user finds %+v; in its homes and its memory-backed folders: %q", found, strings.Fields(search)[2:])
	if len(strings.Fields(search)) > 2 {
		t.Errorf("the second user finds files: %q", search)
	}
	s.run("cluster", "delete", "second", "--yes")
	return found
}

// A machine loses its power under its member, hangs, or is cut off: another takes its place, with the same name and rank, and the first one is off and cleaned
// before anybody gets it.
func TestAMemberWhoseMachineDiesIsReplacedOnAnother(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "b2", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB},
	})
	s.enrollInspected("b1", api.PowerRedfish)
	s.enrollInspected("b2", api.PowerIPMI)
	s.awaitInspected("b1", "b2")
	s.run("cluster", "create", "m1", "--stack", "metal", "--env", "debian-mpi")
	for _, fault := range []struct {
		name        string
		begin, over func(machine string) error
	}{
		{"its power is cut", s.dc.CutPower, func(string) error { return nil }},
		{"it hangs", func(m string) error { return s.dc.HangFirmware(m, true) }, func(m string) error { return s.dc.HangFirmware(m, false) }},
		{"its NIC is dead", func(m string) error { return s.dc.SetNIC(m, vdc.Provisioning, false) }, func(m string) error { return s.dc.SetNIC(m, vdc.Provisioning, true) }},
	} {
		t.Run(fault.name, func(t *testing.T) {
			s.during(t)
			was, began := s.cluster("m1").Status.Members[0], time.Now()
			other := map[string]string{"b1": "b2", "b2": "b1"}[was.Node]
			must(t, fault.begin(was.Node))
			s.until(time.Minute, "the member to be lost", func() bool {
				return !slices.ContainsFunc(s.cluster("m1").Status.Members, func(m api.MemberStatus) bool { return m.Node == was.Node && m.Phase == api.MemberReady })
			})
			t.Logf("measured: after %.1f s the member was not ready any more", time.Since(began).Seconds())
			s.until(5*time.Minute, "its machine to be powered off", func() bool {
				r := s.record(was.Node)
				return r.Phase == api.MachineOff || r.Phase == api.MachineCleaning
			})
			must(t, fault.over(was.Node)) // what boots now cleans it
			s.until(2*bootDeadline, "the member to be replaced on "+other, func() bool {
				c := s.cluster("m1")
				return c.Status.Phase == api.ClusterReady && slices.ContainsFunc(c.Status.Members, func(m api.MemberStatus) bool {
					return m.Node == other && m.Name == was.Name && m.Rank == was.Rank && m.Phase == api.MemberReady
				})
			})
			t.Logf("measured: after %.0f s the cluster was ready again", time.Since(began).Seconds())
			if host := s.saidByRanks("m1", 1, "hostname"); !slices.Equal(host, []string{was.Name}) {
				t.Errorf("the replacement calls itself %v, want %s", host, was.Name)
			}
			s.waitUntil(was.Node, "clean and off", cleanDeadline, func(r api.MachineRecord) bool {
				return r.Phase == api.MachineOff && r.Tenant == nil && r.Clean != nil
			})
		})
	}
	s.run("cluster", "delete", "m1", "--yes")
}

// A cluster of whole machines grows and shrinks: the machine that it lets go of is cleaned and off, while the others go on. A library layer comes to the
// member that runs, and to the one that comes later, without a boot.
func TestAClusterOfWholeMachinesGrowsAndShrinks(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "b2", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB},
	})
	s.enrollInspected("b1", api.PowerRedfish)
	s.enrollInspected("b2", api.PowerIPMI)
	s.awaitInspected("b1", "b2")
	s.run("cluster", "create", "m1", "--stack", "metal", "--env", "debian-mpi")
	boot := s.run("cluster", "ssh", "m1", "--", "cat "+bootIDPath)
	s.addLayer("m1")
	s.run("cluster", "scale", "m1", "--size", "2")
	s.removeLayer("m1", "m1-0", "m1-1")
	hosts := s.saidByRanks("m1", 4, "hostname")
	slices.Sort(hosts)
	if want := []string{"m1-0", "m1-0", "m1-1", "m1-1"}; !slices.Equal(hosts, want) {
		t.Errorf("four ranks ran on %v, want %v", hosts, want)
	}
	members := s.cluster("m1").Status.Members
	s.run("cluster", "scale", "m1", "--size", "1")
	s.waitUntil(members[1].Node, "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil && r.Clean != nil })
	if again := s.run("cluster", "ssh", "m1", "--", "cat "+bootIDPath); again != boot {
		t.Error("the first member booted again")
	}
	if hosts := s.saidByRanks("m1", 2, "hostname"); !slices.Equal(hosts, []string{"m1-0", "m1-0"}) {
		t.Errorf("two ranks ran on %v", hosts)
	}
	s.run("cluster", "delete", "m1", "--yes")
}

// solver is a program of the layer that addLayer adds.
const solver = "/layers/solver/opt/solver/solve"

// addLayer adds a library layer to a cluster that runs.
func (s *site) addLayer(cluster string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "solver.yaml")
	must(s.t, os.WriteFile(file, []byte(`name: solver
description: debian-mpi with a solver
base: {environment: debian-mpi}
files:
  - {path: /opt/solver/solve, content: "#!/bin/sh\necho solved by $(hostname)\n", mode: "755"}
`), 0o644))
	s.run("env", "build", "--quiet", "-f", file)
	began := time.Now()
	s.run("cluster", "layer", "add", cluster, "solver")
	s.t.Logf("measured: a running machine had the layer after %.1f s", time.Since(began).Seconds())
	if said := strings.TrimSpace(s.run("cluster", "ssh", cluster, "--", solver+"; stat -c %U "+solver)); said != "solved by "+cluster+"-0\nroot" {
		s.t.Errorf("the program of the layer says %q", said)
	}
	if said := s.run("cluster", "ssh", cluster, "--root", "--", "touch /layers/solver/new 2>&1 || true; ls /layers/solver"); !strings.Contains(said, "Read-only file system") {
		s.t.Errorf("a write to the layer: %q", said)
	}
	s.refused("cluster "+cluster, "env", "delete", "solver")
}

// removeLayer removes it again from these members, of whom the first uses it.
func (s *site) removeLayer(cluster string, members ...string) {
	s.t.Helper()
	for _, member := range members {
		if said := strings.TrimSpace(s.run("cluster", "ssh", cluster, member, "--", solver)); said != "solved by "+member {
			s.t.Errorf("the program of the layer says %q in member %s", said, member)
		}
	}
	s.run("cluster", "ssh", cluster, members[0], "--", "cd /layers/solver && { sleep 1000 >/dev/null 2>&1 & echo $! > ~/holder; }")
	s.refused("files of /layers/solver are still open in member "+members[0]+` by "sleep" (PID`, "cluster", "layer", "remove", cluster, "solver", "--timeout", "30s")
	s.run("cluster", "ssh", cluster, members[0], "--", "kill $(cat ~/holder)")
	s.run("cluster", "layer", "remove", cluster, "solver")
	for _, member := range members {
		if said := strings.TrimSpace(s.run("cluster", "ssh", cluster, member, "--root", "--", "test ! -e "+solver+" && ! grep -q layers/solver /proc/mounts && echo gone")); said != "gone" {
			s.t.Errorf("member %s still has the layer: %q", member, said)
		}
	}
	s.run("env", "delete", "solver")
}
