package placement

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

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
		rec := testNode(name, 8, 1, 16)
		rec.Capacity.Devices, rec.Places, rec.GPUPrograms = gpus[name], []api.NodePlace{places[name]}, true
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

func anyGPU(size int, memory api.Bytes) []api.Group {
	g := remoteGPUs(1, memory)
	g.Size, g.Devices[0].Way = size, api.WayAny
	return []api.Group{g}
}

// fitAny fits members that may have any GPU: what they have, and why.
func fitAny(t *testing.T, s *Sketch, groups []api.Group) (got []string, missing string) {
	t.Helper()
	fit, _, ok := s.Fit(groups)
	if !ok {
		return nil, "no room"
	}
	chosen, missing := s.FitDevices(groups, fit)
	for _, on := range chosen {
		for _, d := range on {
			for _, c := range d.Claims {
				got = append(got, d.Node+"/"+c.Device+"/"+c.Way+": "+c.Why)
			}
		}
	}
	s.Take(fit.Shares)
	s.TakeDevices(chosen)
	return got, missing
}

func TestAnyGPUIsAWholeOneOfTheMembersNodeWhileThereIsOne(t *testing.T) {
	t.Parallel()
	s := withServers(t, func(g map[string][]api.Device) { g["n3"], g["n4"], g["n5"] = nil, nil, nil }).Sketch()
	got, missing := fitAny(t, s, anyGPU(1, 4<<30))
	if len(got) != 1 || got[0] != "n2/g2/whole: a whole GPU of the member's own node: nothing lies between" {
		t.Errorf("the first has %q (%s), want the whole GPU of n2, and be placed there", got, missing)
	}
	if _, missing := fitAny(t, s, anyGPU(1, 4<<30)); !strings.Contains(missing, "whole ones: ") || !strings.Contains(missing, "GPU g2 is taken") {
		t.Errorf("the second lacks %q, want both ways to be explained", missing)
	}
}

func TestAnyGPUIsOneByAServerWhereNoWholeOneIsFree(t *testing.T) {
	t.Parallel()
	v := withServers(t, func(g map[string][]api.Device) { g["n3"], g["n4"], g["n5"] = nil, nil, nil })
	held := api.Assignment{ID: "u.o-0.1", Node: "n2", Devices: []api.DeviceClaim{{Class: "gpu", Device: "g2", Way: "remote", Takes: map[string]int64{"remote-mib": 1024}}}}
	if err := v.Take(held); err != nil {
		t.Fatal(err)
	}
	s := v.Sketch()
	got, missing := fitAny(t, s, anyGPU(1, 4<<30))
	if len(got) != 1 || !strings.HasPrefix(got[0], "n2/g2/remote: its node has no such GPU; by a server on a node under the same leaf switch") &&
		!strings.HasPrefix(got[0], "n2/g2/remote: no such GPU of its node is free as a whole; by a server on the member's own node") {
		t.Errorf("got %q (%s), want a part of g2, and why", got, missing)
	}
	if got, missing := fitAny(t, s, anyGPU(1, 4<<30)); len(got) > 0 || !strings.Contains(missing, "3GiB of 8GiB free of GPU g2") {
		t.Errorf("a third: %q (%s)", got, missing)
	}
	if got, missing := fitAny(t, withServers(t, nil).Sketch(), anyGPU(8, 1<<30)); len(got) != 8 {
		t.Errorf("eight members of a site with five GPUs have %q (%s)", got, missing)
	}
}

func TestAServerTakesItsMemoryFromWhatItsNodeOffers(t *testing.T) {
	t.Parallel()
	v := NewView()
	rec := testNode("n1", 8, 1, 5) // two servers of 2 GiB each, and one member
	rec.Capacity.Devices, rec.Capacity.NUMANodes, rec.GPUPrograms = []api.Device{sharedGPU("g1", 8192)}, []api.NUMANode{{ID: 0, MemoryBytes: 5 << 30}}, true
	v.SetNode(rec, Schedulable)
	s := v.Sketch()
	for i := range 2 {
		chosen, missing := s.FitServer("n1", remoteGPUs(1, 1<<30))
		if missing != "" || len(chosen) != 1 || len(chosen[0].Memory) != 1 || chosen[0].Memory[0].Bytes != 2<<30 {
			t.Fatalf("server %d: %+v (%s), want 2GiB of the node's memory with it", i+1, chosen, missing)
		}
		s.TakeDevices([][]DevicesOn{chosen})
	}
	if chosen, missing := s.FitServer("n1", remoteGPUs(1, 1<<30)); len(chosen) > 0 || !strings.Contains(missing, "6GiB of 8GiB free of GPU g1") || !strings.Contains(missing, "1GiB of memory for its server, which needs 2GiB") {
		t.Errorf("a third, for which there is no memory: %+v, %q", chosen, missing)
	}
	// Members that are about to be placed have their memory before servers do.
	g := remoteGPUs(1, 1<<30)
	g.Shape.Memory = 4 << 30
	if fit, _, ok := v.Sketch().Fit([]api.Group{g}); !ok {
		t.Error("a member of 4GiB has no room")
	} else if chosen, missing := v.Sketch().FitDevices([]api.Group{g}, fit); missing == "" {
		t.Errorf("beside a member of 4GiB, a server was placed: %+v", chosen)
	}
}

func TestMembersThatCallServersGoWhereTheirProgramsAre(t *testing.T) {
	t.Parallel()
	v := NewView()
	for name, programs := range map[string]bool{"n1": false, "n2": true, "n3": true} {
		rec := testNode(name, 2, 1, 16)
		rec.GPUPrograms = programs
		if name == "n3" {
			rec.Capacity.Devices = []api.Device{sharedGPU("g3", 8192)}
		}
		v.SetNode(rec, Schedulable)
	}
	g := remoteGPUs(1, 1<<30)
	g.Size = 4
	fit, room, ok := v.Sketch().Fit([]api.Group{g})
	if !ok {
		t.Fatalf("there is room for %d, want 4", room)
	}
	for _, c := range fit.counts[0] {
		if v.nodes[c.id].record.Name == "n1" {
			t.Error("a member is on n1, whose agent has no front ends")
		}
	}
	g.Size = 5
	if _, room, ok := v.Sketch().Fit([]api.Group{g}); ok || room != 4 {
		t.Errorf("for 5 there is room: %t, for %d; want none on n1", ok, room)
	}
	_, refusal := Place(v, Request{Cluster: "c", Groups: []api.Group{g}})
	if refusal == nil || refusal.Constraint != ConstraintGPUPrograms || !strings.Contains(refusal.Message, "n1: its agent has no programs of remote GPUs; run: make gpuremote") {
		t.Errorf("the refusal is %+v", refusal)
	}
	if why, _ := v.Sketch().WhyNot("n1", g); !strings.Contains(why, "node n1 can't carry members with remote GPUs") {
		t.Errorf("why not n1: %q", why)
	}
}

func TestNoServerGoesWhereMembersMayNotGo(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		change    func(*View)
		ends      time.Time
		want, why string
	}{
		"a drained node":                             {func(v *View) { v.SetAvailability("n2", Drained) }, time.Time{}, "n3/g3/8GiB", "node n2: it is drained"},
		"a node that is not heard of":                {func(v *View) { v.SetAvailability("n2", Unknown) }, time.Time{}, "n3/g3/8GiB", "node n2: it is not reporting"},
		"maintenance is announced, and no end":       {func(v *View) { v.SetWindow("n2", now) }, time.Time{}, "n3/g3/8GiB", "node n2: it has maintenance before its members would end"},
		"maintenance that begins before the members": {func(v *View) { v.SetWindow("n2", now) }, now.Add(time.Second), "n3/g3/8GiB", "node n2: it has maintenance"},
		"maintenance after the end of the members":   {func(v *View) { v.SetWindow("n2", now) }, now, "n2/g2/8GiB", "node n2: 8GiB of 8GiB free"},
	} {
		v := withServers(t, nil)
		c.change(v)
		g := remoteGPUs(1, 8<<30)
		g.Ends = c.ends
		chosen, missing := v.Sketch().FitServer("n1", g)
		if got, _ := served(chosen); got != c.want {
			t.Errorf("%s: got %q (%s), want %q", name, got, missing, c.want)
		}
		g.Devices[0].Count = 3
		if _, missing := v.Sketch().FitServer("n1", g); !strings.Contains(missing, c.why) {
			t.Errorf("%s: more GPUs than any has: %q, want %q", name, missing, c.why)
		}
	}
}

// Of members under the same switches, each gets the GPU with the most memory free then: what is free is counted again when something was taken.
func TestMembersShareTheServersEvenly(t *testing.T) {
	t.Parallel()
	s := withServers(t, func(g map[string][]api.Device) {
		g["n2"] = nil
		g["n3"], g["n4"], g["n5"] = []api.Device{sharedGPU("g3", 4096)}, []api.Device{sharedGPU("g4", 4096)}, []api.Device{sharedGPU("g5", 4096)}
	}).Sketch()
	g := remoteGPUs(1, 2<<30)
	g.Size = 6
	fit, _, ok := s.Fit([]api.Group{g})
	chosen, missing := s.FitDevices([]api.Group{g}, fit)
	if !ok || missing != "" {
		t.Fatalf("six members with half a GPU each of three: %s", missing)
	}
	on := map[string]int{}
	for _, c := range chosen {
		text, _ := served(c)
		on[text]++
	}
	if len(on) != 3 || on["n3/g3/2GiB"] != 2 || on["n4/g4/2GiB"] != 2 || on["n5/g5/2GiB"] != 2 {
		t.Errorf("they have %v, want two of each GPU", on)
	}
}

// surveyed gives the links of all nodes a rate, in bits a second.
func surveyed(v *View, rate int64) {
	for _, name := range v.Nodes() {
		rec := v.nodes[v.ids[name]].record
		for i := range rec.Places {
			rec.Places[i].Technology, rec.Places[i].RateBitsPerSecond = api.FabricEthernet, rate
		}
		v.SetNode(rec, Schedulable)
	}
}

// fitOn chooses the devices of one member that is placed on a node.
func fitOn(t *testing.T, v *View, node string, g api.Group) ([]DevicesOn, string) {
	t.Helper()
	s := v.Sketch()
	fit, _, ok := s.Fit([]api.Group{g})
	if !ok || s.view.nodes[fit.Shares[0].node].record.Name != node {
		t.Fatalf("the member has no place, or is not on %s: %+v", node, fit.Shares)
	}
	chosen, missing := s.FitDevices([]api.Group{g}, fit)
	if missing != "" {
		return nil, missing
	}
	return chosen[0], ""
}

// A GPU that several members share is left for one that is further away, as soon as the way there costs less than they do.
func TestASharedGPUIsLeftForOneThatCostsLess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rate    int64
		sharers int
		want    string
	}{
		{100e9, 0, "n1/g1"}, {100e9, 1, "n1/g1"}, {100e9, 2, "n2/g2"}, {10e9, 2, "n1/g1"}, {10e9, 9, "n2/g2"},
	} {
		v := withServers(t, func(g map[string][]api.Device) { g["n1"] = []api.Device{sharedGPU("g1", 16384)} })
		surveyed(v, c.rate)
		for i := range c.sharers {
			a := api.Assignment{ID: "o" + string(rune('0'+i)), Of: "m", Node: "n1", Devices: []api.DeviceClaim{{Class: "gpu", Device: "g1", Way: "remote", Takes: map[string]int64{"remote-mib": 512}}}}
			if err := v.Take(a); err != nil {
				t.Fatal(err)
			}
		}
		chosen, missing := fitOn(t, v, "n1", remoteGPUs(1, 1<<30))
		got, why := served(chosen)
		if !strings.HasPrefix(got, c.want) || strings.Contains(why, "shared by more members") != (c.want == "n2/g2") {
			t.Errorf("at %d Gbit/s with %d others on the node's own GPU: %q because %q (%s), want %s", c.rate/1e9, c.sharers, got, why, missing, c.want)
		}
		if cost := chosen[0].Claims[0].Cost; cost < 1 || cost > 6 {
			t.Errorf("with %d others it is to cost %.2f times a local GPU", c.sharers, cost)
		}
	}
}
