package boot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// inspectDeadline is how long a machine may take from its power button to a report of its hardware here.
const inspectDeadline = bootDeadline

func TestStrangersAreLookedAtAndTakenInAndAreStrangersAgainOnceRemoved(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: 1024, Serial: "SN-0815"}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: memoryMiB},
	})
	stranger := s.machine("b1")

	t.Log("a stranger boots: it becomes a candidate with hardware, and nothing else")
	must(t, s.dc.PressPower("b1"))
	c := s.candidate(stranger.MAC, func(c api.Candidate) bool { return c.Hardware != nil })
	if c.Hardware.Serial != "SN-0815" || c.Hardware.Firmware != api.FirmwareBIOS || c.Hardware.CPU.Threads != 2 || len(c.Hardware.Disks) != 1 ||
		c.Hardware.MemoryBytes < 900<<20 || !strings.EqualFold(c.Hardware.UUID, stranger.UUID) || len(c.Hardware.NICs) != 2 {
		t.Errorf("the candidate's hardware is %+v", c.Hardware)
	}
	if nodes := read[[]api.Node](s, "node", "list"); len(nodes) != 1 {
		t.Errorf("with a stranger there are %d nodes, want the builder alone", len(nodes))
	}
	if said := s.printed("b1"); strings.Contains(said, "login:") {
		t.Errorf("a stranger offers a login:\n%s", s.console("b1"))
	}

	t.Log("it is taken in by its MAC, inspected, and goes off")
	s.run(append([]string{"node", "enroll", "s1", "--candidate", stranger.MAC, "--console", stranger.Console}, s.powerFlags(stranger, api.PowerRedfish)...)...)
	n := s.waitUntil("s1", "inspected and off", inspectDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.InspectedAt != nil })
	s.wantInspected(n, "SN-0815")
	s.wantPower("b1", api.PowerOff)
	if left := read[[]api.Candidate](s, "node", "candidates"); len(left) != 0 {
		t.Errorf("candidates are left: %+v", left)
	}

	t.Log("somebody presses the button of a machine that is not meant to boot: it gets an address and a clean end")
	must(t, s.dc.PressPower("b1"))
	s.prints("b1", "Nearmetal: s1: ")
	if said := s.lastBoot("b1"); strings.Contains(said, "boots for") {
		t.Errorf("it boots something:\n%s", tail(said, 30))
	}
	must(t, s.dc.CutPower("b1"))

	t.Log("it boots an environment, is freed, and does not boot that once more")
	s.run("node", "power", "on", "s1", "--env", "debian-mpi")
	s.waitFor("s1", api.MachineReady, bootDeadline)
	s.run("node", "power", "off", "s1")
	s.waitFor("s1", api.MachineOff, 5*time.Minute)
	must(t, s.dc.PressPower("b1"))
	s.prints("b1", "Nearmetal: s1: ")
	if said := s.lastBoot("b1"); strings.Contains(said, "boots for") {
		t.Errorf("it boots something:\n%s", tail(said, 30))
	}

	t.Log("removed, it goes off and is a stranger again: it boots into enrolment")
	s.run("node", "remove", "s1", "--wait")
	s.until(time.Minute, "its power to be off", func() bool { state, err := s.dc.Power("b1"); return err == nil && state == api.PowerOff })
	s.refused("s1", "node", "show", "s1")
	must(t, s.dc.PressPower("b1"))
	s.candidate(stranger.MAC, func(c api.Candidate) bool { return c.Hardware != nil })
	if said := s.lastBoot("b1"); strings.Contains(said, "login:") || !strings.Contains(said, "boots for: enroll") {
		t.Errorf("the removed machine boots:\n%s", tail(said, 40))
	}
	must(t, s.dc.CutPower("b1"))

	t.Log("enrolled by hand, a machine is woken and inspected")
	m := s.machine("u1")
	s.run(append([]string{"node", "enroll", "u1", "--mac", m.MAC}, s.powerFlags(m, api.PowerIPMI)...)...)
	n = s.waitUntil("u1", "inspected and off", inspectDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.InspectedAt != nil })
	s.wantInspected(n, "NM-u1")
	s.wantPower("u1", api.PowerOff)
	s.refused("u1", append([]string{"node", "enroll", "other", "--mac", m.MAC}, s.powerFlags(m, api.PowerIPMI)...)...)
	s.wantUntouched()
}

func TestAMachineThatCarriesAnEnrolmentTokenEnrolsByItself(t *testing.T) {
	machines := []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: 1024}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: 1024},
	}
	s := newSite(t, machines)
	token := read[api.EnrollmentToken](s, "node", "enroll-token", "create", "--prefix", "rack-", "--uses", "1", "--power", "wol")
	for _, m := range machines {
		must(t, s.dc.SetOEMStrings(m.Name, []string{"asset 4711", "nearmetal-enroll:" + token.Secret}))
	}

	t.Log("one of two machines with a token for one enrols, and is inspected")
	must(t, s.dc.PressPower("b1"))
	s.until(inspectDeadline, "the machine to enrol", func() bool { _, err := s.try("node", "show", "rack-1"); return err == nil })
	n := s.waitUntil("rack-1", "inspected and off", inspectDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.InspectedAt != nil })
	s.wantInspected(n, "NM-b1")
	s.until(time.Minute, "its power to be off", func() bool { state, err := s.dc.Power("b1"); return err == nil && state == api.PowerOff })

	t.Log("the other one stays a candidate, which tells why")
	must(t, s.dc.PressPower("u1"))
	c := s.candidate(s.machine("u1").MAC, func(c api.Candidate) bool { return c.Problem != "" })
	if c.Hardware == nil || !strings.Contains(c.Problem, "token") {
		t.Errorf("the second machine with a token for one: %q, %v", c.Problem, c.Hardware)
	}
	if said := s.printed("u1") + s.printed("b1") + s.said(); strings.Contains(said, token.Secret) {
		t.Error("the token's secret is printed somewhere")
	}
}

// candidate waits for a stranger.
func (s *site) candidate(mac string, is func(api.Candidate) bool) (found api.Candidate) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			for _, m := range s.dc.Machines() {
				s.t.Logf("the console of %s:\n%s", m.Name, s.console(m.Name))
			}
		}
	}()
	s.until(inspectDeadline, "candidate "+mac, func() bool {
		for _, found = range read[[]api.Candidate](s, "node", "candidates") {
			if found.MAC == mac && is(found) {
				return true
			}
		}
		return false
	})
	return found
}

// wantInspected checks what is told of a machine's hardware and health.
func (s *site) wantInspected(n api.Node, serial string) {
	s.t.Helper()
	h := n.Machine.Hardware
	if h == nil || h.Serial != serial || len(h.NICs) != 2 || len(h.Disks) != 1 || h.CPU.Threads != 2 {
		s.t.Fatalf("the hardware of %s is %+v, want that of serial number %s", n.Name, h, serial)
	}
	if i := slices.IndexFunc(h.NICs, func(nic api.NIC) bool { return nic.Role == "provisioning" }); i < 0 || h.NICs[i].MAC != n.Machine.Spec.MACs[0] {
		s.t.Errorf("no NIC of %s is for provisioning: %+v", n.Name, h.NICs)
	}
	if len(n.Machine.Record.Health) == 0 {
		s.t.Errorf("no health check of %s is told", n.Name)
	}
	for _, check := range n.Machine.Record.Health {
		if !check.OK {
			s.t.Logf("health check %s of %s: %s", check.Check, n.Name, check.Message)
		}
	}
	if text := s.run("node", "show", n.Name); !strings.Contains(text, serial) {
		s.t.Errorf("node show does not tell the serial number:\n%s", text)
	}
}

// prints waits until a machine's console prints this in its present boot.
func (s *site) prints(name, what string) {
	s.t.Helper()
	s.until(5*time.Minute, name+" to print "+what, func() bool { return strings.Contains(s.lastBoot(name), what) })
}

// lastBoot is what a machine's console printed since its firmware began last.
func (s *site) lastBoot(name string) string {
	said := s.printed(name)
	begin := strings.LastIndex(said, "iPXE 1.")
	if bios := strings.LastIndex(said, "SeaBIOS (version"); bios >= 0 {
		begin = bios
	}
	return said[max(0, begin):]
}
