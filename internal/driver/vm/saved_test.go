package vm

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestAMachineFitsWhereNothingThatItSeesDiffers(t *testing.T) {
	base := func(t *testing.T) shape {
		t.Helper()
		s, err := newShape(goldenMember(), goldenImage(), hardware{KVM: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.QEMU, s.Libvirt, s.CPU = "7.2", "9.0", &processor{Vendor: "GenuineIntel", Family: "6", Model: "85", Flags: []string{"avx", "avx2"}}
		return s
	}
	moved := goldenMember()
	moved.Assignment.ID, moved.Assignment.CPUs, moved.Assignment.Slots = "uid.c1-0.2", []int{7, 9}, []int{7, 9}
	here := hardware{KVM: true, SpareCPUs: []int{1}}
	moved.HomeDir, moved.ControlDir, moved.Assignment.UserIDs.First = "/srv/home", "/srv/control", 5
	other, err := newShape(moved, goldenImage(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	if other.Machine != base(t).Machine {
		t.Error("another name, other processors or other directories make another machine of it")
	}
	larger := base(t)
	larger.CPU.Flags = append(larger.CPU.Flags, "avx512f")
	if err := base(t).fits(larger); err != nil {
		t.Errorf("a host whose processor can do more: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*shape)
		want   string
	}{
		"another QEMU":            {func(s *shape) { s.QEMU = "8.2" }, "QEMU 7.2, and this host has QEMU 8.2"},
		"another libvirt":         {func(s *shape) { s.Libvirt = "10.0" }, "libvirt 9.0, and this host has libvirt 10.0"},
		"emulation":               {func(s *shape) { s.CPU = nil }, "emulated"},
		"another image":           {func(s *shape) { s.Environment = "sha256:b" }, "its environment is sha256:a"},
		"less memory":             {func(s *shape) { s.MemoryBytes = 1 << 29 }, "1024 MiB of memory, not 2 and 512"},
		"fewer CPUs":              {func(s *shape) { s.CPUs = 1 }, "2 CPUs and"},
		"other MAC addresses":     {func(s *shape) { s.MACs = s.MACs[:1] }, "MAC addresses"},
		"other NUMA nodes":        {func(s *shape) { s.NUMANodes = []string{"CPUs [0 1] with 1024 MiB"} }, "NUMA nodes"},
		"another template":        {func(s *shape) { s.Machine = "x" }, "another version of nearmetal"},
		"another processor":       {func(s *shape) { s.CPU.Model = "106" }, "family 6, model 85, and this host has one of GenuineIntel, family 6, model 106"},
		"a processor with less":   {func(s *shape) { s.CPU.Flags = s.CPU.Flags[:1] }, "processor lacks avx2"},
		"a processor of a vendor": {func(s *shape) { s.CPU.Vendor = "AuthenticAMD" }, "AuthenticAMD"},
	} {
		there := base(t)
		c.change(&there)
		if err := base(t).fits(there); !errors.Is(err, driver.ErrUnfit) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestAnEmulatedMachineMovesStandingStillWhereQEMULosesItsWrites(t *testing.T) {
	for name, tc := range map[string]struct {
		shape shape
		want  bool
	}{
		"emulated by QEMU 7.2":     {shape{QEMU: "7.2"}, false},
		"emulated by QEMU 9.0":     {shape{QEMU: "9.0"}, true},
		"emulated by QEMU 10.0":    {shape{QEMU: "10.0"}, true},
		"virtualized by QEMU 7.2":  {shape{QEMU: "7.2", CPU: &processor{}}, true},
		"emulated by unknown QEMU": {shape{}, false},
	} {
		if got := tc.shape.tracksWrites(); got != tc.want {
			t.Errorf("%s: may run while its memory is sent: %t, want %t", name, got, tc.want)
		}
	}
}

func TestTheVersionsOfQEMUAndLibvirtAreRead(t *testing.T) {
	for text, want := range map[string]string{"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7)\n": "7.2", "QEMU emulator version 10.0.2": "10.0", "libvirtd (libvirt) 9.0.0\n": "9.0", "": ""} {
		if got := seriesIn(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// stateOnDisk is a saved member's state on disk, and what is known of it.
func stateOnDisk(t *testing.T, content string) (path string, s saved) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "state")
	file, err := newStateFile(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(file, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if s.Bytes, s.SHA256, err = file.finish(); err != nil {
		t.Fatal(err)
	}
	return path, s
}

func TestAStateIsReadAsItWasWrittenOrNotAtAll(t *testing.T) {
	path, s := stateOnDisk(t, "all of it")
	var got bytes.Buffer
	if err := s.feed(path, &got); err != nil || got.String() != "all of it" {
		t.Errorf("got %q, %v", got.String(), err)
	}
	for content, want := range map[string]string{"all of": "ends after 6 bytes of 9", "all of IT": "damaged"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.feed(path, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
	}
}

func TestAStateWithoutRoomIsRefusedAndLeavesNothing(t *testing.T) {
	needs.Root(t, "mounts a small file system")
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
	if _, err := newStateFile(filepath.Join(dir, "state"), 1<<20); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "it takes up to 66 MiB") {
		t.Errorf("got %v, want that there is no room", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) > 0 {
		t.Errorf("left: %v", entries)
	}
}

func TestWhatIsImportedIsTheMemberThatIsMeant(t *testing.T) {
	m := goldenMember()
	head, err := json.Marshal(saved{ID: m.Assignment.ID, Member: m})
	if err != nil {
		t.Fatal(err)
	}
	line := string(head) + "\n"
	if s, err := readHead(bufio.NewReader(strings.NewReader(line)), m.Assignment.ID); err != nil || s.ID != m.Assignment.ID {
		t.Errorf("got %q, %v", s.ID, err)
	}
	for name, c := range map[string]struct{ text, from, want string }{
		"another member":    {line, "uid.c1-1.1", "is of member \"uid.c1-0.1\""},
		"an end":            {string(head), m.Assignment.ID, "ends within its first line"},
		"something else":    {"QEVM\n", m.Assignment.ID, "not an exported member"},
		"an endless line":   {strings.Repeat("x", maxHead+10_000), m.Assignment.ID, "too long"},
		"another member in": {`{"id":"uid.c1-1.1"}` + "\n", "uid.c1-1.1", "is of member"},
	} {
		if _, err := readHead(bufio.NewReader(strings.NewReader(c.text)), c.from); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
