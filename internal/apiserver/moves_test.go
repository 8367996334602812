package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/situation"
)

func TestAMoveIsAskedForOnceAndItsMembersAreListed(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2})
	refused := func(what string, req api.MigrateRequest, code, says string) {
		t.Helper()
		if _, err := c.MigrateCluster(t.Context(), "c1", req); !client.HasCode(err, code) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, code, says)
		}
	}
	refused("containers", api.MigrateRequest{}, "cant_move", `only members of stack "vm" can move`)
	onStack(t, s, api.StackVM)
	refused("an unknown node", api.MigrateRequest{To: "n9"}, "invalid_request", `the site has no node "n9"`)
	refused("an unknown member", api.MigrateRequest{Members: []string{"c1-9"}}, "member_not_found", "c1-9")
	refused("its own node", api.MigrateRequest{Members: []string{"c1-0"}, To: "n1"}, "cant_move", "already")
	refused("limits that mean nothing", api.MigrateRequest{Offline: true, Bandwidth: 1}, "invalid_request", "offline")
	s.Explainer.SetNoRoom(&situation.NoRoom{Reason: "no other node can take it"})
	refused("no room", api.MigrateRequest{}, "no_room", "nothing was changed")
	s.Explainer.SetNoRoom(nil)
	cl, err := c.MigrateCluster(t.Context(), "c1", api.MigrateRequest{Members: []string{"c1-1"}})
	if err != nil {
		t.Fatal(err)
	}
	if m := cl.Status.Move; m == nil || m.Ended || len(m.Members) != 1 || m.Members[0].Member != "c1-1" || m.Members[0].Phase != api.MoveWaiting || m.Members[0].From != "n2" {
		t.Errorf("the move is %+v", m)
	}
	refused("another one beside it", api.MigrateRequest{}, "wrong_phase", "moving already")
	if _, err := c.PauseCluster(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	refused("a cluster that is about to be paused", api.MigrateRequest{}, "wrong_phase", "paused or about to be")
}
