package situation

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestOnlyTheNodeOfASuccessorFetchesItsMember(t *testing.T) {
	h := newHistory(t, 1)
	h.done(h.repo.CreateCluster(t.Context(), api.ClusterIntent{Name: "c", UID: "u"}))
	on := func(node, id, from string) api.Assignment {
		return api.Assignment{ID: "u." + id, Node: node, Member: id, From: from, Of: from}
	}
	disk := on("n1", "c-1.1", "")
	disk.Saved = true
	part := on("n3", "c-0.gpu", "")
	part.Of = "u.c-0.1"
	h.done(h.leader.Commit(t.Context(), h.cache.View().Cluster("c"), state.Write{
		Record: api.ClusterRecord{Name: "c", UID: "u", Generation: 1, Phase: api.ClusterReady},
		Add: []state.Batch{{Assignments: []api.Assignment{
			on("n1", "c-0.1", ""), disk, part, on("n2", "c-0.2", "u.c-0.1"), on("n2", "c-1.2", "u.c-1.1"), on("n1", "c-1.3", "u.c-1.1"), on("n2", "c-2.2", "u.c-2.1"),
		}}},
	}))
	for _, tt := range []struct {
		name, node, successor string
		target                agentstream.Target
		want                  string // the member, or the refusal
	}{
		{"one that runs is moved", "n2", "u.c-0.2", agentstream.TargetMove, "u.c-0.1"},
		{"the state of one that is saved is fetched", "n2", "u.c-1.2", agentstream.TargetState, "u.c-1.1"},
		{"one that runs has no state on disk", "n2", "u.c-0.2", agentstream.TargetState, "its record says saved: false"},
		{"one on disk can't be moved", "n2", "u.c-1.2", agentstream.TargetMove, "its record says saved: true"},
		{"another node has no claim", "n3", "u.c-0.2", agentstream.TargetMove, `node "n3" has no assignment u.c-0.2 that is to go on`},
		{"nor has the node of the member itself", "n1", "u.c-0.2", agentstream.TargetMove, `node "n1" has no assignment u.c-0.2 that is to go on`},
		{"a member succeeds nobody", "n1", "u.c-0.1", agentstream.TargetMove, `node "n1" has no assignment u.c-0.1 that is to go on`},
		{"a part succeeds nobody", "n3", "u.c-0.gpu", agentstream.TargetMove, `node "n3" has no assignment u.c-0.gpu that is to go on`},
		{"what is on the same node is not fetched", "n1", "u.c-1.3", agentstream.TargetState, "is on this very node"},
		{"a member that is gone can't be fetched", "n2", "u.c-2.2", agentstream.TargetMove, "is no longer held"},
	} {
		got, err := CarriedFor(h.cache.View(), agentstream.CarryRequest{Node: tt.node, Successor: tt.successor, Target: tt.target})
		if err == nil && got != (monitor.Carried{Node: "n1", ID: tt.want}) || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %+v, %v; want %s", tt.name, got, err, tt.want)
		}
	}
}
