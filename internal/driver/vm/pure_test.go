package vm

import (
	"errors"
	"flag"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/environment"
	"github.com/nearmetal/nearmetal/internal/fabric"
	"github.com/nearmetal/nearmetal/internal/image"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/resource"
)

var updateGolden = flag.Bool("update", false, "rewrite the golden files")

// goldenMember has two cores and ports on two networks.
func goldenMember() driver.Member {
	return driver.Member{
		Assignment: api.Assignment{
			ID: "uid.c1-0.1", Cluster: "c1", Member: "c1-0", Slots: []int{2, 3}, CPUs: []int{2, 3},
			Memory: []api.MemoryClaim{{Bytes: 1 << 30}}, UserIDs: api.IDRange{First: 1_065_536, Count: 65536},
			Ports: []api.PortClaim{
				{Network: "uid", Kind: api.PortTAP, Address: netip.MustParseAddr("10.64.0.2"), MAC: "02:6e:00:01:00:02"},
				{Network: "data", Kind: api.PortTAP, Address: netip.MustParseAddr("10.64.16.2"), MAC: "02:6e:00:02:00:02"},
			},
			Stack: api.StackVM, Environment: "debian-mpi", EnvironmentDigest: "sha256:" + strings.Repeat("a", 64),
		},
		Networks: []api.Network{{UID: "uid"}, {UID: "data"}},
		HomeDir:  "/var/lib/nearmetal/home/uid", ControlDir: "/var/lib/nearmetal/nodes/n1/control/uid.c1-0.1",
		User: driver.User{Name: "hpc", UID: 1000, GID: 1000},
	}
}

func goldenImage() environment.Image {
	return environment.Image{
		Digest: "sha256:" + strings.Repeat("a", 64), Layers: []environment.Layer{{Path: "/a", Format: image.EROFS}, {Path: "/b", Format: image.SquashFS}},
		Kernel: &environment.Kernel{Path: "/vmlinuz", Initrd: "/initrd", Arguments: `console=ttyS0 name="<&>"`},
	}
}

func TestAMachineIsDescribedToLibvirt(t *testing.T) {
	twoNodes := map[int]int{2: 0, 3: 1}
	for name, h := range map[string]hardware{
		"emulated.xml": {SpareCPUs: []int{0}}, "accelerated.xml": {KVM: true},
		"emulated-mtu.xml": {}, "emulated-model.xml": {}, "accelerated-model.xml": {KVM: true},
		"accelerated-numa.xml":      {KVM: true, NUMANodes: twoNodes, SpareCPUs: []int{0, 1}},
		"accelerated-hugepages.xml": {KVM: true, NUMANodes: twoNodes}, "emulated-hugepages.xml": {},
		"emulated-functions.xml": {}, "accelerated-functions.xml": {KVM: true}, "emulated-standby-functions.xml": {},
		"emulated-growing.xml":           {Processors: 4, MemoryBytes: 3 << 30},
		"accelerated-numa-growing.xml":   {KVM: true, NUMANodes: map[int]int{2: 1, 3: 1}, Processors: 4, MemoryBytes: 64 << 30},
		"emulated-growing-hugepages.xml": {Processors: 3, MemoryBytes: 64 << 30},
	} {
		m := goldenMember()
		if h.NUMANodes != nil {
			m.Assignment.Memory = []api.MemoryClaim{{NUMANode: 0, Bytes: 512 << 20}, {NUMANode: 1, Bytes: 512 << 20}}
		}
		if strings.HasSuffix(name, "-numa-growing.xml") {
			m.Assignment.Memory = []api.MemoryClaim{{NUMANode: 1, Bytes: 1 << 30}}
		}
		if strings.HasSuffix(name, "-hugepages.xml") {
			if len(m.Assignment.Memory) == 1 {
				m.Assignment.Memory[0].Bytes = 1 << 30
			}
			for n := range m.Assignment.Memory {
				m.Assignment.Memory[n].PageBytes = 2 << 20
			}
		}
		if strings.HasSuffix(name, "-mtu.xml") {
			m.Networks[1].MTU = 8950
		}
		if strings.HasSuffix(name, "-functions.xml") {
			onFunctions(&m)
		}
		m.Assignment.Ports[0].Standby = strings.Contains(name, "-standby-")
		if strings.HasSuffix(name, "-model.xml") {
			m.Assignment.CPUModel = "Westmere"
		}
		d := newDomain(m, goldenImage(), viewOf(m.Assignment.ID), "00000000-0000-8000-8000-000000000000", h, newChassis(&m.Assignment, h))
		if strings.HasSuffix(name, "-functions.xml") {
			d.take([]hostDevice{{Domain: "0000", Bus: "3b", Slot: "10", Function: "2", Standby: standbyAlias(fabric.PortOf(&m.Assignment, 0), 0)}})
		}
		got, err := d.xml()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name)
		if *updateGolden {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestEveryDescriptionOfAMachineIsValidByLibvirtsOwnSchema: the windows one is started by no test, as no such system is at hand.
func TestEveryDescriptionOfAMachineIsValidByLibvirtsOwnSchema(t *testing.T) {
	needs.Program(t, "virt-xml-validate")
	needs.Program(t, "xmllint")
	files, err := filepath.Glob("testdata/*.xml")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d descriptions were found (%v)", len(files), err)
	}
	for _, file := range files {
		if said, err := exec.CommandContext(t.Context(), "virt-xml-validate", file, "domain").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", file, err, said)
		}
	}
}

func TestSlotsThatShareAProcessorAreProcessorsOfTheGuestEach(t *testing.T) {
	if got := vcpus(&api.Assignment{Slots: []int{0, 1, 2}, CPUs: []int{4, 5}}); !cmp.Equal(got, []int{4, 5, 4}) {
		t.Errorf("got %v", got)
	}
}

func TestASuccessorGoesOnAndNeverBeginsAnew(t *testing.T) {
	m := goldenMember()
	if err := checkBeginner(m); err != nil {
		t.Fatal(err)
	}
	m.Assignment.From, m.Assignment.Of = "uid.c1-0.0", "uid.c1-0.0"
	if err := checkSuccessor(m, "uid.c1-0.0"); err != nil {
		t.Errorf("a successor is refused: %v", err)
	}
	if err := checkBeginner(m); err == nil || !strings.Contains(err.Error(), "must not start") {
		t.Errorf("a successor may start: %v", err)
	}
}

func TestAMemberThatCanNotBeCarriedIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(m *driver.Member)
		want   string
	}{
		"a name that is a path":              {func(m *driver.Member) { m.Assignment.ID = "../x" }, "not a valid member ID"},
		"a part of a member on another node": {func(m *driver.Member) { m.Assignment.Of = "uid.c1-1.1" }, "hold nothing on other nodes"},
		"a device that is no adapter":        {func(m *driver.Member) { m.Assignment.Devices = []api.DeviceClaim{{Device: "fpga0", Class: "fpga"}} }, "of the classes nic, hca and gpu only"},
		"a part of a GPU": {func(m *driver.Member) {
			m.Assignment.Devices = []api.DeviceClaim{{Device: "gpu0", Class: "gpu", Way: "remote"}}
		}, "whole GPUs by pass-through only"},
		"an adapter without a port on it":      {func(m *driver.Member) { onFunctions(m); m.Assignment.Ports[0].Part = "vf4" }, "none of its ports is on that"},
		"a port on what it does not hold":      {func(m *driver.Member) { onFunctions(m); m.Assignment.Devices = m.Assignment.Devices[1:] }, "port 0 is on vf3 of adapter 0000:3b:00.0, which it does not hold"},
		"no processor":                         {func(m *driver.Member) { m.Assignment.CPUs = nil }, "no CPUs"},
		"less memory than a kernel needs":      {func(m *driver.Member) { m.Assignment.Memory[0].Bytes = 64 << 20 }, "the minimum is 192 MiB"},
		"the user IDs of the host":             {func(m *driver.Member) { m.Assignment.UserIDs.First = 0 }, "must not run as the host's root"},
		"an environment without a kernel":      {func(m *driver.Member) { m.Assignment.EnvironmentDigest = "" }, "has no kernel"},
		"a port on a network that is not told": {func(m *driver.Member) { m.Networks = m.Networks[:1] }, "2 ports and 1 networks"},
		"a home that is no absolute path":      {func(m *driver.Member) { m.HomeDir = "home" }, "must be absolute paths"},
		"a volume at a path with dots":         {func(m *driver.Member) { m.Mounts = []driver.Mount{{Source: "/v", Path: "/volumes/../etc"}} }, `not "/volumes/../etc"`},
		"a user whose name is a path":          {func(m *driver.Member) { m.User.Name = "../root" }, "not a valid user name"},
	} {
		m := goldenMember()
		if err := checkMember(m); err != nil {
			t.Fatal(err)
		}
		c.change(&m)
		if err := checkMember(m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestMachinesOfTwoInstallationsAreNotTakenForEachOther(t *testing.T) {
	a, b := &Driver{cfg: Config{StateDir: "/a"}}, &Driver{cfg: Config{StateDir: "/b"}}
	if a.domainUUID("m") == b.domainUUID("m") || a.domainUUID("m") == a.domainUUID("n") || a.domainUUID("m") != (&Driver{cfg: Config{StateDir: "/a"}}).domainUUID("m") {
		t.Error("the UUID of a machine does not follow from its installation and its member")
	}
	if text := uuidText(a.domainUUID("m")); len(text) != 36 || text[14] != '8' || !strings.ContainsRune("89ab", rune(text[19])) {
		t.Errorf("%s is no UUID of version 8", text)
	}
	if hostUUID("/a") == hostUUID("/b") {
		t.Error("two nodes of one machine have the same host UUID")
	}
}

func TestOnlyHardwareVirtualizationCounts(t *testing.T) {
	for text, want := range map[string]bool{
		"processor\t: 0\nflags\t\t: fpu vmx sse2\n": true,
		"flags: svm\n": true,
		"flags\t\t: fpu sse2 avmx\nvmx flags\t: vnmi svm\n": false,
		"": false,
	} {
		if got := hasVirtualization([]byte(text)); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

func TestOnlyItsOwnEndedMachinesAreWaitedFor(t *testing.T) {
	for stat, want := range map[string]bool{
		"5178 (qemu-system-x86) Z 77 5178 5178 0": true,
		"5178 (qemu-system-x86) S 77 5178 5178 0": false,
		"5178 (qemu-system-x86) Z 78 5178 5178 0": false,
		"5178 (crun) Z 77 5178 5178 0":            false,
		"5178 (qemu-system-x86 (a) Z) Z 77 1 2":   true,
		"5178 (x) Z 77) qemu-system-x86 Z 77 1 2": false,
		"no line of stat":                         false,
		"5178 (qemu-system-x86)":                  false,
	} {
		if got := endedMachine([]byte(stat), 77); got != want {
			t.Errorf("%q: got %v, want %v", stat, got, want)
		}
	}
}

func TestOnlyAMachineThatItsWatchdogStoppedHangs(t *testing.T) {
	for _, c := range []struct {
		state  libvirt.DomainState
		reason int32
		want   bool
	}{
		{libvirt.DomainPaused, int32(libvirt.DomainPausedWatchdog), true},
		{libvirt.DomainPaused, int32(libvirt.DomainPausedUser), false},
		{libvirt.DomainRunning, int32(libvirt.DomainPausedWatchdog), false},
	} {
		if got := hasFired(c.state, c.reason); got != c.want {
			t.Errorf("state %d for reason %d: %v, want %v", c.state, c.reason, got, c.want)
		}
	}
}

func TestLastWordsAreShortAndFitForATerminal(t *testing.T) {
	var l lastWords
	for range 1000 {
		_, _ = l.Write([]byte("many words \x1b[31m\xff\n"))
	}
	_, _ = l.Write([]byte("the end"))
	got := l.String()
	if len(got) > mostSaid || !strings.HasSuffix(got, "[31m? the end") || strings.ContainsAny(got, "\x1b\n\uFFFD") || len(l.text) > mostWords {
		t.Errorf("got %q, and %d bytes are kept", got, len(l.text))
	}
	if got := (&lastWords{}).String(); got != "nothing" {
		t.Errorf("of nothing: %q", got)
	}
}

func TestAccountsAreAddedOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(file, []byte("root:x:0:0::/root:/bin/sh\nlibvirt:x:111:111::/:/bin/false"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := addAccounts(file, "%s:x:%d:%[2]d::/nonexistent:/usr/sbin/nologin\n"); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := os.ReadFile(file)
	want := "root:x:0:0::/root:/bin/sh\nlibvirt:x:111:111::/:/bin/false\nlibvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin\nkvm:x:64057:64057::/nonexistent:/usr/sbin/nologin\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestAMachinesLogIsEmptiedWhenItHasGrownTooLarge(t *testing.T) {
	d := &Driver{cfg: Config{StateDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)}
	for id, size := range map[string]int64{"large": mostLog + 1, "small": mostLog} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(d.logFile(id)), 0o755), os.WriteFile(d.logFile(id), nil, 0o600), os.Truncate(d.logFile(id), size)); err != nil {
			t.Fatal(err)
		}
	}
	d.boundLogs([]string{"large", "small", "none"})
	for id, want := range map[string]int64{"large": 0, "small": mostLog} {
		if info, err := os.Stat(d.logFile(id)); err != nil || info.Size() != want {
			t.Errorf("%s: %v, %v; want %d bytes", id, info, err, want)
		}
	}
}

func TestOnlyEmulatedMachinesAndMachinesInMachinesMayTakeMinutesToBoot(t *testing.T) {
	for _, c := range []struct {
		acceleration error
		inMachine    bool
		most         time.Duration
	}{
		{nil, false, time.Minute},
		{nil, true, 15 * time.Minute},
		{errors.ErrUnsupported, false, 15 * time.Minute},
	} {
		d := &Driver{cfg: Config{Accelerate: func() error { return c.acceleration }, InMachine: func() bool { return c.inMachine }}}
		if got := d.StartTime(); got != c.most {
			t.Errorf("acceleration %v on a host that is a machine itself: %v: %v, want %v", c.acceleration, c.inMachine, got, c.most)
		}
	}
}

func TestAMachineIsHeldToItsMemoryAndWhatItTakesInItsOwnGroup(t *testing.T) {
	group := api.Group{Stack: api.StackVM, Shape: api.Shape{Cores: 2, Memory: 1 << 30}, Display: true}
	m := goldenMember()
	m.Assignment.Display, m.Assignment.ReserveBytes = true, resource.Reserve(&group)
	const own = (96 + 2*4 + 4 + 16) << 20 // a screen takes 16 MiB
	if got, want := limitsOf(&m.Assignment, nil).MemoryBytes, int64(1<<30+own); got != want {
		t.Errorf("its limit is %d, want %d: the server of its home is elsewhere", got, want)
	}
	if got, want := resource.Reserve(&group), int64(own+32<<20); got != want {
		t.Errorf("its node counts %d, want %d: the server of its home, too", got, want)
	}
	m.Assignment.ReserveBytes = 0
	if got, want := limitsOf(&m.Assignment, nil).MemoryBytes, int64(1<<30+own); got != want {
		t.Errorf("a member for which nothing was counted has the limit %d, want %d", got, want)
	}
}
