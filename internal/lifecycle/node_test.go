package lifecycle

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
)

func TestWhatHappensToANodeNext(t *testing.T) {
	at := func(s float64) time.Time { return t0.Add(time.Duration(s * float64(time.Second))) }
	tests := []struct {
		name string
		in   NodeInput
		want []string
	}{
		{"one that talks is ready", NodeInput{Phase: api.NodeReady, Connected: true, LastSeen: at(0), Now: at(1)}, []string{"WakeAt 2.5s"}},
		{
			"one that falls silent is unknown at half the death timer",
			NodeInput{Phase: api.NodeReady, Connected: true, LastSeen: at(0), Now: at(2.5)},
			[]string{
				"SetNodePhase unknown: its agent is connected but silent",
				"Emit NodeUnknown: node n1 is unknown: its agent is connected but silent||n1", "WakeAt 5s",
			},
		},
		{
			"one that disconnects is unknown at once",
			NodeInput{Phase: api.NodeReady, LastSeen: at(0), Now: at(0.1)},
			[]string{
				"SetNodePhase unknown: its agent is not connected",
				"Emit NodeUnknown: node n1 is unknown: its agent is not connected||n1", "WakeAt 5s",
			},
		},
		{
			"it is down when the death timer has run out",
			NodeInput{Phase: api.NodeUnknown, LastSeen: at(0), Now: at(5)},
			[]string{"SetNodePhase down: silent for 5s", "Emit NodeDown: node n1 is down: silent for 5s||n1"},
		},
		{
			"a connection that says nothing is no life",
			NodeInput{Phase: api.NodeUnknown, Connected: true, LastSeen: at(0), Now: at(5)},
			[]string{"SetNodePhase down: silent for 5s", "Emit NodeDown: node n1 is down: silent for 5s||n1"},
		},
		{
			"it is ready when it is heard of again",
			NodeInput{Phase: api.NodeDown, Connected: true, LastSeen: at(60), Now: at(60)},
			[]string{"SetNodePhase ready: ", "Emit NodeReady: node n1 is ready||n1", "WakeAt 1m2.5s"},
		},
		{"one that is down stays down", NodeInput{Phase: api.NodeDown, LastSeen: at(0), Now: at(60)}, []string{}},
		{"one that was heard of for a moment is down until it is there", NodeInput{Phase: api.NodeDown, LastSeen: at(59), Now: at(60)}, []string{}},
		{
			"a new leader starts the death timer anew",
			NodeInput{Phase: api.NodeUnknown, LeaderSince: at(60), Now: at(64)},
			[]string{"WakeAt 1m5s"},
		},
		{
			"one that joins is unknown first",
			NodeInput{Connected: true, LastSeen: at(0), Now: at(0)},
			[]string{"SetNodePhase unknown: ", "SetNodePhase ready: ", "Emit NodeReady: node n1 is ready||n1", "WakeAt 2.5s"},
		},
		{
			"one that a new leader reads is unknown, without an event",
			NodeInput{LeaderSince: at(0), Now: at(0)},
			[]string{"SetNodePhase unknown: its agent is not connected", "WakeAt 5s"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.in.Name, tt.in.DeathTimer = "n1", DefaultDeathTimer
			got := PlanNode(tt.in)
			if diff := cmp.Diff(tt.want, sketch(got)); diff != "" {
				t.Errorf("operations (-want +got):\n%s", diff)
			}
			phase := tt.in.Phase
			for _, op := range got {
				if set, ok := op.(SetNodePhase); ok {
					if err := Nodes().Check(phase, set.To); err != nil {
						t.Error(err)
					}
					phase = set.To
				}
			}
		})
	}
}
