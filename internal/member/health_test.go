package member_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// quickCheck is a check that is believed at once.
func quickCheck(name, script string) api.Check {
	return api.Check{
		Name: name, Command: []string{"sh", "-c", script}, Interval: api.Duration(time.Millisecond), Timeout: api.Duration(patience), Failures: 1,
	}
}

// untilHealth waits until what the member tells last is this.
func (n *nodeAgent) untilHealth(what, message string) {
	n.t.Helper()
	n.until(what, func() bool {
		if len(n.health) == 0 {
			return false
		}
		last := n.health[len(n.health)-1]
		return last.Healthy == (message == "") && last.Message == message
	})
}

func TestChecksRunInTheMemberAsItsUser(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	broken := filepath.Join(p.cfg.User.Home, "broken")
	n.untilHealth("a ready member without checks is healthy", "")
	n.server.SetChecks([]api.Check{quickCheck("gpu", `test "$PWD" = "$HOME" || exit 9
		if [ -e broken ]; then echo looking >&2; echo "no device for $USER on $NEARMETAL_CLUSTER, check $NEARMETAL_CHECK"; exit 4; fi`)})
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const broke = `check "gpu" failed once: exit code 4: no device for someone on c1, check gpu`
	n.untilHealth("it fails", broke)

	t.Log("the node agent is started again")
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	n.note(func() { n.health = nil })
	n.listen(p.socket())
	n.untilHealth("what is wrong is told again", broke)
	if err := os.Remove(broken); err != nil {
		t.Fatal(err)
	}
	n.untilHealth("one success clears it", "")
	n.server.SetChecks([]api.Check{quickCheck("gpu", "kill -SEGV $$")})
	n.until("one that is ended by a signal", func() bool {
		return strings.Contains(n.health[len(n.health)-1].Message, "ended by signal SIGSEGV")
	})
	n.server.SetChecks([]api.Check{quickCheck("gpu", "exit 1"), {
		Name: "none", Command: []string{"no-such-program"}, Interval: api.Duration(patience), Timeout: api.Duration(patience), Failures: 1,
	}})
	n.until("one that is not there", func() bool {
		return strings.Contains(n.health[len(n.health)-1].Message, `check "none" failed once: command "no-such-program" is not in the member's PATH`)
	})
	n.server.SetChecks(nil)
	n.untilHealth("a member whose checks are taken away is healthy", "")
}

func TestACheckThatHangsIsKilledWithAllItStarted(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	// Its end shows in the lock: the processes of a run hold it.
	lock := filepath.Join(p.cfg.User.Home, "lock")
	hang := quickCheck("net", `exec 9>$HOME/lock; flock -n 9 || { echo two at once >>$HOME/two; }; echo run >>$HOME/runs; (trap "" TERM INT HUP; sleep 1000) & wait`)
	hang.Timeout, hang.Failures = api.Duration(100*time.Millisecond), 2
	n.server.SetChecks([]api.Check{hang})
	n.untilHealth("the check has not answered twice", `check "net" failed 2 times: no answer within 100ms`)
	n.server.SetChecks([]api.Check{quickCheck("other", "true")})
	n.untilHealth("it is taken away", "")
	file, err := os.OpenFile(lock, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	locked := make(chan error, 1)
	go func() { locked <- unix.Flock(int(file.Fd()), unix.LOCK_EX) }()
	select {
	case err := <-locked:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Error("something of the check still runs")
	}
	if _, err := os.Stat(filepath.Join(p.cfg.User.Home, "two")); err == nil {
		t.Error("two runs of the check were there at once")
	}
}

func TestAMemberWhoseSSHDStopsAnsweringIsUnhealthyUntilItAnswersAgain(t *testing.T) {
	p := newProcess(t)
	p.cfg.ProbeEvery = time.Millisecond
	p.cfg.SSHD = []string{"/bin/sh", "-c", `if [ -e ` + p.cfg.User.Home + `/broken ]; then echo 'sshd: no hostkeys available' >&2; else printf 'SSH-2.0-x\r\n'; fi`}
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	n.untilHealth("a ready member is healthy", "")
	if err := os.WriteFile(filepath.Join(p.cfg.User.Home, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.until("it is unhealthy", func() bool {
		last := n.health[len(n.health)-1]
		return !last.Healthy && strings.Contains(last.Message, "SSH to the member's own address failed 3 times: ") &&
			strings.Contains(last.Message, "no hostkeys available")
	})
	if err := os.Remove(filepath.Join(p.cfg.User.Home, "broken")); err != nil {
		t.Fatal(err)
	}
	n.untilHealth("it is healthy again", "")
}

func TestAMemberWithoutItsAddressIsUnhealthy(t *testing.T) {
	p := newProcess(t)
	p.cfg.ProbeEvery = time.Millisecond
	// Every 127.x.y.z answers through the loopback interface, but only 127.0.0.1 is an address of it.
	p.cfg.Address = netip.MustParseAddr("127.7.7.7")
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	n.until("it is unhealthy", func() bool {
		return len(n.health) > 0 && strings.Contains(n.health[len(n.health)-1].Message, "no interface of the member has the address 127.7.7.7")
	})
}

func TestAMemberWhoseInterfaceIsDownIsUnhealthy(t *testing.T) {
	needs.Root(t, "makes a network namespace")
	p := newProcess(t)
	p.cfg.ProbeEvery = time.Millisecond
	p.cfg.Address = netip.MustParseAddr("10.9.9.9")
	p.ownNetwork = true
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	ip := func(args ...string) {
		t.Helper()
		args = append([]string{"-t", fmt.Sprint(p.cmd.Process.Pid), "-n", "ip"}, args...)
		if out, err := exec.Command("nsenter", args...).CombinedOutput(); err != nil {
			t.Fatalf("nsenter %v: %v: %s", args, err, out)
		}
	}
	ip("link", "add", "n0", "type", "veth", "peer", "name", "n1")
	ip("addr", "add", "10.9.9.9/24", "dev", "n0")
	ip("link", "set", "n0", "up")
	ip("link", "set", "n1", "up")
	n.untilHealth("a ready member is healthy", "")
	for _, end := range []string{"n0", "n1"} { // its own end, then that of the node: no carrier
		ip("link", "set", end, "down")
		n.until("it is unhealthy", func() bool {
			return strings.Contains(n.health[len(n.health)-1].Message, "interface n0, which has the address 10.9.9.9, is down or has no carrier")
		})
		ip("link", "set", end, "up")
		n.untilHealth("it is healthy again", "")
	}
}

func TestHealthIsToldOfReadyMembersOnlyOnceAndPrintable(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	s := hello(t, socket, "i1")
	sick := member.Health{Message: "bad\x1b[2J\nnews" + strings.Repeat("!", 5000)}
	s.send(member.FromMember{Health: &member.Health{Message: "too early"}})
	s.send(member.FromMember{Ready: &member.Ready{}})
	s.send(member.FromMember{Health: &sick})
	s.send(member.FromMember{Health: &sick})
	s.send(member.FromMember{Health: &member.Health{Healthy: true}})
	n.untilHealth("all was told", "")
	if len(n.health) != 2 || len(n.health[0].Message) > 1000 || !strings.HasPrefix(n.health[0].Message, "bad [2J news!") {
		t.Errorf("got %+v, want one printable line of bounded length, then healthy", n.health)
	}
}

func TestChecksAreGivenToEveryConnectionAndOnlyWhenTheyChange(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	s := hello(t, socket, "i1")
	received := func() string {
		t.Helper()
		message := s.receive()
		if message.Checks == nil {
			return fmt.Sprintf("%+v", message)
		}
		var names []string
		for _, check := range *message.Checks {
			names = append(names, check.Name)
		}
		return strings.Join(names, " ")
	}
	checks := []api.Check{quickCheck("a", "true"), quickCheck("b", "true")}
	n.server.SetChecks(checks)
	if got := received(); got != "a b" {
		t.Errorf("got %s, want both checks", got)
	}
	n.server.SetChecks(checks)
	checks[0].Name = "c" // the caller's list is the caller's
	s = hello(t, socket, "i1")
	if got := received(); got != "a b" {
		t.Errorf("on another connection: got %s, want both checks", got)
	}
	n.server.SetChecks([]api.Check{})
	if got := received(); got != "" {
		t.Errorf("got %s, want an empty list", got)
	}
}
