package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/kerneltree"
)

// The machine of these tests: a GPU with audio in its group, behind a bridge, and a chip for the firmware's screen.
const (
	gpuPCI, audioPCI, bridgePCI, screenPCI = "0000:3b:00.0", "0000:3b:00.1", "0000:3a:00.0", "0000:03:00.0"
	windowBytes                            = 64 << 10
)

// model is a kernel with these devices, in a folder that is laid out as sysfs is.
type model struct {
	Kernel
	t *testing.T
	// native are the drivers that take a function which has no override.
	native map[string]string
	// fail are errors of writes, by the end of the file's name; stop is called before the write with that number, from 1 on.
	fail      map[string]error
	writes    []string
	stopAt    int
	stop      func()
	hang      chan struct{}
	calls     atomic.Int64
	inUse     bool
	users     []string
	notMemory bool
}

func newModel(t *testing.T) *model {
	t.Helper()
	m := &model{Kernel: Kernel{kerneltree.Tree{Root: t.TempDir()}}, t: t, native: map[string]string{gpuPCI: "nvidia", audioPCI: "snd_hda_intel"}, fail: map[string]error{}}
	m.device(gpuPCI, "0x030200", "17")
	m.device(audioPCI, "0x040300", "17")
	m.device(bridgePCI, "0x060400", "17")
	m.device(screenPCI, "0x030000", "4")
	m.set(pciDevices+screenPCI+"/boot_vga", "1")
	m.set(pciDevices+gpuPCI+"/reset_method", "flr bus")
	m.set(pciDevices+gpuPCI+"/numa_node", "1")
	m.set(pciDevices+gpuPCI+"/resource", fmt.Sprintf("%#018x %#018x 0x0000000000040200\n%#018x %#018x 0x000000000014220c\n", 0x9f000000, 0x9fffffff, 0xa0000000, 0xa0000000+windowBytes-1))
	m.set(pciDevices+gpuPCI+"/resource1", strings.Repeat("secret..", windowBytes/8))
	m.set("/sys/bus/pci/drivers_probe", "")
	for _, driver := range []string{"nvidia", "snd_hda_intel", vfioPCI, "ast"} {
		m.set(pciDrivers+driver+"/unbind", "")
	}
	for pci, driver := range map[string]string{gpuPCI: "nvidia", audioPCI: "snd_hda_intel", screenPCI: "ast"} {
		m.link(pciDevices+pci+"/driver", "../../../bus/pci/drivers/"+driver)
	}
	return m
}

func (m *model) device(pci, class, group string) {
	m.t.Helper()
	dir := pciDevices + pci
	for name, text := range map[string]string{
		"class": class, "vendor": "0x10de", "device": "0x2330", "driver_override": "(null)", "reset_method": "bus", "reset": "", "enable": "0", "numa_node": "-1", "resource": "",
	} {
		m.set(dir+"/"+name, text)
	}
	m.set("/sys/kernel/iommu_groups/"+group+"/devices/"+pci, "")
	m.link(dir+"/iommu_group", m.At("/sys/kernel/iommu_groups/"+group))
}

func (m *model) set(name, text string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(m.At(name)), 0o755), os.WriteFile(m.At(name), []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) link(name, target string) {
	m.t.Helper()
	_ = os.Remove(m.At(name))
	if err := os.Symlink(target, m.At(name)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) remove(name string) {
	m.t.Helper()
	if err := os.RemoveAll(m.At(name)); err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) memory() string {
	m.t.Helper()
	text, err := os.ReadFile(m.At(pciDevices + gpuPCI + "/resource1"))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(text)
}

// WriteFile does what the kernel would.
func (m *model) WriteFile(name, text string) error {
	text = strings.TrimSpace(text)
	m.calls.Add(1)
	m.writes = append(m.writes, strings.TrimPrefix(strings.TrimPrefix(name, pciDevices), "/sys/bus/pci/")+" "+text)
	if m.stopAt > 0 && len(m.writes) >= m.stopAt {
		m.stop()
		return errors.New("the agent was killed")
	}
	if m.hang != nil {
		<-m.hang
		return errors.New("too late")
	}
	for end, err := range m.fail {
		if strings.HasSuffix(name, end) {
			return err
		}
	}
	switch filepath.Base(name) {
	case "unbind":
		m.remove(pciDevices + text + "/driver")
	case "drivers_probe":
		driver := readFunction(m, text).Override
		if driver == "" {
			driver = m.native[text]
		}
		if driver != "" {
			m.link(pciDevices+text+"/driver", "../../../bus/pci/drivers/"+driver)
		}
	case "driver_override":
		if text == "" {
			text = "(null)"
		}
		m.set(name, text)
	default:
		m.set(name, text)
	}
	return nil
}

func (m *model) GroupInUse(string) (bool, error) { return m.inUse, nil }

func (m *model) Users([]string) []string { return m.users }

func (m *model) Memory(name string, bytes int64, do func([]byte) error) error {
	if m.notMemory {
		return errNotMemory
	}
	return m.Kernel.Memory(name, bytes, do)
}

// state is what of the node's devices must be the same before and after.
func (m *model) state() map[string]string {
	all := map[string]string{}
	for _, pci := range []string{gpuPCI, audioPCI, bridgePCI, screenPCI} {
		f := readFunction(m, pci)
		method, _ := m.ReadFile(pciDevices + pci + "/reset_method")
		all[pci] = fmt.Sprintf("%s override %q, reset by %s", f.Driver, f.Override, method)
	}
	return all
}

func open(t *testing.T, m *model, dir string, change ...func(*Config)) *Manager {
	t.Helper()
	cfg := Config{Host: m, Dir: dir, Settle: 50 * time.Millisecond}
	for _, c := range change {
		c(&cfg)
	}
	manager, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return manager
}

var shown = api.NodeGPU{ID: "GPU-a", PCI: gpuPCI, Model: "NVIDIA H100"}

func TestAGPUAndWhatCanBeDoneWithItAreReadFromThePCIBus(t *testing.T) {
	m := newModel(t)
	cards, err := ReadCards(m)
	if err != nil {
		t.Fatal(err)
	}
	want := []Card{
		{
			PCI: screenPCI, Vendor: "10de", Device: "2330", Group: "4", Functions: []Function{{PCI: screenPCI, Driver: "ast"}}, NUMANode: -1, Resets: []string{"bus"}, VFIO: true,
			Console: "the firmware shows the node's console on it",
		},
		{
			PCI: gpuPCI, Vendor: "10de", Device: "2330", Group: "17", Functions: []Function{{PCI: gpuPCI, Driver: "nvidia"}, {PCI: audioPCI, Driver: "snd_hda_intel"}}, NUMANode: 1,
			Resets: []string{"flr", "bus"}, VFIO: true, Memory: []Window{{1, windowBytes}},
		},
	}
	if diff := cmp.Diff(want, cards); diff != "" {
		t.Errorf("the cards differ:\n%s", diff)
	}
	if problem := cards[1].Problem(); problem != "" {
		t.Errorf("the GPU has the problem %q", problem)
	}
}

func TestAGPUThatCanNotBeGivenAwayIsRefusedWithTheReason(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*model)
		want   string
	}{
		"no IOMMU":                        {func(m *model) { m.remove(pciDevices + gpuPCI + "/iommu_group") }, "the node has no IOMMU"},
		"a stranger in its group":         {func(m *model) { m.device("0000:3c:00.0", "0x010802", "17") }, "IOMMU group 17 also holds 0000:3c:00.0"},
		"the node's console":              {func(m *model) { m.set(pciDevices+gpuPCI+"/boot_vga", "1") }, "the firmware shows the node's console on it"},
		"a frame buffer":                  {func(m *model) { m.set(pciDevices+gpuPCI+"/graphics/fb0/name", "") }, "its driver has the frame buffer fb0"},
		"no reset but power management's": {func(m *model) { m.set(pciDevices+gpuPCI+"/reset_method", "pm") }, `knows the ways "pm"`},
		"no reset":                        {func(m *model) { m.remove(pciDevices + gpuPCI + "/reset_method") }, `knows the ways ""`},
		"no vfio-pci":                     {func(m *model) { m.remove(pciDrivers + vfioPCI) }, "modprobe vfio-pci"},
		"programs":                        {func(m *model) { m.users = []string{`"python3" (PID 7)`} }, `"python3" (PID 7)`},
		"gone":                            {func(m *model) { m.remove(pciDevices + gpuPCI) }, "no GPU at"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newModel(t)
			c.change(m)
			manager := open(t, m, t.TempDir())
			before := m.state()
			if _, err := manager.Take(t.Context(), "a", shown); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			if diff := cmp.Diff(before, m.state()); diff != "" || len(manager.Away()) > 0 {
				t.Errorf("it was touched, or is away (%v):\n%s", manager.Away(), diff)
			}
		})
	}
}

func TestAGPUComesEmptyToItsOwnerAndGoesBackEmpty(t *testing.T) {
	m := newModel(t)
	manager, before := open(t, m, t.TempDir()), m.state()
	g, err := manager.Take(t.Context(), "a", shown)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Group{IOMMU: "17", Functions: []string{gpuPCI, audioPCI}}, g); diff != "" {
		t.Errorf("what the machine gets differs:\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		gpuPCI + "/driver_override vfio-pci", audioPCI + "/driver_override vfio-pci", "drivers/nvidia/unbind " + gpuPCI, "drivers/snd_hda_intel/unbind " + audioPCI,
		gpuPCI + "/reset_method flr", gpuPCI + "/reset 1", gpuPCI + "/reset_method flr bus", gpuPCI + "/enable 1", gpuPCI + "/enable 0", "drivers_probe " + gpuPCI, "drivers_probe " + audioPCI,
	}, m.writes); diff != "" {
		t.Errorf("what was written differs:\n%s", diff)
	}
	if strings.Trim(m.memory(), "\x00") != "" {
		t.Error("its owner finds what was in its memory before")
	}
	if diff := cmp.Diff([]api.NodeGPU{shown}, manager.Away()); diff != "" {
		t.Errorf("what is away differs:\n%s", diff)
	}
	if _, err := manager.Take(t.Context(), "b", shown); !errors.Is(err, ErrHeld) {
		t.Errorf("a second owner got %v", err)
	}
	if err := manager.Give(t.Context(), "b"); err != nil || len(manager.Away()) != 1 {
		t.Errorf("somebody else gave it back: %v, %v", err, manager.Away())
	}
	m.set(pciDevices+gpuPCI+"/resource1", strings.Repeat("tenant..", windowBytes/8))
	if err := manager.Give(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if strings.Trim(m.memory(), "\x00") != "" {
		t.Error("its memory holds what its owner left")
	}
	if diff := cmp.Diff(before, m.state()); diff != "" || len(manager.Away()) > 0 {
		t.Errorf("the node is not as before (away: %v):\n%s", manager.Away(), diff)
	}
	if err := manager.Give(t.Context(), "a"); err != nil {
		t.Errorf("giving it back again: %v", err)
	}
}

func TestAGPUThatAMachineHasIsNotReset(t *testing.T) {
	m := newModel(t)
	manager := open(t, m, t.TempDir())
	if _, err := manager.Take(t.Context(), "a", shown); err != nil {
		t.Fatal(err)
	}
	m.inUse, m.writes = true, nil
	if err := manager.Give(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "a machine still has it") || len(m.writes) > 0 {
		t.Errorf("got %v after the writes %q", err, m.writes)
	}
	m.inUse = false
	if err := manager.Give(t.Context(), "a"); err != nil || len(manager.Away()) > 0 {
		t.Errorf("got %v, away are %v", err, manager.Away())
	}
}

// An agent may be killed at any moment. The next one takes back what it finds, with nothing of the owner in it.
func TestANewAgentTakesBackWhatAKilledOneLeft(t *testing.T) {
	whole := newModel(t)
	manager := open(t, whole, t.TempDir())
	if _, err := manager.Take(t.Context(), "a", shown); err != nil {
		t.Fatal(err)
	}
	taking := len(whole.writes)
	if err := manager.Give(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= len(whole.writes); n++ {
		m, dir := newModel(t), t.TempDir()
		before := m.state()
		ctx, cancel := context.WithCancel(t.Context())
		m.stopAt, m.stop = n, cancel
		killed := open(t, m, dir)
		_, err := killed.Take(ctx, "a", shown)
		if n > taking && err == nil {
			m.set(pciDevices+gpuPCI+"/resource1", strings.Repeat("tenant..", windowBytes/8))
			err = killed.Give(ctx, "a")
		}
		if err == nil {
			t.Fatalf("write %d: the agent was not killed", n)
		}
		m.stopAt = 0
		next := open(t, m, dir)
		if away := next.Away(); len(away) != 1 || len(away[0].Problems) > 0 {
			t.Fatalf("write %d (%s): the next agent finds %v away", n, m.writes[n-1], away)
		}
		if err := next.Give(t.Context(), "a"); err != nil {
			t.Fatalf("write %d (%s): %v", n, m.writes[n-1], err)
		}
		if diff := cmp.Diff(before, m.state()); diff != "" || len(next.Away()) > 0 || strings.Trim(m.memory(), "\x00") != "" {
			t.Fatalf("write %d (%s): the node is not as before:\n%s", n, m.writes[n-1], diff)
		}
	}
}

func TestAGPUThatCanNotBeEmptiedIsInQuarantine(t *testing.T) {
	for name, c := range map[string]struct {
		broken, mended func(*model)
		want           string
	}{
		"its reset fails": {
			func(m *model) { m.fail["/reset"] = errors.New("inappropriate ioctl for device") },
			func(m *model) { delete(m.fail, "/reset") }, "inappropriate ioctl for device",
		},
		"the kernel can't reset it any more": {
			func(m *model) { m.set(pciDevices+gpuPCI+"/reset_method", "pm") },
			func(m *model) { m.set(pciDevices+gpuPCI+"/reset_method", "flr bus") }, "the kernel knows no way",
		},
		"its memory is not to be seen": {func(m *model) { m.notMemory = true }, func(m *model) { m.notMemory = false }, "--passthrough-clearing reset"},
		"its driver does not take it": {
			func(m *model) { m.native[gpuPCI] = "" }, func(m *model) { m.native[gpuPCI] = "nvidia" }, `its driver is "", not "nvidia"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, dir := newModel(t), t.TempDir()
			manager, before := open(t, m, dir), m.state()
			if _, err := manager.Take(t.Context(), "a", shown); err != nil {
				t.Fatal(err)
			}
			c.broken(m)
			if err := manager.Give(t.Context(), "a"); err != nil {
				t.Fatalf("the member waits for the GPU: %v", err)
			}
			wantQuarantine(t, manager, c.want)
			if _, err := manager.Take(t.Context(), "b", shown); !errors.Is(err, ErrQuarantined) {
				t.Errorf("the next owner got %v", err)
			}
			next := open(t, m, dir)
			next.Retry(t.Context())
			wantQuarantine(t, next, c.want)
			c.mended(m)
			next.Retry(t.Context())
			if diff := cmp.Diff(before, m.state()); diff != "" || len(next.Away()) > 0 {
				t.Errorf("after it was repaired, it is not as before (away: %v):\n%s", next.Away(), diff)
			}
		})
	}
}

func wantQuarantine(t *testing.T, m *Manager, why string) {
	t.Helper()
	away := m.Away()
	if len(away) != 1 || len(away[0].Problems) != 1 || !strings.Contains(away[0].Problems[0], "it is in quarantine: ") || !strings.Contains(away[0].Problems[0], why) {
		t.Fatalf("away are %+v, want a GPU in quarantine because of %q", away, why)
	}
}

func TestMemoryThatIsNotAllToBeSeenIsNoProof(t *testing.T) {
	m := newModel(t)
	manager := open(t, m, t.TempDir())
	larger := shown
	larger.MemoryBytes = 80 << 30
	if _, err := manager.Take(t.Context(), "a", larger); !errors.Is(err, errUnproven) {
		t.Errorf("a window smaller than the memory proves it: %v", err)
	}
	wantQuarantine(t, manager, "resizable BARs")
}

func TestMemoryIsLeftToTheResetWhereTheOperatorTrustsIt(t *testing.T) {
	m := newModel(t)
	manager := open(t, m, t.TempDir(), func(c *Config) { c.Clearing = ClearingReset })
	before := m.memory()
	if _, err := manager.Take(t.Context(), "a", shown); err != nil {
		t.Fatal(err)
	}
	if m.memory() != before {
		t.Error("its memory was overwritten")
	}
	if !strings.Contains(strings.Join(m.writes, "\n"), gpuPCI+"/reset 1") {
		t.Errorf("it was not reset: %q", m.writes)
	}
}

func TestNothingMoreIsDoneWithAGPUThatHangs(t *testing.T) {
	m := newModel(t)
	m.hang = make(chan struct{})
	defer close(m.hang)
	manager := open(t, m, t.TempDir(), func(c *Config) { c.Answer = 20 * time.Millisecond })
	_, err := manager.Take(t.Context(), "a", shown)
	if err == nil || !strings.Contains(err.Error(), "did not end within") {
		t.Fatalf("got %v", err)
	}
	wantQuarantine(t, manager, "reboot the node")
	calls := m.calls.Load()
	if err := manager.Give(t.Context(), "a"); err != nil {
		t.Errorf("the member waits for the GPU: %v", err)
	}
	wantQuarantine(t, manager, "reboot the node")
	if more := m.calls.Load() - calls; more != 0 {
		t.Errorf("the kernel was called %d times more", more)
	}
}

func TestAWindowIsOverwrittenWhole(t *testing.T) {
	window := []byte(strings.Repeat("secret..", 3*pageBytes))
	if err := clearMemory(window); err != nil {
		t.Fatal(err)
	}
	if strings.Trim(string(window), "\x00") != "" {
		t.Error("something is left")
	}
}

func TestOwnersThatCanNotBeReadAreNoFreeGPUs(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, gpuPCI+recordEnd), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Host: newModel(t), Dir: dir}); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("got %v", err)
	}
}
