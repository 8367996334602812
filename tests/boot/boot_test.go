package boot

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// The tour of the README, on machines that were off: one with BIOS and Redfish, one with UEFI and IPMI. This is the quick part that "make
// test" runs.
func TestMachinesThatWereOffBecomeNodesThatCarryAClusterAndGoOffAgain(t *testing.T) {
	needTestbed(t)
	nothingLeft(t)
	s := prepare(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: memoryMiB},
	}, twoNodes)
	s.connect()
	s.start()
	s.awaitNode("n2")
	s.build("debian-mpi")
	s.wantMixedCluster()
	s.wantVirtualCluster() // while the machines are off: nothing beside it is emulated
	s.enroll("b1", api.PowerRedfish)
	s.enroll("u1", api.PowerIPMI)
	s.run("node", "power", "on", "b1", "u1", "--env", "debian-mpi")
	for _, name := range []string{"b1", "u1"} {
		wantWholeBoot(t, s.waitFor(name, api.MachineReady, bootDeadline))
	}
	// The nodes beside the server would do as well.
	s.run("node", "drain", "n1", "n2")
	s.run("cluster", "create", "c1", "--size", "2", "--cores", "2", "--memory", "512MiB", "--env", "debian-mpi")
	hosts := s.saidByRanks("c1", 4, "hostname")
	slices.Sort(hosts)
	if want := []string{"c1-0", "c1-0", "c1-1", "c1-1"}; !slices.Equal(hosts, want) {
		t.Errorf("four ranks ran on %v, want %v", hosts, want)
	}
	s.refused("c1", "node", "power", "off", "b1")
	s.run("cluster", "delete", "c1", "--yes")
	s.wantConsole("b1")
	s.run("node", "power", "off", "b1", "u1")
	for _, name := range []string{"b1", "u1"} {
		s.waitFor(name, api.MachineOff, 5*time.Minute)
		s.wantPower(name, api.PowerOff)
	}
	s.wantUntouched()
}

// wantConsole logs in on a machine's serial console, and out again.
func (s *site) wantConsole(name string) {
	s.t.Helper()
	s.login(name, func(terminal *terminal) {
		terminal.say("echo $(hostname) here-$((40+2))\r")
		terminal.expect(name + " here-42")
		terminal.expect("#")
		terminal.say("exit\r")
		terminal.expect("login:")
	})
}

// login logs in on a machine's serial console with the password of its present boot, does something there, and leaves.
func (s *site) login(name string, do func(*terminal)) {
	s.t.Helper()
	login := strings.Fields(s.run("node", "console", name, "--password"))
	terminal := openTerminal(s.t, s.command("node", "console", name))
	terminal.expect("connected to the console of " + name)
	terminal.say("\r")
	terminal.expect("login:")
	terminal.say("root\r")
	terminal.expect("assword:")
	terminal.say(login[len(login)-1] + "\r")
	terminal.expect("#")
	do(terminal)
	terminal.say("\r~.")
	terminal.expect("left the console of " + name)
	terminal.ended()
}

// wantWholeBoot looks at what is told of a boot.
func wantWholeBoot(t *testing.T, n api.Node) {
	t.Helper()
	b := n.Machine.Record.Boot
	if n.Phase != api.NodeReady || !b.Local || b.RedeemedAt == nil {
		t.Errorf("node %s is %s, its root local: %v, its token exchanged: %v", n.Name, n.Phase, b.Local, b.RedeemedAt)
	}
	if len(b.Stages) != len(api.BootStages()) {
		t.Errorf("node %s has ended %d stages: %v", n.Name, len(b.Stages), b.Stages)
	}
	last := b.DecidedAt
	for i, stage := range b.Stages {
		if i < len(api.BootStages()) && stage.Stage != api.BootStages()[i] || stage.At.Before(last) {
			t.Errorf("node %s: stage %d is %q, which ended %s after the one before", n.Name, i, stage.Stage, stage.At.Sub(last))
		}
		last = stage.At
	}
	if b.ReadyBytes <= 0 || b.ReadyBytes >= b.RootBytes {
		t.Errorf("node %s had read %d of %d bytes of its root when its agent called", n.Name, b.ReadyBytes, b.RootBytes)
	}
	logBoot(t, n)
}

// logBoot logs how long a boot took.
func logBoot(t *testing.T, n api.Node) {
	t.Helper()
	b := n.Machine.Record.Boot
	last, took := b.DecidedAt, make([]string, 0, len(b.Stages))
	for _, stage := range b.Stages {
		took = append(took, string(stage.Stage)+" "+stage.At.Sub(last).Round(100*time.Millisecond).String())
		last = stage.At
	}
	t.Logf("measured: %s (%s, %s) was ready after %.1f s: %s", n.Name, n.Machine.Record.Firmware, n.Machine.Spec.Power.Kind,
		last.Sub(b.DecidedAt).Seconds(), strings.Join(took, ", "))
}
