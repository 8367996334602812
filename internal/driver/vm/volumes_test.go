package vm_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// volume makes a directory that a cluster's members may have, as pools attach volumes.
func volume(t *testing.T, r *rig, name string) string {
	t.Helper()
	dir := filepath.Join(r.dir, name)
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777), os.Chown(dir, idBase, idBase)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shell runs a command line in a guest and returns what it printed.
func (r *rig) shell(t testing.TB, id, line string) (string, error) {
	t.Helper()
	a, ok := <-r.order(t, id, order{Shell: line}).answers
	switch {
	case !ok:
		t.Fatalf("member %q has hung up", id)
	case a.Err != "":
		return a.Err, errors.New(a.Err)
	}
	return a.Text, nil
}

// TestAMachineHasTheVolumesOfItsCluster, with the owners that containers see, while it is paused, saved, restored and rebooted, and while their server is
// killed. It has no home.
func TestAMachineHasTheVolumesOfItsCluster(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	id := m.Assignment.ID
	data, reference := volume(t, r, "data"), volume(t, r, "reference")
	m.HomeDir = ""
	m.Mounts = []driver.Mount{{Source: data, Path: "/volumes/data"}, {Source: reference, Path: "/ref/deep/er", ReadOnly: true}}
	if err := os.WriteFile(filepath.Join(reference, "table"), []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	got := r.tell(t, id, order{As: 1000, Shell: `cat /ref/deep/er/table; echo mine >/volumes/data/file; echo x 2>&1 >/ref/deep/er/new || true; stat -c %u:%a /home/hpc; grep -c ' nfs ' /proc/self/mounts`}).Text
	if want := "of the host\n/bin/sh: 1: cannot create /ref/deep/er/new: Read-only file system\n1000:700\n2\n"; got != want {
		t.Errorf("the guest says %q, want %q", got, want)
	}
	// Its root may mount the file system anew, and the host refuses it nevertheless.
	if text, err := r.shell(t, id, "mount -o remount,rw /ref/deep/er && echo x >/ref/deep/er/new"); err == nil || !strings.Contains(text, "Read-only file system") {
		t.Errorf("writing to a read-only volume that was mounted anew: %q, %v", text, err)
	}
	var stat unix.Stat_t
	if err := unix.Lstat(filepath.Join(data, "file"), &stat); err != nil || stat.Uid != idBase+1000 || stat.Gid != idBase+1000 {
		t.Errorf("on the host the file belongs to %d:%d, %v", stat.Uid, stat.Gid, err)
	}
	r.tell(t, id, order{Shell: `mkdir /volumes/data/d && cd /volumes/data/d && (exec 3>>log; mv log renamed; for i in 1 2 3; do until [ -e /volumes/data/go$i ]; do sleep 0.2; done; echo $i >&3; cat /ref/deep/er/table renamed >out$i; mv out$i ../done$i; done) >/dev/null 2>&1 &`})
	step, want := 0, "of the host\n"
	next := func(what string) {
		t.Helper()
		step++
		want += fmt.Sprintln(step)
		if err := os.WriteFile(fmt.Sprintf("%s/go%d", data, step), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		done := fmt.Sprintf("%s/done%d", data, step)
		awaitFile(t, done)
		if text, err := os.ReadFile(done); string(text) != want || err != nil {
			t.Errorf("%s: the machine has written %q, %v; want %q", what, text, err, want)
		}
	}
	kill(t, homePID(t, r, id))
	next("after the server was killed")
	if err := r.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	next("after it was paused")
	if err := r.Save(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	mounts := m.Mounts
	m = r.successor(t, m)
	m.HomeDir, m.Mounts = "", mounts
	if err := r.Restore(t.Context(), m, id); err != nil {
		t.Fatal(err)
	}
	id = m.Assignment.ID
	next("after it was saved and restored")
	m.Boot = "second"
	if err := r.Reboot(t.Context(), m, time.Second); err != nil {
		t.Fatal(err)
	}
	if got := r.tell(t, id, order{Shell: "cat /volumes/data/file /ref/deep/er/table"}).Text; got != "mine\nof the host\n" {
		t.Errorf("after a reboot the volumes hold %q", got)
	}
}
