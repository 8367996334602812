// Package nfsdtest is what tests of volumes on other nodes need: namespaces that play nodes, disks, and programs that are members' users.
package nfsdtest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/netns"
)

// Users are the host's IDs of the cluster whose members the tests have.
var Users = api.IDRange{First: 300_000, Count: 65_536}

// Dir returns a directory that members get to, too: they are other users on the host.
func Dir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for at := dir; at != "/tmp" && at != "/"; at = filepath.Dir(at) {
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Space returns a network namespace, which lasts as long as the test.
func Space(t testing.TB) netns.Handle {
	t.Helper()
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { space.Close() })
	return space
}

// Run runs a shell script in a network namespace, and returns what it prints.
func Run(t testing.TB, space netns.Handle, script string) string {
	t.Helper()
	var out []byte
	if err := space.Do(func() (err error) {
		out, err = exec.Command("sh", "-ec", script).CombinedOutput()
		return err
	}); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
	return string(out)
}

// Disk mounts a file system of a size at a directory. Its root belongs to the members' user 1000.
func Disk(t testing.TB, dir string, mebibytes int) {
	t.Helper()
	script := fmt.Sprintf("mkdir -p %[1]s && truncate -s %[2]dM %[1]s.img && mkfs.ext4 -q -m 0 %[1]s.img && mount -o loop %[1]s.img %[1]s && chown 1000:1000 %[1]s", dir, mebibytes)
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, out)
	}
}

// Unmount takes a file system away, which nothing may use any more.
func Unmount(t testing.TB, dir string) {
	t.Helper()
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("unmounting %s: %v", dir, err)
	}
}

// Member is a shell script as a user of the cluster's user namespaces.
func Member(ctx context.Context, user uint32, script string) *exec.Cmd {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(Users.First), Size: int(Users.Count)}}
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{Uid: user, Gid: user},
	}
	return cmd
}

// AsMember runs a shell script as a user of the cluster's user namespaces, and returns what it prints, also what failed.
func AsMember(t testing.TB, user uint32, script string) string {
	t.Helper()
	out, _ := Member(t.Context(), user, script).CombinedOutput()
	return string(out)
}
