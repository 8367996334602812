package boot

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// The server is killed when a machine has ended each stage of its boot but the last. It is started again at once, and the boot goes on.
func TestABootOutlivesAServerThatIsKilledAtAnyStage(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: memoryMiB},
	})
	s.enroll("b1", api.PowerRedfish)
	s.enroll("u1", api.PowerIPMI)
	stages := api.BootStages()
	for i, stage := range stages[:len(stages)-1] {
		// Each kind of firmware gets each stage over time; the other machine is wherever it is.
		watched := []string{"b1", "u1"}[i%2]
		t.Run(string(stage), func(t *testing.T) {
			s.during(t)
			t.Logf("%s is watched", watched)
			powered := map[string]int{"b1": s.powerUps("b1"), "u1": s.powerUps("u1")}
			s.run("node", "power", "on", "b1", "u1", "--env", "debian-mpi")
			n := s.waitUntil(watched, string(stage), bootDeadline, func(r api.MachineRecord) bool { return r.Boot != nil && lifecycle.Reached(r.Boot, stage) })
			s.kill()
			t.Logf("killed when its stages were %v", n.Machine.Record.Boot.Stages)
			began := time.Now()
			s.start()
			t.Logf("measured: the server was back after %.1f s", time.Since(began).Seconds())
			for name := range powered {
				after := s.waitFor(name, api.MachineReady, bootDeadline)
				logBoot(t, after)
				// What was heard a moment before the end, such as when a stage ended, may be gone with the server.
				if r := after.Machine.Record; r.Attempt != 1 || !r.Boot.Local || after.Phase != api.NodeReady {
					t.Errorf("%s is %s after attempt %d, its root local: %v: %s", name, after.Phase, r.Attempt, r.Boot.Local, r.Message)
				}
				// What was ordered and not noted when the server ended may be ordered again.
				if ups := s.powerUps(name) - powered[name]; ups > 1 && lifecycle.Reached(n.Machine.Record.Boot, api.StageFirmware) && name == watched {
					t.Errorf("%s was powered on %d times", name, ups)
				}
			}
			s.run("node", "power", "off", "b1", "u1", "--force")
			for name := range powered {
				s.waitFor(name, api.MachineOff, 5*time.Minute)
				s.wantPower(name, api.PowerOff)
			}
		})
	}
	s.wantUntouched()
}
