package container_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// privateOnHost makes a directory below the host's /usr with files of which only "public" is everyone's to read.
func privateOnHost(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/usr/local/lib", "nearmetal-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	write := func(name string, mode os.FileMode, uid, gid int) {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte("content"), 0o600), os.Chown(path, uid, gid), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	write("public", 0o644, 0, 0)
	write("of-user", 0o600, 1000, 1000)
	write("of-group", 0o640, 0, 1000)
	write("of-root", 0o600, 0, 0)
	write("of-roots-group", 0o640, 1001, 0)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestAMemberReadsOfTheHostsFilesOnlyWhatEveryoneMayRead(t *testing.T) {
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			r := newRig(t, runtime)
			dir := privateOnHost(t)
			m := r.member(t)
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			if got := r.run(t, m.Assignment.ID, "/bin/cat", dir+"/public"); got != "content" {
				t.Errorf("public: got %q", got)
			}
			for _, name := range []string{"of-user", "of-group", "of-root", "of-roots-group"} {
				for user, command := range map[string]string{"root": "cat ", "hpc": "setpriv --reuid 1000 --regid 1000 --clear-groups cat "} {
					a := r.tell(t, m.Assignment.ID, order{Run: []string{"/bin/sh", "-c", command + dir + "/" + name + " 2>&1"}})
					if !strings.Contains(a.Output, "Permission denied") {
						t.Errorf("%s reads %s: %q (%s), want that it may not", user, name, a.Output, a.Err)
					}
				}
			}
		})
	}
}

func TestAMemberIsNotToldHowItsMachineWasBootedNorItsSerialNumbers(t *testing.T) {
	for _, runtime := range []string{"crun", "runc"} {
		t.Run(runtime, func(t *testing.T) {
			r := newRig(t, runtime)
			m := r.member(t)
			if err := r.Start(t.Context(), m); err != nil {
				t.Fatal(err)
			}
			a := r.tell(t, m.Assignment.ID, order{Probe: "read", Argument: "/proc/cmdline"})
			if a.Output != "" || a.Err != "" {
				t.Errorf("/proc/cmdline: %q (%s), want it empty", a.Output, a.Err)
			}
			for _, dir := range []string{"/sys/class/dmi", "/sys/devices/virtual/dmi", "/sys/firmware", "/sys/kernel/boot_params"} {
				a := r.tell(t, m.Assignment.ID, order{Probe: "list", Argument: dir})
				if a.Output != "" {
					t.Errorf("%s holds %q, want nothing", dir, a.Output)
				}
			}
		})
	}
}
