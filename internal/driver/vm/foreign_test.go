package vm_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/testbed/debiantree"
	"github.com/nearmetal/nearmetal/testbed/foreignimage"
)

// foreign is a node whose image is the disk of another system.
func foreign(t *testing.T, disk string, as api.ForeignDisk) *rig {
	t.Helper()
	as.Probe.Timeout = api.Duration(patience)
	return newRig(t, images{environment.Image{Digest: digest, Layers: []environment.Layer{{Path: disk, Format: image.QCOW2}}, Disk: &as}})
}

// needForeign skips what boots other systems unless it is asked for.
func needForeign(t *testing.T) {
	t.Helper()
	needs.Request(t, "NEARMETAL_GUESTS", "make test-testbed")
	needs.Root(t, "makes virtual machines")
	for _, program := range []string{"libvirtd", "qemu-system-x86_64", "qemu-img"} {
		needs.Program(t, program)
	}
}

// observed is what the driver sees of a member.
func observed(t *testing.T, r *rig, id string) driver.State {
	t.Helper()
	all, err := r.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range all {
		if o.ID == id {
			return o.State
		}
	}
	return driver.StateAbsent
}

func TestACloudImageIsSetUpByItsSeedAndReachedFromItsHost(t *testing.T) {
	needForeign(t)
	disk := foreignimage.Cloud(t)
	before := sum(t, disk.Path)
	r := foreign(t, disk.Path, api.ForeignDisk{OS: api.SystemLinux, Firmware: api.FirmwareUEFI, Size: api.Bytes(disk.Bytes), Probe: api.Probe{SSH: true}})
	m := r.member(t)
	m.Assignment.Memory[0].Bytes = 768 << 20
	begun := time.Now()
	if err := r.Driver.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	id := m.Assignment.ID
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	t.Logf("ready after %s (emulated)", time.Since(begun).Round(time.Second))
	conn, err := r.Dial(t.Context(), id, 22)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	// A new driver knows that it is ready without asking.
	r.reopen(t)
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left on the host: %v", left)
	}
	if after := sum(t, disk.Path); after != before {
		t.Error("the shared image was written to")
	}
}

func TestASystemWithoutAnyAgentIsReadyWhenItsConsoleSaysSoAndIsOtherwiseToldOf(t *testing.T) {
	needForeign(t)
	disk := foreignimage.Bare(t, debiantree.Ensure(t).Path("vmlinuz"))
	as := api.ForeignDisk{OS: api.SystemOther, Firmware: api.FirmwareBIOS, Size: api.Bytes(disk.Bytes), Probe: api.Probe{Console: foreignimage.BareText}}
	r := foreign(t, disk.Path, as)
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Driver.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if got := observed(t, r, id); got != driver.StateRunning {
		t.Errorf("it is %s before it is ready", got)
	}
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r.reopen(t) // what the console showed is not shown again
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := r.Update(t.Context(), m); err != nil {
		t.Errorf("files that nobody takes are no failure: %v", err)
	}
	if err := errors.Join(r.Pause(t.Context(), id), r.Resume(t.Context(), id)); err != nil {
		t.Error(err)
	}
	if err := r.Save(t.Context(), id); err == nil || !strings.Contains(err.Error(), "disk of another system") {
		t.Errorf("saving it: %v", err)
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// The same disk with a probe that never succeeds.
	as.Probe = api.Probe{Console: "a text that nobody prints", Timeout: api.Duration(5 * time.Second)}
	r.images(environment.Image{Digest: digest, Layers: []environment.Layer{{Path: disk.Path, Format: image.QCOW2}}, Disk: &as})
	r.reopen(t)
	if err := r.Driver.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.AwaitReady(t.Context(), id); err == nil || !strings.Contains(err.Error(), `its probe ("a text that nobody prints" on the serial console) did not succeed within 5s`) {
		t.Errorf("error %v", err)
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left on the host: %v", left)
	}
}

// images changes what image the node has.
func (r *rig) images(image environment.Image) { r.cfg.Images = images{image} }

// sum is the digest of a file.
func sum(t *testing.T, path string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sha256sum", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))[0]
}
