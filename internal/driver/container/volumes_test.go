package container_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// mountMapped mounts a directory with the owners of a cluster, as a pool does for an attachment.
func mountMapped(t *testing.T, source string) string {
	t.Helper()
	holder := exec.Command("sleep", "1000")
	ids := []syscall.SysProcIDMap{{HostID: idBase, Size: 65536}}
	holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Pdeathsig: unix.SIGKILL}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Wait() }()
	defer func() { _ = holder.Process.Kill() }()
	userns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", holder.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer userns.Close()
	tree, err := unix.OpenTree(unix.AT_FDCWD, source, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(tree) }()
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(userns.Fd())}); err != nil {
		needs.Hardware(t, "the file system of %s can't map owners: %v", source, err)
	}
	at := filepath.Join(t.TempDir(), "attached")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("the attachment is still in use: %v", err)
		}
	})
	return at
}

func TestMembersShareAVolumeWhoseOwnersAreTheirsAndHaveItsHomeWhenItIsOne(t *testing.T) {
	disk := t.TempDir()
	if err := os.Chmod(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	attached := mountMapped(t, disk) // before the rig's clean-up, which runs first
	home := t.TempDir()
	if err := errors.Join(os.Chmod(home, 0o755), os.Chown(home, 1000, 1000)); err != nil { // as a new volume's
		t.Fatal(err)
	}
	attachedHome := mountMapped(t, home)
	r := newRig(t, "crun")
	first, second := r.member(t), r.member(t)
	second.Assignment.CPUs = []int{0}
	first.HomeDir, second.HomeDir = attachedHome, attachedHome
	first.Mounts = []driver.Mount{{Source: attached, Path: "/volumes/data"}, {Source: attached, Path: "/srv/deep/read", ReadOnly: true}}
	second.Mounts = []driver.Mount{{Source: attached, Path: "/mnt"}}
	for _, m := range []driver.Member{first, second} {
		if err := r.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	a, b := first.Assignment.ID, second.Assignment.ID
	r.run(t, a, "sh", "-c", "echo hello > /volumes/data/file && chown 1000:1000 /volumes/data/file")
	if got := r.run(t, b, "sh", "-c", "cat /mnt/file; stat -c %u:%g /mnt/file"); got != "hello\n1000:1000\n" {
		t.Errorf("the other member reads %q, want the file of user 1000", got)
	}
	info, err := os.Stat(filepath.Join(disk, "file"))
	if err != nil || info.Sys().(*syscall.Stat_t).Uid != 1000 {
		t.Errorf("on the disk: got %+v (%v), want a file of user 1000", info, err)
	}
	for _, refused := range []string{"echo x > /srv/deep/read/file", "mount -o remount,rw /srv/deep/read", "mount -o remount,bind,rw /srv/deep/read", "umount /srv/deep/read"} {
		if got := r.tell(t, a, order{Run: []string{"sh", "-c", refused}}); got.Err == "" {
			t.Errorf("%q succeeded in a member that may only read", refused)
		}
	}
	if got := r.run(t, b, "stat", "-c", "%u:%g:%a", "/home/hpc"); got != "1000:1000:700\n" {
		t.Errorf("the user's home: got %q, want it to be the user's alone", got)
	}
	for _, m := range []driver.Member{first, second} {
		if err := r.Clean(t.Context(), m.Assignment.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(disk, "file")); err != nil {
		t.Errorf("after its members were cleaned: %v, want the volume's file", err)
	}
}

func TestAMemberWithoutAHomeHasOneOfItsOwn(t *testing.T) {
	r := newRig(t, "crun")
	first, second := r.member(t), r.member(t)
	first.HomeDir, second.HomeDir = "", ""
	for _, m := range []driver.Member{first, second} {
		if err := r.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	r.run(t, first.Assignment.ID, "sh", "-c", "echo mine > /home/hpc/file")
	if got := r.run(t, second.Assignment.ID, "sh", "-c", "stat -c %u:%g:%a /home/hpc; ls -A /home/hpc"); got != "1000:1000:700\n" {
		t.Errorf("the other member's home: got %q, want an empty one of the user's alone", got)
	}
}

func TestAVolumeThatIsNotThereFailsTheStartWithItsPath(t *testing.T) {
	r := newRig(t, "crun")
	m := r.member(t)
	m.Mounts = []driver.Mount{{Source: filepath.Join(r.dir, "absent"), Path: "/volumes/data"}}
	err := r.Driver.Start(t.Context(), m)
	if err == nil || !strings.Contains(err.Error(), "the volume at /volumes/data") {
		t.Errorf("Start: got %v, want an error that names the volume's path", err)
	}
}
