package controller

import (
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/machine/netboot"
	"github.com/nearmetal/nearmetal/internal/machine/power"
	"github.com/nearmetal/nearmetal/internal/machine/provisioner"
	"github.com/nearmetal/nearmetal/internal/machine/sensors"
	"github.com/nearmetal/nearmetal/internal/state"
)

// tellMachines hands network boot and the provisioner what is true now.
func (l *leader) tellMachines(view *state.View) []error {
	pr := l.cfg.Provisioning
	if pr == nil {
		return nil
	}
	var errs []error
	table := netboot.Table{Term: l.writer.Term(), Revision: view.Revision}
	if img := view.ImageOf(lifecycle.InspectEnvironment); img != nil {
		boot, err := l.bootOf(api.Boot{Purpose: api.BootEnroll, Digest: img.Digest})
		errs = append(errs, err)
		table.Stranger = boot
	}
	desired := provisioner.Desired{Term: l.writer.Term(), Machines: make([]provisioner.Machine, 0, len(view.Nodes))}
	var read []sensors.Machine
	now, changed := l.clock.at(l.cfg.Now()), false
	for m := range view.Machines() {
		if m.Record == nil {
			continue
		}
		entry, anew, problem := l.tabled(m)
		machine, err := l.ordered(m, entry.boots, now)
		if problem != nil || err != nil {
			errs = append(errs, problem, err)
		}
		changed = changed || anew
		desired.Machines = append(desired.Machines, machine)
		if err == nil && machine.Target.Credentials.Next == "" { // while a password is changed, nobody else is to be refused
			read = append(read, sensors.Machine{UID: machine.UID, Target: machine.Target, Mark: m.LogMark})
		}
	}
	if gone := l.remembered.keepOnly(view, len(desired.Machines)); gone || changed {
		l.remembered.tabulate()
	}
	table.Machines = l.remembered.table
	pr.SetTable(table)
	l.provisioner.Set(desired)
	if pr.Sensors != nil {
		pr.Sensors.Set(read)
	}
	return errs
}

// bootOf is a boot as network boot takes it.
func (l *leader) bootOf(b api.Boot) (*netboot.Boot, error) {
	img, err := l.imageOf(image.Digest(b.Digest))
	if err != nil {
		return nil, err
	}
	arguments := img.arguments
	if b.Purpose == api.BootClean {
		arguments = strings.TrimSpace(arguments + " " + cleanArguments)
	}
	return &netboot.Boot{
		Generation: b.Generation, Purpose: b.Purpose, Manifest: image.Digest(b.Digest), Architecture: img.architecture, ExpiresAt: b.Deadline,
		Agent: l.cfg.Provisioning.BootAgent, Kernel: img.kernel, Initrd: img.initrd, Arguments: arguments,
	}, nil
}

// cleanArguments let the kernel give ATA disks back the sectors that a tenant may have hidden in a host protected area (Linux,
// Documentation/admin-guide/kernel-parameters.rst).
const cleanArguments = "libata.ignore_hpa=1"

// panicArguments make a kernel that panics reset its machine after this many seconds: it boots again instead of standing until its deadline.
// An image's own arguments come later and win (Linux, Documentation/admin-guide/kernel-parameters.rst).
const panicArguments = "panic=30"

// archX64 is what x86-64 is called in records.
const archX64 = "x86_64"

// ordered is what the provisioner is to do about a machine.
func (l *leader) ordered(m *state.Machine, boots bool, now time.Time) (provisioner.Machine, error) {
	order, generation := lifecycle.Order(m.Record, now)
	out := provisioner.Machine{
		Name: m.Name(), UID: m.UID(), Generation: generation, Order: provisioner.Order(order),
		Target: power.Target{
			Name: m.Name(), Control: m.Intent.Spec.Power, MACs: m.Intent.Spec.MACs, Credentials: power.Credentials{User: m.Intent.Spec.Power.User},
		},
		Boot: power.BootDevice{Network: true, Firmware: m.Intent.Spec.Firmware},
	}
	out.Watch = m.Record.Stop != nil
	if out.Boot.Firmware == "" {
		out.Boot.Firmware = m.Record.Firmware
	}
	// Where a BMC can point UEFI firmware at a URL, that spares it PXE's timeouts and TFTP; a second attempt takes the older way.
	if out.Boot.Firmware == api.FirmwareUEFI && (m.Record.Architecture == "" || m.Record.Architecture == archX64) && m.Record.Attempt <= 1 {
		out.Boot.URI = l.cfg.Provisioning.LoaderURL
	}
	if order == lifecycle.OrderWake {
		seen := l.cfg.Provisioning.Heard.Seen(m.UID())
		out.WasDone = lifecycle.Reached(m.Record.Boot, api.StagePower)
		out.Heard = seen.Generation == generation && !seen.LastHeard.IsZero() || m.Record.Boot.RedeemedAt != nil
		if !boots {
			out.Order = provisioner.Leave // waking it for nothing would leave it at the next boot device
		}
	}
	var err error
	if out.Target.Credentials.Password, out.Target.Credentials.Next, err = l.passwordsOf(m); err != nil {
		out.Order = provisioner.Leave
		return out, err
	}
	out.Guard = guardOf(m.Record)
	return out, nil
}

// guardOf is what the provisioner is to do about the BMC itself.
func guardOf(r *api.MachineRecord) provisioner.Guard {
	if r.BMC == nil {
		return provisioner.Guard{}
	}
	out := provisioner.Guard{Number: r.BMC.Duties, Baseline: r.BMC.Baseline, Watch: lifecycle.WatchesBMC(r), Closed: r.BMC.Host == api.HostClosed}
	if r.BMC.Duty != nil {
		out.Duty = r.BMC.Duty.Kind
	}
	return out
}
