package gpu_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/gpu"
	"github.com/nearmetal/nearmetal/internal/gpu/passthrough"
	"github.com/nearmetal/nearmetal/internal/inventory"
)

// machines stand in for what gives GPUs to virtual machines.
type machines struct {
	cards []passthrough.Card
	away  []api.NodeGPU
	taken []api.NodeGPU
	given []string
}

func (m *machines) Cards() ([]passthrough.Card, error) { return m.cards, nil }
func (m *machines) Away() []api.NodeGPU                { return m.away }

func (m *machines) Take(_ context.Context, _ string, g api.NodeGPU) (passthrough.Group, error) {
	m.taken = append(m.taken, g)
	return passthrough.Group{IOMMU: "17", Functions: []string{g.PCI}}, nil
}

func (m *machines) Give(_ context.Context, owner string) error {
	m.given = append(m.given, owner)
	return nil
}

// fit is a GPU on the bus that can be given to machines.
func fit(pci string) passthrough.Card {
	return passthrough.Card{
		PCI: pci, Vendor: "1234", Device: "1111", Group: "17", Functions: []passthrough.Function{{PCI: pci}}, NUMANode: 1, Resets: []string{"flr"}, VFIO: true,
	}
}

// onlyMachines are the GPUs of a node without any vendor's tools.
func onlyMachines(t *testing.T, m *machines, change func(*gpu.Config)) *gpu.Node {
	t.Helper()
	cfg := gpu.Config{Root: t.TempDir(), Passthrough: m, PassthroughGPUs: []string{gpu.PassthroughAll}, Run: answers(nil).run}
	if change != nil {
		change(&cfg)
	}
	return gpu.New(cfg)
}

func TestAGPUThatNoToolKnowsIsForMachinesAlone(t *testing.T) {
	m := &machines{cards: []passthrough.Card{fit("0000:05:00.0")}}
	found := onlyMachines(t, m, nil).Read(t.Context())
	want := []api.Device{{
		ID: "0000:05:00.0", Class: api.ClassGPU, NUMANode: 1, Model: "QEMU GPU 1234:1111", Counters: map[string]int64{api.CounterGPUs: 1},
		Ways: map[string]api.DeviceWay{api.WayPassthrough: {Mode: api.WayPassthrough, Takes: map[string]int64{api.CounterGPUs: 1}}},
	}}
	if diff := cmp.Diff(want, found.Devices()); diff != "" {
		t.Errorf("what is offered differs:\n%s", diff)
	}
}

func TestAnOperatorOffersGPUsToMachinesByName(t *testing.T) {
	cards := []passthrough.Card{fit("0000:05:00.0"), fit("0000:06:00.0")}
	for name, c := range map[string]struct {
		change func(*gpu.Config)
		want   string
	}{
		"all":            {func(*gpu.Config) {}, "0000:05:00.0 0000:06:00.0"},
		"one by address": {func(c *gpu.Config) { c.PassthroughGPUs = []string{"0000:06:00.0"} }, "0000:06:00.0"},
		"by model":       {func(c *gpu.Config) { c.PassthroughGPUs = []string{"QEMU GPU"} }, "0000:05:00.0 0000:06:00.0"},
		"none":           {func(c *gpu.Config) { c.PassthroughGPUs = nil }, ""},
		"kept":           {func(c *gpu.Config) { c.Allow = []string{"0000:05:00.0"} }, "0000:05:00.0"},
		"another node's": {func(c *gpu.Config) { c.Part = inventory.Part{N: 2, Of: 2} }, "0000:06:00.0"},
	} {
		found := onlyMachines(t, &machines{cards: cards}, c.change).Read(t.Context())
		var ids []string
		for _, d := range found.Devices() {
			ids = append(ids, d.ID)
		}
		if got := strings.Join(ids, " "); got != c.want {
			t.Errorf("%s: offered are %q, want %q", name, got, c.want)
		}
	}
	found := onlyMachines(t, &machines{cards: cards}, func(c *gpu.Config) { c.PassthroughGPUs = []string{"H200"} }).Read(t.Context())
	if len(found.Problems) != 1 || !strings.Contains(found.Problems[0], `--passthrough-gpus "H200"`) {
		t.Errorf("an option that names nothing is not noticed: %q", found.Problems)
	}
}

func TestAGPUThatMachinesCanNotHaveIsShownWithTheReason(t *testing.T) {
	shared := fit("0000:05:00.0")
	shared.Strangers = []string{"0000:05:01.0"}
	found := onlyMachines(t, &machines{cards: []passthrough.Card{shared}}, nil).Read(t.Context())
	if len(found.Devices()) != 0 || len(found.GPUs) != 1 || len(found.GPUs[0].Problems) != 1 || !strings.Contains(found.GPUs[0].Problems[0], "0000:05:01.0") {
		t.Errorf("found %+v", found.GPUs)
	}
}

func TestAGPUOfADriverIsForContainersOrMachines(t *testing.T) {
	card := fit("0000:3b:00.0")
	m := &machines{cards: []passthrough.Card{card, fit("0000:86:00.0")}}
	tools := pair(t)
	run := func(ctx context.Context, env []string, program string, args ...string) ([]byte, error) {
		return tools.run(ctx, env, program, args...)
	}
	n := gpu.New(gpu.Config{Root: machine(t), Run: run, Passthrough: m, PassthroughGPUs: []string{card.PCI}, Every: -1})
	found := n.Read(t.Context())
	d := found.Devices()[0]
	if d.ID != first || d.Ways[api.WayWhole].Mode == d.Ways[api.WayPassthrough].Mode || len(d.Ways) != 2 || len(found.Devices()[1].Ways) != 1 {
		t.Fatalf("the GPU is offered as %+v", d)
	}
	if diff := cmp.Diff(d.Ways[api.WayWhole].Takes, d.Ways[api.WayPassthrough].Takes); diff != "" {
		t.Errorf("a machine's whole GPU counts as another than a container's:\n%s", diff)
	}
	claims := []api.DeviceClaim{{Class: api.ClassGPU, Device: d.ID, Way: api.WayPassthrough}}
	groups, err := n.Take(t.Context(), "a", claims)
	if err != nil || len(groups) != 1 || groups[0].Functions[0] != card.PCI || m.taken[0].ID != d.ID {
		t.Fatalf("taken: %+v, %v; %+v", groups, err, m.taken)
	}

	t.Log("while a machine has it, nvidia-smi does not see it, and it is the same device")
	m.away = m.taken
	tools = nil
	if diff := cmp.Diff(d, n.Read(t.Context()).Devices()[0]); diff != "" {
		t.Errorf("the device differs:\n%s", diff)
	}
	if _, err := n.Edits(t.Context(), claims); err == nil {
		t.Error("a container can use it meanwhile")
	}

	t.Log("in quarantine it is nobody's")
	m.away[0].Problems = []string{"it is in quarantine: its reset failed"}
	if got := n.Read(t.Context()); len(got.Devices()) != 0 || len(got.GPUs) != 1 || len(got.GPUs[0].Problems) != 1 {
		t.Errorf("it is offered as %+v", got.Devices())
	}
	if _, err := n.Take(t.Context(), "b", claims); err == nil {
		t.Error("a machine gets a GPU in quarantine")
	}
	if err := n.Give(t.Context(), "a"); err != nil || len(m.given) != 1 {
		t.Errorf("given back: %v, %v", err, m.given)
	}
}

// A GPU may be described by a CDI file whose device nodes do not lead to the PCI bus. Offered by its address too, it would be two members'.
func TestAGPUThatMayBeDescribedTwiceIsNotOfferedToMachines(t *testing.T) {
	card := fit("0000:05:00.0")
	card.Functions[0].Driver = "amdgpu"
	m := &machines{cards: []passthrough.Card{card}}
	root := t.TempDir()
	n := onlyMachines(t, m, func(c *gpu.Config) { c.Root = root })
	dir := filepath.Join(root, "etc/cdi")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := `{"cdiVersion":"0.6.0","kind":"example.com/gpu","devices":[{"name":"gpu0","containerEdits":{"deviceNodes":[{"path":"/dev/null"}]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "example.json"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	found := n.Read(t.Context())
	for _, g := range found.GPUs {
		if g.Bare && (g.Passthrough.Offered || !strings.Contains(g.Passthrough.Problem, "example.com/gpu=gpu0")) {
			t.Errorf("it is offered twice: %+v", g.Passthrough)
		}
	}
	if len(found.GPUs) != 2 {
		t.Errorf("found %+v", found.GPUs)
	}
}

// A GPU whose last owner was not shown to be gone from it may be with its driver already.
func TestAQuarantineKeepsAGPUThatItsDriverHasAgain(t *testing.T) {
	m := &machines{cards: []passthrough.Card{fit("0000:3b:00.0")}, away: []api.NodeGPU{{ID: first, PCI: "0000:3b:00.0", Problems: []string{"it is in quarantine: its reset failed"}}}}
	n := gpu.New(gpu.Config{Root: machine(t), Run: pair(t).run, Passthrough: m, PassthroughGPUs: []string{gpu.PassthroughAll}})
	for _, d := range n.Read(t.Context()).Devices() {
		if d.ID == first {
			t.Errorf("it is offered: %+v", d)
		}
	}
	if _, err := n.Edits(t.Context(), []api.DeviceClaim{{Class: api.ClassGPU, Device: first, Way: api.WayWhole}}); err == nil || !strings.Contains(err.Error(), "its reset failed") {
		t.Errorf("a container gets it: %v", err)
	}
}
