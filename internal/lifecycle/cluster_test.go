package lifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

var t0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// sketch writes one line an operation; times are told from t0.
func sketch[T any](ops []T) []string {
	lines := make([]string, 0, len(ops))
	for _, op := range ops {
		switch op := any(op).(type) {
		case WakeAt:
			lines = append(lines, "WakeAt "+op.Time.Sub(t0).String())
		case SetPhase:
			lines = append(lines, fmt.Sprintf("SetPhase %s: %s", op.To, op.Message))
		case SetNodePhase:
			lines = append(lines, fmt.Sprintf("SetNodePhase %s: %s", op.To, op.Message))
		case Report:
			lines = append(lines, strings.TrimSuffix(fmt.Sprintf("Report %s: %s", op.Phase, op.Message), ": "))
		case Emit:
			lines = append(lines, fmt.Sprintf("Emit %s: %s", op.Reason, strings.Join([]string{op.Message, op.Member, op.Node}, "|")))
		default:
			lines = append(lines, strings.TrimPrefix(fmt.Sprintf("%T%+v", op, op), "lifecycle."))
		}
	}
	return lines
}

// life is a cluster of two members: c-0 on n1 (assignment a0), c-1 on n2 (a1).
type life struct{ ClusterInput }

func newLife(phase api.ClusterPhase) *life {
	l := &life{ClusterInput{
		Intent: &api.ClusterIntent{Name: "c"},
		Record: &api.ClusterRecord{
			Name: "c", Generation: 1, Phase: phase, ChangedAt: t0, Chunks: []api.ChunkRef{{ID: "k1", Count: 1}, {ID: "k2", Count: 1}},
		},
		Observed: map[string]Observation{},
		Nodes:    map[string]NodeState{"n1": {api.NodeReady, true}, "n2": {api.NodeReady, true}},
		Now:      t0.Add(time.Minute), LeaderSince: t0.Add(-time.Hour), Deadlines: DefaultDeadlines(),
	}}
	for i := range 2 {
		l.Assignments = append(l.Assignments, ClusterAssignment{Assignment: &api.Assignment{
			ID: fmt.Sprintf("a%d", i), Member: fmt.Sprintf("c-%d", i), Node: fmt.Sprintf("n%d", i+1),
		}})
	}
	return l
}

func (l *life) deleteIt() {
	at := t0
	l.Intent.DeleteRequestedAt = &at
}

func (l *life) releasing() {
	l.deleteIt()
	for i := range l.Assignments {
		l.Assignments[i].Releasing = true
		l.Record.Chunks[i].Releasing = true
	}
}

func (l *life) see(id string, phase api.MemberPhase, message string) {
	l.Observed[id] = Observation{Phase: phase, Message: message}
}

func TestWhatHappensToAClusterNext(t *testing.T) {
	const (
		ready, starting, failed = api.MemberReady, api.MemberStarting, api.MemberFailed
	)
	tests := []struct {
		name  string
		phase api.ClusterPhase
		given func(*life)
		want  []string
	}{
		{"a new cluster asks for a place", "", func(l *life) { l.Record = nil }, []string{"Place{}"}},
		{"a recorded pending cluster asks again", api.ClusterPending, func(*life) {}, []string{"Place{}"}},
		{
			"one deleted before the decision is forgotten", "", func(l *life) { l.Record = nil; l.deleteIt() },
			[]string{"Forget{}", "Emit Deleted: deleted; it held nothing||"},
		},
		{"a refused cluster rests", api.ClusterRefused, func(l *life) { l.Record.Chunks, l.Assignments = nil, nil }, []string{}},
		{
			"a refused cluster that is deleted is forgotten", api.ClusterRefused,
			func(l *life) { l.Record.Chunks, l.Assignments = nil, nil; l.deleteIt() },
			[]string{"Forget{}", "Emit Deleted: deleted; it held nothing||"},
		},
		{
			"a starting cluster waits for its members until the deadline", api.ClusterStarting,
			func(l *life) { l.see("a0", ready, "") },
			[]string{"WakeAt 5m0s"},
		},
		{
			"it is ready when all members are", api.ClusterStarting,
			func(l *life) { l.see("a0", ready, ""); l.see("a1", ready, "") },
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"it fails with the first member that fails", api.ClusterStarting,
			func(l *life) { l.see("a0", ready, ""); l.see("a1", failed, "crun: no space left on device") },
			[]string{
				"SetPhase failed: c-1 on n2 is failed (crun: no space left on device)",
				"Emit Failed: c-1 on n2 is failed (crun: no space left on device)||",
			},
		},
		{
			"it fails at the deadline, naming who is missing", api.ClusterStarting,
			func(l *life) {
				l.see("a0", starting, "")
				l.Nodes["n2"] = NodeState{Phase: api.NodeDown}
				l.Now = t0.Add(5 * time.Minute)
			},
			[]string{
				"SetPhase failed: not ready within 5m0s: c-0 on n1 is starting; c-1 on n2 is unknown (node n2 is down)",
				"Emit Failed: not ready within 5m0s: c-0 on n1 is starting; c-1 on n2 is unknown (node n2 is down)||",
			},
		},
		{
			"a new leader counts the deadline from its own start", api.ClusterStarting,
			func(l *life) { l.Now, l.LeaderSince = t0.Add(time.Hour), t0.Add(time.Hour) },
			[]string{"WakeAt 1h5m0s"},
		},
		{
			"a ready cluster with ready members rests", api.ClusterReady,
			func(l *life) { l.see("a0", ready, ""); l.see("a1", ready, "") },
			[]string{},
		},
		{
			"it stays ready while a node is only not heard of", api.ClusterReady,
			func(l *life) { l.see("a0", ready, ""); l.Nodes["n2"] = NodeState{Phase: api.NodeUnknown} },
			[]string{},
		},
		{
			"it stays ready while a node has connected and not yet told what it has", api.ClusterReady,
			func(l *life) { l.see("a0", ready, ""); l.Nodes["n2"] = NodeState{Phase: api.NodeReady} },
			[]string{},
		},
		{
			"it is degraded when a node is down", api.ClusterReady,
			func(l *life) {
				l.see("a0", ready, "")
				l.see("a1", ready, "")
				l.Nodes["n2"] = NodeState{Phase: api.NodeDown}
			},
			[]string{
				"SetPhase degraded: c-1 on n2 is unknown (node n2 is down)",
				"Emit Degraded: c-1 on n2 is unknown (node n2 is down)||",
			},
		},
		{
			"it is degraded when a member has ended", api.ClusterReady,
			func(l *life) { l.see("a0", starting, ""); l.see("a1", ready, "") },
			[]string{"SetPhase degraded: c-0 on n1 is starting", "Emit Degraded: c-0 on n1 is starting||"},
		},
		{
			"it is degraded when a node tells all it has and a member is not among it", api.ClusterReady,
			func(l *life) { l.see("a0", ready, "") },
			[]string{"SetPhase degraded: c-1 on n2 is assigned", "Emit Degraded: c-1 on n2 is assigned||"},
		},
		{
			"a degraded cluster rests when nothing is new", api.ClusterDegraded,
			func(l *life) { l.see("a0", ready, ""); l.Record.Message = "c-1 on n2 is assigned" },
			[]string{},
		},
		{
			"a degraded cluster tells who else is lost", api.ClusterDegraded,
			func(l *life) { l.see("a0", failed, "ended"); l.Record.Message = "c-1 on n2 is assigned" },
			[]string{"SetPhase degraded: c-0 on n1 is failed (ended); c-1 on n2 is assigned"},
		},
		{
			"it is not ready again before every member has said so", api.ClusterDegraded,
			func(l *life) { l.see("a0", ready, ""); l.Nodes["n2"] = NodeState{Phase: api.NodeUnknown} },
			[]string{},
		},
		{
			"it is ready again when all members are", api.ClusterDegraded,
			func(l *life) { l.see("a0", ready, ""); l.see("a1", ready, "") },
			[]string{"SetPhase ready: ", "Emit Ready: 2 members ready||"},
		},
		{
			"a failed cluster stays failed, whatever its members do", api.ClusterFailed,
			func(l *life) { l.see("a0", ready, ""); l.see("a1", ready, "") },
			[]string{},
		},
		{
			"a delete releases every chunk", api.ClusterReady, (*life).deleteIt,
			[]string{
				"Release{Chunks:[k1 k2]}", "SetPhase deleting: stopping and cleaning 2 members",
				"Emit Deleting: stopping and cleaning 2 members||",
			},
		},
		{
			"an intent that is gone counts as a delete", api.ClusterFailed, func(l *life) { l.Intent = nil },
			[]string{
				"Release{Chunks:[k1 k2]}", "SetPhase deleting: stopping and cleaning 2 members",
				"Emit Deleting: stopping and cleaning 2 members||",
			},
		},
		{
			"deleting waits until the clean deadline", api.ClusterDeleting,
			func(l *life) { l.releasing(); l.see("a0", api.MemberReleasing, "") },
			[]string{"WakeAt 10m0s"},
		},
		{
			"what is said to be clean is confirmed", api.ClusterDeleting,
			func(l *life) { l.releasing(); l.Observed["a0"] = Observation{Clean: true} },
			[]string{"ConfirmClean{IDs:[a0]}", "WakeAt 10m0s"},
		},
		{
			"nothing is confirmed twice, and nothing that is not releasing", api.ClusterReady,
			func(l *life) {
				l.Observed["a0"] = Observation{Phase: ready, Clean: true}
				l.Observed["a1"] = Observation{Phase: ready}
			},
			[]string{},
		},
		{
			"the last confirmation is committed before the cluster is forgotten", api.ClusterDeleting,
			func(l *life) {
				l.releasing()
				l.Assignments[0].Clean = true
				l.Observed["a0"], l.Observed["a1"] = Observation{Clean: true}, Observation{Clean: true}
			},
			[]string{"ConfirmClean{IDs:[a1]}"},
		},
		{
			"a cluster of which all is clean is forgotten", api.ClusterDeleting,
			func(l *life) { l.releasing(); l.Assignments[0].Clean, l.Assignments[1].Clean = true, true },
			[]string{"Forget{}", "Emit Deleted: deleted; nothing is left of it||"},
		},
		{
			"what is not clean at the deadline is quarantined, with the reason", api.ClusterDeleting,
			func(l *life) {
				l.releasing()
				l.see("a0", api.MemberReleasing, "umount: target is busy")
				l.Nodes["n2"] = NodeState{Phase: api.NodeDown}
				l.Now = t0.Add(10 * time.Minute)
			},
			[]string{
				"Quarantine{ID:a0 Reason:not clean within 10m0s: umount: target is busy}",
				"Emit Quarantined: not clean within 10m0s: umount: target is busy|c-0|n1",
				"Quarantine{ID:a1 Reason:not clean within 10m0s: node n2 is down}",
				"Emit Quarantined: not clean within 10m0s: node n2 is down|c-1|n2",
			},
		},
		{
			"the reason of a quarantine is told as well as it is known", api.ClusterDeleting,
			func(l *life) {
				l.releasing()
				l.Nodes["n2"] = NodeState{Phase: api.NodeUnknown}
				l.Now = t0.Add(time.Hour)
			},
			[]string{
				"Quarantine{ID:a0 Reason:not clean within 10m0s: the agent of node n1 does not say why}",
				"Emit Quarantined: not clean within 10m0s: the agent of node n1 does not say why|c-0|n1",
				"Quarantine{ID:a1 Reason:not clean within 10m0s: node n2 is not heard of}",
				"Emit Quarantined: not clean within 10m0s: node n2 is not heard of|c-1|n2",
			},
		},
		{
			"a new leader gives cleaning its time anew", api.ClusterDeleting,
			func(l *life) { l.releasing(); l.Now, l.LeaderSince = t0.Add(time.Hour), t0.Add(time.Hour) },
			[]string{"WakeAt 1h10m0s"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLife(tt.phase)
			tt.given(l)
			if diff := cmp.Diff(tt.want, sketch(PlanCluster(l.ClusterInput))); diff != "" {
				t.Errorf("operations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAMessageNamesAFewMembersAndCountsTheRest(t *testing.T) {
	l := newLife(api.ClusterReady)
	for i := range 5 {
		l.Assignments = append(l.Assignments, ClusterAssignment{Assignment: &api.Assignment{ID: fmt.Sprint("x", i), Member: fmt.Sprint("x-", i), Node: "n1"}})
	}
	ops := PlanCluster(l.ClusterInput)
	want := "c-0 on n1 is assigned; c-1 on n2 is assigned; x-0 on n1 is assigned; x-1 on n1 is assigned; and 3 more"
	if got := ops[0].(SetPhase).Message; got != want {
		t.Errorf("want %q\ngot  %q", want, got)
	}
}

func TestWhatFollowsTheAnswerOfPlacement(t *testing.T) {
	tests := []struct {
		name string
		ops  []Operation
		want []string
	}{
		{
			"placed", PlanPlaced(4, 1),
			[]string{"SetPhase starting: waiting for 4 members on 1 node", "Emit Placed: placed 4 members on 1 node||"},
		},
		{"refused", PlanRefused("too large", false, t0), []string{"SetPhase refused: too large", "Emit Refused: too large||"}},
		{"not decided while nodes are not heard of", PlanRefused("too large", true, t0), []string{"WakeAt 1s"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, sketch(tt.ops)); diff != "" {
				t.Errorf("operations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAQuarantineEndsWhenTheAgentConfirmsItClean(t *testing.T) {
	q := api.Quarantine{Assignment: api.Assignment{ID: "a0", Member: "c-0", Node: "n1"}}
	if got := PlanQuarantine(q, false); len(got) != 0 {
		t.Errorf("not clean: want nothing, got %v", sketch(got))
	}
	want := []string{"EndQuarantine{ID:a0}", "Emit QuarantineEnded: cleaned at last; its resources are free|c-0|n1"}
	if diff := cmp.Diff(want, sketch(PlanQuarantine(q, true))); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
}
