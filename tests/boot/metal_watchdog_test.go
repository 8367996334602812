package boot

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// resets is how often a machine's firmware has begun.
func (s *site) resets(name string) int {
	s.t.Helper()
	console, err := os.ReadFile(s.machine(name).ConsoleLog)
	must(s.t, err)
	return bytes.Count(console, []byte("SeaBIOS (version"))
}

// A whole machine whose kernel stands still, and whose BMC answers nobody, is reset by its own watchdog. Its member is lost, and it is cleaned once it can be
// powered off.
func TestAMachineThatHangsResetsItselfWithoutItsBMC(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB, Watchdog: true}})
	s.enrollInspected("b1", api.PowerRedfish)
	s.awaitInspected("b1")
	if said := s.run("node", "show", "b1"); !strings.Contains(said, "i6300ESB") {
		t.Errorf("node show names no watchdog:\n%s", said)
	}
	s.run("cluster", "create", "m1", "--stack", "metal", "--env", "debian-mpi")
	before := s.resets("b1")
	if before == 0 {
		t.Fatal("the console does not say that the firmware began")
	}
	must(t, s.dc.SetBMCFault("b1", vdc.BMCFault{Kind: vdc.FaultSilent}))
	s.until(2*time.Minute, "the watchdog to be open", func() bool {
		out, err := s.try("cluster", "ssh", "m1", "--root", "--", "cat /sys/class/watchdog/watchdog0/state")
		return err == nil && strings.TrimSpace(out) == "active"
	})
	// A kernel that panics and does not reboot stands still.
	s.run("cluster", "ssh", "m1", "--root", "--", "echo 0 >/proc/sys/kernel/panic; (sleep 2; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &")
	began := time.Now()
	s.until(5*time.Minute, "the machine to reset itself", func() bool { return s.resets("b1") > before })
	t.Logf("measured: the machine reset itself %.0f s after it was hung", time.Since(began).Seconds())
	s.until(2*time.Minute, "its member to be lost", func() bool {
		return s.cluster("m1").Status.Members[0].Phase != api.MemberReady
	})
	must(t, s.dc.SetBMCFault("b1", vdc.BMCFault{}))
	s.run("cluster", "delete", "m1", "--yes")
	s.waitUntil("b1", "clean and off", cleanDeadline, func(r api.MachineRecord) bool { return r.Phase == api.MachineOff && r.Tenant == nil && r.Clean != nil })
}
