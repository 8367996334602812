package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// soundNode is what an agent says of a node with everything that one can have.
func soundNode() api.NodeRecord {
	return api.NodeRecord{
		Name: "n1", Labels: map[string]string{"rack": "r1"}, Underlay: "192.0.2.1", AgentVersion: "1.2",
		Stacks:       []api.StackCheck{{Stack: api.StackContainer, Problems: []string{"no crun\n\tinstall it"}}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Description: "the node's own", Stacks: []api.Stack{api.StackContainer}}},
		Builder:      &api.BuilderCheck{Problems: []string{"no mkfs.erofs"}},
		GPUs:         []api.NodeGPU{{ID: "GPU-a", NUMANode: -1}},
		Capacity: api.NodeCapacity{
			Cores: []api.Core{{Slot: 0}, {Slot: 1, CPU: 1}}, MemoryBytes: 1 << 30, NUMANodes: []api.NUMANode{{MemoryBytes: 1 << 30}},
			Devices: []api.Device{{ID: "gpu0", Class: "gpu", Counters: map[string]int64{"slices": 2}, Ways: map[string]api.DeviceWay{"half": {Mode: "mig", Takes: map[string]int64{"slices": 1}}}}},
			Ports:   []api.NodePort{{Name: "p0", Fabric: "ib0", At: "0x1"}, {Name: "p1", Fabric: "ib0", At: "0x2"}},
		},
	}
}

func TestWhatAnAgentSaysOfItsNodeIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	for name, tt := range map[string]struct {
		change func(n *api.NodeRecord)
		want   string
	}{
		"sound":               {func(*api.NodeRecord) {}, ""},
		"no name":             {func(n *api.NodeRecord) { n.Name = "" }, "is empty"},
		"a name for screens":  {func(n *api.NodeRecord) { n.Name = "n\x1b[2J" }, "is not a DNS label"},
		"a long label":        {func(n *api.NodeRecord) { n.Labels["rack"] = long }, "use at most 63"},
		"a label's key":       {func(n *api.NodeRecord) { n.Labels["a\nb"] = "x" }, "is not a label key"},
		"labels":              {func(n *api.NodeRecord) { n.Labels = many(65) }, "65 labels"},
		"an underlay":         {func(n *api.NodeRecord) { n.Underlay = "x" }, "is no IP address"},
		"a version":           {func(n *api.NodeRecord) { n.AgentVersion = "1\x1b]0;x" }, "unprintable"},
		"a stack":             {func(n *api.NodeRecord) { n.Stacks[0].Stack = "x\x00" }, "unprintable"},
		"problems":            {func(n *api.NodeRecord) { n.Builder.Problems = make([]string, 65) }, "65 problems"},
		"stacks":              {func(n *api.NodeRecord) { n.Stacks = make([]api.StackCheck, 9) }, "9 stacks"},
		"an environment":      {func(n *api.NodeRecord) { n.Environments[0].Name = "\x1b[2J" }, "unprintable"},
		"environments":        {func(n *api.NodeRecord) { n.Environments = make([]api.EnvironmentOnNode, 1025) }, "1025 environments"},
		"cores":               {func(n *api.NodeRecord) { n.Capacity.Cores = make([]api.Core, 8193) }, "8193 core slots"},
		"a slot twice":        {func(n *api.NodeRecord) { n.Capacity.Cores[1].Slot = 0 }, "offered twice"},
		"a negative CPU":      {func(n *api.NodeRecord) { n.Capacity.Cores[1].CPU = -1 }, "negative"},
		"negative memory":     {func(n *api.NodeRecord) { n.Capacity.MemoryBytes = -1 }, "not between 0"},
		"memory without end":  {func(n *api.NodeRecord) { n.Capacity.MemoryBytes = 1 << 60 }, "not between 0"},
		"memory of a node":    {func(n *api.NodeRecord) { n.Capacity.NUMANodes[0].MemoryBytes = -1 }, "NUMA node 0 has -1 bytes"},
		"NUMA nodes":          {func(n *api.NodeRecord) { n.Capacity.NUMANodes = make([]api.NUMANode, 1025) }, "1025 NUMA nodes"},
		"a device twice":      {func(n *api.NodeRecord) { n.Capacity.Devices = append(n.Capacity.Devices, n.Capacity.Devices[0]) }, "listed twice"},
		"a negative counter":  {func(n *api.NodeRecord) { n.Capacity.Devices[0].Counters["slices"] = -1 }, `counter "slices" of device "gpu0" is -1`},
		"what a way takes":    {func(n *api.NodeRecord) { n.Capacity.Devices[0].Ways["half"].Takes["slices"] = -1 }, "is -1"},
		"counters of devices": {func(n *api.NodeRecord) { n.Capacity.Devices = ofManyCounters() }, "320 counters of device classes"},
		"an MTU":              {func(n *api.NodeRecord) { n.UnderlayMTU = -1 }, "the MTU of the underlay is -1"},
		"an uplink":           {func(n *api.NodeRecord) { n.Capacity.UplinkBitsPerSecond = 1 << 51 }, "the rate of the uplink is 2251799813685248, not between"},
		"devices":             {func(n *api.NodeRecord) { n.Capacity.Devices = make([]api.Device, 1025) }, "1025 devices"},
		"a rail":              {func(n *api.NodeRecord) { n.Capacity.Devices[0].Rail = 257 }, "the rail of device \"gpu0\" is 257, not between"},
		"a negative rail":     {func(n *api.NodeRecord) { n.Capacity.Devices[0].Rail = -1 }, "the rail of device \"gpu0\" is -1, not between"},
		"a NUMA node":         {func(n *api.NodeRecord) { n.Capacity.Devices[0].NUMANode = 1024 }, "the NUMA node of device \"gpu0\" is 1024, not between"},
		"no known NUMA node":  {func(n *api.NodeRecord) { n.Capacity.Devices[0].NUMANode = -1 }, ""},
		"a place twice":       {func(n *api.NodeRecord) { n.Capacity.Ports[1].At = "0x1" }, "a place that another port has"},
		"a port at no fabric": {func(n *api.NodeRecord) { n.Capacity.Ports[1].Fabric = "" }, "no fabric"},
		"a model for screens": {func(n *api.NodeRecord) { n.Capacity.Devices[0].Model = "\x1b[2J" }, "model of a device"},
		"a device's memory":   {func(n *api.NodeRecord) { n.Capacity.Devices[0].MemoryBytes = -1 }, "the memory of device \"gpu0\" is -1, not between"},
		"GPUs":                {func(n *api.NodeRecord) { n.GPUs = make([]api.NodeGPU, 1025) }, "1025 GPUs"},
		"a GPU for screens":   {func(n *api.NodeRecord) { n.GPUs[0].Model = "\x1b[2J" }, "model of a GPU"},
		"a GPU's memory":      {func(n *api.NodeRecord) { n.GPUs[0].MemoryBytes = 1 << 60 }, "the memory of GPU \"GPU-a\" is"},
		"a GPU's peers":       {func(n *api.NodeRecord) { n.GPUs[0].NVLinkPeers = []string{long} }, "NVLink peer"},
		"a slice for screens": {func(n *api.NodeRecord) { n.GPUs[0].Slices = []api.GPUSlice{{ID: "MIG-a", Profile: "\x1b[2J"}} }, "profile of a slice"},
		"a slice's memory":    {func(n *api.NodeRecord) { n.GPUs[0].Slices = []api.GPUSlice{{ID: "MIG-a", MemoryBytes: -1}} }, "the memory of slice \"MIG-a\" is"},
		"a GPU's slices":      {func(n *api.NodeRecord) { n.GPUs[0].Slices = make([]api.GPUSlice, 1025) }, "1025 slices"},
		"a GPU's problems":    {func(n *api.NodeRecord) { n.GPUs[0].Problems = make([]string, 65) }, "65 problems"},
		"ports":               {func(n *api.NodeRecord) { n.Capacity.Ports = make([]api.NodePort, 65) }, "65 ports"},
	} {
		n := soundNode()
		tt.change(&n)
		err := CheckNode(&n)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if err != nil && (len(err.Error()) > 4000 || strings.Contains(err.Error(), "\x1b")) {
			t.Errorf("%s: the error has %d bytes, or what it is about", name, len(err.Error()))
		}
	}
}

// ofManyCounters are devices of five classes, each with as many counters as a device may have.
func ofManyCounters() []api.Device {
	devices := make([]api.Device, 5)
	for i := range devices {
		devices[i] = api.Device{ID: fmt.Sprint("d", i), Class: fmt.Sprint("class", i), Counters: map[string]int64{}}
		for k := range maxDeviceEntries {
			devices[i].Counters[fmt.Sprint("c", k)] = 1
		}
	}
	return devices
}

func TestTextsOfAnAgentAreMadeFitForTerminals(t *testing.T) {
	t.Parallel()
	n := soundNode()
	n.Stacks[0].Problems = []string{"\x1b[2Jno crun\n\tinstall it", strings.Repeat("x", 1<<20)}
	n.Stacks[0].Warnings = []string{"\x1b[2Jslow"}
	n.Environments[0].Description = "fine\r\x00"
	if err := CheckNode(&n); err != nil {
		t.Fatal(err)
	}
	if got := n.Stacks[0].Problems; got[0] != "?[2Jno crun\n\tinstall it" || len(got[1]) > api.MaxMessageBytes || n.Environments[0].Description != "fine??" || n.Stacks[0].Warnings[0] != "?[2Jslow" {
		t.Errorf("got %.100q, %q and %q", got, n.Environments[0].Description, n.Stacks[0].Warnings)
	}
}

func many(n int) map[string]string {
	all := map[string]string{}
	for i := range n {
		all[fmt.Sprint("k", i)] = "v"
	}
	return all
}
