package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/monitor"
)

// setCondition changes the condition of a cluster's network.
func (s *site) setCondition(cluster string, c *api.NetworkCondition) {
	s.t.Helper()
	if _, _, err := s.repo.UpdateIntent(s.t.Context(), cluster, "", func(in *api.ClusterIntent) error {
		in.Condition = c
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}

// conditioning says that a member's condition may have changed.
type conditioning struct {
	*talkative
	changed chan<- struct{}
}

func (d conditioning) SetCondition(ctx context.Context, m driver.Member) error {
	err := d.talkative.SetCondition(ctx, m)
	d.changed <- struct{}{}
	return err
}

func TestMembersHaveTheConditionOfTheirCluster(t *testing.T) {
	s := newSite(t)
	n := s.newNode("n1")
	n.conditions = true
	changed := make(chan struct{}, 100)
	n.wrap = func(d driver.Driver) driver.Driver { return conditioning{d.(*talkative), changed} }
	n.start(4)
	s.create("c1", 2, 1)
	c := s.awaitPhase("c1", api.ClusterReady)
	var ids []string
	for a := range c.Held() {
		ids = append(ids, a.ID)
	}
	slow := &api.NetworkCondition{Delay: api.Duration(25 * time.Millisecond)}
	have := func(what string, number int64, want *api.NetworkCondition) {
		t.Helper()
		for _, id := range ids {
			s.awaitState(id, what, func(m monitor.MemberState) bool {
				return m.Condition == number && m.Unconditioned == "" && m.Message == ""
			})
			if got := n.host.Condition(id); (got == nil) != (want == nil) || got != nil && *got != *want {
				t.Errorf("%s: member %s has the condition %+v, want %+v", what, id, got, want)
			}
		}
	}
	s.setCondition("c1", slow)
	have("set", 1, slow)
	lossy := &api.NetworkCondition{Loss: 1}
	s.setCondition("c1", lossy)
	have("changed", 2, lossy)

	// What can't be set is said and tried again.
	for _, id := range ids {
		n.host.FailConditions(id, errors.New("the kernel makes no TUN devices"))
	}
	s.setCondition("c1", slow)
	s.awaitState(ids[0], "without its condition", func(m monitor.MemberState) bool {
		return m.Phase == api.MemberReady && m.Condition == 0 && strings.Contains(m.Unconditioned, "not in force: ") && strings.Contains(m.Message, "no TUN devices")
	})
	for _, id := range ids {
		n.host.FailConditions(id, nil)
	}
	have("after a failure", 3, slow)

	// A condition ends with the agent, and the next agent sets it again, if it may.
	n.stop()
	n.host.EndConditions()
	n.startAnew(4)
	have("by the next agent", 3, slow)
	n.stop()
	n.host.EndConditions()
	n.conditions = false
	n.startAnew(4)
	s.awaitState(ids[0], "refused by its node", func(m monitor.MemberState) bool {
		return m.Condition == 0 && strings.Contains(m.Unconditioned, `node "n1" forwards no packets`) && strings.Contains(m.Unconditioned, "--conditions")
	})
	s.setCondition("c1", nil)
	have("cleared", 4, nil)
	s.ends("c1", n)
}
