package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// moving is a cluster of one member on this node, in this phase, whose move from n1 to n2 is where it is.
func moving(node string, phase api.MemberPhase, move api.MemberMoving, ended bool) api.Cluster {
	move.Member, move.From, move.To = "v1-0", "n1", "n2"
	cl := api.Cluster{Name: "v1", Status: api.ClusterStatus{
		Phase: api.ClusterReady, TotalMembers: 1,
		Members: []api.MemberStatus{{Name: "v1-0", Node: node, Phase: phase}},
		Move:    &api.MoveStatus{AskedAt: time.Unix(100, 0), Ended: ended, Members: []api.MemberMoving{move}},
	}}
	if move.Phase == api.MoveMoving {
		cl.Status.Members[0].Moving = &cl.Status.Move.Members[0]
	}
	return cl
}

func TestAMoveIsAwaitedUntilItsMembersCanBeReached(t *testing.T) {
	report := &api.MoveReport{TotalSeconds: 4, Bytes: 152 << 20, DowntimeSeconds: 0.33}
	moved := api.MemberMoving{Phase: api.MoveMoved, Report: report}
	asked := moving("n1", api.MemberReady, api.MemberMoving{Phase: api.MoveWaiting}, false)
	older := moving("n2", api.MemberReady, moved, true)
	older.Status.Move.AskedAt = time.Unix(99, 0)
	restoring := moving("n2", api.MemberReady, api.MemberMoving{Phase: api.MoveMoved}, true)
	restoring.Status.Phase = api.ClusterRestoring
	leaving := moving("n2", api.MemberReady, api.MemberMoving{Phase: api.MoveMoved}, true)
	leaving.Status.Members = append(leaving.Status.Members, api.MemberStatus{Name: "v1-0", Node: "n1", Phase: api.MemberReleasing})
	for name, c := range map[string]struct {
		seen api.Cluster
		want bool
	}{
		"the move has not begun":                        {asked, false},
		"the watch shows the move before this one":      {older, false},
		"the member is on its way":                      {moving("n1", api.MemberReady, api.MemberMoving{Phase: api.MoveMoving}, false), false},
		"the member moved and can't be reached yet":     {moving("n2", api.MemberStarting, moved, true), false},
		"the member moved, its cluster is restoring":    {restoring, false},
		"the member moved, its report is yet to come":   {leaving, false},
		"the member moved and its report never comes":   {moving("n2", api.MemberReady, api.MemberMoving{Phase: api.MoveMoved}, true), true},
		"the member moved and can be reached":           {moving("n2", api.MemberReady, moved, true), true},
		"the member stayed where it was":                {moving("n1", api.MemberReady, api.MemberMoving{Phase: api.MoveFailed}, true), true},
		"the member moved and turned out to be unwell":  {moving("n2", api.MemberUnhealthy, moved, true), true},
		"the member moved and was lost a moment later":  {moving("n3", api.MemberStarting, moved, true), true},
		"the member stayed, and its agent is restarted": {moving("n1", api.MemberStarting, api.MemberMoving{Phase: api.MoveFailed}, true), true},
	} {
		if done, err := untilMoved(asked, 0).done(c.seen); done != c.want || err != nil {
			t.Errorf("%s: the move is over: %t, %v; want %t", name, done, err, c.want)
		}
	}
	newer := moving("n1", api.MemberReady, api.MemberMoving{Phase: api.MoveMoving}, false)
	newer.Status.Move.AskedAt = time.Unix(101, 0)
	if _, err := untilMoved(asked, 0).done(newer); err == nil || !strings.Contains(err.Error(), "another move") {
		t.Errorf("another user's move: %v, want that it is named", err)
	}
}

func TestAMoveIsShownWithWhatItTookOrWhyItFailed(t *testing.T) {
	on := moving("n1", api.MemberUnknown, api.MemberMoving{Phase: api.MoveMoving, SentBytes: 42 << 20, TotalBytes: 512 << 20}, false)
	if got, want := stateLine(on), "cluster v1: ready, 0/1 members ready, v1-0 moves from n1 to n2 (42MiB sent)"; got != want {
		t.Errorf("while it moves: %q, want %q", got, want)
	}
	var out bytes.Buffer
	failed := moving("n1", api.MemberReady, api.MemberMoving{Phase: api.MoveFailed, Message: "another QEMU"}, true)
	printMoves(&out, failed)
	if !strings.Contains(out.String(), "another QEMU") {
		t.Errorf("the reason is not printed: %s", out.String())
	}
	if err := notMoved(failed); err == nil || err.Error() != `of cluster "v1", v1-0 did not move` {
		t.Errorf("the error is %v", err)
	}
	if err := notMoved(moving("n2", api.MemberReady, api.MemberMoving{Phase: api.MoveMoved}, true)); err != nil {
		t.Error(err)
	}
}
