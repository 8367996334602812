package controller

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestAMemberIsNotToBeHereUntilItsSuccessorIsProvedClean(t *testing.T) {
	t.Parallel()
	member := api.Assignment{ID: "a", ClusterUID: "u", Node: "n1", Stack: api.StackVM}
	live := api.Assignment{ID: "b", ClusterUID: "u", Node: "n2", Stack: api.StackVM, Of: "a", From: "a", Live: true}
	disk := live
	disk.Live = false
	shelved := member
	shelved.Saved = true
	type told struct {
		to                   string
		takeBack, save, next bool
	}
	tests := []struct {
		name        string
		held        []api.Assignment
		releasing   []api.Assignment
		quarantined []api.Assignment
		want        told
	}{
		{"it does not move", []api.Assignment{member}, nil, nil, told{takeBack: true}},
		{"it moves", []api.Assignment{member, live}, nil, nil, told{to: "b", next: true}},
		{"its successor was withdrawn", []api.Assignment{member}, []api.Assignment{live}, nil, told{to: "b"}},
		{"its successor is in quarantine", []api.Assignment{member}, nil, []api.Assignment{live}, told{to: "b"}},
		{"it is being saved to go on elsewhere", []api.Assignment{member, disk}, nil, nil, told{save: true}},
		{"its state is carried", []api.Assignment{shelved, disk}, nil, nil, told{next: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			j := journeys{held: map[string]*api.Assignment{}, to: map[string]*api.Assignment{}}
			for i := range tt.quarantined {
				j.add(&tt.quarantined[i], false)
			}
			for i := range tt.releasing {
				j.add(&tt.releasing[i], false)
			}
			for i := range tt.held {
				j.add(&tt.held[i], true)
			}
			c := &state.Cluster{Intent: api.ClusterIntent{Move: &api.MoveIntent{MoveLimits: api.MoveLimits{BytesPerSecond: 7, Downtime: api.Duration(time.Second)}}}}
			var got told
			for i := range tt.held {
				a := &tt.held[i]
				m := agentstream.Member{}
				m.Assignment = *a
				j.tell(c, &m)
				if a.IsSuccessor() {
					if got.next = !j.early(a); m.FromNode != "n1" || m.Live != a.Live || m.TakeBack {
						t.Errorf("its successor is told %+v", m)
					}
					continue
				}
				got.takeBack, got.save = m.TakeBack, m.Save
				if m.Move != nil {
					got.to = m.Move.To
					if m.Move.Limits.BytesPerSecond != 7 || m.Move.Limits.Downtime != time.Second {
						t.Errorf("the limits of its move are %+v", m.Move.Limits)
					}
				}
			}
			if got != tt.want {
				t.Errorf("told %+v, want %+v", got, tt.want)
			}
		})
	}
}
