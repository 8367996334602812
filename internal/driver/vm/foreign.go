package vm

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/failpoint"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
	"github.com/nearmetal/nearmetal/internal/tracing"
)

// A member whose environment is the disk of another system has a machine that boots from a private copy of that disk. There is nothing of this
// product in it: a seed disk tells cloud-init what there is to know, if that is there, and a probe from outside tells when the member is ready.

// What a foreign member has besides, in its directory.
const (
	fileDisk      = "disk.qcow2"
	fileSeed      = "seed.iso"
	fileVariables = "variables.fd" // of UEFI
)

// UEFI firmware as Debian has it: its code, and the variables that a machine begins with.
const (
	uefiCode      = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	uefiVariables = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

var errNoUEFI = errors.New("the firmware of UEFI machines is missing on this node; run: apt-get install ovmf")

//go:embed foreign.xml.tmpl
var foreignTemplate string

// foreignDomain is the machine of a foreign member as libvirt gets it.
type foreignDomain struct {
	domain
	// Firmware and Variables are empty for a machine with a BIOS.
	Firmware, Variables string
	Disk, Base, Seed    string
	NICModel            string
	// Virtio: the system has drivers for virtual devices. Windows: it is one.
	Virtio, Windows bool
}

func (v view) disk() string      { return filepath.Join(v.dir, "disk") }
func (v view) seed() string      { return filepath.Join(v.dir, "seed") }
func (v view) variables() string { return filepath.Join(v.dir, "variables") }

// newForeignDomain is pure: the machine of a member whose environment is the disk of another system.
func newForeignDomain(m driver.Member, disk api.ForeignDisk, v view, uuid string, h hardware) foreignDomain {
	d := foreignDomain{
		domain: newMachine(m, v, uuid, h),
		Disk:   v.disk(), Base: v.root(0), Seed: v.seed(), NICModel: "e1000e", Windows: disk.OS == api.SystemWindows, Virtio: disk.OS == api.SystemLinux,
	}
	if d.Virtio {
		d.NICModel = "virtio"
	}
	d.Volumes = volumeDisks(m, v, d.Virtio)
	d.Queues = foreignQueues(&m.Assignment, disk)
	if disk.Firmware == api.FirmwareUEFI {
		d.Firmware, d.Variables = uefiCode, v.variables()
	}
	return d
}

// foreignQueues is how many queues each NIC has: real ones have one here.
func foreignQueues(a *api.Assignment, disk api.ForeignDisk) int {
	if disk.OS == api.SystemLinux {
		return queuesOf(a)
	}
	return 1
}

var errForeign = errors.New("it has the disk of another system, which stays on its node: it can't be saved or moved")

// unfit is why a member without a shape can't go on in another machine.
func (r record) unfit() error {
	if r.Foreign != nil {
		return errForeign
	}
	return errNoShape
}

// isForeign reports whether a member that was started has no agent, and so no home.
func (d *Driver) isForeign(id string) bool {
	r, err := d.recall(id)
	return err == nil && r.Foreign != nil
}

func (d foreignDomain) xml() (string, error) {
	tmpl, err := template.New("foreign").Funcs(template.FuncMap{"xml": escaped, "cpuset": cpuset}).Parse(foreignTemplate)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = tmpl.Execute(&out, d)
	return out.String(), err
}

// writeForeign makes a foreign member's directory, its disk and its view. The seed comes once there are ports.
func (d *Driver) writeForeign(ctx context.Context, host *daemon, m driver.Member, image environment.Image) (err error) {
	_, written := tracing.Stage(ctx, "files")
	defer func() { written(err) }()
	id, user := m.Assignment.ID, int(m.Assignment.UserIDs.First)
	if err := os.RemoveAll(d.dir(id)); err != nil {
		return err
	}
	run := d.path(id, dirRun)
	if err := errors.Join(os.MkdirAll(d.dir(id), 0o711), os.Mkdir(run, 0o700)); err != nil {
		return err
	}
	v := viewOf(id)
	size, err := diskSize(&m.Assignment, image.Disk.Size)
	if err != nil {
		return err
	}
	head, err := overlay(size, v.root(0))
	if err != nil {
		return err
	}
	if err := errors.Join(writeOwned(d.path(id, fileDisk), head, user), writeOwned(d.path(id, fileSeed), nil, user)); err != nil {
		return fmt.Errorf("making the member's disk: %w", err)
	}
	if image.Disk.Firmware == api.FirmwareUEFI {
		variables, err := os.ReadFile(uefiVariables)
		if err != nil {
			return errNoUEFI
		}
		if err := writeOwned(d.path(id, fileVariables), variables, user); err != nil {
			return err
		}
	}
	if m.Assignment.Display {
		if err := d.makeDisplayDir(id, user); err != nil {
			return err
		}
	}
	return d.showForeign(ctx, host, m, image)
}

// showForeign makes the view of a foreign member whose files are there.
func (d *Driver) showForeign(_ context.Context, host *daemon, m driver.Member, image environment.Image) error {
	id := m.Assignment.ID
	v := viewOf(id)
	all := []shown{
		{path: d.path(id, dirRun), at: v.run("")},
		{path: image.Layers[0].Path, at: v.root(0), readOnly: true},
		{path: d.path(id, fileDisk), at: v.disk()},
		{path: d.path(id, fileSeed), at: v.seed(), readOnly: true},
	}
	if image.Disk.Firmware == api.FirmwareUEFI {
		all = append(all, shown{path: d.path(id, fileVariables), at: v.variables()})
	}
	if m.Assignment.Display {
		all = append(all, shown{path: d.path(id, dirDisplay), at: v.display("")})
	}
	return host.show(v, append(all, shownDisks(m, v)...))
}

// launchForeign attaches the member's ports, writes its seed, and starts its machine. From then on it runs; Await tells when it is ready.
func (d *Driver) launchForeign(ctx context.Context, host *daemon, m driver.Member, image environment.Image) error {
	id := m.Assignment.ID
	functions, err := d.plugIn(ctx, m, foreignQueues(&m.Assignment, *image.Disk))
	if err != nil {
		return err
	}
	setup, err := d.setupOf(m)
	if err != nil {
		return err
	}
	data, err := seed(m, setup)
	if err != nil {
		return fmt.Errorf("making the seed disk: %w", err)
	}
	if err := os.WriteFile(d.path(id, fileSeed), data, 0o600); err != nil {
		return err
	}
	failpoint.Hit("vm.after-seed")
	machine := newForeignDomain(m, *image.Disk, viewOf(id), uuidText(d.domainUUID(id)), d.hardware())
	machine.Functions = functions
	if machine.GPUs, err = d.takeGPUs(ctx, m); err != nil {
		return err
	}
	text, err := machine.xml()
	if err != nil {
		return err
	}
	if err := d.confine(&m.Assignment); err != nil {
		return err
	}
	if err := serialconsole.Restarts(d.path(id, fileConsoleLog)); err != nil { // a probe must not find what an earlier boot printed
		return err
	}
	creating, created := tracing.Stage(ctx, "create")
	err = d.create(creating, host, m, text)
	created(err)
	if err != nil {
		return err
	}
	if err := d.fitDisk(ctx, host, &m.Assignment, *image.Disk); err != nil {
		return err
	}
	if _, err := d.console(id); err != nil {
		return err
	}
	now := time.Now()
	if err := d.writeRecord(id, record{Member: m, Foreign: image.Disk, StartedAt: &now}); err != nil {
		return err
	}
	failpoint.Hit("vm.after-foreign")
	return nil
}
