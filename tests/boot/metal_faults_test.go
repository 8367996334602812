package boot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// twoMachines brings up a site with two inspected machines, one with a BMC of each kind.
func twoMachines(t *testing.T) *site {
	t.Helper()
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "b2", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB},
	})
	s.enrollInspected("b1", api.PowerRedfish)
	s.enrollInspected("b2", api.PowerIPMI)
	s.awaitInspected("b1", "b2")
	return s
}

// other is the machine of the two that the first is not.
func other(machine string) string { return map[string]string{"b1": "b2", "b2": "b1"}[machine] }

// member is the only member of a cluster of one; false while it has none.
func (s *site) member(cluster string) (m api.MemberStatus, ok bool) {
	s.t.Helper()
	for _, m := range s.cluster(cluster).Status.Members {
		if m.Node != "" && m.Phase != api.MemberReleasing && m.Phase != api.MemberLost {
			return m, true
		}
	}
	return m, false
}

// isReadyOn reports whether a cluster of one is ready on a machine.
func (s *site) isReadyOn(cluster, machine string) bool {
	c := s.cluster(cluster)
	return c.Status.Phase == api.ClusterReady && slices.ContainsFunc(c.Status.Members, func(m api.MemberStatus) bool {
		return m.Node == machine && m.Phase == api.MemberReady
	})
}

// The firmware of a member's machine hangs: it is tried once more, and then another machine gets the member.
func TestAMemberWhoseMachineDoesNotBootGetsAnotherOne(t *testing.T) {
	s := twoMachines(t)
	s.stop()
	s.args = []string{"--boot-deadline", "2m"} // an emulated machine has booted by then
	s.start()
	for _, name := range []string{"b1", "b2"} {
		must(t, s.dc.HangFirmware(name, true))
	}
	before := map[string]int{"b1": s.powerUps("b1"), "b2": s.powerUps("b2")}
	s.run("cluster", "create", "m1", "--stack", "metal", "--env", "debian-mpi", "--no-wait")
	var was api.MemberStatus
	s.until(time.Minute, "the member to have a machine", func() bool {
		m, ok := s.member("m1")
		was = m
		return ok
	})
	must(t, s.dc.HangFirmware(other(was.Node), false))
	s.waitUntil(was.Node, "tried once more", 5*time.Minute, has(2, api.StagePower))
	if m, _ := s.member("m1"); m.Node != was.Node || !strings.Contains(m.Message, "attempt 2 of 2") {
		t.Errorf("at the second attempt its user is shown %s on %s: %s", m.Phase, m.Node, m.Message)
	}
	s.until(10*time.Minute, "the member to be ready on "+other(was.Node), func() bool { return s.isReadyOn("m1", other(was.Node)) })
	if m, _ := s.member("m1"); m.Name != was.Name || m.Rank != was.Rank {
		t.Errorf("the replacement is %s of rank %d, want %s of rank %d", m.Name, m.Rank, was.Name, was.Rank)
	}
	if ups := s.powerUps(was.Node) - before[was.Node]; ups < 2 {
		t.Errorf("the machine whose firmware hangs was powered on %d times, want twice for the member", ups)
	}
	// It is nobody's only after a cleaning, which it boots for once it can.
	must(t, s.dc.HangFirmware(was.Node, false))
	s.run("cluster", "delete", "m1", "--yes")
}

// The BMC of a member's machine is away while the machine dies. The member is replaced at once, the machine waits for its BMC, and people are told why. It
// is off and cleaned once the BMC is back.
func TestAMemberIsReplacedWhileTheBMCOfItsDeadMachineIsAway(t *testing.T) {
	s := twoMachines(t)
	s.run("cluster", "create", "m1", "--stack", "metal", "--env", "debian-mpi")
	was, _ := s.member("m1")
	must(t, s.dc.SetBMCFault(was.Node, vdc.BMCFault{Kind: vdc.FaultSilent}))
	must(t, s.dc.HangFirmware(was.Node, true))
	s.waitUntil(was.Node, "told that its BMC does not answer", 3*time.Minute, func(r api.MachineRecord) bool {
		return r.Phase == api.MachineStopping && strings.Contains(r.PowerMessage, "does not answer")
	})
	t.Log(s.record(was.Node).PowerMessage)
	s.wantPower(was.Node, api.PowerOn)
	s.until(2*bootDeadline, "the member to be ready on "+other(was.Node), func() bool { return s.isReadyOn("m1", other(was.Node)) })
	if host := s.saidByRanks("m1", 1, "hostname"); !slices.Equal(host, []string{was.Name}) {
		t.Errorf("the replacement calls itself %v, want %s", host, was.Name)
	}
	r := s.record(was.Node)
	if r.Tenant == nil || r.Phase == api.MachineOff {
		t.Errorf("while its power can't be cut, the machine is %s and of %+v", r.Phase, r.Tenant)
	}
	t.Logf("measured: when the cluster is ready again the machine that nobody can cut off is %s: %s", r.Phase, r.Message)
	must(t, s.dc.SetBMCFault(was.Node, vdc.BMCFault{}))
	must(t, s.dc.HangFirmware(was.Node, false))
	if r.Phase == api.MachineFailed { // it was given up meanwhile, and waits for people
		s.run("node", "clean", was.Node, "--yes")
	}
	s.waitUntil(was.Node, "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil && r.Clean != nil })
	s.run("cluster", "delete", "m1", "--yes")
}

// Users of Slurm find their commands on whole machines, too.
func TestWholeMachinesRunJobsOfSlurm(t *testing.T) {
	s := twoMachines(t)
	s.build("debian-slurm")
	s.run("cluster", "create", "s", "--stack", "metal", "--size", "2", "--env", "debian-slurm")
	if got := sorted(s.in("s", "s-0", "srun -N2 hostname")); got != "s-0 s-1" {
		t.Errorf("srun -N2 hostname printed %q, want both names", got)
	}
	id := strings.TrimSpace(s.in("s", "s-0", "sbatch --parsable -N2 -o batch.out --wrap 'srun hostname'"))
	s.until(slurmDeadline, "job "+id+" to end", func() bool {
		out, _ := s.try("cluster", "ssh", "s", "s-0", "--", "squeue", "--noheader", "--states=all", "--format=%T", "--jobs="+id)
		return strings.TrimSpace(out) == "COMPLETED"
	})
	// Each machine has a home of its own: the output is where the batch script ran.
	if got := sorted(s.in("s", "s-0", "cat batch.out")); got != "s-0 s-1" {
		t.Errorf("the batch job printed %q, want both names", got)
	}
	t.Logf("sinfo says:\n%s", s.in("s", "s-0", "sinfo --noheader --Node --format '%N %P %t %c %m'"))
	s.run("cluster", "delete", "s", "--yes")
}
