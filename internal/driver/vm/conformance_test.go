package vm_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/drivertest"
)

func TestVirtualMachinesMeetTheDriverContract(t *testing.T) {
	images := needGuests(t)
	var fixture func(t *testing.T) drivertest.Fixture
	fixture = func(t *testing.T) drivertest.Fixture {
		r := newRig(t, images)
		return drivertest.Fixture{
			Other:  fixture,
			Driver: r, Ports: r.ports, Deadline: 2 * patience, Many: 3, Cuts: 5,
			Reopen: func(t *testing.T) driver.Driver {
				r.reopen(t)
				return r
			},
			Member:   func(t *testing.T) driver.Member { return r.member(t) },
			Progress: func(t *testing.T, id string) int64 { return r.progress(t, id) },
			Stubborn: func(m *driver.Member) {
				m.Files = append(slices.Clone(m.Files), driver.File{Path: "/etc/nearmetal/stubborn", Mode: 0o644})
			},
			End:    func(t *testing.T, o driver.Observation, code int) { r.tell(t, o.ID, order{Exit: &code}) },
			Listen: func(t *testing.T, id string) int { return r.tell(t, id, order{Listen: true}).Port },
			Left:   func(t *testing.T) []string { return r.left(t) },
			Shell:  func(t *testing.T, id, line string) (string, error) { return r.shell(t, id, line) },
		}
	}
	drivertest.Run(t, fixture)
}

func TestAVirtualMachineIsOneAndHasItsFiles(t *testing.T) {
	r := newRig(t, needGuests(t))
	m := r.member(t)
	id := m.Assignment.ID
	m.Files = append(m.Files,
		driver.File{Path: "/etc/ssh/key", Content: []byte("secret"), Mode: 0o600}, driver.File{Path: "/etc/mine", Content: []byte("own"), Mode: 0o640, OwnedByUser: true})
	if err := r.Start(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	host, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	if guest := r.sessions[id].bootID; len(guest) < 36 || guest == string(host) {
		t.Errorf("the guest's kernel says it is boot %q, the host's %q", guest, host)
	}
	for path, want := range map[string]answer{"/etc/ssh/key": {Text: "secret", Mode: 0o600}, "/etc/mine": {Text: "own", Mode: 0o640, UID: 1000}} {
		if got := r.tell(t, id, order{Read: path}); got != want {
			t.Errorf("%s: got %+v, want %+v", path, got, want)
		}
	}
	if accounts := r.tell(t, id, order{Read: "/etc/passwd"}).Text; !strings.Contains(accounts, "hpc:x:1000:") || !strings.Contains(accounts, "sshd:x:") {
		t.Errorf("the guest's accounts are not the generated ones and the image's:\n%s", accounts)
	}
	m.Files = slices.DeleteFunc(m.Files, func(f driver.File) bool { return f.Path == "/etc/mine" })
	m.Files[len(m.Files)-1].Content = []byte("another")
	if err := r.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := r.Update(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	if err := r.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); r.tell(t, id, order{Read: "/etc/ssh/key"}).Text != "another"; {
		if time.Now().After(deadline) {
			t.Fatal("a guest that was paused has not got its files")
		}
	}
	process, err := os.ReadFile("/proc/" + pidOf(t, r, id) + "/status")
	if err != nil || !strings.Contains(string(process), "Uid:\t3000000000\t3000000000\t3000000000\t3000000000\n") {
		t.Errorf("QEMU does not run as the cluster's user (%v):\n%s", err, process)
	}
}
