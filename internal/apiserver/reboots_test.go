package apiserver_test

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
)

func TestARebootIsRequestedOnceAndItsMembersAreListed(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2})
	refused := func(what string, req api.RebootRequest, code, says string) {
		t.Helper()
		if _, err := c.RebootCluster(t.Context(), "c1", req); !client.HasCode(err, code) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, code, says)
		}
	}
	refused("containers", api.RebootRequest{}, "cant_reboot", `only members of stack "vm" can reboot`)
	onStack(t, s, api.StackVM)
	refused("an unknown member", api.RebootRequest{Members: []string{"c1-9"}}, "member_not_found", "c1-9")
	cl, err := c.RebootCluster(t.Context(), "c1", api.RebootRequest{Members: []string{"c1-1"}, Hard: true})
	if err != nil {
		t.Fatal(err)
	}
	if r := cl.Status.Reboot; r == nil || r.Ended || !r.Hard || len(r.Members) != 1 || r.Members[0] != (api.MemberRebooting{Member: "c1-1", Phase: api.RebootWaiting}) {
		t.Errorf("the reboot is %+v", r)
	}
	refused("a second request beside the first", api.RebootRequest{}, "wrong_phase", "rebooting already (1: c1-1)")
	if _, err := c.PauseCluster(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	refused("a cluster that is about to be paused", api.RebootRequest{}, "wrong_phase", "paused or about to be")
}

func TestAHardRebootOvertakesAGracefulOneThatWaits(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2})
	onStack(t, s, api.StackVM)
	request := func(hard bool, members ...string) error {
		_, err := c.RebootCluster(t.Context(), "c1", api.RebootRequest{Members: members, Hard: hard})
		return err
	}
	if err := request(false); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		hard    bool
		members []string
		says    string
	}{
		"a second graceful reboot":                          {false, nil, "wait until they have booted"},
		"a hard reboot that leaves out a member that waits": {true, []string{"c1-0"}, "only if it includes all of them"},
	} {
		if err := request(tc.hard, tc.members...); !client.HasCode(err, "wrong_phase") || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want wrong_phase that says %q", name, err, tc.says)
		}
	}
	if err := request(true); err != nil {
		t.Errorf("a hard reboot of all members that wait: %v", err)
	}
	if err := request(true); !client.HasCode(err, "wrong_phase") {
		t.Errorf("a second hard reboot: %v, want wrong_phase", err)
	}
}

// onStack has the members of cluster c1 on a stack, as the API's own view knows when it returns.
func onStack(t *testing.T, s *apiservertest.Site, stack api.Stack) {
	t.Helper()
	_, revision, err := s.Repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error { in.Spec.Groups[0].Stack = stack; return nil })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Cache.WaitRevision(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
}
