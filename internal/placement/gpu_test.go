package placement

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// gpuOf is a GPU as an agent offers it.
func gpuOf(id, model string, memory int64, numa int) api.Device {
	takes := map[string]int64{"gpus": 1}
	return api.Device{ID: id, Class: "gpu", Model: model, MemoryBytes: memory, NUMANode: numa, Counters: takes, Ways: map[string]api.DeviceWay{"whole": {Mode: "whole", Takes: takes}}}
}

// withKinds is a view of n1 without GPUs, n2 with one of 80 GB, and n3 with two of 141 GB.
func withKinds(t *testing.T) *View {
	t.Helper()
	v := NewView()
	for name, gpus := range map[string][]api.Device{
		"n1": nil,
		"n2": {gpuOf("GPU-a", "NVIDIA A100-SXM4-80GB", 80<<30, 0)},
		"n3": {gpuOf("GPU-b", "NVIDIA H200", 143771<<20, 0), gpuOf("GPU-c", "NVIDIA H200", 143771<<20, 0)},
	} {
		rec := testNode(name, 8, 1, 1)
		rec.Capacity.Devices = gpus
		v.SetNode(rec, Schedulable)
	}
	return v
}

func wholeGPUs(size, count int, model string, memory api.Bytes) []api.Group {
	r := api.DeviceRequest{Class: "gpu", Way: "whole", Count: count, Model: model, Memory: memory}
	return []api.Group{{Name: "c", Size: size, Shape: api.Shape{Cores: 1, Memory: 1 << 20}, Stack: api.StackContainer, Environment: "local", Devices: []api.DeviceRequest{r}}}
}

func TestAMemberGetsGPUsOfTheKindThatItAsksFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		groups []api.Group
		want   string
	}{
		"a model":                  {wholeGPUs(1, 1, "h200", 0), "n3/GPU-b/whole ; "},
		"words of a model's name":  {wholeGPUs(1, 1, "A100 SXM4", 0), "n2/GPU-a/whole ; "},
		"more memory than one has": {wholeGPUs(1, 1, "", 100<<30), "n3/GPU-b/whole ; "},
		"as much memory as it has": {wholeGPUs(1, 1, "A100", 80<<30), "n2/GPU-a/whole ; "},
		"two on one node":          {wholeGPUs(1, 2, "", 0), "n3/GPU-b/whole n3/GPU-c/whole ; "},
		"one for each of three":    {wholeGPUs(3, 1, "", 0), "n3/GPU-b/whole ; n3/GPU-c/whole ; n2/GPU-a/whole ; "},
	} {
		got, missing := fitDevices(t, withKinds(t).Sketch(), c.groups)
		if sorted(got) != sorted(c.want) {
			t.Errorf("%s: got %q (%s), want %q", name, got, missing, c.want)
		}
	}
}

func sorted(members string) string {
	all := strings.Split(members, "; ")
	for i := range all {
		for j := range all[:i] {
			if all[i] < all[j] {
				all[i], all[j] = all[j], all[i]
			}
		}
	}
	return strings.Join(all, "; ")
}

func TestARefusalOfGPUsNamesThoseThatThereAre(t *testing.T) {
	t.Parallel()
	taken := withKinds(t).Sketch()
	fitDevices(t, taken, wholeGPUs(3, 1, "", 0))
	bare := NewView()
	bare.SetNode(testNode("n1", 8, 1, 1), Schedulable)
	for name, c := range map[string]struct {
		sketch *Sketch
		groups []api.Group
		want   string
	}{
		"no node has any":          {bare.Sketch(), wholeGPUs(1, 1, "", 0), `each member of group "c" needs a whole GPU: no node has a GPU`},
		"no such model":            {withKinds(t).Sketch(), wholeGPUs(1, 1, "A10", 0), `needs a whole GPU A10: node n2: it has NVIDIA A100-SXM4-80GB with 80GiB; node n3: it has NVIDIA H200 with 143771MiB, NVIDIA H200 with 143771MiB`},
		"not as much memory":       {withKinds(t).Sketch(), wholeGPUs(1, 2, "", 200<<30), "needs 2 whole GPUs with at least 200GiB of memory: node n2: it has NVIDIA A100-SXM4-80GB"},
		"all are taken":            {taken, wholeGPUs(1, 1, "", 0), "node n2: its only GPU of that kind is taken; node n3: all 2 GPUs of that kind are taken"},
		"more than any node has":   {withKinds(t).Sketch(), wholeGPUs(1, 3, "", 0), "too few are free on nodes with room for its members: node n2: 1 of 1 GPU of that kind free; node n3: 2 of 2 GPUs of that kind free"},
		"one is another's by name": {withKinds(t).Sketch(), []api.Group{byID(wholeGPUs(1, 1, "", 0)[0], "GPU-z")}, "(device GPU-z): node n2: it has GPU-a is another one"},
	} {
		if _, missing := fitDevices(t, c.sketch, c.groups); !strings.Contains(missing, c.want) {
			t.Errorf("%s: got %q, want %q", name, missing, c.want)
		}
	}
}

func byID(g api.Group, id string) api.Group {
	g.Devices[0].Device = id
	return g
}

func TestANodeWithoutSuchAGPUSaysSo(t *testing.T) {
	t.Parallel()
	s := withKinds(t).Sketch()
	for node, want := range map[string]string{
		"n1": "node n1 has no room for it (it has no GPU; a whole GPU H200 needed)",
		"n2": "node n2 has no room for it (it has NVIDIA A100-SXM4-80GB with 80GiB; a whole GPU H200 needed)",
		"n3": "",
	} {
		if why, _ := s.WhyNot(node, wholeGPUs(1, 1, "H200", 0)[0]); why != want {
			t.Errorf("got %q, want %q", why, want)
		}
	}
}

// A GPU that virtual machines can have, too, is a container's or a machine's, and counts for quotas and refusals in both ways.
func TestAGPUIsAContainersOrAMachines(t *testing.T) {
	t.Parallel()
	forMachines := func(size int) []api.Group {
		groups := wholeGPUs(size, 1, "", 0)
		groups[0].Devices[0].Way = api.WayPassthrough
		return groups
	}
	v := withKinds(t)
	rec := testNode("n2", 8, 1, 1)
	both := gpuOf("GPU-a", "NVIDIA A100-SXM4-80GB", 80<<30, 0)
	both.Ways = map[string]api.DeviceWay{"whole": both.Ways["whole"], "passthrough": {Mode: "passthrough", Takes: both.Counters}}
	rec.Capacity.Devices = []api.Device{both}
	v.SetNode(rec, Schedulable)
	if got, missing := fitDevices(t, v.Sketch(), forMachines(1)); got != "n2/GPU-a/passthrough ; " {
		t.Errorf("a machine gets %q (%s)", got, missing)
	}
	machines := v.Sketch()
	fitDevices(t, machines, forMachines(1))
	if got, missing := fitDevices(t, machines, wholeGPUs(1, 1, "A100", 0)); got != "" || !strings.Contains(missing, "its only GPU of that kind is taken") {
		t.Errorf("a container gets a machine's GPU: %q (%s)", got, missing)
	}
	containers := v.Sketch()
	fitDevices(t, containers, wholeGPUs(1, 1, "A100", 0))
	if got, missing := fitDevices(t, containers, forMachines(1)); got != "" || !strings.Contains(missing, "n2: its only GPU of that kind is taken") {
		t.Errorf("a machine gets a container's GPU: %q (%s)", got, missing)
	}
	_, missing := fitDevices(t, withKinds(t).Sketch(), forMachines(1))
	if want := `each member of group "c" needs a whole GPU for virtual machines: no node gives GPUs to virtual machines (nearmetal agent --passthrough-gpus)`; missing != want {
		t.Errorf("got %q, want %q", missing, want)
	}
}
