package lifecycle

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

func TestWhatFollowsWhenMembersHaveGotAPlace(t *testing.T) {
	on := func(id, member, node string) api.Assignment {
		return api.Assignment{ID: id, Member: member, Node: node}
	}
	again := on("b1", "c-1", "n3")
	again.Attempt = 2
	tests := []struct {
		name string
		in   Placed
		want []string
	}{
		{
			"a new cluster starts",
			Placed{Need: Need{Kind: NeedCreate}, Assignments: []api.Assignment{on("a0", "c-0", "n1"), on("a1", "c-1", "n1")}, Networks: []api.Network{{Index: 1}}},
			[]string{
				"Hold [a0 a1] network true spares []", "SetPhase starting: waiting for 2 members on 1 node", "Emit Placed: placed 2 members on 1 node||",
			},
		},
		{
			"new members are told of together",
			Placed{Need: Need{Kind: NeedScale}, Assignments: []api.Assignment{on("b2", "c-2", "n1"), on("b3", "c-3", "n2")}},
			[]string{"Hold [b2 b3] network false spares []", "Emit Scaling: added 2 members on 2 nodes: c-2; c-3||"},
		},
		{
			"a replacement is told with its old and its new node",
			Placed{Need: Need{Kind: NeedHeal, Members: []WantedMember{{Avoid: "n2"}}}, Assignments: []api.Assignment{on("b1", "c-1", "n3")}},
			[]string{"Hold [b1] network false spares []", "Emit MemberReplaced: c-1 moves from n2 to n3|c-1|n3"},
		},
		{
			"and how often, and into whose room",
			Placed{Need: Need{Kind: NeedHeal, Members: []WantedMember{{Avoid: "n2"}}}, Assignments: []api.Assignment{again}, Spares: []string{"s0"}},
			[]string{
				"Hold [b1] network false spares [s0]",
				"Emit MemberReplaced: c-1 moves from n2 to n3, attempt 2 in a row, in the place of a spare|c-1|n3",
			},
		},
		{
			"a spare is only room",
			Placed{Need: Need{Kind: NeedSpare}, Assignments: []api.Assignment{on("s0", "c-spare-0", "n4")}},
			[]string{"Hold [s0] network false spares []", "Emit Placed: reserved room for a spare on n4|c-spare-0|n4"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, sketch(PlanPlaced(tt.in))); diff != "" {
				t.Errorf("operations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatFollowsWhenThereIsNoPlace(t *testing.T) {
	queued := &api.ClusterRecord{Phase: api.ClusterQueued, Message: "waits for room (cores); 'explain' shows what it waits for"}
	tests := []struct {
		name   string
		record *api.ClusterRecord
		answer Answer
		want   []string
	}{
		{
			"what is not possible, or does not want to wait, is refused", nil,
			Answer{Kind: NeedCreate, Refuse: true, Constraint: "cores", Reason: "too large"},
			[]string{"SetPhase refused: too large", "Emit Refused: too large||"},
		},
		{
			"also when it has waited", queued,
			Answer{Kind: NeedCreate, Refuse: true, Constraint: "cores", Reason: "too large"},
			[]string{"SetPhase refused: too large", "Emit Refused: too large||"},
		},
		{
			"what waits is queued, and told what binds", nil,
			Answer{Kind: NeedCreate, Constraint: "cores", Reason: "5 more are needed"},
			[]string{"SetPhase queued: waits for room (cores); 'explain' shows what it waits for", "Emit Queued: cores: 5 more are needed||"},
		},
		{"figures that change are no news", queued, Answer{Kind: NeedCreate, Constraint: "cores", Reason: "4 more are needed"}, []string{}},
		{
			"another constraint is", queued,
			Answer{Kind: NeedCreate, Constraint: "quota", Reason: "the project holds 8 of 8 cores"},
			[]string{"SetPhase queued: waits for room (quota); 'explain' shows what it waits for"},
		},
		{
			"what waits for a number of the site has the reason stored, which 'explain' does not know", queued,
			Answer{Kind: NeedCreate, Constraint: "networks", Reason: "all VLANs are in use", Numbers: true},
			[]string{"SetPhase queued: nodes have room, but all VLANs are in use"},
		},
		{
			"the same reason is no news", &api.ClusterRecord{Phase: api.ClusterQueued, Message: "nodes have room, but all VLANs are in use"},
			Answer{Kind: NeedCreate, Constraint: "networks", Reason: "all VLANs are in use", Numbers: true},
			[]string{},
		},
		{
			"the message of a saved cluster that waits for a number gives the reason", &api.ClusterRecord{Phase: api.ClusterRestoring, Message: "restoring"},
			Answer{Kind: NeedRestore, Constraint: "networks", Reason: "fabric ib0: no answer", Numbers: true},
			[]string{"SetPhase restoring: nodes have room, but fabric ib0: no answer"},
		},
		{
			"nothing is decided while nodes are not heard of", nil,
			Answer{Kind: NeedCreate, Refuse: true, Undecided: true, Constraint: "down", Reason: "x"},
			[]string{"WakeAt 1s"},
		},
		{"a replacement waits", queued, Answer{Kind: NeedHeal, Refuse: true}, []string{}},
		{"new members wait", queued, Answer{Kind: NeedScale, Refuse: true}, []string{}},
		{"spares wait", queued, Answer{Kind: NeedSpare, Refuse: true}, []string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, sketch(PlanRefused(tt.record, tt.answer, t0))); diff != "" {
				t.Errorf("operations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAQuarantineEndsWhenTheAgentConfirmsItClean(t *testing.T) {
	agent := api.ByAgents("n1")[0]
	confirmed := []string{"EndQuarantine{ID:a0}", "Emit QuarantineEnded: confirmed clean; its resources are free again|c-0|n1"}
	forgotten := []string{"EndQuarantine{ID:a0}", "Emit QuarantineEnded: released because its node was removed from the inventory|c-0|n1"}
	for _, tt := range []struct {
		name                string
		owed                []api.Prover
		heard, gone, stored []api.Prover
		want                []string
	}{
		{"nobody has proved it", []api.Prover{agent}, nil, nil, nil, []string{}},
		{"its agent has", []api.Prover{agent}, []api.Prover{agent}, nil, nil, confirmed},
		{"one of two has", []api.Prover{agent, fabric}, []api.Prover{agent}, nil, nil, []string{}},
		{"both have, one of them before", []api.Prover{agent, fabric}, []api.Prover{fabric}, nil, []api.Prover{agent}, confirmed},
		{"its node is gone", []api.Prover{agent}, nil, []api.Prover{agent}, nil, forgotten},
		{"its node is gone and the fabric has not proved it", []api.Prover{agent, fabric}, nil, []api.Prover{agent}, nil, []string{}},
		{"a fabric that is gone has proved nothing", []api.Prover{fabric}, nil, []api.Prover{fabric}, nil, []string{}},
		{"nobody must prove it", nil, []api.Prover{agent}, []api.Prover{agent}, nil, []string{}},
	} {
		q := api.Quarantine{Assignment: api.Assignment{ID: "a0", Member: "c-0", Node: "n1", CleanBy: tt.owed}}
		for _, p := range tt.stored {
			q.Proved = append(q.Proved, api.Proof{Assignment: "a0", Prover: p})
		}
		in := func(list []api.Prover) func(api.Prover) bool {
			return func(p api.Prover) bool { return slices.Contains(list, p) }
		}
		if diff := cmp.Diff(tt.want, sketch(PlanQuarantine(q, in(tt.heard), in(tt.gone)))); diff != "" {
			t.Errorf("%s: operations (-want +got):\n%s", tt.name, diff)
		}
	}
}

func TestReplacementsOfWhatDiesAgainAndAgainWaitLonger(t *testing.T) {
	for attempt, want := range []time.Duration{0, 0, 2 * time.Second, 5 * time.Second, 15 * time.Second, time.Minute, time.Minute} {
		if got := backoff(attempt); got != want {
			t.Errorf("attempt %d: want a pause of %s, got %s", attempt, want, got)
		}
	}
}

func TestATimeLimitCountsFromThePlacement(t *testing.T) {
	at := t0
	placed := &api.ClusterRecord{PlacedAt: &at}
	limited := api.ClusterSpec{TimeLimit: api.Duration(time.Hour)}
	tests := []struct {
		name   string
		spec   api.ClusterSpec
		record *api.ClusterRecord
		want   time.Time
	}{
		{"placed", limited, placed, t0.Add(time.Hour)},
		{"without a limit", api.ClusterSpec{}, placed, time.Time{}},
		{"not placed yet", limited, &api.ClusterRecord{}, time.Time{}},
		{"not decided yet", limited, nil, time.Time{}},
	}
	for _, tt := range tests {
		if got := Expires(tt.spec, tt.record); !got.Equal(tt.want) {
			t.Errorf("%s: want %s, got %s", tt.name, tt.want, got)
		}
	}
}
