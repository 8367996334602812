package cli

import (
	"bytes"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

func TestProgressOnATerminalIsOneLineThatIsClearedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := &progress{w: &out, terminal: true, start: time.Now(), now: time.Now, done: make(chan struct{})}
		p.over.Go(p.animate)
		p.say("cluster c1: starting, 0/2 members ready")
		<-time.After(2*tick + tick/2)
		synctest.Wait()
		p.say("cluster c1: starting, 1/2 members ready")
		p.stop()
		got := out.String()
		if strings.Contains(got, "\n") {
			t.Errorf("the line was broken: %q", got)
		}
		for _, want := range []string{"0/2 members ready  0.0s", "0/2 members ready  0.1s", "0/2 members ready  0.2s", "1/2 members ready  0.2s"} {
			if !strings.Contains(got, "\r\x1b[K"+"cluster c1: starting, "+want) {
				t.Errorf("no frame %q in %q", want, got)
			}
		}
		if !strings.HasSuffix(got, "\r\x1b[K") {
			t.Errorf("the line is left behind: %q", got)
		}
	})
}

func TestTextOfMembersDoesNotSteerTheTerminal(t *testing.T) {
	var out bytes.Buffer
	p := &progress{w: &out, start: time.Now(), now: time.Now, done: make(chan struct{})}
	p.say("evil \x1b[2J\r\nline \u009b31m")
	if got := out.String(); strings.ContainsAny(strings.TrimSuffix(got, "\n"), "\x1b\r\n\u009b") {
		t.Errorf("control characters went through: %q", got)
	}
}

func TestTheStateLineNamesMembersInTrouble(t *testing.T) {
	c := api.Cluster{Name: "c1", Status: api.ClusterStatus{Phase: api.ClusterStarting, TotalMembers: 5}}
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		c.Status.Members = append(c.Status.Members, api.MemberStatus{Name: name, Phase: api.MemberFailed})
	}
	want := "cluster c1: starting, 0/5 members ready (a failed, b failed, c failed, and 2 more)"
	if got := stateLine(c); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAgesAndRangesAreShort(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	a := &app{Invocation: Invocation{Now: func() time.Time { return now }}}
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m", 47 * time.Hour: "47h", 72 * time.Hour: "3d",
	} {
		if got := a.age(now.Add(-d)); got != want {
			t.Errorf("age of %s is %s, want %s", d, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "now", 90 * time.Second: "in 90s", time.Hour - time.Second: "in 60m", 4*time.Hour - time.Minute: "in 4h",
		2*time.Hour - time.Second: "in 2h", 30*24*time.Hour - time.Second: "in 30d", 119*time.Second + 900*time.Millisecond: "in 2m",
	} {
		at := now.Add(d)
		if got := a.until(&at); got != want {
			t.Errorf("in %s is written %q, want %q", d, got, want)
		}
	}
	if got := ranges([]int{0, 1, 2, 5, 7, 8}); got != "0-2,5,7-8" {
		t.Errorf("ranges: %s", got)
	}
}

func TestTheTunnelsCommandIsReadByAShellAsItStands(t *testing.T) {
	got := tunnelCommand("/opt/my tools/100%/nearmetal", "lab.c1", "c1-0")
	if want := "'/opt/my tools/100%%/nearmetal' cluster connect -- lab.c1 c1-0"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestTheStepsOfABuildAreToldWithTheirTimes(t *testing.T) {
	show := func(terminal bool) string {
		var out bytes.Buffer
		now := time.Unix(1_000_000, 0)
		clock := func() time.Time { return now }
		s := buildSteps{p: &progress{w: &out, terminal: terminal, start: now, now: clock, done: make(chan struct{})}, now: clock}
		b := api.Build{ID: "b1", Environment: "e", Phase: api.BuildRunning, Node: "n1"}
		for _, at := range []struct {
			seconds int
			step    string
		}{{0, ""}, {1, "base"}, {11, "base"}, {12, "base"}, {30, "pack: 1 of 9 MiB"}, {35, "pack: 8 of 9 MiB"}} {
			now, b.Step = time.Unix(1_000_000+int64(at.seconds), 0), at.step
			s.show(b)
		}
		b.Phase, b.Step = api.BuildSucceeded, ""
		now = now.Add(5 * time.Second)
		s.show(b)
		s.p.stop()
		return out.String()
	}
	want := "   0.0s  build b1 of e: running\n  11.0s  build b1 of e: running on n1, 0%: base\n  30.0s  base: 29.0s\n" +
		"  30.0s  build b1 of e: running on n1, 0%: pack: 1 of 9 MiB\n  40.0s  pack: 10.0s\n"
	if got := show(false); got != want {
		t.Errorf("to a file\n%swant\n%s", got, want)
	}
	got := show(true)
	for _, want := range []string{"\r\x1b[Kbase: 29.0s\n", "\r\x1b[Kbuild b1 of e: running on n1, 0%: pack: 8 of 9 MiB  35.0s", "\r\x1b[Kpack: 10.0s\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("on a terminal %q, want %q in it", got, want)
		}
	}
}

func TestWhoStopsLookingAtABuildIsToldHowToLookAgain(t *testing.T) {
	socket := &net.OpError{Op: "read", Net: "unix", Addr: &net.UnixAddr{Name: "/proc/self/fd/7/server.sock", Net: "unix"}, Err: syscall.ECONNRESET}
	err := goesOn(&client.UnreachableError{Addr: "unix:/s/server.sock", Err: socket}, "b1")
	want := "can't reach the server at unix:/s/server.sock: connection reset by peer; build b1 goes on without you, look again with: nearmetal env log b1 --follow"
	if err.Error() != want || exitCode(err) != ExitUnreachable {
		t.Errorf("got %q, exit code %d, want %q", err, exitCode(err), want)
	}
}
