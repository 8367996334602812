package agent_test

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
)

// askReboot requests the reboot of members by their IDs, and returns the name of the boot.
func (s *site) askReboot(name string, hard bool, ids ...string) string {
	s.t.Helper()
	intent, _, err := s.repo.UpdateIntent(s.t.Context(), name, "u"+name, func(in *api.ClusterIntent) error {
		in.Reboot = &api.RebootIntent{AskedAt: time.Now().UTC(), Members: ids, Hard: hard}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return lifecycle.BootOf(&intent, ids[0])
}

func TestARebootedMemberIsTheSameOneAndBootsOnce(t *testing.T) {
	s, n, c := newMachineSite(t)
	before := memberIDs(c)
	id, other := before["c1-0"], before["c1-1"]
	boot := s.askReboot("c1", false, id)
	s.awaitState(id, "ready in its second boot", func(m monitor.MemberState) bool { return m.Boot == boot && m.Phase == api.MemberReady })
	n.restart(2) // the agent finds the boot by looking
	s.awaitState(id, "ready after the restart", func(m monitor.MemberState) bool { return m.Boot == boot && m.Phase == api.MemberReady })
	after := s.await("c1", "ready", func(c *state.Cluster) bool { return c.Record.Phase == api.ClusterReady })
	if now := memberIDs(after); now["c1-0"] != id || now["c1-1"] != other || len(after.Record.Lost) > 0 {
		t.Errorf("after the reboot the members are %v, and were %v; lost: %v", now, before, after.Record.Lost)
	}
	if boots, others := calls(n, "Start "+id), calls(n, "Start "+other); boots != 2 || others != 1 {
		t.Errorf("%s booted %d times and %s %d times, want 2 and 1: %q", id, boots, other, others, n.host.Calls())
	}
	if reboots := calls(n, "Reboot "+id); reboots != 1 {
		t.Errorf("%s was rebooted %d times, want once, and not by the agent that was restarted: %q", id, reboots, n.host.Calls())
	}
	s.ends("c1", n)
}

func TestAHardRebootEndsTheWaitOfAGracefulOne(t *testing.T) {
	s, n, c := newMachineSite(t)
	id := memberIDs(c)["c1-0"]
	n.host.Script(id, fake.Behaviour{Stubborn: true})
	s.askReboot("c1", false, id)
	s.awaitState(id, "waiting for its system to shut down", func(m monitor.MemberState) bool { return m.Message == "rebooting on request" })
	boot := s.askReboot("c1", true, id)
	s.awaitState(id, "ready in the boot of the hard reboot", func(m monitor.MemberState) bool { return m.Boot == boot && m.Phase == api.MemberReady })
	if boots := calls(n, "Start "+id); boots != 2 {
		t.Errorf("%s booted %d times, want 2: its first boot and that of the hard reboot; %q", id, boots, n.host.Calls())
	}
	s.ends("c1", n)
}
