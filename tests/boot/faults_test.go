package boot

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// pair is a machine of each kind of firmware.
func pair() []vdc.MachineConfig {
	return []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: memoryMiB},
	}
}

// has is a condition on a record: a boot of at least this attempt has ended the stage.
func has(attempt int, stage api.BootStage) func(api.MachineRecord) bool {
	return func(r api.MachineRecord) bool { return r.Attempt >= attempt && lifecycle.Reached(r.Boot, stage) }
}

func TestFaultsOfMachinesAndTheNetworkDelayABootAndNothingElse(t *testing.T) {
	s := newSite(t, pair())
	s.enroll("b1", api.PowerRedfish)
	s.enroll("u1", api.PowerIPMI)
	on := func(names ...string) {
		s.run(append([]string{"node", "power", "on", "--env", "debian-mpi"}, names...)...)
	}
	off := func(names ...string) {
		s.t.Helper()
		s.run(append([]string{"node", "power", "off", "--force"}, names...)...)
		for _, name := range names {
			s.waitFor(name, api.MachineOff, 5*time.Minute)
			s.wantPower(name, api.PowerOff)
		}
	}
	t.Run("power loss amid a boot: a new attempt of a new generation; the other machine does not mind", func(t *testing.T) {
		s.during(t)
		on("b1", "u1")
		first := s.waitUntil("b1", "given its kernel", bootDeadline, has(1, api.StageLoader)).Machine.Record
		must(t, s.dc.CutPower("b1"))
		again := s.waitUntil("b1", "booting again", bootDeadline, has(2, api.StagePower)).Machine.Record
		if again.Attempt != 2 || again.Boot.Generation <= first.Boot.Generation || !strings.Contains(again.Message, "lost power") {
			t.Errorf("attempt %d of generation %d after %d: %s", again.Attempt, again.Boot.Generation, first.Boot.Generation, again.Message)
		}
		wantWholeBoot(t, s.waitFor("b1", api.MachineReady, bootDeadline))
		wantWholeBoot(t, s.waitFor("u1", api.MachineReady, bootDeadline))
		if r := s.record("u1"); r.Attempt != 1 {
			t.Errorf("u1 needed %d attempts: %s", r.Attempt, r.Message)
		}
	})
	t.Run("a ready machine whose kernel panics boots the same again", func(t *testing.T) {
		s.during(t)
		before, ups := s.record("b1").Boot, s.powerUps("b1")
		s.login("b1", func(terminal *terminal) { terminal.say("echo c > /proc/sysrq-trigger\r") })
		n := s.waitUntil("b1", "ready again", bootDeadline, func(r api.MachineRecord) bool {
			return r.Boot.Generation > before.Generation && r.Phase == api.MachineReady
		})
		if r := n.Machine.Record; r.Attempt != 1 || r.Boot.Digest != before.Digest || s.powerUps("b1") != ups {
			t.Errorf("attempt %d with %s after %s, powered on %d times for it", r.Attempt, r.Boot.Digest, before.Digest, s.powerUps("b1")-ups)
		}
	})
	t.Run("power loss of a ready machine is noticed, and it is not switched on by itself", func(t *testing.T) {
		s.during(t)
		must(t, s.dc.CutPower("u1"))
		n := s.waitFor("u1", api.MachineOff, 5*time.Minute)
		if !strings.Contains(n.Machine.Record.Message, "unexpectedly") {
			t.Errorf("its message is %q", n.Machine.Record.Message)
		}
		s.wantPower("u1", api.PowerOff)
		off("b1")
	})
	t.Run("a NIC unplugged while the root is read, and plugged in again", func(t *testing.T) {
		s.during(t)
		on("b1", "u1")
		for _, name := range []string{"b1", "u1"} {
			s.waitUntil(name, "at its root", bootDeadline, has(1, api.StageKernel))
			must(t, s.dc.SetNIC(name, vdc.Provisioning, false))
			t.Logf("%s is unplugged after %v", name, s.record(name).Boot.Stages)
		}
		for _, name := range []string{"b1", "u1"} {
			must(t, s.dc.SetNIC(name, vdc.Provisioning, true))
			n := s.waitFor(name, api.MachineReady, bootDeadline)
			if r := n.Machine.Record; r.Attempt != 1 || !r.Boot.Local {
				t.Errorf("%s is ready after attempt %d, its root local: %v: %s", name, r.Attempt, r.Boot.Local, r.Message)
			}
		}
		off("b1", "u1")
	})
	t.Run("one of ten packets lost each way", func(t *testing.T) {
		s.during(t)
		must(t, s.dc.SetLoss(0.1))
		defer func() { must(t, s.dc.SetLoss(0)) }()
		on("b1", "u1")
		for _, name := range []string{"b1", "u1"} {
			n := s.waitFor(name, api.MachineReady, 2*bootDeadline)
			if r := n.Machine.Record; r.Attempt > 1 {
				t.Errorf("%s needed %d attempts: %s", name, r.Attempt, r.Message)
			}
			wantWholeBoot(t, n)
		}
		must(t, s.dc.SetLoss(0))
		off("b1", "u1")
	})
	s.wantUntouched()
}

// A machine that never comes is tried twice, and then somebody is told.
func TestHungFirmwareIsTriedOnceMoreAndThenTold(t *testing.T) {
	s := newSite(t, pair()[:1], "--boot-deadline", "30s")
	s.enroll("b1", api.PowerRedfish)
	must(t, s.dc.HangFirmware("b1", true))
	s.wantGivenUp("b1")
	must(t, s.dc.HangFirmware("b1", false))
	s.wantMended("b1")
}

func TestADeadNICIsTriedOnceMoreAndThenTold(t *testing.T) {
	s := newSite(t, pair()[1:], "--boot-deadline", "30s")
	s.enroll("u1", api.PowerIPMI)
	must(t, s.dc.SetNIC("u1", vdc.Provisioning, false))
	s.wantGivenUp("u1")
	must(t, s.dc.SetNIC("u1", vdc.Provisioning, true))
	s.wantMended("u1")
}

// wantGivenUp powers a machine on that can't be heard of, of a site whose boots may take 30 s.
func (s *site) wantGivenUp(name string) {
	s.t.Helper()
	s.run("node", "power", "on", name, "--env", "debian-mpi")
	first := s.waitUntil(name, "on", time.Minute, has(1, api.StagePower)).Machine.Record
	second := s.waitUntil(name, "tried again", 3*time.Minute, has(2, api.StagePower)).Machine.Record
	if second.Boot.Generation <= first.Boot.Generation || s.powerUps(name) != 2 {
		s.t.Errorf("generation %d after %d, powered on %d times", second.Boot.Generation, first.Boot.Generation, s.powerUps(name))
	}
	n := s.waitFor(name, api.MachineFailed, 3*time.Minute)
	if r := n.Machine.Record; r.Attempt != 2 || !strings.Contains(r.Message, "30s") || !strings.Contains(r.Message, "console") {
		s.t.Errorf("after attempt %d: %s", r.Attempt, r.Message)
	}
	s.t.Log(n.Machine.Record.Message)
}

// wantMended boots such a machine once it can be heard of: with the site's usual deadline.
func (s *site) wantMended(name string) {
	s.t.Helper()
	s.stop()
	s.args = nil
	s.start()
	s.run("node", "power", "on", name, "--env", "debian-mpi")
	wantWholeBoot(s.t, s.waitForMended(name, bootDeadline))
	s.run("node", "power", "off", name)
	s.waitFor(name, api.MachineOff, 5*time.Minute)
	s.wantUntouched()
}

// waitForMended waits until a machine that had failed is ready.
func (s *site) waitForMended(name string, limit time.Duration) api.Node {
	s.t.Helper()
	s.until(time.Minute, name+" to be taken up", func() bool { return s.record(name).Phase != api.MachineFailed })
	return s.waitFor(name, api.MachineReady, limit)
}
