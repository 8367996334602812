package decision

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
)

// mover is where a member that runs is to go on.
func mover(c Cluster, of string) api.Assignment {
	n := successor(c, of)
	n.Node, n.CleanBy, n.Live = "n9", api.ByAgents("n9"), true
	return n
}

func TestAMemberMovesWithoutEverBeingTwoAndItsEndIsNoted(t *testing.T) {
	t.Parallel()
	c := running()
	next := mover(c, "u1.c-1.1")
	c = then(c, apply(t, c, time.Hour, lifecycle.Hold{Assignments: []api.Assignment{next}}))
	change := apply(t, c, 2*time.Hour, lifecycle.MoveEnd{Assignment: "u1.c-1.1", AskedAt: t0, To: "n9"}, lifecycle.TakeOver{IDs: []string{next.ID}})
	if diff := cmp.Diff([]string{
		"allocated on n1: 1 members, 2 cores, 1000 bytes for 2h0m0s", "allocated on n9: 0 members, 2 cores, 1000 bytes for 1h0m0s",
	}, spansOf(change)); diff != "" {
		t.Errorf("use that ends when it takes over: both nodes were held, the member was one (-want +got):\n%s", diff)
	}
	c = then(c, change)
	want := []api.MoveRecord{{AskedAt: t0, Assignment: "u1.c-1.1", Member: "c-1", From: "n1", To: "n9", EndedAt: t0.Add(2 * time.Hour)}}
	if diff := cmp.Diff(want, c.Record.Moves); diff != "" {
		t.Errorf("ends of moves (-want +got):\n%s", diff)
	}
	c = then(c, apply(t, c, 3*time.Hour, lifecycle.MoveReported{Assignment: "u1.c-1.1", Report: api.MoveReport{Bytes: 5}}))
	if r := c.Record.Moves[0].Report; r == nil || r.Bytes != 5 {
		t.Errorf("the report of the move is %+v", r)
	}
	for _, a := range c.Assignments() {
		if a.ID == "u1.c-1.1" && !a.Releasing || a.ID == next.ID && (!a.IsMember() || a.Node != "n9") {
			t.Errorf("%s on %s: releasing %t, member %t", a.ID, a.Node, a.Releasing, a.IsMember())
		}
	}
}

func TestWhatASuccessorOfARunningMemberMustNotBe(t *testing.T) {
	t.Parallel()
	refused := func(c Cluster, says string, ops ...lifecycle.ClusterOperation) {
		t.Helper()
		if _, err := Apply(c, ops, t0.Add(4*time.Hour)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("got %v, want an error that says %q", err, says)
		}
	}
	c := running()
	same := mover(c, "u1.c-1.1")
	same.Node = "n1"
	refused(c, "on the same", lifecycle.Hold{Assignments: []api.Assignment{same}})
	disk := mover(c, "u1.c-1.1")
	disk.Live = false
	c = then(c, apply(t, c, time.Hour, lifecycle.Hold{Assignments: []api.Assignment{disk}}))
	refused(c, "is not saved", lifecycle.TakeOver{IDs: []string{disk.ID}})
	s := saved(t)
	refused(s, "but it is saved", lifecycle.Hold{Assignments: []api.Assignment{mover(s, "u1.c-1.1")}})
}
