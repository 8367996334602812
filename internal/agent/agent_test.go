package agent_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/monitor"
	"github.com/nearmetal/nearmetal/internal/needs"
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
	if got := n1.fabric.Networks(); len(got) != 1 || len(got[0].Remotes) != 2 || len(got[0].Ports) != 2 {
		t.Errorf("networks of n1: got %+v, want one with 2 members on n2 and 2 ports", got)
	}
	s.ends("c1", n1, n2)
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
	s.ends("c2", n1, n2)
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
	s.ends("c1", n)
}

func TestAMemberThatEndsIsReportedWithItsEndAndReplaced(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	n.host.End("uc1.c1-0.1", 137)
	c := s.await("c1", "ready with another member", func(c *state.Cluster) bool {
		for a := range c.Held() {
			return c.Record.Phase == api.ClusterReady && a.Replaces == "uc1.c1-0.1"
		}
		return false
	})
	for a := range c.Held() {
		if a.Member != "c1-0" || a.Rank != 0 {
			t.Errorf("the replacement is %s of rank %d, want c1-0 of rank 0", a.Member, a.Rank)
		}
	}
	if starts := calls(n, "Start uc1.c1-0.1"); starts != 1 {
		t.Errorf("the member that ended was started %d times, want once: it is not for its node to start it again", starts)
	}
	s.ends("c1", n)
}

// calls counts the calls of a node's driver.
func calls(n *node, call string) int {
	count := 0
	for _, c := range n.host.Calls() {
		if strings.HasPrefix(c, call) {
			count++
		}
	}
	return count
}

func TestAPausedClusterStandsStillAndGoesOnWhereItWasAlsoAfterARestartOfTheAgent(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 2)
	s.create("c1", 2, 1)
	s.awaitPhase("c1", api.ClusterReady)
	pause := func(paused bool) {
		t.Helper()
		_, _, err := s.repo.UpdateIntent(t.Context(), "c1", "uc1", func(in *api.ClusterIntent) error { in.Paused = paused; return nil })
		if err != nil {
			t.Fatal(err)
		}
	}
	pause(true)
	s.awaitPhase("c1", api.ClusterPaused)
	before := n.host.Progress("uc1.c1-0.1")
	n.restart(2)
	s.awaitMember("uc1.c1-0.1", api.MemberPaused)
	if after := n.host.Progress("uc1.c1-0.1"); after != before {
		t.Errorf("a paused member went on from %d to %d", before, after)
	}
	pause(false)
	s.awaitPhase("c1", api.ClusterReady)
	if after := n.host.Progress("uc1.c1-0.1"); after == before {
		t.Error("a resumed member does not go on")
	}
	if got := calls(n, "Start "); got != 2 {
		t.Errorf("members were started %d times, want 2", got)
	}
	pause(true)
	s.awaitPhase("c1", api.ClusterPaused)
	s.ends("c1", n)
}

func TestAnAgentThatStartsAgainKnowsWhichFilesItsMembersHave(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	n.restart(1)
	s.awaitState("uc1.c1-0.1", "ready and current", func(m monitor.MemberState) bool { return m.Phase == api.MemberReady && m.Current })
	if got := calls(n, "Update "); got != 0 {
		t.Errorf("files that were known to be there were written %d times more", got)
	}
	n.stop()
	if err := os.Remove(filepath.Join(n.dir, "control", "uc1.c1-0.1", "files.digest")); err != nil {
		t.Fatal(err)
	}
	n.startAnew(1)
	s.awaitState("uc1.c1-0.1", "ready and current", func(m monitor.MemberState) bool { return m.Phase == api.MemberReady && m.Current })
	if got := calls(n, "Update "); got != 1 {
		t.Errorf("files that were not known were written %d times, want once", got)
	}
}

func TestATunnelReachesAMembersPort(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	const id = "uc1.c1-0.1"
	n.host.Listen(id, 22, func(c net.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.Close()
	})
	conn, err := s.agent.OpenTunnel(t.Context(), "n1", id, 22)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("ping")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != "ping" {
		t.Errorf("got %q, %v back", got, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		what, member string
		port         int
		want         string
	}{
		{"a port that nobody listens on", id, 23, "connection refused"},
		{"a member that is not there", "uc1.c1-9.1", 22, "this node has no such member"},
	} {
		if _, err := s.agent.OpenTunnel(t.Context(), "n1", tt.member, tt.port); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.what, err, tt.want)
		}
	}
}

func TestATunnelReachesAMembersConsoleAndItsDisplay(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	const id = "uc1.c1-0.1"
	n.host.Listen(id, 0, func(c net.Conn) {
		_, _ = c.Write([]byte("login: "))
		_ = c.Close()
	})
	if _, err := s.agent.OpenConsole(t.Context(), "n1", id, api.ConsoleRequest{Write: true}); !errors.Is(err, agentstream.ErrInUse) || err.Error() != "ann types on this console" {
		t.Errorf("a console on which somebody types: %v", err)
	}
	conn, err := s.agent.OpenConsole(t.Context(), "n1", id, api.ConsoleRequest{Write: true, Force: true})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); err != nil || string(text) != "login: " {
		t.Errorf("the console shows %q, %v", text, err)
	}
	_ = conn.Close()
	n.host.Listen(id, -1, func(c net.Conn) {
		_, _ = c.Write([]byte("RFB 003.008\n"))
		_ = c.Close()
	})
	if conn, err = s.agent.OpenDisplay(t.Context(), "n1", id); err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(conn); err != nil || string(text) != "RFB 003.008\n" {
		t.Errorf("the display says %q, %v", text, err)
	}
	_ = conn.Close()
	if _, err := s.agent.OpenConsole(t.Context(), "n1", "uc1.c1-9.1", api.ConsoleRequest{}); err == nil || errors.Is(err, agentstream.ErrInUse) {
		t.Errorf("a member that is not there: %v", err)
	}
}

func TestATunnelHasTheFilesThatAMemberChangedOrWhyItHasNot(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	const id = "uc1.c1-0.1"
	n.host.Listen(id, -2, func(c net.Conn) {
		_, _ = c.Write([]byte("the archive"))
		_ = c.Close()
	})
	read := func() ([]byte, error) {
		conn, err := s.agent.OpenFiles(t.Context(), "n1", id, changedfiles.ForMember)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return io.ReadAll(conn)
	}
	if data, err := read(); err != nil || string(data) != "the archive" {
		t.Errorf("read %q, %v", data, err)
	}
	n.host.Script(id, fake.Behaviour{FailFiles: 1})
	data, err := read()
	var tail archive.Tail
	_, _ = tail.Write(data)
	if _, failure := tail.Trailer(); err != nil || failure == nil || !strings.Contains(failure.Error(), "scripted to fail") {
		t.Errorf("one that fails: %q, %v; its end says %v", data, err, failure)
	}
	if _, err := s.agent.OpenFiles(t.Context(), "n1", "uc1.c1-9.1", changedfiles.ForMember); err == nil || !strings.Contains(err.Error(), "no such member") {
		t.Errorf("a member that is not there: %v", err)
	}
	// A member that ends amid it: what came is no end.
	began := make(chan struct{})
	n.host.Listen(id, -2, func(c net.Conn) {
		_, _ = c.Write([]byte("the arch"))
		close(began)
	})
	conn, err := s.agent.OpenFiles(t.Context(), "n1", id, changedfiles.ForMember)
	if err != nil {
		t.Fatal(err)
	}
	<-began
	n.stop()
	if data, err := io.ReadAll(conn); err == nil {
		t.Errorf("the agent ended amid it: %q, and no error", data)
	}
	_ = conn.Close()
}

func TestTheEndOfAMembersConnectionEndsItsTunnel(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	ended := make(chan struct{})
	n.host.Listen("uc1.c1-0.1", 22, func(c net.Conn) {
		_, _ = c.Write([]byte("bye"))
		_ = c.Close()
	})
	n.host.Listen("uc1.c1-0.1", 23, func(c net.Conn) {
		_, _ = io.Copy(io.Discard, c)
		close(ended)
	})
	conn, err := s.agent.OpenTunnel(t.Context(), "n1", "uc1.c1-0.1", 22)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if text, err := io.ReadAll(conn); err != nil || string(text) != "bye" {
		t.Errorf("got %q, %v; want all that was said, and its end", text, err)
	}
	// The other way round.
	conn, err = s.agent.OpenTunnel(t.Context(), "n1", "uc1.c1-0.1", 23)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	within(t, "ended in the member", ended)
}

func TestAFullDiskEndsNoMemberAndWhatCannotBeDoneIsDoneLater(t *testing.T) {
	needs.Root(t, "mounts a small disk")
	s := newSite(t)
	n := s.newNode("n1")
	if err := unix.Mount("tmpfs", n.dir, "tmpfs", 0, "size=256k,nr_inodes=200,mode=755"); err != nil {
		needs.Missing(t, "no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		n.stop()
		if err := unix.Unmount(n.dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n.start(2)
	s.create("c1", 1, 1)
	s.awaitPhase("c1", api.ClusterReady)
	full := func(m monitor.MemberState) bool { return strings.Contains(m.Message, "no space left") }

	empty := fill(t, n.dir)
	s.create("c2", 1, 1)
	s.awaitState("uc2.c2-0.1", "without room on the disk", full)
	if phase, message, _ := s.agent.Member(n.name, "uc1.c1-0.1"); phase != api.MemberReady {
		t.Errorf("the member that ran is %s: %s", phase, message)
	}
	empty()
	s.awaitPhase("c2", api.ClusterReady)

	n.stop()
	empty = fill(t, n.dir)
	n.startAnew(2)
	s.awaitState("uc1.c1-0.1", "without room on the disk", full)
	empty()
	s.awaitMember("uc1.c1-0.1", api.MemberReady)
	s.awaitPhase("c1", api.ClusterReady)
	if got := calls(n, "Stop uc1") + calls(n, "Clean uc1"); got != 0 || calls(n, "Start uc1") != 1 {
		t.Errorf("the member that ran was touched: %v", n.host.Calls())
	}
}

// fill leaves no room on a disk, neither for bytes nor for files, and returns what makes room again.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	for i := 0; os.Mkdir(filepath.Join(dir, fmt.Sprint("inode", i)), 0o700) == nil; i++ {
		if i > 1000 {
			t.Fatal("the disk is never full")
		}
	}
	return func() {
		t.Helper()
		left, err := filepath.Glob(filepath.Join(dir, "inode*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range append(left, ballast) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
	}
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
	if err := os.Remove(filepath.Join(n.dir, "control", "uc1.c1-0.1", "files.digest")); err != nil {
		t.Fatal(err)
	}
	n.start(1)
	within(t, "brought up to date", healed)
	s.awaitPhase("c1", api.ClusterReady)
	for _, call := range n.host.Calls()[1:] { // its limits are set again, for nobody knows which it has
		if !strings.HasPrefix(call, "Update ") && !strings.HasPrefix(call, "LimitIO ") {
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
		if _, said, _ = s.agent.Member(n.name, "uc1.c1-0.1"); !strings.Contains(said, "agent.sock") {
			<-changed
		}
	}
	s.awaitPhase("c1", api.ClusterDegraded)
	if err := os.Remove(filepath.Join(socket, "in the way")); err != nil {
		t.Fatal(err)
	}
	s.awaitPhase("c1", api.ClusterReady)
}

func TestAnOrderThatWaitsForTheDiskIsHeardAgain(t *testing.T) {
	s := newSite(t)
	n := s.node("n1", 1)
	s.await("", "", func(*state.Cluster) bool { return len(s.cache.View().Nodes) == 1 })
	n.stop()
	term := filepath.Join(n.dir, "term")
	obstacle := term + ".spare"
	for _, path := range []string{term, obstacle} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	// In the way of the file that takes the term, once the agent has read it; the drivers are first asked after that.
	n.observe = sync.OnceValue(func() error { return os.MkdirAll(filepath.Join(obstacle, "full"), 0o700) })
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

func TestANodeIsDownOnlyAfterTheDeathTimer(t *testing.T) {
	s := newSiteWith(t, 3*time.Second)
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
