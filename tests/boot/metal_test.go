package boot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
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
