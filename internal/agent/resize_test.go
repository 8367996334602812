package agent_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/state"
)

// askSize requests another size of a cluster's members.
func (s *site) askSize(name string, cores int) {
	s.t.Helper()
	_, _, err := s.repo.UpdateIntent(s.t.Context(), name, "u"+name, func(in *api.ClusterIntent) error {
		at := time.Now().UTC()
		in.Spec.Groups[0].Cores, in.ResizedAt = cores, &at
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// assignmentOf returns the assignment of a cluster's member.
func assignmentOf(c *state.Cluster, member string) *api.Assignment {
	for a := range c.Held() {
		if a.Member == member {
			return a
		}
	}
	return nil
}

func TestAMemberHoldsItsNewSizeFromTheDecisionAndHasItOnceItReboots(t *testing.T) {
	s := newSite(t)
	n := s.machines("n1", 4)
	s.createOn(api.StackVM, "c1", 1, 1)
	before := *assignmentOf(s.awaitPhase("c1", api.ClusterReady), "c1-0")
	s.askSize("c1", 3)
	s.awaitState(before.ID, "told that it needs a reboot", func(m monitor.MemberState) bool {
		return m.Size == 0 && strings.Contains(m.Unsized, "when the member reboots") && m.Phase == api.MemberReady
	})
	c := s.await("c1", "resizing", func(c *state.Cluster) bool { return assignmentOf(c, "c1-0").Resizing != nil })
	if a := assignmentOf(c, "c1-0"); a.ID != before.ID || len(a.Slots) != 3 || len(a.Has().Slots) != 1 {
		t.Errorf("while it waits for its reboot, it holds %v and has %v", a.Slots, a.Has().Slots)
	}
	n.restart(4) // the agent finds the size by looking
	s.awaitState(before.ID, "asked again, to the same end", func(m monitor.MemberState) bool { return m.Size == 0 && m.Unsized != "" })
	boot := s.askReboot("c1", false, before.ID)
	s.awaitState(before.ID, "rebooted", func(m monitor.MemberState) bool { return m.Boot == boot && m.Size == 1 && m.Unsized == "" })
	c = s.await("c1", "resized", func(c *state.Cluster) bool { return assignmentOf(c, "c1-0").Resizing == nil })
	if a := assignmentOf(c, "c1-0"); a.ID != before.ID || a.SizeNumber != 1 || len(a.Slots) != 3 || lifecycle.ResizePending(c.Intent.Spec, a) {
		t.Errorf("after its reboot it is %+v", a)
	}
	// A smaller size frees nothing before the machine has it, and is taken back without a reboot.
	s.askSize("c1", 1)
	s.awaitState(before.ID, "told that it needs a reboot", func(m monitor.MemberState) bool { return m.Unsized != "" })
	c = s.await("c1", "shrinking", func(c *state.Cluster) bool { return assignmentOf(c, "c1-0").Resizing != nil })
	if a := assignmentOf(c, "c1-0"); len(a.Slots) != 3 || len(a.Wants().Slots) != 1 {
		t.Errorf("while it waits for its reboot, it holds %v and is to have %v", a.Slots, a.Wants().Slots)
	}
	s.askSize("c1", 3)
	c = s.await("c1", "as it was", func(c *state.Cluster) bool {
		a := assignmentOf(c, "c1-0")
		return a.Resizing == nil && a.SizeNumber == 3
	})
	if a := assignmentOf(c, "c1-0"); !slices.Equal(a.Slots, []int{0, 1, 2}) {
		t.Errorf("after the resize was taken back, it holds %v", a.Slots)
	}
	if boots := calls(n, "Start "+before.ID); boots != 2 {
		t.Errorf("it booted %d times, want 2: %q", boots, n.host.Calls())
	}
	s.ends("c1", n)
}
