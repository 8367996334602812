package placement

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/resource/device"
)

// sliceOf is a slice of a GPU as an agent offers it.
func sliceOf(parent string, n int, profile string, slices, memory int64) api.Device {
	takes := map[string]int64{"slices": slices}
	return api.Device{
		ID: fmt.Sprintf("MIG-%s-%d", parent, n), Class: "gpu", Model: "NVIDIA H100 80GB HBM3", Parent: parent, Profile: profile, MemoryBytes: memory, NUMANode: 0, Counters: takes,
		Ways: map[string]api.DeviceWay{"mig": {Mode: "mig", Takes: takes}},
	}
}

// divided is a node whose GPU-a is divided, beside a whole GPU-b.
func divided() api.NodeRecord {
	rec := testNode("n1", 8, 1, 1)
	rec.Capacity.Devices = []api.Device{
		gpuOf("GPU-b", "NVIDIA H100 80GB HBM3", 80<<30, 0), sliceOf("GPU-a", 0, "1g.10gb", 1, 9856<<20), sliceOf("GPU-a", 1, "1g.10gb", 1, 9856<<20), sliceOf("GPU-a", 2, "3g.40gb", 3, 40448<<20),
	}
	return rec
}

func slicesFor(size, count int, profile, model string, memory api.Bytes) []api.Group {
	groups := wholeGPUs(size, count, model, memory)
	groups[0].Devices[0].Way, groups[0].Devices[0].Profile = api.WayMIG, profile
	return groups
}

func TestAMemberGetsSlicesOfTheProfileAndTheMemoryThatItAsksFor(t *testing.T) {
	t.Parallel()
	view := NewView()
	view.SetNode(divided(), Schedulable)
	for name, c := range map[string]struct {
		groups []api.Group
		want   string
	}{
		"any is the first":          {slicesFor(1, 1, "", "", 0), "n1/MIG-GPU-a-0/mig ; "},
		"a profile":                 {slicesFor(1, 1, "3g.40gb", "", 0), "n1/MIG-GPU-a-2/mig ; "},
		"memory":                    {slicesFor(1, 1, "", "", 10<<30), "n1/MIG-GPU-a-2/mig ; "},
		"a model":                   {slicesFor(1, 1, "1g.10gb", "H100", 0), "n1/MIG-GPU-a-0/mig ; "},
		"two for one":               {slicesFor(1, 2, "1g.10gb", "", 0), "n1/MIG-GPU-a-0/mig n1/MIG-GPU-a-1/mig ; "},
		"one for each of three":     {slicesFor(3, 1, "", "", 0), "n1/MIG-GPU-a-0/mig ; n1/MIG-GPU-a-1/mig ; n1/MIG-GPU-a-2/mig ; "},
		"a whole one beside slices": {wholeGPUs(1, 1, "", 0), "n1/GPU-b/whole ; "},
		"no whole one of slices":    {wholeGPUs(1, 2, "", 0), ""},
		"more than there are":       {slicesFor(3, 1, "1g.10gb", "", 0), ""},
		"another model":             {slicesFor(1, 1, "", "A100", 0), ""},
	} {
		if got, missing := fitDevices(t, view.Sketch(), c.groups); sorted(got) != sorted(c.want) {
			t.Errorf("%s: got %q (%s), want %q", name, got, missing, c.want)
		}
	}
}

func TestARefusalOfSlicesNamesThoseThatThereAre(t *testing.T) {
	t.Parallel()
	view := NewView()
	view.SetNode(divided(), Schedulable)
	taken, none := view.Sketch(), NewView()
	fitDevices(t, taken, slicesFor(3, 1, "", "", 0))
	none.SetNode(testNode("n1", 8, 1, 1), Schedulable)
	for name, c := range map[string]struct {
		sketch *Sketch
		groups []api.Group
		want   string
	}{
		"no node has any": {none.Sketch(), slicesFor(1, 1, "", "", 0), `each member of group "c" needs a slice of a GPU: no node has slices of GPUs`},
		"no such profile": {view.Sketch(), slicesFor(1, 1, "7g.80gb", "", 0), "needs a slice of a GPU of profile 7g.80gb: node n1: it has slices 1g.10gb of NVIDIA H100 80GB HBM3 with 9856MiB, slices 3g.40gb of NVIDIA H100 80GB HBM3 with 40448MiB"},
		"all are taken":   {taken, slicesFor(1, 1, "1g.10gb", "", 0), "all 2 slices of that kind are taken"},
		"the only one":    {taken, slicesFor(1, 1, "3g.40gb", "", 0), "its only slice of that kind is taken"},
		"too few":         {view.Sketch(), slicesFor(1, 3, "1g.10gb", "", 0), "needs 3 slices of GPUs of profile 1g.10gb: too few are free on nodes with room for its members: node n1: 2 of 2 slices of that kind free"},
	} {
		if _, missing := fitDevices(t, c.sketch, c.groups); !strings.Contains(missing, c.want) {
			t.Errorf("%s: got %q, want %q", name, missing, c.want)
		}
	}
}

// What a member can still open of a slice that is gone is its GPU, and instances whose numbers new slices may have.
func TestNobodyGetsMoreOfAGPUWhoseSliceIsGoneWhileItIsHeld(t *testing.T) {
	t.Parallel()
	// held is a view of a node, one member of which holds a slice that is gone, and another one that is there.
	held := func(rec api.NodeRecord) *View {
		claim := func(n int) []api.DeviceClaim {
			return []api.DeviceClaim{{Class: "gpu", Device: fmt.Sprint("MIG-GPU-a-", n), Way: "mig", Parent: "GPU-a", Profile: "1g.10gb", Takes: map[string]int64{"slices": 1}}}
		}
		v, err := Build([]NodeState{{rec, Schedulable}}, []Held{
			{Assignment: api.Assignment{ID: "a", Cluster: "c1", Member: "c1-0", Node: "n1", Devices: claim(9)}},
			{Assignment: api.Assignment{ID: "b", Cluster: "c2", Member: "c2-0", Node: "n1", Devices: claim(1)}},
		}, nil)
		if err != nil {
			t.Error(err)
		}
		return v
	}
	const why = "nothing more of GPU GPU-a is handed out while a member holds its slice MIG-GPU-a-"
	v := held(divided())
	if got, missing := fitDevices(t, v.Sketch(), slicesFor(1, 1, "", "", 0)); got != "" || !strings.Contains(missing, why) {
		t.Errorf("a member gets %q of the GPU (%s)", got, missing)
	}
	if got, missing := fitDevices(t, v.Sketch(), wholeGPUs(1, 1, "", 0)); got != "n1/GPU-b/whole ; " {
		t.Errorf("a member gets %q of another GPU (%s)", got, missing)
	}
	whole := testNode("n1", 8, 1, 1)
	parent := gpuOf("GPU-a", "NVIDIA H100 80GB HBM3", 80<<30, 0)
	parent.Counters = map[string]int64{"gpus": 1, "remote-mib": 100}
	parent.Ways["remote"] = api.DeviceWay{Mode: "remote", Takes: map[string]int64{"remote-mib": 1}}
	whole.Capacity.Devices = []api.Device{parent}
	v = held(whole)
	if got, missing := fitDevices(t, v.Sketch(), wholeGPUs(1, 1, "", 0)); got != "" || !strings.Contains(missing, why) {
		t.Errorf("a member gets %q of the GPU whose MIG mode was ended (%s)", got, missing)
	}
	if free := v.freeParts(v.ids["n1"]); free == nil {
		t.Error("what is held is contradictory")
	} else if room := free.Room(device.Part{Device: "GPU-a", Way: "remote"}); room != 0 {
		t.Errorf("%d MiB of the GPU are handed out by servers", room)
	}
	none := NewView()
	none.SetNode(divided(), Schedulable)
	if err := none.devicesFree(&api.Assignment{ID: "b", Node: "n1", Devices: []api.DeviceClaim{{Class: "gpu", Device: "MIG-GPU-a-9", Way: "mig", Parent: "GPU-a"}}}); err == nil {
		t.Error("a slice that is gone is given to a further member")
	}
}

// A GPU that has fallen off its bus is no contradiction of what is stored: the site's placement goes on, and so does that of its node.
func TestAGPUThatIsGoneWhileItIsHeldStandsInTheWayOfNothingElse(t *testing.T) {
	t.Parallel()
	rec := testNode("n1", 8, 1, 1)
	claim := func(way string) []Held {
		return []Held{{Assignment: api.Assignment{ID: "a", Cluster: "c1", Member: "c1-0", Node: "n1", Devices: []api.DeviceClaim{{Class: "gpu", Device: "GPU-a", Way: way, Takes: map[string]int64{"gpus": 1}}}}}}
	}
	rec.Capacity.Devices = []api.Device{gpuOf("GPU-b", "NVIDIA H200", 80<<30, 0)}
	v, err := Build([]NodeState{{rec, Schedulable}}, claim("whole"), nil)
	if err != nil {
		t.Errorf("placement is suspended: %v", err)
	}
	if got, missing := fitDevices(t, v.Sketch(), wholeGPUs(1, 1, "", 0)); got != "n1/GPU-b/whole ; " {
		t.Errorf("a member gets %q of another GPU (%s)", got, missing)
	}
	rec.Capacity.Devices = append(rec.Capacity.Devices, gpuOf("GPU-a", "NVIDIA A100", 80<<30, 0))
	if v, err = Build([]NodeState{{rec, Schedulable}}, claim("passthrough"), nil); err != nil {
		t.Errorf("placement is suspended: %v", err)
	}
	if got, missing := fitDevices(t, v.Sketch(), wholeGPUs(1, 1, "A100", 0)); got != "" || !strings.Contains(missing, `nothing of GPU-a is handed out while a member holds it as "passthrough", which its node does not offer any more`) {
		t.Errorf("a member gets %q, which another one has in another way (%s)", got, missing)
	}
}
