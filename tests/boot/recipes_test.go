package boot

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// The shipped environments that no other test boots: a layer over debian-mpi, and one that carries no clusters.
func TestTheOtherShippedEnvironmentsAreBuiltAndBoot(t *testing.T) {
	s := newSite(t, pair())
	for _, name := range []string{"debian-slurm", "rescue"} {
		s.build(name)
	}
	s.enroll("b1", api.PowerRedfish)
	s.enroll("u1", api.PowerIPMI)
	for _, round := range []map[string]string{{"b1": "debian-slurm", "u1": "rescue"}, {"b1": "rescue", "u1": "debian-slurm"}} {
		for name, environment := range round {
			s.run("node", "power", "on", name, "--env", environment)
		}
		for name, environment := range round {
			n := s.waitFor(name, api.MachineReady, bootDeadline)
			wantWholeBoot(t, n)
			if got := n.Machine.Record.Boot.Environment; got != environment {
				t.Errorf("%s runs %s, want %s", name, got, environment)
			}
			s.wantConsole(name)
		}
		s.run("node", "power", "off", "b1", "u1")
		for name := range round {
			s.waitFor(name, api.MachineOff, 5*time.Minute)
			s.wantPower(name, api.PowerOff)
		}
	}
	s.wantUntouched()
}
