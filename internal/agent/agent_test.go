package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/state"
)

func TestAClusterOverTwoNodesComesUpAndLeavesNothing(t *testing.T) {
	s := newSite(t)
	n1, n2 := s.node("n1", 2), s.node("n2", 2)
	s.await("", "", func(*state.Cluster) bool { return len(s.cache.View().Nodes) == 2 })
	s.create("c1", 4, 1)
	c := s.awaitPhase("c1", api.ClusterReady)
	nodes := map[string]int{}
	for a := range c.Held() {
		nodes[a.Node]++
	}
	if nodes["n1"] != 2 || nodes["n2"] != 2 {
		t.Errorf("members by node: got %v, want 2 on each", nodes)
	}
	if got := n1.fabric.Networks(); len(got) != 1 || len(got[0].Peers) != 1 || len(got[0].Ports) != 2 {
		t.Errorf("networks of n1: got %+v, want one with 1 peer and 2 ports", got)
	}
	s.delete("c1")
	s.awaitGone("c1")
	s.nothingLeft(n1, n2)
}

func TestAnAgentThatStartsAgainFindsItsMembersAndStartsNoneTwice(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 2)
	s.create("c1", 2, 1)
	s.awaitPhase("c1", api.ClusterReady)
	n.stop()
	n.start(2)
	s.create("c2", 1, 1) // no room: it must not be given what the members of c1 hold
	s.awaitPhase("c2", api.ClusterRefused)
	s.delete("c2")
	s.delete("c1")
	s.awaitGone("c1")
	s.awaitGone("c2")
	s.nothingLeft(n)
	starts := 0
	for _, call := range n.host.Calls() {
		if strings.HasPrefix(call, "Start ") {
			starts++
		}
	}
	if starts != 2 {
		t.Errorf("members were started %d times, want 2\n%s", starts, strings.Join(n.host.Calls(), "\n"))
	}
}

func TestADeleteWaitsForANodeThatIsAwayAndReleasesNothingBefore(t *testing.T) {
	s := newSite(t)
	n1, n2 := s.node("n1", 1), s.node("n2", 1)
	s.await("", "", func(*state.Cluster) bool { return len(s.cache.View().Nodes) == 2 })
	s.create("c1", 2, 1)
	s.awaitPhase("c1", api.ClusterReady)
	n2.stop()
	s.delete("c1")
	s.await("c1", "half clean", func(c *state.Cluster) bool { return c != nil && c.Record != nil && len(c.Record.Clean) == 1 })
	s.create("c2", 2, 1)
	s.awaitPhase("c2", api.ClusterRefused)
	n2.start(1)
	s.awaitGone("c1")
	s.delete("c2")
	s.awaitGone("c2")
	s.nothingLeft(n1, n2)
}

func TestAMemberThatCannotBeStartedFailsTheClusterWithTheReason(t *testing.T) {
	s := newSite(t)
	s.clock = fast{time.Now()} // the pauses between the attempts add up to 15 s
	n := s.node("n1", 1)
	n.host.Script("", fake.Behaviour{StartError: errors.New("no such runtime"), FailStarts: 100})
	s.create("c1", 1, 1)
	c := s.awaitPhase("c1", api.ClusterFailed)
	if !strings.Contains(c.Record.Message, "no such runtime") {
		t.Errorf("message: got %q, want the driver's reason", c.Record.Message)
	}
	s.delete("c1")
	s.awaitGone("c1")
	s.nothingLeft(n)
}

func TestAMemberThatEndsIsStartedAgainAndTheClusterHealsInPlace(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	n.host.End("uc1.c1-0.1", 137)
	s.awaitPhase("c1", api.ClusterDegraded)
	s.awaitPhase("c1", api.ClusterReady)
	s.delete("c1")
	s.awaitGone("c1")
	s.nothingLeft(n)
}

func TestAMemberThatCannotBeLookedAtAfterAFailureIsLeftRunning(t *testing.T) {
	s := newSite(t)
	s.clock = fast{time.Now()}
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	n.stop()
	var looks, updates atomic.Int32
	healed := make(chan struct{})
	n.observe = func() error {
		if i := looks.Add(1); i > 1 && i < 4 { // the first look is that of the start
			return errors.New("too many open files")
		}
		return nil
	}
	n.update = func() error { // the files of a member that was found are brought up to date
		if updates.Add(1) == 1 {
			return errors.New("too many open files")
		}
		close(healed)
		return nil
	}
	n.start(1)
	within(t, "brought up to date", healed)
	s.awaitPhase("c1", api.ClusterReady)
	for _, call := range n.host.Calls()[1:] {
		if !strings.HasPrefix(call, "Update ") {
			t.Errorf("called %q on a member that runs", call)
		}
	}
}

func TestAMembersSocketThatCannotBeOpenedIsTriedAgain(t *testing.T) {
	s := newSite(t)
	s.clock = fast{time.Now()}
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	n.stop()
	socket := filepath.Join(n.dir, "control", "uc1.c1-0.1", "agent.sock")
	if err := os.MkdirAll(filepath.Join(socket, "in the way"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.start(1)
	for said := ""; !strings.Contains(said, "agent.sock"); {
		changed := s.agent.Changed()
		if _, said, _ = s.agent.Member("uc1.c1-0.1"); !strings.Contains(said, "agent.sock") {
			<-changed
		}
	}
	s.awaitPhase("c1", api.ClusterDegraded)
	if err := os.RemoveAll(socket); err != nil {
		t.Fatal(err)
	}
	s.awaitPhase("c1", api.ClusterReady)
}

func TestAnOrderThatWaitsForTheDiskIsHeardAgain(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.await("", "", func(*state.Cluster) bool { return len(s.cache.View().Nodes) == 1 })
	n.stop()
	obstacle := filepath.Join(n.dir, "term")
	if err := os.Remove(obstacle); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	// In the way of the term's file once the agent has read it; the drivers are asked after that.
	n.observe = func() error { return os.MkdirAll(filepath.Join(obstacle, "full"), 0o700) }
	sessions := make(chan struct{}, 100)
	n.session = func() { sessions <- struct{}{} }
	n.start(1)
	within(t, "connected", sessions)
	within(t, "connected again, since the order could not be obeyed", sessions)
	s.create("c1", 1, 1)
	if err := os.RemoveAll(obstacle); err != nil {
		t.Fatal(err)
	}
	s.awaitPhase("c1", api.ClusterReady)
}

func TestAJobsEndIsStoredWithItsExitCode(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	_, err := s.repo.CreateJob(t.Context(), api.Job{
		ID: "j1", Cluster: "c1", ClusterUID: "uc1", JobRequest: api.JobRequest{Command: []string{"false"}}, Phase: api.JobPending,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.await("c1", "done with its job", func(*state.Cluster) bool {
		job := s.cache.View().Job("j1")
		return job != nil && job.Phase == api.JobFailed
	})
	job := s.cache.View().Job("j1")
	if job.ExitCode == nil || *job.ExitCode != 3 {
		t.Errorf("exit code: got %v, want 3", job.ExitCode)
	}
}

func TestASecondMachineUnderANameInUseIsRefused(t *testing.T) {
	s := newSite(t)
	s.node("n1", 1)
	s.await("", "", func(*state.Cluster) bool { return len(s.cache.View().Nodes) == 1 })
	impostor := s.node("n1", 8)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	if calls := impostor.host.Calls(); slices.ContainsFunc(calls, func(c string) bool { return strings.HasPrefix(c, "Start") }) {
		t.Errorf("the second machine was given members: %v", calls)
	}
}

func TestANodeIsDownOnlyAfterTheDeathTimer(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	n.stop()
	for {
		changed := s.agent.Changed()
		phase, _, _ := s.agent.Node("n1")
		if phase == api.NodeUnknown {
			break
		}
		if phase == api.NodeDown {
			t.Fatal("the node is down as soon as its agent ends; want it unknown until the death timer")
		}
		<-changed
	}
	s.awaitPhase("c1", api.ClusterDegraded)
	n.start(1)
	s.awaitPhase("c1", api.ClusterReady)
}
