package vm_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/serialconsole"
	"github.com/nearmetal/nearmetal/testbed/debiantree"
	"github.com/nearmetal/nearmetal/testbed/foreignimage"
)

func TestAGuestOfAnotherSystemKeepsItsDiskWhenItReboots(t *testing.T) {
	needForeign(t)
	disk := foreignimage.Bare(t, debiantree.Ensure(t).Path("vmlinuz"))
	r := foreign(t, disk.Path, api.ForeignDisk{
		OS: api.SystemOther, Firmware: api.FirmwareBIOS, Size: api.Bytes(disk.Bytes), Probe: api.Probe{Console: foreignimage.BareText},
	})
	m := r.member(t)
	id := m.Assignment.ID
	if err := r.Driver.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(r.cfg.StateDir, "vms", id, "disk.qcow2")
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	pid := pidOf(t, r, id)
	m.Boot = "second"
	if err := r.Driver.Reboot(t.Context(), m, time.Second); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
		t.Errorf("the disk is another file after the reboot (%v)", err)
	}
	if now := pidOf(t, r, id); now == pid || observed(t, r, id) != driver.StateRunning {
		t.Errorf("after the reboot it is %s with PID %s, and had PID %s", observed(t, r, id), now, pid)
	}
	if err := r.AwaitReady(t.Context(), id); err != nil {
		t.Errorf("the second boot: %v", err)
	}
	printed := serialconsole.Kept(filepath.Join(r.cfg.StateDir, "vms", id, "console.log"))
	if n := bytes.Count(printed, []byte(foreignimage.BareText)); n != 2 {
		t.Errorf("it was ready after the reboot when its console had shown the probe's text %d times, want twice", n)
	}
	if err := r.Clean(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}
