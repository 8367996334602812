package vm

import (
	"errors"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/inventory"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestTheDisksOfMembersAreThoseThatANodesOfferCounts(t *testing.T) {
	d := &Driver{machines: "/state/vms"}
	at, err := filepath.Rel("/state", d.path("uid.c1-0.1", fileDisk))
	if matched, bad := filepath.Match(inventory.MemberDisks, at); err != nil || bad != nil || !matched {
		t.Errorf("%s is not matched by %s", at, inventory.MemberDisks)
	}
}

// TestAProcessWritesNoFileBeyondItsBound starts a writer as another user, as QEMU is, and bounds it before it writes.
func TestAProcessWritesNoFileBeyondItsBound(t *testing.T) {
	needs.Root(t, "bounds a process of another user")
	const user, bound = 200_001, 1 << 20
	file := filepath.Join(t.TempDir(), "disk")
	if err := writeOwned(file, nil, user); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(file); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := unix.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writer := exec.CommandContext(t.Context(), "/bin/sh", "-c", "read line; exec dd if=/dev/zero of="+file+" bs=64k count=64 status=none")
	writer.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	begin, err := writer.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	bounded := boundFiles(writer.Process.Pid, user, bound)
	_, _ = begin.Write([]byte("\n"))
	ended := writer.Wait()
	var exit *exec.ExitError
	if bounded != nil || !errors.As(ended, &exit) {
		t.Fatalf("bounding it: %v; it ended with %v, want it refused", bounded, ended)
	}
	var info unix.Stat_t
	if err := unix.Stat(file, &info); err != nil || info.Size != bound {
		t.Errorf("the file has %d bytes (%v), want %d", info.Size, err, bound)
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &own); err != nil || own.Cur == bound {
		t.Errorf("this process is bounded, too: %+v, %v", own, err)
	}
}
