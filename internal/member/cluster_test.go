package member_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/member"
)

// patience bounds how long a test waits for an event; nothing waits that long unless it fails.
const patience = 60 * time.Second

func TestMembersReachEachOtherAtOnceAndRunMPI(t *testing.T) {
	s := newSandbox(t, 2)
	began := time.Now()
	for _, m := range s.members {
		ready := make(chan member.Ready, 1)
		server, err := member.NewServer(member.ServerConfig{
			Path: m.control + "/agent.sock", Owner: testIDBase,
			OnReady: func(r member.Ready) { ready <- r }, OnProblem: func(p member.Problem) { t.Log(p.Message) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = server.Close() }()
		s.start(m)
		select {
		case <-ready:
			t.Logf("%s is ready %v after the first was started", m.assignment.Member, time.Since(began))
		case <-time.After(patience):
			t.Fatalf("%s did not become ready", m.assignment.Member)
		}
	}
	for _, c := range []struct {
		name, user string
		command    []string
		want       string
	}{
		{"by name", "1000:1000", []string{"ssh", "c1-1", "hostname; id -un"}, "c1-1\nhpc\n"},
		{"by address", "1000:1000", []string{"ssh", "10.64.16.3", "hostname"}, "c1-1\n"},
		{"to itself", "1000:1000", []string{"ssh", "c1-0", "hostname"}, "c1-0\n"},
		{"onwards", "1000:1000", []string{"ssh", "c1-1", "ssh c1-0 hostname"}, "c1-0\n"},
		{"with a terminal", "1000:1000", []string{"ssh", "-tt", "c1-1", "tty"}, "/dev/pts/0\r\n"},
		{"from root to the user", "0:0", []string{"ssh", "c1-1", "id -un"}, "hpc\n"},
		{"MPI over both", "1000:1000", []string{"mpirun", "-n", "2", "hostname"}, "c1-0\nc1-1\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			out, err := s.exec(s.members[0], c.user, c.command...)
			t.Logf("%v", time.Since(began))
			if err != nil || (out != c.want && !sameLines(out, c.want)) {
				t.Errorf("%v printed %q (%v), want %q", c.command, out, err, c.want)
			}
		})
	}
}

func sameLines(a, b string) bool {
	count := map[string]int{}
	for line := range strings.Lines(a) {
		count[line]++
	}
	for line := range strings.Lines(b) {
		count[line]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}
