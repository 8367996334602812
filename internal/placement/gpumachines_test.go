package placement

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

// forMachines makes of the nodes of a view, and of a group, ones of virtual machines, beside containers.
func forMachines(v *View, g api.Group, names ...string) api.Group {
	for _, name := range names {
		rec := v.nodes[v.ids[name]].record
		rec.Stacks = append(rec.Stacks, api.StackCheck{Stack: api.StackVM, OK: true})
		rec.Environments = []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer, api.StackVM}, OK: true}}
		v.SetNode(rec, Schedulable)
	}
	g.Stack = api.StackVM
	return g
}

// A virtual machine shares no memory with its node: its way to a server there is TCP, and its cost is predicted for that.
func TestAVirtualMachineCallsAServerOnItsNodeByTCP(t *testing.T) {
	t.Parallel()
	chosen := func(stack api.Stack) api.DeviceClaim {
		v := withServers(t, func(g map[string][]api.Device) { g["n1"] = []api.Device{sharedGPU("g1", 8192)}; g["n2"] = nil })
		g := forMachines(v, remoteGPUs(1, 1<<30), "n1")
		g.Stack = stack
		groups := []api.Group{g}
		s := v.Sketch()
		fit, _, ok := s.Fit(groups)
		if !ok {
			t.Fatal("no room")
		}
		on, missing := s.FitDevices(groups, fit)
		if missing != "" || len(on) != 1 || len(on[0]) != 1 || on[0][0].Node != "n1" {
			t.Fatalf("%s: got %+v (%s), want the GPU of n1", stack, on, missing)
		}
		return on[0][0].Claims[0]
	}
	machine, container := chosen(api.StackVM), chosen(api.StackContainer)
	if !strings.HasPrefix(machine.Figures, "TCP on one node") || !strings.HasPrefix(container.Figures, "shared memory") {
		t.Errorf("a machine calls by %q and a container by %q", machine.Figures, container.Figures)
	}
	if machine.Cost <= container.Cost {
		t.Errorf("a machine's calls are expected to cost %v, and a container's %v", machine.Cost, container.Cost)
	}
}

// Servers are containers. A node without that stack serves nobody, whatever its members are.
func TestANodeWithoutContainersServesNoGPU(t *testing.T) {
	t.Parallel()
	v := withServers(t, nil)
	rec := v.nodes[v.ids["n2"]].record
	rec.Stacks = []api.StackCheck{{Stack: api.StackVM, OK: true}}
	v.SetNode(rec, Schedulable)
	chosen, missing := v.Sketch().FitServer("n1", remoteGPUs(1, 1<<30))
	if got, _ := served(chosen); got != "n3/g3/1GiB" {
		t.Errorf("got %q (%s), want the GPU of n3: n2 has no containers", got, missing)
	}
}

func TestAnyGPUOfAVirtualMachineIsAPCIDeviceOrRemote(t *testing.T) {
	t.Parallel()
	only := func(d api.Device) *View {
		return withServers(t, func(g map[string][]api.Device) {
			for name := range g {
				g[name] = nil
			}
			g["n2"] = []api.Device{d}
		})
	}
	both := sharedGPU("g2", 8192)
	both.Ways["passthrough"] = api.DeviceWay{Mode: "passthrough", Takes: map[string]int64{"gpus": 1, "remote-mib": 8192}}
	for name, c := range map[string]struct {
		gpu  api.Device
		want string
	}{
		"a GPU that machines get":          {both, "n2/g2/passthrough: a whole GPU of the member's own node: nothing lies between"},
		"a GPU that containers alone have": {sharedGPU("g2", 8192), "n2/g2/remote: "},
	} {
		v := only(c.gpu)
		groups := anyGPU(1, 4<<30)
		groups[0] = forMachines(v, groups[0], "n1", "n2")
		if got, missing := fitAny(t, v.Sketch(), groups); len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%s: got %q (%s), want %q", name, got, missing, c.want)
		}
	}
	v := only(sharedGPU("g2", 8192))
	groups := anyGPU(1, 16<<30)
	groups[0] = forMachines(v, groups[0], "n1", "n2")
	if _, missing := fitAny(t, v.Sketch(), groups); !strings.Contains(missing, "whole ones: no node gives GPUs to virtual machines") {
		t.Errorf("what is missing reads %q, want what machines lack", missing)
	}
}
