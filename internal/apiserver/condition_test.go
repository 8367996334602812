package apiserver_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func ms(n int) api.Duration { return api.Duration(n) * api.Duration(time.Millisecond) }

func TestAConditionIsSetForAllMembersOrRefusedWithTheReason(t *testing.T) {
	s, c, _ := ready(t, api.ClusterRequest{Name: "c1", Size: 2, Cores: 1, Memory: 512 << 20})
	refused := func(what string, n api.NetworkCondition, code, says string) {
		t.Helper()
		if _, err := c.SetCondition(t.Context(), "c1", n); !client.HasCode(err, code) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %s that says %q", what, err, code, says)
		}
	}
	refused("nothing", api.NetworkCondition{Seed: 3}, "invalid_request", "to take a condition away, clear it")
	refused("a long delay", api.NetworkCondition{Delay: ms(1001)}, "invalid_request", "can be at most 1s")
	refused("a large jitter", api.NetworkCondition{Delay: ms(5), Jitter: ms(6)}, "invalid_request", "can be at most the delay, 5ms")
	refused("no percentage", api.NetworkCondition{Duplicate: 101}, "invalid_request", `duplicate`)
	refused("a negative one", api.NetworkCondition{Loss: -1}, "invalid_request", "is no percentage; write a number from 0 to 100")
	refused("much loss", api.NetworkCondition{Loss: 30, Corrupt: 21}, "invalid_request", "can't be measured")
	refused("nothing to overtake", api.NetworkCondition{Reorder: 1}, "invalid_request", "needs a delay")
	refused("a negative seed", api.NetworkCondition{Loss: 1, Seed: -1}, "invalid_request", "can't be negative")
	stack := func(stack api.Stack) {
		t.Helper()
		if _, _, err := s.Repo.UpdateIntent(t.Context(), "c1", "", func(in *api.ClusterIntent) error { in.Spec.Groups[0].Stack = stack; return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []api.Stack{api.StackVM, api.StackMetal} {
		stack(other)
		refused("members on stack "+string(other), api.NetworkCondition{Delay: ms(5)}, "no_network_condition", `run on stack "`+string(other)+`"`)
	}
	stack(api.StackContainer)

	want := api.NetworkCondition{Delay: ms(25), Jitter: ms(1), Loss: 0.1, Duplicate: 1, Corrupt: 2, Reorder: 3, Rate: 100e6, Seed: 7}
	shows := func(what string, state string, waiting int, message string) {
		t.Helper()
		cl, err := c.Cluster(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		got := cl.Status.Condition
		if state == "" {
			if got != nil {
				t.Errorf("%s: %+v, want none", what, *got)
			}
			return
		}
		if got == nil || got.State != state || got.Waiting != waiting || got.Message != message || state != api.ConditionClearing && got.NetworkCondition != want {
			t.Errorf("%s: %+v, want %s with %d that wait: %q", what, got, state, waiting, message)
		}
	}
	shows("before", "", 0, "")
	for range 2 { // again changes nothing
		if _, err := c.SetCondition(t.Context(), "c1", want); err != nil {
			t.Fatal(err)
		}
	}
	shows("at first", api.ConditionSetting, 2, "")
	if got := s.Cache.Cluster("c1").Intent.ConditionNumber; got != 1 {
		t.Errorf("its condition has number %d, want 1", got)
	}
	all := func(number int64) {
		for a := range s.Cache.Cluster("c1").Held() {
			s.Live.SetCondition(a.ID, number, "")
		}
	}
	all(1)
	shows("set", api.ConditionInForce, 0, "")
	for a := range s.Cache.Cluster("c1").Held() {
		if a.Member == "c1-1" {
			s.Live.SetCondition(a.ID, 0, "no TUN devices")
		}
	}
	shows("a member lost it", api.ConditionSetting, 1, "c1-1: no TUN devices")
	all(1)
	var node string
	for a := range s.Cache.Cluster("c1").Held() {
		node = a.Node
	}
	s.Live.SetNode(node, api.NodeUnknown, "silent")
	if cl, err := c.Cluster(t.Context(), "c1"); err != nil || cl.Status.Condition.State != api.ConditionSetting || !strings.Contains(cl.Status.Condition.Message, "its node "+node+" is not heard") {
		t.Errorf("while a node is silent: %+v (%v)", cl.Status.Condition, err)
	}
	s.Live.SetNode(node, api.NodeReady, "")

	for range 2 {
		if _, err := c.ClearCondition(t.Context(), "c1"); err != nil {
			t.Fatal(err)
		}
	}
	shows("to be cleared", api.ConditionClearing, 2, "")
	all(2)
	shows("cleared", "", 0, "")
	if _, err := c.SetCondition(t.Context(), "none", want); !client.HasCode(err, "cluster_not_found") {
		t.Errorf("no such cluster: %v", err)
	}
	s.ChangeRecord("c1", func(r *api.ClusterRecord) { r.Phase = api.ClusterFailed })
	refused("a cluster that is over", want, "wrong_phase", "can't change any more")
}
