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
	if got, missing := fitDevices(t, withGPUs(t).Sketch(), wanting(2, gpu)); got != "n2/gpu0/whole ; n3/gpu0/whole ; " {
		t.Errorf("two members with a GPU of their own nodes: got %q (%s), want the nodes that have one", got, missing)
	}
	if _, missing := fitDevices(t, withGPUs(t).Sketch(), wanting(3, gpu)); !strings.Contains(missing, "too few are free on nodes with room for its members: node n2: 1 of 1 GPU of that kind free; node n3: 1 of 1 GPU") {
		t.Errorf("a GPU of a node that has none: got %q", missing)
	}
}

func TestAClaimSaysWhatItTakesOfItsDevice(t *testing.T) {
	t.Parallel()
	for way, slices := range map[string]int64{"whole": 2, "half": 1} {
		groups := wanting(1, api.DeviceRequest{Class: "gpu", Way: way, Count: 1, Remote: true})
		s := withGPUs(t).Sketch()
		fit, _, _ := s.Fit(groups)
		chosen, missing := s.FitDevices(groups, fit)
		if missing != "" {
			t.Fatal(missing)
		}
		if takes := chosen[0][0].Claims[0].Takes; len(takes) != 1 || takes["slices"] != slices {
			t.Errorf("%s takes %v, want %d slices", way, takes, slices)
		}
	}
}

func TestAWholeNodeLendsNoDevicesToOthers(t *testing.T) {
	t.Parallel()
	gpu := api.DeviceRequest{Class: "gpu", Way: "whole", Count: 1, Remote: true}
	machine := func(name string) api.NodeRecord {
		rec := machineNode(name, 2, 1)
		rec.Capacity.Devices = []api.Device{{ID: "gpu0", Class: "gpu", Counters: map[string]int64{"slices": 1}, Ways: map[string]api.DeviceWay{
			"whole": {Takes: map[string]int64{"slices": 1}},
		}}}
		return rec
	}
	view := func() *View {
		v := NewView()
		v.SetNode(testNode("n1", 2, 1, 1), Schedulable)
		v.SetNode(machine("n2"), Schedulable)
		return v
	}
	both := append(wanting(1, gpu), metal("m", 1, 1, 0))
	if got, missing := fitDevices(t, view().Sketch(), both); missing == "" {
		t.Errorf("a cluster that has n2 whole: got %q, want none of its devices for another member", got)
	}
	own := metal("m", 1, 1, 0)
	own.Devices = []api.DeviceRequest{gpu}
	if got, missing := fitDevices(t, view().Sketch(), []api.Group{own}); got != "n2/gpu0/whole ; " {
		t.Errorf("the member that has n2 whole got %q (%s), want its GPU", got, missing)
	}
	s := view().Sketch()
	fit, _, _ := s.Fit([]api.Group{metal("m", 1, 1, 0)})
	s.Take(fit.Shares)
	if got, missing := fitDevices(t, s, wanting(1, gpu)); missing == "" {
		t.Errorf("after n2 was given away whole: got %q", got)
	}
	s = view().Sketch()
	if _, missing := fitDevices(t, s, wanting(1, gpu)); missing != "" {
		t.Fatal(missing)
	}
	if _, _, ok := s.Fit([]api.Group{metal("m", 1, 1, 0)}); ok {
		t.Error("n2 was given away whole while another has its GPU")
	}
	v := view()
	if err := v.Take(api.Assignment{ID: "w", Node: "n2", Whole: true, Slots: []int{0, 1}}); err != nil {
		t.Fatal(err)
	}
	if got, missing := fitDevices(t, v.Sketch(), wanting(1, gpu)); missing == "" {
		t.Errorf("while n2 is held whole: got %q", got)
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
