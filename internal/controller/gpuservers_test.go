package controller

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/situation"
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

// explained is what the leader's state says of a cluster.
func (l *led) explained(name string) string {
	l.t.Helper()
	now := func() time.Time { return l.now }
	e := &situation.Explainer{Views: l.cache, Heard: l.agents, Now: now, Time: func(t time.Time) time.Time { return t }, Since: l.now, Deadlines: lifecycle.DefaultDeadlines()}
	e.EnergyJoules = func(now time.Time) map[string]int64 {
		used, err := l.cache.EnergyUsed(l.t.Context(), now)
		if err != nil {
			l.t.Error(err)
		}
		return used
	}
	ex, err := e.Explain(name)
	if err != nil {
		l.t.Fatal(err)
	}
	return ex.Message
}

func (l *led) drain(node string) {
	l.t.Helper()
	_, revision, err := l.repo.SetDrain(l.t.Context(), node, "new memory", "op", l.now)
	l.view(revision, err)
}

func TestServersLeaveADrainedNodeWhenAnotherHasRoom(t *testing.T) {
	l := newLed(t, memory.New())
	l.gpuNode("n1", 4, 0)
	l.gpuNode("n2", 0, 1)
	l.askGPUs("a", 2, api.WayRemote, 1<<30)
	before := l.untilIs("ready", "a", isReady)
	l.gpuNode("n3", 0, 1)
	l.drain("n2")
	l.drain("n3")
	for range 3 {
		if c := l.mustPass().Cluster("a"); c.Record.Generation != before.Record.Generation {
			t.Fatalf("without room elsewhere, its servers are on %v, and the record is of generation %d, want %d", serversOf(c), c.Record.Generation, before.Record.Generation)
		}
	}
	const stays = "The GPU server of a-0 is still on node n2, which is drained; no other node has room for it: each member of group \"a\" needs 1GiB of the memory of a remote GPU: node n2: it is drained; node n3: it is drained."
	if got := l.explained("a"); !strings.Contains(got, stays) {
		t.Errorf("explain says %q, want %q", got, stays)
	}
	revision, err := l.repo.Undrain(t.Context(), "n3")
	l.view(revision, err)
	l.mustPass()
	c := l.cache.View().Cluster("a")
	if got := serversOf(c); got["a-0"] != "n3" || got["a-1"] != "n3" {
		t.Errorf("its servers are on %v, want n3", got)
	}
	if got := l.explained("a"); strings.Contains(got, "drained") {
		t.Errorf("after its servers left, explain says %q", got)
	}
	left := 0
	for a := range c.Releasing() {
		if a.ServesGPU() && a.Node == "n2" {
			left++
		}
	}
	events, err := l.cache.Events(t.Context(), "a", 0, state.EventsKept)
	if err != nil {
		t.Fatal(err)
	}
	moved := 0
	for _, e := range events {
		if e.Reason == lifecycle.EventGPUServerMoved && strings.Contains(e.Message, "left node n2, which is drained, for n3") {
			moved++
		}
	}
	if left != 2 || moved != 2 {
		t.Errorf("%d servers on n2 are releasing, and %d events say that they left, want 2 and 2", left, moved)
	}
	l.untilIs("ready again", "a", isReady)
}

func TestAServerBesideItsMemberStaysOnADrainedNode(t *testing.T) {
	l := newLed(t, memory.New())
	l.gpuNode("n1", 4, 1)
	l.askGPUs("a", 1, api.WayRemote, 1<<30)
	l.untilIs("ready", "a", isReady)
	l.gpuNode("n2", 0, 1)
	l.drain("n1")
	for range 3 {
		if got := serversOf(l.mustPass().Cluster("a")); got["a-0"] != "n1" {
			t.Fatalf("its server is on %v, want n1, where its member is", got)
		}
	}
}

// What is lost is placed before what only leaves: the room may be for one of both.
func TestAMemberWithoutAServerGoesBeforeOneWhoseServerIsToLeave(t *testing.T) {
	l := newLed(t, memory.New())
	l.gpuNode("n1", 4, 0)
	l.gpuNode("n2", 0, 1)
	l.askGPUs("a", 1, api.WayRemote, 6<<30)
	l.untilIs("ready", "a", isReady)
	l.gpuNode("n3", 0, 1)
	l.askGPUs("b", 1, api.WayRemote, 6<<30)
	l.untilIs("ready", "b", isReady)
	l.now = l.now.Add(time.Minute)
	l.drain("n2") // a's server is to leave
	l.agents.down["n3"] = true
	l.untilIs("without a server", "b", func(c *state.Cluster) bool { return len(serversOf(c)) == 0 })
	l.gpuNode("n4", 0, 1)
	l.mustPass()
	view := l.mustPass()
	if a, b := serversOf(view.Cluster("a"))["a-0"], serversOf(view.Cluster("b"))["b-0"]; a != "n2" || b != "n4" {
		t.Errorf("a's server is on %q and b's on %q, want a's to stay on n2, since b has none and gets n4", a, b)
	}
}

func TestNodesThatHandOutGPUsMeasureWhatChoicesRestOn(t *testing.T) {
	l := newLed(t, memory.New())
	l.gpuNode("n1", 4, 0)
	l.gpuNode("n2", 0, 1)
	l.askGPUs("before", 1, api.WayRemote, 1<<30) // what is free is known before anything was measured
	l.untilIs("ready", "before", isReady)
	l.agents.measured = map[string]agentstream.Measured{"n2": {
		Loads: map[string]float64{"n2-gpu0": 0.25}, RoundTrips: map[netip.Addr]float64{netip.MustParseAddr("198.18.0.1"): 3e-5},
		Served: map[string]api.GPUService{"x": {Calls: 7}},
	}}
	asked := map[string]time.Time{}
	l.lead.measure(t.Context(), asked)
	if got := l.agents.asked; len(got) != 1 || len(got["n2"]) != 1 || got["n2"][0].String() != "198.18.0.1" {
		t.Errorf("asked were %v, want n2 alone, about n1", got)
	}
	l.agents.asked = nil
	l.now = l.now.Add(measuresEvery - time.Second)
	if l.lead.measure(t.Context(), asked); len(l.agents.asked) > 0 {
		t.Errorf("before half a minute was over, %v were asked again", l.agents.asked)
	}
	l.until("what was measured", func(v *state.View) bool { return v.Node("n2").Measures != nil })
	if m := l.cache.View().Node("n2").Measures; m.Loads["n2-gpu0"].Busy != 0.25 || m.RoundTrips["n1"].Seconds != 3e-5 || m.Served["x"].Calls != 7 {
		t.Errorf("stored is %+v", m)
	}
	l.askGPUs("a", 1, api.WayRemote, 1<<30)
	c := l.untilIs("ready", "a", isReady)
	for a := range c.Held() {
		if a.ServesGPU() && !strings.Contains(a.Devices[0].Figures, "round trip of 30us measured 29s before") {
			t.Errorf("the figures of its claim are %q, want the measured round trip", a.Devices[0].Figures)
		}
	}
	l.agents.down["n2"] = true
	l.now = l.now.Add(time.Hour)
	if l.lead.measure(t.Context(), asked); len(l.agents.asked) > 0 {
		t.Errorf("a node that is down was asked: %v", l.agents.asked)
	}
}
