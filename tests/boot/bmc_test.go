package boot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// What a BMC says may be late, wrong or nothing. Whatever it is: "unknown" is never taken for off, a machine that may be on is not given
// to anybody else, and people are told what is wrong.
func TestFaultsOfBMCs(t *testing.T) {
	s := newSite(t, pair())
	names := []string{"b1", "u1"}
	s.enroll("b1", api.PowerRedfish)
	s.enroll("u1", api.PowerIPMI)
	// What slow ones take for each request, of which an order needs six to ten. IPMI clients repeat what is not answered in a second or two.
	slow := map[string]time.Duration{"b1": 2 * time.Second, "u1": 700 * time.Millisecond}
	fault := func(kind vdc.FaultKind) {
		t.Helper()
		for _, name := range names {
			must(t, s.dc.SetBMCFault(name, vdc.BMCFault{Kind: kind, Delay: slow[name]}))
		}
	}
	// told waits until people are told of a problem, in one of these words: Redfish and IPMI know different things.
	told := func(words ...string) {
		s.t.Helper()
		for _, name := range names {
			s.waitUntil(name, "told of "+words[0], 3*time.Minute, func(r api.MachineRecord) bool {
				return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(r.PowerMessage, w) })
			})
			s.t.Logf("%s: %s", name, s.record(name).PowerMessage)
		}
	}
	stays := func(phase api.MachinePhase, power api.PowerState) {
		s.t.Helper()
		for _, name := range names {
			if r := s.record(name); r.Phase != phase {
				s.t.Errorf("%s is %s, not %s: %s", name, r.Phase, phase, r.Message)
			}
			s.wantPower(name, power)
		}
	}
	on := func() { s.run("node", "power", "on", "b1", "u1", "--env", "debian-mpi") }
	off := func() { s.run("node", "power", "off", "b1", "u1") }
	becomes := func(phase api.MachinePhase) {
		s.t.Helper()
		for _, name := range names {
			s.waitFor(name, phase, bootDeadline)
		}
	}
	t.Run("silent and full of garbage when they are to be woken: told, and woken once that ends", func(t *testing.T) {
		s.during(t)
		fault(vdc.FaultSilent)
		on()
		told("does not answer")
		fault(vdc.FaultGarbage)
		s.waitUntil("b1", "told of garbage", 3*time.Minute, func(r api.MachineRecord) bool { return strings.Contains(r.PowerMessage, "is not Redfish") })
		t.Log(s.record("b1").PowerMessage, s.record("u1").PowerMessage)
		stays(api.MachineBooting, api.PowerOff)
		fault(vdc.FaultUnknown)
		told("neither on nor off", "completion code FFh")
		stays(api.MachineBooting, api.PowerOff)
		fault(vdc.FaultNone)
		becomes(api.MachineReady)
		for _, name := range names {
			if ups, r := s.powerUps(name), s.record(name); ups != 1 || r.Attempt != 1 {
				t.Errorf("%s was powered on %d times in %d attempts", name, ups, r.Attempt)
			}
		}
	})
	t.Run("they say off while the machines run: these stay what they are", func(t *testing.T) {
		s.during(t)
		fault(vdc.FaultSaysOff)
		for _, name := range names {
			s.waitUntil(name, "said to be off", 3*time.Minute, func(r api.MachineRecord) bool { return r.Power == api.PowerOff })
		}
		stays(api.MachineReady, api.PowerOn)
		fault(vdc.FaultNone)
		for _, name := range names {
			s.waitUntil(name, "said to be on", 3*time.Minute, func(r api.MachineRecord) bool { return r.Power == api.PowerOn })
		}
	})
	t.Run("they can't tell, or say on, when the machines have gone off: off is believed once it is read", func(t *testing.T) {
		s.during(t)
		fault(vdc.FaultUnknown)
		told("neither on nor off", "completion code FFh")
		off()
		for _, name := range names {
			s.until(3*time.Minute, name+" to go off", func() bool { state, err := s.dc.Power(name); return err == nil && state == api.PowerOff })
		}
		stays(api.MachineStopping, api.PowerOff)
		fault(vdc.FaultSaysOn)
		for _, name := range names {
			s.waitUntil(name, "said to be on", 3*time.Minute, func(r api.MachineRecord) bool { return r.Power == api.PowerOn })
		}
		stays(api.MachineStopping, api.PowerOff)
		fault(vdc.FaultNone)
		becomes(api.MachineOff)
	})
	t.Run("slow ones do", func(t *testing.T) {
		s.during(t)
		fault(vdc.FaultSlow)
		on()
		becomes(api.MachineReady)
		off()
		becomes(api.MachineOff)
		fault(vdc.FaultNone)
	})
	t.Run("with eight sessions they do, and none stays open", func(t *testing.T) {
		s.during(t)
		fault(vdc.FaultSessions)
		for range 3 {
			on()
			for _, name := range names {
				s.waitUntil(name, "on", 3*time.Minute, has(1, api.StagePower))
			}
			s.run("node", "power", "off", "b1", "u1", "--force")
			becomes(api.MachineOff)
		}
		s.wantUntouched()
		fault(vdc.FaultNone)
	})
	t.Run("they say off although the machines boot: those are believed and not the BMCs, and are not started twice", func(t *testing.T) {
		s.during(t)
		before := map[string]int{"b1": s.powerUps("b1"), "u1": s.powerUps("u1")}
		fault(vdc.FaultSaysOff)
		on()
		becomes(api.MachineReady)
		for _, name := range names {
			if r, ups := s.record(name), s.powerUps(name)-before[name]; ups != 1 || r.Attempt != 1 || r.Power != api.PowerOff {
				t.Errorf("%s was powered on %d times in %d attempts, its power is read as %s: %s", name, ups, r.Attempt, r.Power, r.Message)
			}
		}
		fault(vdc.FaultNone)
		s.run("node", "power", "off", "b1", "u1", "--force")
		for _, name := range names {
			s.until(5*time.Minute, name+" to be off", func() bool {
				state, err := s.dc.Power(name)
				return err == nil && state == api.PowerOff && s.record(name).Phase == api.MachineOff
			})
		}
	})
	t.Run("refused credentials end it at once, and are told", func(t *testing.T) {
		s.during(t)
		fault(vdc.FaultRefuse)
		on()
		for _, name := range names {
			s.waitFor(name, api.MachineFailed, 3*time.Minute)
			r := s.record(name)
			if !strings.Contains(r.Message, "password") {
				t.Errorf("%s: %s", name, r.Message)
			}
			t.Logf("%s: %s", name, r.Message)
			s.wantPower(name, api.PowerOff)
		}
		fault(vdc.FaultNone)
		on()
		for _, name := range names {
			s.waitForMended(name, bootDeadline)
		}
		s.run("node", "power", "off", "b1", "u1", "--force")
		becomes(api.MachineOff)
	})
	s.wantUntouched()
}
