package boot

import (
	"slices"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// A machine that was off boots as a host of virtual machines. QEMU emulates AMD's virtualization, so KVM runs on the machine, and its node agent must
// find KVM the only time that it looks.
func TestAMachineThatWasOffBecomesAHostOfVirtualMachinesWithKVM(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{{Name: "h1", Firmware: api.FirmwareBIOS, MemoryMiB: 2048}})
	s.build("debian-vm")
	s.enroll("h1", api.PowerRedfish)
	s.run("node", "power", "on", "h1", "--env", "debian-vm")
	n := s.waitFor("h1", api.MachineReady, bootDeadline)
	wantWholeBoot(t, n)
	i := slices.IndexFunc(n.Offer.Stacks, func(c api.StackCheck) bool { return c.Stack == api.StackVM })
	if i < 0 || !n.Offer.Stacks[i].OK || len(n.Offer.Stacks[i].Warnings) > 0 {
		t.Errorf("host h1 offers the stacks %+v; want vm among them, without a warning", n.Offer.Stacks)
	}
	if got := n.Labels["vm-processors"]; got != "kvm" {
		t.Errorf("the processors of virtual machines on host h1 are %q, want kvm", got)
	}
	s.run("node", "power", "off", "h1")
	s.waitFor("h1", api.MachineOff, bootDeadline)
	s.wantPower("h1", api.PowerOff)
	s.wantUntouched()
}
