package placement

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// sharedGPU is a GPU that is given whole, or so many MiB of it by servers.
func sharedGPU(id string, mib int64) api.Device {
	d := gpuOf(id, "NVIDIA H200", mib<<20, 0)
	d.Counters = map[string]int64{"gpus": 1, "remote-mib": mib}
	d.Ways["remote"] = api.DeviceWay{Mode: "remote", Takes: map[string]int64{"remote-mib": 1}}
	return d
}

// withServers is a view of n1 and n2 under leaf a, n3 under leaf b of the same pod, and n4 and n5 in another pod. n1 has no GPU.
func withServers(t *testing.T, change func(map[string][]api.Device)) *View {
	t.Helper()
	gpus := map[string][]api.Device{"n1": nil, "n2": {sharedGPU("g2", 8192)}, "n3": {sharedGPU("g3", 8192)}, "n4": {sharedGPU("g4", 8192)}, "n5": {sharedGPU("g5", 16384), sharedGPU("h5", 16384)}}
	if change != nil {
		change(gpus)
	}
	places := map[string]api.NodePlace{"n1": atLeaf("a", "p"), "n2": atLeaf("a", "p"), "n3": atLeaf("b", "p"), "n4": atLeaf("c", "q"), "n5": atLeaf("d", "q")}
	v := NewView()
	for name := range places {
		rec := testNode(name, 8, 1, 1)
		rec.Capacity.Devices, rec.Places = gpus[name], []api.NodePlace{places[name]}
		v.SetNode(rec, Schedulable)
	}
	return v
}

func remoteGPUs(count int, memory api.Bytes) api.Group {
	r := api.DeviceRequest{Class: "gpu", Way: "remote", Count: count, Remote: true, Memory: memory}
	return api.Group{Name: "c", Size: 1, Shape: api.Shape{Cores: 1, Memory: 1 << 20}, Stack: api.StackContainer, Environment: "local", Devices: []api.DeviceRequest{r}}
}

// served writes what was chosen: n2/g2/1024, and why.
func served(chosen []DevicesOn) (text, why string) {
	for _, on := range chosen {
		for _, c := range on.Claims {
			text += on.Node + "/" + c.Device + "/" + api.Bytes(c.Takes["remote-mib"]<<20).String() + " "
			why = c.Why
		}
	}
	return strings.TrimSpace(text), why
}

func TestAMemberUsesTheNearestGPUWithEnoughMemory(t *testing.T) {
	t.Parallel()
	own := func(gpus map[string][]api.Device) { gpus["n1"] = []api.Device{sharedGPU("g1", 2048)} }
	none := func(gpus map[string][]api.Device) { gpus["n2"], gpus["n3"] = nil, nil }
	for name, c := range map[string]struct {
		change    func(map[string][]api.Device)
		group     api.Group
		want, why string
	}{
		"its own node":                {own, remoteGPUs(1, 2<<30), "n1/g1/2GiB", "the member's own node"},
		"the same leaf switch":        {nil, remoteGPUs(1, 8<<30), "n2/g2/8GiB", "a node under the same leaf switch"},
		"beyond too little memory":    {own, remoteGPUs(1, 3<<30), "n2/g2/3GiB", "a node under the same leaf switch"},
		"the most memory free":        {none, remoteGPUs(1, 1<<30), "n5/g5/1GiB", "another node; of 2 equally near ones, with the most memory free"},
		"two GPUs are of one node":    {nil, remoteGPUs(2, 1<<30), "n5/g5/1GiB n5/h5/1GiB", "another node; 2 better nodes had too little free; of 2 equally near ones, with the most memory free"},
		"a part of a MiB is a whole":  {nil, remoteGPUs(1, 16<<20+1), "n2/g2/17MiB", "a node under the same leaf switch"},
		"the same pod, past its leaf": {func(g map[string][]api.Device) { g["n2"] = nil }, remoteGPUs(1, 1<<30), "n3/g3/1GiB", "a node in the same pod"},
	} {
		chosen, missing := withServers(t, c.change).Sketch().FitServer("n1", c.group)
		if got, why := served(chosen); got != c.want || why != c.why {
			t.Errorf("%s: got %q because %q (%s), want %q because %q", name, got, why, missing, c.want, c.why)
		}
	}
	if _, missing := withServers(t, nil).Sketch().FitServer("n1", remoteGPUs(1, 17<<30)); !strings.Contains(missing, "needs 17GiB of the memory of a remote GPU: node n2") {
		t.Errorf("more than any has: %q", missing)
	}
}

func TestAGPUIsSharedOrWholeAndNeverMoreThanItHas(t *testing.T) {
	t.Parallel()
	v := withServers(t, func(g map[string][]api.Device) { g["n3"], g["n4"], g["n5"] = nil, nil, nil })
	s := v.Sketch()
	take := func(g api.Group) (string, string) {
		chosen, missing := s.FitServer("n1", g)
		s.TakeDevices([][]DevicesOn{chosen})
		text, _ := served(chosen)
		return text, missing
	}
	for i, want := range []string{"n2/g2/3GiB", "n2/g2/3GiB", ""} {
		got, missing := take(remoteGPUs(1, 3<<30))
		if got != want || want == "" && !strings.Contains(missing, "2GiB of 8GiB free of GPU g2") {
			t.Errorf("part %d: got %q (%s), want %q", i+1, got, missing, want)
		}
	}
	groups := wholeGPUs(1, 1, "", 0)
	if fit, _, ok := s.Fit(groups); ok {
		if got, _ := s.FitDevices(groups, fit); len(got) > 0 {
			t.Errorf("a GPU of which servers hand out parts was given whole: %+v", got)
		}
	}
	whole := v.Sketch()
	if got, missing := fitDevices(t, whole, groups); got != "n2/g2/whole ; " {
		t.Fatalf("the whole GPU: got %q (%s)", got, missing)
	}
	if chosen, missing := whole.FitServer("n1", remoteGPUs(1, 1<<30)); len(chosen) > 0 || !strings.Contains(missing, "GPU g2 is taken") {
		t.Errorf("a part of a GPU that is given whole: %+v (%s)", chosen, missing)
	}
}

func TestAServerHasAnAddressThatNobodyHas(t *testing.T) {
	t.Parallel()
	own := &api.Network{UID: "u", ClusterUID: "u", Index: 3, Prefix: netip.MustParsePrefix("10.64.16.0/24")}
	at := func(id, address string) api.Assignment {
		return api.Assignment{ID: id, ClusterUID: "u", Ports: []api.PortClaim{{Network: "u", Address: netip.MustParseAddr(address)}}}
	}
	server := api.Assignment{ID: "u.c-0.1-d0", Of: "u.c-0.1", ClusterUID: "u", Devices: []api.DeviceClaim{{Class: "gpu", Way: "remote"}}}
	whole := api.Assignment{ID: "u.c-0.1-d1", Of: "u.c-0.1", ClusterUID: "u", Devices: []api.DeviceClaim{{Class: "gpu", Way: "whole"}}}
	fresh := []api.Assignment{at("u.c-0.1", "10.64.16.2"), server, whole}
	if err := ServeGPUs(own, []api.Assignment{at("u.old.1", "10.64.16.3")}, fresh); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range fresh {
		got = append(got, a.Address().String()+" "+a.MAC())
	}
	if want := []string{"10.64.16.2 ", "10.64.16.4 " + MAC(3, 4), "invalid IP "}; !slices.Equal(got, want) {
		t.Errorf("addresses %q, want %q", got, want)
	}
}
