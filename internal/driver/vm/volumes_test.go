package vm_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/homeserver"
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
	r.tell(t, id, order{Shell: `mkdir /volumes/data/d && cd /volumes/data/d && (exec 3>>log; mv log renamed; for i in 1 2 3 4; do until [ -e /volumes/data/go$i ]; do sleep 0.2; done; echo $i >&3; cat /ref/deep/er/table renamed >out$i; mv out$i ../done$i; done) >/dev/null 2>&1 &`})
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
	next("at first")
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
	// Its cluster may get other volumes while it is saved.
	if err := r.Save(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m = r.successor(t, m)
	m.HomeDir, m.Mounts = "", []driver.Mount{{Source: volume(t, r, "more"), Path: "/volumes/more", ReadOnly: true}, mounts[0]}
	if err := r.Restore(t.Context(), m, id); err != nil {
		t.Fatal(err)
	}
	id = m.Assignment.ID
	if got, want := r.tell(t, id, order{Shell: volumesMounted + "; cat /volumes/data/file"}).Text, "/volumes/data\n/volumes/more\nmine\n"; got != want {
		t.Errorf("restored with other volumes, it has %q, want %q", got, want)
	}
	m.Boot = "second"
	if err := r.Reboot(t.Context(), m, time.Second); err != nil {
		t.Fatal(err)
	}
	if got, want := r.tell(t, id, order{Shell: volumesMounted + "; cat /volumes/data/file"}).Text, "/volumes/data\n/volumes/more\nmine\n"; got != want {
		t.Errorf("after a reboot it has %q, want %q", got, want)
	}
}

// volumesMounted is a command line that prints where a guest has volumes.
const volumesMounted = "awk '$3 == \"nfs\" && $2 != \"/home\" {print $2}' /proc/self/mounts | sort"

// exported is what the server of a member's files exports.
func exported(t *testing.T, r *rig, id string) []string {
	t.Helper()
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", homePID(t, r, id)))
	if err != nil {
		t.Fatal(err)
	}
	return homeserver.Exports(strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00"))
}

func TestAMachineKeepsWhatItHasWhenItCantHaveOtherVolumes(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	id := m.Assignment.ID
	data := volume(t, r, "data")
	m.Mounts = []driver.Mount{{Source: data, Path: "/volumes/data"}}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	process := homePID(t, r, id)
	for want, mounts := range map[string][]driver.Mount{
		"absent: no such file":     {m.Mounts[0], {Source: filepath.Join(r.dir, "absent"), Path: "/volumes/absent"}},
		"it has to be detached":    {{Source: data, Path: "/volumes/data", ReadOnly: true}},
		"must be absolute, clean ": {{Source: data, Path: "/volumes/../etc"}},
	} {
		next := m
		next.Mounts, next.Assignment.VolumesNumber = mounts, 1
		if err := r.Remount(t.Context(), next); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if got := r.tell(t, id, order{Shell: "echo x >/volumes/data/file && echo x >/home/file && " + volumesMounted}).Text; got != "/volumes/data\n" {
			t.Errorf("%s: it has %q", want, got)
		}
	}
	if now := homePID(t, r, id); now != process {
		t.Error("the server of its files was replaced for nothing")
	}
	// A guest that lets go of nothing gets at nothing nevertheless.
	r.tell(t, id, order{Shell: "mkdir /volumes/copy && mount --bind /volumes/data /volumes/copy && unshare -m sh -c 'sleep 1000' >/dev/null 2>&1 </dev/null &"})
	m.Mounts, m.Assignment.VolumesNumber = nil, 1
	if err := r.Remount(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if got := exported(t, r, id); !slices.Equal(got, []string{"/"}) {
		t.Errorf("it is served %q still, want the home alone", got)
	}
	if got := r.tell(t, id, order{Shell: volumesMounted}).Text; got != "" {
		t.Errorf("it has %q still", got)
	}
}

// TestAnAgentMayDieAmidARemount needs a build with -tags failpoints.
func TestAnAgentMayDieAmidARemount(t *testing.T) {
	images := needGuests(t)
	r := newRig(t, images)
	m := r.member(t)
	id := m.Assignment.ID
	now, other := driver.Mount{Source: volume(t, r, "one"), Path: "/volumes/one"}, driver.Mount{Source: volume(t, r, "two"), Path: "/volumes/two"}
	m.Mounts = []driver.Mount{now}
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	for _, mark := range []string{"vm.before-remount", "vm.after-home", "vm.after-mount"} {
		for _, back := range []bool{false, true} {
			m.Mounts = []driver.Mount{other}
			m.Assignment.VolumesNumber++
			if err := r.Driver.Close(); err != nil {
				t.Fatal(err)
			}
			crash(t, mark, doomed{StateDir: r.cfg.StateDir, Image: images.image, Do: "remount", Member: m})
			r.reopen(t)
			if _, err := r.Observe(t.Context()); err != nil {
				t.Fatal(err)
			}
			if back {
				m.Mounts = []driver.Mount{now}
				m.Assignment.VolumesNumber++
			} else {
				now, other = other, now
			}
			if err := r.Remount(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if got := r.tell(t, id, order{Shell: volumesMounted + "; echo x >" + now.Path + "/file"}).Text; got != now.Path+"\n" {
				t.Errorf("%s, taken back %t: it has %q mounted, want %s", mark, back, got, now.Path)
			}
			if got := exported(t, r, id); !slices.Equal(got, []string{"/", now.Path}) {
				t.Errorf("%s, taken back %t: it is served %q", mark, back, got)
			}
		}
	}
}
