package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// gpuNode stores a node with so many GPUs, of which servers hand out 8 GiB each, and with so many cores.
func (l *led) gpuNode(name string, cores, gpus int) {
	l.t.Helper()
	rec := api.NodeRecord{
		Name: name, Underlay: "198.18.0." + name[1:], Stacks: []api.StackCheck{{Stack: api.StackContainer, OK: true}}, GPUPrograms: true,
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackContainer}, OK: true}},
		Capacity:     api.NodeCapacity{MemoryBytes: 64 << 30, NUMANodes: []api.NUMANode{{MemoryBytes: 64 << 30}}},
	}
	for i := range cores {
		rec.Capacity.Cores = append(rec.Capacity.Cores, api.Core{Slot: i, CPU: i})
	}
	for i := range gpus {
		rec.Capacity.Devices = append(rec.Capacity.Devices, api.Device{
			ID: fmt.Sprintf("%s-gpu%d", name, i), Class: api.ClassGPU, MemoryBytes: 9 << 30, Counters: map[string]int64{api.CounterGPUs: 1, api.CounterRemoteMiB: 8192},
			Ways: map[string]api.DeviceWay{
				api.WayWhole:  {Mode: api.WayWhole, Takes: map[string]int64{api.CounterGPUs: 1}},
				api.WayRemote: {Mode: api.WayRemote, Takes: map[string]int64{api.CounterRemoteMiB: 1}},
			},
		})
	}
	l.view(l.repo.PutNode(l.t.Context(), rec))
}

// askGPUs asks for a cluster whose members use GPUs in a way.
func (l *led) askGPUs(name string, size int, way string, memory api.Bytes) {
	l.t.Helper()
	g := api.Group{
		Name: name, Size: size, Shape: api.Shape{Cores: 1, Memory: 64 << 20}, Stack: api.StackContainer, Environment: "local",
		Devices: []api.DeviceRequest{{Class: api.ClassGPU, Way: way, Count: 1, Remote: true, Memory: memory}},
	}
	l.view(l.repo.CreateCluster(l.t.Context(), api.ClusterIntent{
		Name: name, UID: "u" + name, Project: api.DefaultProject, CreatedAt: l.now, Spec: api.ClusterSpec{Groups: []api.Group{g}},
	}))
}

// untilIs makes passes until a cluster is as it is to be.
func (l *led) untilIs(what, name string, is func(*state.Cluster) bool) *state.Cluster {
	l.t.Helper()
	for range 20 {
		if c := l.mustPass().Cluster(name); c != nil && c.Record != nil && is(c) {
			return c
		}
		l.report(api.MemberReady)
	}
	c := l.cache.View().Cluster(name)
	l.t.Fatalf("%s: after 20 passes, cluster %s is %+v", what, name, c.Record)
	return nil
}

// serversOf are the nodes of members' servers, by member.
func serversOf(c *state.Cluster) map[string]string {
	on := map[string]string{}
	for a := range c.Held() {
		if a.ServesGPU() {
			on[a.Member] = a.Node
		}
	}
	return on
}

func isReady(c *state.Cluster) bool { return c.Record.Phase == api.ClusterReady }

func TestMembersWhoseServersAreLostGetOthersInOnePass(t *testing.T) {
	l := newLed(t, memory.New())
	l.gpuNode("n1", 4, 0)
	l.gpuNode("n2", 0, 1)
	l.askGPUs("a", 3, api.WayRemote, 1<<30)
	l.askGPUs("b", 1, api.WayRemote, 1<<30)
	l.untilIs("ready", "a", isReady)
	before := l.untilIs("ready", "b", isReady)
	if got := serversOf(before)["b-0"]; got != "n2" {
		t.Fatalf("b's server is on %q, want n2, which alone has a GPU", got)
	}
	for a := range before.Held() {
		if a.ServesGPU() && (a.NodeMemoryBytes() != 2<<30 || !a.Address().IsValid()) {
			t.Errorf("its server holds %d bytes of the node's memory and has the address %v, want 2GiB and one", a.NodeMemoryBytes(), a.Address())
		}
	}
	l.gpuNode("n3", 0, 1)
	l.now = l.now.Add(time.Minute)
	l.agents.down["n2"] = true
	// Once one member of either cluster has another server, all have.
	var view *state.View
	for range 20 {
		if view = l.mustPass(); serversOf(view.Cluster("a"))["a-0"] == "n3" {
			break
		}
	}
	for _, name := range []string{"a", "b"} {
		on, addresses := map[string]int{}, map[string]bool{}
		for a := range view.Cluster(name).Held() {
			if a.ServesGPU() {
				on[a.Node]++
				addresses[a.Address().String()] = true
			}
		}
		members := map[string]int{"a": 3, "b": 1}[name]
		if on["n3"] != members || len(on) != 1 || len(addresses) != members {
			t.Errorf("servers of %s are on %v with addresses %v, want %d on n3 with one each", name, on, addresses, members)
		}
	}
	for _, name := range []string{"a", "b"} {
		l.untilIs("ready again", name, isReady)
	}
	events, err := l.cache.Events(t.Context(), "a", 0, state.EventsKept)
	if err != nil {
		t.Fatal(err)
	}
	placed := 0
	for _, e := range events {
		if e.Reason == lifecycle.EventGPUServerPlaced {
			placed++
		}
	}
	if placed != 3 {
		t.Errorf("%d events tell of other servers, want 3", placed)
	}
}

func TestAMemberWithoutAServerWaitsForRoomAndGoesBeforeTheQueue(t *testing.T) {
	l := newLed(t, memory.New())
	l.gpuNode("n1", 4, 0)
	l.gpuNode("n2", 0, 1)
	l.askGPUs("a", 1, api.WayRemote, 6<<30)
	l.untilIs("ready", "a", isReady)
	l.now = l.now.Add(time.Minute)
	for a := range l.cache.View().Cluster("a").Held() {
		if a.ServesGPU() {
			l.agents.members[a.ID] = monitor.MemberState{Phase: api.MemberFailed, Message: "x", Since: l.now, Current: true}
		}
	}
	l.agents.down["n2"] = true
	c := l.untilIs("without a server", "a", func(c *state.Cluster) bool { return len(serversOf(c)) == 0 && c.Record.Phase == api.ClusterDegraded })
	if !strings.Contains(c.Record.Message, "it has no GPU server") {
		t.Errorf("the cluster says %q", c.Record.Message)
	}
	revision := c.Record.Generation
	if c = l.mustPass().Cluster("a"); c.Record.Generation != revision {
		t.Errorf("without room, the record went from generation %d to %d", revision, c.Record.Generation)
	}
	l.askGPUs("b", 1, api.WayRemote, 6<<30) // there is room for one of both
	l.gpuNode("n3", 0, 1)
	l.mustPass()
	view := l.mustPass()
	if got := serversOf(view.Cluster("a"))["a-0"]; got != "n3" {
		t.Errorf("a's server is on %q, want n3, before b gets what is free", got)
	}
}

func TestAMemberWithAnyGPUThatIsWholeNeedsNoServer(t *testing.T) {
	l := newLed(t, memory.New())
	l.gpuNode("n1", 2, 1)
	l.askGPUs("a", 1, api.WayAny, 1<<30)
	c := l.untilIs("ready", "a", isReady)
	for a := range c.Held() {
		if len(a.Devices) != 1 || a.Devices[0].Way != api.WayWhole || a.Devices[0].Why == "" {
			t.Errorf("it holds %+v, want the whole GPU, and why", a.Devices)
		}
	}
	l.askGPUs("b", 1, api.WayAny, 1<<30)
	l.gpuNode("n2", 0, 1)
	c = l.untilIs("ready", "b", isReady)
	if got := serversOf(c)["b-0"]; got != "n2" {
		t.Errorf("b's server is on %q, want n2: the GPU of n1 is taken, and n2 has no core for a member", got)
	}
	for range 3 {
		if got := serversOf(l.mustPass().Cluster("a")); len(got) > 0 {
			t.Fatalf("a member with a whole GPU got the servers %v, too", got)
		}
	}
}
