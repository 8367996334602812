package controller

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/situation"
	"github.com/nearmetal/nearmetal/internal/state"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// wired is a led site whose nodes have two ports on fabric ib0 each, and carry whole machines.
type wired struct {
	*led
	tables   *fake.Tables
	executor *fake.Site
	keeper   *site.Keeper
}

func newWired(t *testing.T) *wired {
	t.Helper()
	w := &wired{led: newLed(t, memory.New()), tables: &fake.Tables{}}
	w.executor = fake.NewSite(w.tables)
	w.keeper = site.NewKeeper(w.executor, slog.New(slog.DiscardHandler))
	w.fabrics = situation.Fabrics{"ib0": w.keeper}
	w.campaign()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); w.keeper.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	record := api.NodeRecord{
		Name: "n1", Underlay: "198.18.0.1", Stacks: []api.StackCheck{{Stack: api.StackMetal, OK: true}},
		Environments: []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackMetal}, OK: true}},
		Capacity: api.NodeCapacity{
			Cores: []api.Core{{}}, MemoryBytes: 8 << 30,
			Ports: []api.NodePort{{Name: "p0", Fabric: "ib0", At: "0x1"}, {Name: "p1", Fabric: "ib0", At: "0x2"}, {Name: "p2", Fabric: "unknown", At: "0x3"}},
		},
	}
	w.view(w.repo.PutNode(t.Context(), record))
	w.view(w.repo.CreateCluster(t.Context(), api.ClusterIntent{
		Name: "m", UID: "um", CreatedAt: w.now, Spec: api.ClusterSpec{Groups: []api.Group{{
			Name: "m", Size: 1, Shape: api.Shape{Cores: 1}, Stack: api.StackMetal, Environment: "local", Networks: api.OnNetworks("data", "storage"),
		}}},
	}))
	return w
}

// passes makes passes until the stored state is as it should be, with what the fabric says in between.
func (w *wired) passes(what string, done func(*state.View) bool) *state.View {
	w.t.Helper()
	deadline := time.After(time.Minute)
	for {
		if view := w.mustPass(); done(view) {
			return view
		}
		select {
		case <-w.keeper.Changed():
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			w.t.Fatalf("%s: never", what)
		}
	}
}

func TestAMemberIsReadyOnceItsPortsAreInTheirNetworks(t *testing.T) {
	w := newWired(t)
	w.tables.Delay()
	view := w.passes("placed", func(v *state.View) bool { return v.Cluster("m").Record.Phase == api.ClusterStarting })
	a := only(t, view.Cluster("m"))
	if len(a.Ports) != 3 || a.Ports[2].At != "0x2" || len(a.CleanBy) != 2 {
		t.Fatalf("it has ports %+v, clean by %v; want three on the two ports of ib0, clean by its agent and that fabric", a.Ports, a.CleanBy)
	}
	w.report(api.MemberReady)
	for range 5 {
		if view = w.mustPass(); view.Cluster("m").Record.Phase != api.ClusterStarting {
			t.Fatalf("it is %s before its ports are in their networks", view.Cluster("m").Record.Phase)
		}
	}
	w.tables.Settle()
	w.passes("ready", func(v *state.View) bool { return v.Cluster("m").Record.Phase == api.ClusterReady })
	w.tables.Blind("0x1", "the switch is off")
	w.campaign() // the next leader has the fabric read anew
	w.passes("read anew", func(*state.View) bool {
		phase, why := w.fabrics.Limit(w.cache.View(), &a, api.MemberReady, "")
		return phase == api.MemberUnknown && strings.Contains(why, "the switch is off")
	})
	if view = w.mustPass(); view.Cluster("m").Record.Phase != api.ClusterReady {
		t.Errorf("a port that can't be read makes it %s: %s", view.Cluster("m").Record.Phase, view.Cluster("m").Record.Message)
	}
}

func TestAPortThatTwoMustProveCleanIsHeldUntilBothHave(t *testing.T) {
	w := newWired(t)
	view := w.passes("placed", func(v *state.View) bool { return v.Cluster("m").Record.Phase == api.ClusterStarting })
	a := only(t, view.Cluster("m"))
	w.report(api.MemberReady)
	w.passes("ready", func(v *state.View) bool { return v.Cluster("m").Record.Phase == api.ClusterReady })
	w.tables.Stick("0x2", true)
	w.release(w.cache.View().Cluster("m"))
	w.agents.clean = map[string][]string{"n1": {a.ID}}
	w.passes("the agent's proof is stored", func(v *state.View) bool {
		return len(v.Cluster("m").Record.Proved) == 1 && v.Cluster("m").Record.Proved[0].By == api.ExecutorAgent
	})
	w.agents.clean = nil // a stored proof need not be repeated
	w.now = w.now.Add(11 * time.Minute)
	w.passes("quarantined", func(v *state.View) bool { return len(v.Quarantines) == 1 })
	if q := w.cache.View().Quarantines[0]; !strings.Contains(q.Reason, "the fabric of ib0 has not proved the assignment clean: the fabric has not yet carried out") {
		t.Errorf("it is quarantined for %q", q.Reason)
	}
	w.campaign() // the next leader knows only what is stored
	w.tables.Stick("0x2", false)
	w.passes("free", func(v *state.View) bool {
		return len(v.Quarantines) == 0 && v.Cluster("m") == nil && len(v.Networks) == 0
	})
}

func TestAClusterThatAFabricHasNoRoomForIsRefusedBeforeAnythingIsPlanned(t *testing.T) {
	w := newWired(t)
	w.tables.Bound("0x2", 0)
	view := w.passes("answered", func(v *state.View) bool { return v.Cluster("m").Record != nil })
	record := view.Cluster("m").Record
	const want = "fabric ib0: port 0x2 has room for 0 networks"
	if record.Phase != api.ClusterRefused || !strings.Contains(record.Message, want) || len(record.Chunks) > 0 || len(view.Networks) > 0 {
		t.Errorf("it is %s, %q, with %d chunks and networks %v; want it refused with %q", record.Phase, record.Message, len(record.Chunks), view.Networks, want)
	}
}

func TestAQueuedClusterWaitsUntilItsFabricHasRoom(t *testing.T) {
	w := newWired(t)
	w.tables.Bound("0x2", 0)
	w.passes("answered", func(v *state.View) bool { return v.Cluster("m").Record != nil })
	spec := w.cache.View().Cluster("m").Intent.Spec
	spec.Queue = true
	w.view(w.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "q", UID: "uq", CreatedAt: w.now, Spec: spec}))
	view := w.passes("answered", func(v *state.View) bool { return v.Cluster("q").Record != nil })
	if r := view.Cluster("q").Record; r.Phase != api.ClusterQueued || !strings.Contains(r.Message, "port 0x2 has room for 0 networks") {
		t.Errorf("it is %s, %q", r.Phase, r.Message)
	}
	w.tables.Bound("0x2", 2)
	w.now = w.now.Add(2 * answerHolds)
	w.passes("placed", func(v *state.View) bool { return v.Cluster("q").Record.Phase == api.ClusterStarting })
}

func TestAlarmsOfAFabricAreEventsWhenTheyBeginAndEnd(t *testing.T) {
	w := newWired(t)
	rogue := site.Alarm{Kind: site.UnexpectedManager, Subject: "0x9", Message: "port 0x9 has a subnet manager that is not configured"}
	w.tables.Alarm(rogue)
	events := func() []string {
		log, err := w.repo.Events(t.Context(), state.FabricLog("ib0"), 0, state.EventsKept)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range log {
			all = append(all, e.Reason+" "+e.Alarm+": "+e.Message)
		}
		return all
	}
	want := []string{"Alarm unexpected_manager 0x9: " + rogue.Message}
	w.passes("the alarm has begun", func(*state.View) bool { return len(events()) > 0 })
	w.campaign() // the next leader knows from the events that it has begun, and reads the fabric anew
	w.passes("read anew", func(*state.View) bool { return len(w.keeper.Alarms().Present) == 1 })
	w.mustPass()
	if diff := cmp.Diff(want, events()); diff != "" {
		t.Errorf("under the next leader (-want +got)\n%s", diff)
	}
	w.tables.Alarm()
	w.campaign()
	want = append(want, "AlarmEnded unexpected_manager 0x9: this is over: "+rogue.Message)
	w.passes("the alarm has ended", func(*state.View) bool { return len(events()) > 1 })
	if diff := cmp.Diff(want, events()); diff != "" {
		t.Errorf("in the end (-want +got)\n%s", diff)
	}
}
