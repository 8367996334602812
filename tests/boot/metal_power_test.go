package boot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// Machines that nobody has wait in their boot agents, and a cluster has them from there, without their firmware. One is cleaned and waits again. What is more
// than the site keeps goes off.
func TestMachinesThatWaitInTheirBootAgentsAreHadFromThere(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: memoryMiB},
	}, "--idle-off", "2h")
	names := []string{"b1", "u1"}
	s.enrollInspected("b1", api.PowerRedfish)
	s.enrollInspected("u1", api.PowerIPMI)
	for _, name := range names {
		s.waitFor(name, api.MachineWarm, inspectDeadline)
		s.wantPower(name, api.PowerOn)
	}
	began := time.Now()
	s.run("cluster", "create", "first", "--stack", "metal", "--size", "2", "--env", "debian-mpi")
	t.Logf("measured: a cluster of two machines that were warm was ready after %.0f s", time.Since(began).Seconds())
	for _, name := range names {
		if r := s.record(name); r.Boot == nil || !r.Boot.Warm || r.Boot.Purpose != api.BootMember || r.Attempt != 1 {
			t.Errorf("machine %s booted %+v at attempt %d, not from its boot agent", name, r.Boot, r.Attempt)
		}
		if ups := s.powerUps(name); ups != 1 {
			t.Errorf("machine %s was powered on %d times, want once: to be inspected", name, ups)
		}
	}
	hosts := s.saidByRanks("first", 4, "hostname")
	slices.Sort(hosts)
	if want := []string{"first-0", "first-0", "first-1", "first-1"}; !slices.Equal(hosts, want) {
		t.Errorf("four ranks ran on %v, want %v", hosts, want)
	}
	s.run("cluster", "delete", "first", "--yes")
	for _, name := range names {
		s.waitUntil(name, "clean and warm", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineWarm && r.Tenant == nil && r.Clean != nil })
		if ups := s.powerUps(name); ups != 2 {
			t.Errorf("machine %s was powered on %d times, want twice: it goes off before it is cleaned", name, ups)
		}
	}

	s.stop()
	s.args = []string{"--idle-off", "5s", "--warm", "1"}
	s.start()
	warm, off := s.awaitOneWarm(names)
	s.wantPower(off, api.PowerOff)
	s.wantPower(warm, api.PowerOn)
	s.run("cluster", "create", "second", "--stack", "metal", "--env", "debian-mpi")
	if on := s.cluster("second").Status.Members[0].Node; on != warm {
		t.Errorf("the second cluster has machine %s, which was off, and not %s, which was warm", on, warm)
	}
	if said := s.run("cluster", "explain", "second"); !strings.Contains(said, warm+" was warm") {
		t.Errorf("explain does not say that the machine was warm:\n%s", said)
	}
	// Too few are warm now: the other machine is woken to be the next one.
	s.waitFor(off, api.MachineWarm, inspectDeadline)
	s.run("cluster", "delete", "second", "--yes")
	s.awaitOneWarm(names)
	for _, name := range names {
		if r := s.record(name); r.Tenant != nil || r.Clean == nil {
			t.Errorf("machine %s is still of %+v, cleaned %+v", name, r.Tenant, r.Clean)
		}
	}
}

// awaitOneWarm waits until one of two machines waits in its boot agent, and the other one is off.
func (s *site) awaitOneWarm(names []string) (warm, off string) {
	s.t.Helper()
	s.until(cleanDeadline, "one machine to go off, and one to stay", func() bool {
		warm, off = "", ""
		for _, name := range names {
			switch s.record(name).Phase {
			case api.MachineWarm:
				warm = name
			case api.MachineOff:
				off = name
			}
		}
		return warm != "" && off != ""
	})
	return warm, off
}
