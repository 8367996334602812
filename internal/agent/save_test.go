package agent_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/state"
)

// machines makes a node that carries virtual machines.
func (s *site) machines(name string, cores int) *node {
	n := s.newNode(name)
	n.stack = api.StackVM
	n.start(cores)
	return n
}

// newMachineSite makes a site with node n1, and cluster c1 of two virtual machines on it, which are ready.
func newMachineSite(t *testing.T) (*site, *node, *state.Cluster) {
	t.Helper()
	s := newSite(t)
	n := s.machines("n1", 2)
	s.createOn(api.StackVM, "c1", 2, 1)
	return s, n, s.awaitPhase("c1", api.ClusterReady)
}

// startedTwice checks that both members of c1 were started once: what goes on was not started again.
func startedTwice(t *testing.T, n *node) {
	t.Helper()
	if got := calls(n, "Start uc1"); got != 2 {
		t.Errorf("members were started %d times, want 2", got)
	}
}

// wantSaved asks for a cluster to be saved, or to be restored.
func (s *site) wantSaved(name string, saved bool) {
	s.t.Helper()
	now := time.Now()
	_, _, err := s.repo.UpdateIntent(s.t.Context(), name, "u"+name, func(in *api.ClusterIntent) error {
		in.Saved, in.SaveAskedAt = saved, &now
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// memberIDs are the IDs of a cluster's members by name.
func memberIDs(c *state.Cluster) map[string]string {
	ids := map[string]string{}
	for a := range c.Held() {
		if a.IsMember() {
			ids[a.Member] = a.ID
		}
	}
	return ids
}

func TestASavedClusterGivesItsCoresBackAndGoesOnWhereItWas(t *testing.T) {
	s, n, first := newMachineSite(t)
	ports := map[string]string{}
	for a := range first.Held() {
		ports[a.Member] = a.Ports[0].Address.String() + " " + a.Ports[0].MAC
	}
	s.wantSaved("c1", true)
	for a := range s.awaitPhase("c1", api.ClusterSaved).Held() {
		if len(a.Slots) > 0 || a.NodeMemoryBytes() > 0 || len(a.Ports) != 1 {
			t.Errorf("saved member %s holds slots %v, %d bytes and %d ports; want no slots, no memory and its port", a.Member, a.Slots, a.NodeMemoryBytes(), len(a.Ports))
		}
	}
	before := n.host.Progress("uc1.c1-0.1")
	n.restart(2)
	s.createOn(api.StackVM, "c2", 2, 1)
	s.awaitPhase("c2", api.ClusterReady) // all cores of the node

	s.wantSaved("c1", false)
	s.await("c1", "waiting for room", func(c *state.Cluster) bool {
		return c.Record.Phase == api.ClusterRestoring && c.Record.Message == "waits for room where its members are saved (node)"
	})
	s.delete("c2")
	s.awaitGone("c2")
	again := s.awaitPhase("c1", api.ClusterReady)
	for a := range again.Held() {
		if a.From != memberIDs(first)[a.Member] || a.IsPart() || a.Saved || len(a.Slots) != 1 {
			t.Errorf("%s is %+v; want it to go on from %s with a core", a.Member, a, memberIDs(first)[a.Member])
		}
		if got := a.Ports[0].Address.String() + " " + a.Ports[0].MAC; got != ports[a.Member] {
			t.Errorf("%s has port %s after the restore, and had %s", a.Member, got, ports[a.Member])
		}
	}
	if after := n.host.Progress(memberIDs(again)["c1-0"]); after <= before {
		t.Errorf("the restored member has done %d, and had done %d before it was saved: it began from the start", after, before)
	}
	startedTwice(t, n)
	s.ends("c1", n)
}

func TestAMemberThatCantBeSavedLetsAllGoOn(t *testing.T) {
	s, n, _ := newMachineSite(t)
	n.host.Script("uc1.c1-1.1", fake.Behaviour{FailSaves: 1})
	s.wantSaved("c1", true)
	c := s.await("c1", "ready, and not saved", func(c *state.Cluster) bool {
		return c.Record.Phase == api.ClusterReady && c.Record.GaveUp != nil
	})
	if want := "it could not be saved: " + c.Record.GaveUp.Reason; c.Record.Message != want {
		t.Errorf("the message is %q, want %q", c.Record.Message, want)
	}
	startedTwice(t, n)
	s.wantSaved("c1", true) // again, and now it can
	s.awaitPhase("c1", api.ClusterSaved)
	s.ends("c1", n)
}

func TestAMemberIsSavedOnceItsFunctionsAreReleased(t *testing.T) {
	s, n, _ := newMachineSite(t)
	n.host.Script("uc1.c1-1.1", fake.Behaviour{FailLetGo: 1})
	s.wantSaved("c1", true)
	if c := s.awaitPhase("c1", api.ClusterSaved); c.Record.GaveUp != nil {
		t.Errorf("the save was given up: %s", c.Record.GaveUp.Reason)
	}
	if got := calls(n, "Save uc1.c1-1.1"); got != 2 {
		t.Errorf("the member was saved by %d calls, want 2", got)
	}
	s.ends("c1", n)
}

func TestAMemberThatCantBeRestoredLeavesAllSaved(t *testing.T) {
	s, n, _ := newMachineSite(t)
	s.clock = fast{time.Now()}
	n.restart(2)
	s.wantSaved("c1", true)
	saved := s.awaitPhase("c1", api.ClusterSaved)
	next := saved.Record.Generation + 1
	n.host.Script("uc1.c1-1."+strconv.FormatInt(next, 10), fake.Behaviour{FailRestores: 5})
	s.wantSaved("c1", false)
	c := s.await("c1", "saved again", func(c *state.Cluster) bool {
		return c.Record.Phase == api.ClusterSaved && c.Record.GaveUp != nil
	})
	if want := "it could not be restored: " + c.Record.GaveUp.Reason; c.Record.Message != want {
		t.Errorf("the message is %q, want %q", c.Record.Message, want)
	}
	s.wantSaved("c1", false)
	s.awaitPhase("c1", api.ClusterReady)
	startedTwice(t, n)
	s.ends("c1", n)
}

func TestASavedMemberWhoseStateIsGoneIsReplacedOnceItsClusterIsRestored(t *testing.T) {
	s, n, _ := newMachineSite(t)
	s.wantSaved("c1", true)
	s.awaitPhase("c1", api.ClusterSaved)
	n.stop()
	if err := fake.NewVM(n.host, n.fabric).Clean(t.Context(), "uc1.c1-1.1"); err != nil {
		t.Fatal(err)
	}
	n.startAnew(2)
	s.await("c1", "one member short", func(c *state.Cluster) bool { return len(c.Record.Lost) == 1 })
	startedTwice(t, n)
	s.wantSaved("c1", false)
	s.await("c1", "ready with a replacement", func(c *state.Cluster) bool {
		replaced := false
		for a := range c.Held() {
			replaced = replaced || a.Replaces == "uc1.c1-1.1"
		}
		return c.Record.Phase == api.ClusterReady && replaced
	})
	s.ends("c1", n)
}

func TestAnAgentThatIsEndedAmidASaveOrARestoreCarriesItThrough(t *testing.T) {
	s, n, _ := newMachineSite(t)
	n.host.Script("", fake.Behaviour{MoveDelay: 50 * time.Millisecond})
	n.host.Script("uc1.c1-0.1", fake.Behaviour{MoveDelay: time.Hour}) // until the agent is ended
	for _, saved := range []bool{true, false} {
		s.wantSaved("c1", saved)
		if saved {
			s.await("c1", "being saved", func(c *state.Cluster) bool { return c.Record.Phase == api.ClusterSaving })
			s.awaitMember("uc1.c1-1.1", api.MemberSaved)
		} else {
			s.await("c1", "being restored", func(c *state.Cluster) bool { return c.Record.Phase == api.ClusterRestoring })
		}
		n.stop()
		n.host.Script("uc1.c1-0.1", fake.Behaviour{})
		n.startAnew(2)
		if saved {
			s.awaitPhase("c1", api.ClusterSaved)
		} else {
			s.awaitPhase("c1", api.ClusterReady)
		}
	}
	startedTwice(t, n)
	s.ends("c1", n)
}
