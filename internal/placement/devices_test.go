package placement

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// withGPUs is a view of n1 to n3, on which n2 and n3 have a GPU each that can be handed out whole or as two halves.
func withGPUs(t *testing.T) *View {
	t.Helper()
	v := NewView()
	for _, name := range []string{"n1", "n2", "n3"} {
		rec := testNode(name, 2, 1, 1)
		if name != "n1" {
			rec.Capacity.Devices = []api.Device{{ID: "gpu0", Class: "gpu", Counters: map[string]int64{"slices": 2}, Ways: map[string]api.DeviceWay{
				"whole": {Mode: "whole", Takes: map[string]int64{"slices": 2}}, "half": {Mode: "mig", Takes: map[string]int64{"slices": 1}},
			}}}
		}
		v.SetNode(rec, Schedulable)
	}
	return v
}

func wanting(size int, r api.DeviceRequest) []api.Group {
	return []api.Group{{
		Name: "c", Size: size, Shape: api.Shape{Cores: 2, Memory: 1 << 20}, Stack: api.StackContainer, Environment: "local", Devices: []api.DeviceRequest{r},
	}}
}

func fitDevices(t *testing.T, s *Sketch, groups []api.Group) (text, missing string) {
	t.Helper()
	fit, _, ok := s.Fit(groups)
	if !ok {
		t.Fatal("the members have no room")
	}
	chosen, missing := s.FitDevices(groups, fit)
	s.TakeDevices(chosen)
	var b strings.Builder
	for _, member := range chosen {
		for _, on := range member {
			for _, c := range on.Claims {
				b.WriteString(on.Node + "/" + c.Device + "/" + c.Way + " ")
			}
		}
		b.WriteString("; ")
	}
	return b.String(), missing
}

func TestMembersGetTheNearestDevicesAndNoneTwice(t *testing.T) {
	t.Parallel()
	gpu := api.DeviceRequest{Class: "gpu", Way: "whole", Count: 1, Remote: true}
	half := api.DeviceRequest{Class: "gpu", Way: "half", Count: 3, Remote: true}
	s := withGPUs(t).Sketch()
	if got, _ := fitDevices(t, s, wanting(2, gpu)); got != "n2/gpu0/whole ; n3/gpu0/whole ; " && got != "n2/gpu0/whole ; n2/gpu0/whole ; " {
		t.Errorf("two members got %q, want each one GPU", got)
	}
	if _, missing := fitDevices(t, s, wanting(1, gpu)); !strings.Contains(missing, `device class "gpu"`) {
		t.Errorf("a third GPU is missing: got %q, want the class named", missing)
	}
	if got, missing := fitDevices(t, withGPUs(t).Sketch(), wanting(1, half)); got != "n2/gpu0/half n2/gpu0/half n3/gpu0/half ; " {
		t.Errorf("three halves: got %q (%s), want two of the first node and one of the next", got, missing)
	}
	gpu.Remote = false
	if _, missing := fitDevices(t, withGPUs(t).Sketch(), wanting(1, gpu)); !strings.Contains(missing, "on the node of each member") {
		t.Errorf("a GPU of a node that has none: got %q", missing)
	}
}

func TestADeviceIsTakenUntilItsAssignmentIsClean(t *testing.T) {
	t.Parallel()
	v := withGPUs(t)
	part := func(id, way string) api.Assignment {
		return api.Assignment{ID: id, Of: "m", Node: "n2", Devices: []api.DeviceClaim{{Class: "gpu", Device: "gpu0", Way: way}}}
	}
	if err := v.Take(part("a", "whole")); err != nil {
		t.Fatal(err)
	}
	if err := v.Take(part("b", "half")); err == nil {
		t.Error("a part of a device that is held whole was taken")
	}
	if err := v.Release("a"); err != nil {
		t.Fatal(err)
	}
	whole := wanting(2, api.DeviceRequest{Class: "gpu", Way: "whole", Count: 1, Remote: true})
	if got, missing := fitDevices(t, v.Sketch(), whole); missing == "" {
		t.Errorf("while one of two GPUs is being released: got %q, want that too few are free", got)
	}
	if err := v.Free("a"); err != nil {
		t.Fatal(err)
	}
	if _, missing := fitDevices(t, v.Sketch(), whole); missing != "" {
		t.Errorf("after it is clean: %s", missing)
	}
	nodes := []NodeState{{Record: v.nodes[v.ids["n2"]].record, Availability: Schedulable}}
	if _, err := Build(nodes, []Held{{Assignment: part("a", "whole")}, {Assignment: part("b", "whole")}}, nil); err == nil {
		t.Error("a device that is held twice was built into a view without a word")
	}
}
