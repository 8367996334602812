package boot

import (
	"bufio"
	"net"
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
	s := newSite(t, "tour", []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: 1536}, {Name: "u1", Firmware: api.FirmwareUEFI, MemoryMiB: 1536},
	})
	s.build("debian-mpi")
	s.enroll("b1", api.PowerRedfish)
	s.enroll("u1", api.PowerIPMI)
	s.run("node", "power", "on", "b1", "u1", "--env", "debian-mpi")
	for _, name := range []string{"b1", "u1"} {
		n := s.waitFor(name, api.MachineReady, bootDeadline)
		wantWholeBoot(t, n)
	}
	// The builder node would do as well.
	s.run("node", "drain", "n1")
	s.run("cluster", "create", "c1", "--size", "2", "--cores", "2", "--memory", "512MiB", "--env", "debian-mpi")
	hosts := strings.Fields(s.run("run", "c1", "-n", "4", "--", "hostname"))
	slices.Sort(hosts)
	if want := []string{"c1-0", "c1-0", "c1-1", "c1-1"}; !slices.Equal(hosts, want) {
		t.Errorf("four ranks ran on %v, want %v", hosts, want)
	}
	if _, err := s.try("node", "power", "off", "b1"); err == nil || !strings.Contains(err.Error(), "c1") {
		t.Errorf("power off of a machine in use: %v; want it refused, naming the cluster", err)
	}
	s.run("cluster", "delete", "c1")
	s.consoleLogin("b1")
	s.run("node", "power", "off", "b1", "u1")
	for _, name := range []string{"b1", "u1"} {
		s.waitFor(name, api.MachineOff, 2*time.Minute)
		if state, err := s.dc.Power(name); err != nil || state != api.PowerOff {
			t.Errorf("machine %s says it is off, its hypervisor says %q, %v", name, state, err)
		}
	}
}

// consoleLogin logs in on a machine's serial console with the password of its present boot.
func (s *site) consoleLogin(name string) {
	s.t.Helper()
	login := strings.Fields(s.run("node", "console", name, "--password"))
	password := login[len(login)-1]
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.machine(name).Console, "tcp://"))
	must(s.t, err)
	defer conn.Close()
	must(s.t, conn.SetDeadline(time.Now().Add(time.Minute)))
	reader := bufio.NewReader(conn)
	say := func(text string) {
		_, err := conn.Write([]byte(text + "\r"))
		must(s.t, err)
	}
	expect := func(what string) {
		s.t.Helper()
		var seen strings.Builder
		for !strings.Contains(seen.String(), what) {
			b, err := reader.ReadByte()
			if err != nil {
				s.t.Fatalf("waiting for %q on the console: %v; it said %q", what, err, seen.String())
			}
			seen.WriteByte(b)
		}
	}
	say("")
	expect("login:")
	say("root")
	expect("assword:")
	say(password)
	expect("#")
	say("echo here-$((40+2))")
	expect("here-42")
	say("exit")
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
		if stage.Stage != api.BootStages()[i] || stage.At.Before(last) {
			t.Errorf("node %s: stage %d is %q, which ended %s after the one before", n.Name, i, stage.Stage, stage.At.Sub(last))
		}
		last = stage.At
	}
	if b.ReadyBytes <= 0 || b.ReadyBytes >= b.RootBytes {
		t.Errorf("node %s had read %d of %d bytes of its root when its agent called", n.Name, b.ReadyBytes, b.RootBytes)
	}
}
