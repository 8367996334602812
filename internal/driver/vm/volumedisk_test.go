package vm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/diskserver"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/memberbin"
	"github.com/nearmetal/nearmetal/internal/pidfd"
)

// served is an image that a process of package diskserver serves to the cluster of a rig's members.
func served(t *testing.T, r *rig, name string, readOnly bool) diskserver.Serve {
	t.Helper()
	data, err := memberbin.Binary()
	if err != nil {
		t.Fatal(err)
	}
	program, image := filepath.Join(r.dir, "member-program"), filepath.Join(r.dir, name+".img")
	if _, err := os.Stat(program); err != nil {
		if err := os.WriteFile(program, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var content []byte
	if name != "fresh" {
		content = []byte("image of " + name)
	}
	if err := errors.Join(os.WriteFile(image, content, 0o600), os.Truncate(image, 64<<20)); err != nil {
		t.Fatal(err)
	}
	s := diskserver.Serve{Program: program, Dir: filepath.Join(r.dir, "disk-"+name), Image: image, ReadOnly: readOnly, UserIDs: r.member(t).Assignment.UserIDs}
	if err := s.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := diskserver.End(context.Background(), s.Dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestABlockVolumeIsADiskThatOutlivesItsServerAndItsMachinesSleep has a machine write to a disk while what serves it is killed, and after the machine
// was saved with its memory and restored.
func TestABlockVolumeIsADiskThatOutlivesItsServerAndItsMachinesSleep(t *testing.T) {
	r := newRig(t, needGuests(t))
	data, reference, fresh := served(t, r, "data", false), served(t, r, "a-name-of-more-than-20", true), served(t, r, "fresh", false)
	m := r.member(t)
	m.Disks = []driver.Disk{
		{Name: "data", Path: "/volumes/data", Socket: diskserver.Socket(data.Dir)},
		{Name: "a-name-of-more-than-20", Path: "/ref", Socket: diskserver.Socket(reference.Dir), ReadOnly: true},
		{Name: "fresh", Path: "/volumes/fresh", Socket: diskserver.Socket(fresh.Dir)},
	}
	id := m.Assignment.ID
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	shell := func(what, command, want string) {
		t.Helper()
		if got := strings.TrimSpace(r.tell(t, id, order{Shell: command}).Text); got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	const at = "/dev/disk/by-id/virtio-data"
	shell("the size", "cat /sys/block/$(basename $(readlink "+at+"))/size", "131072")
	shell("what it began with", "head -c 13 "+at, "image of data")
	shell("one that is read-only", "head -c 8 /dev/disk/by-id/virtio-a-name-of-more-than-; cat /sys/block/$(basename $(readlink /dev/disk/by-id/virtio-a-name-of-more-than-))/ro", "image of1")
	write := func(step string) {
		t.Helper()
		shell("writing "+step, "printf %s "+step+" | dd of="+at+" conv=fsync,notrunc 2>/dev/null; echo $?", "0")
		content, err := os.ReadFile(data.Image)
		if err != nil || !strings.HasPrefix(string(content), step) {
			t.Errorf("%s: the image begins with %q, %v", step, content[:min(len(content), 20)], err)
		}
	}
	write("first")
	// What has something else on it is not mounted. An empty disk gets a file system, which is the user's.
	shell("what is mounted", "cut -d' ' -f2,3 /proc/mounts | grep -e /volumes -e /ref", "/volumes/fresh ext4")
	if got := strings.TrimSpace(r.tell(t, id, order{As: 1000, Shell: "cd /volumes/fresh && stat -c '%u %g %a' . && echo kept >file && sync && cat file"}).Text); got != "1000 1000 775\nkept" {
		t.Errorf("in its file system: %q", got)
	}

	// Its server is killed while the machine writes, which waits, and goes on once there is a server again.
	s := r.order(t, id, order{Shell: "n=0; until [ -e /home/stop ]; do dd if=/dev/zero of=" + at + " bs=64k count=4 seek=1 conv=fsync,notrunc 2>/dev/null || exit 1; n=$((n+1)); echo >/home/wrote-$n; done; echo written"})
	wrote := 0
	more := func() {
		t.Helper()
		wrote++
		awaitFile(t, filepath.Join(m.HomeDir, fmt.Sprint("wrote-", wrote)))
	}
	for range 2 {
		more()
		pid := diskPID(t, data.Dir)
		kill(t, pid)
		p, err := pidfd.Open(pid)
		if err == nil {
			err = p.Wait(t.Context())
			p.Close()
		}
		if err != nil && !errors.Is(err, pidfd.ErrNone) {
			t.Fatal(err)
		}
		if err := data.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		more()
		more() // one write may have been done before
	}
	if err := os.WriteFile(filepath.Join(m.HomeDir, "stop"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if a, ok := <-s.answers; !ok || strings.TrimSpace(a.Text) != "written" {
		t.Errorf("the machine says %q (%s)", a.Text, a.Err)
	}
	write("second")

	if err := r.Save(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	disks := m.Disks
	m = r.successor(t, m)
	if err := r.Restore(t.Context(), m, id); !errors.Is(err, driver.ErrUnfit) || !strings.Contains(err.Error(), "block volumes are") {
		t.Errorf("it goes on without its disks: %v", err)
	}
	m.Disks = disks
	if err := r.Restore(t.Context(), m, id); err != nil {
		t.Fatal(err)
	}
	id = m.Assignment.ID
	shell("what it has after it was saved and restored", "head -c 6 "+at, "second")
	write("third")
	shell("a file after that", "cat /volumes/fresh/file", "kept")

	// It boots again with a larger disk, which still has the file.
	if err := os.Truncate(fresh.Image, 128<<20); err != nil {
		t.Fatal(err)
	}
	m.Boot = "again"
	if err := r.Reboot(t.Context(), m, time.Minute); err != nil {
		t.Fatal(err)
	}
	shell("a file in the next boot", "cat /volumes/fresh/file; test $(df -k --output=size /volumes/fresh | tail -1) -gt 100000 && echo larger", "kept\nlarger")
}

func diskPID(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
