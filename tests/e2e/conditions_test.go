package e2e

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// What members send has the condition of their cluster, until it is cleared or their agents end, and new agents set it again.
func TestAClustersNetworkHasAConditionAsLongAsItsAgentsRun(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "1")
	s.must("cluster", "create", "c1", "--size", "1", "--memory", "256MiB")
	if a := s.cli("cluster", "condition", "set", "c1", "--delay", "1ms", "--jitter", "2ms"); a.code == 0 || !strings.Contains(a.err, "jitter") || !strings.Contains(a.err, "can be at most the delay, 1ms") {
		t.Errorf("a jitter above the delay: exit code %d: %s", a.code, a.err)
	}
	s.must("cluster", "delete", "c1", "--yes")
	c := s.spanning("c2", 2)

	// trip is how long a member's connection to another takes: a packet there and one back, or an hour if there was none.
	trip := func(from, to int) time.Duration {
		t.Helper()
		took := time.Hour
		if err := inNetworkOf(s.processAt(c, c.Status.Members[from]), func() error {
			began := time.Now()
			conn, err := net.DialTimeout("tcp4", net.JoinHostPort(c.Status.Members[to].Address, "22"), 3*time.Second)
			if err == nil {
				took = time.Since(began)
				return conn.Close()
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return took
	}
	straight := func(when string) {
		t.Helper()
		for _, from := range []int{0, 1} {
			for end := time.Now().Add(20 * time.Second); trip(from, 1-from) >= 40*time.Millisecond; {
				if time.Now().After(end) {
					t.Fatalf("%s: packets of member %d take a detour", when, from)
				}
			}
		}
	}
	delayed := func(when string) {
		t.Helper()
		for range 3 {
			for _, from := range []int{0, 1} {
				if took := trip(from, 1-from); took < 40*time.Millisecond || took == time.Hour {
					t.Errorf("%s: a connection of member %d took %v, with two delays of 20 ms", when, from, took)
				}
			}
		}
	}
	straight("before")
	if out := s.must("cluster", "condition", "set", "c2", "--delay", "20ms", "--timeout", "1m"); !strings.Contains(out, "has a condition: delay 20ms") {
		t.Errorf("condition set says %q", out)
	}
	delayed("set")
	if out := s.must("cluster", "show", "c2"); !strings.Contains(out, "delay 20ms (in force)") {
		t.Errorf("cluster show says:\n%s", out)
	}

	// Without agents packets go straight.
	agents := []int{s.agentOf("n1"), s.agentOf("n2")}
	s.kill()
	for _, pid := range agents {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	straight("without agents")
	s.start()
	s.waitForNodes(2)
	s.eventually(time.Minute, "the condition to be in force again", func() bool {
		var now api.Cluster
		s.mustJSON(&now, "cluster", "show", "c2")
		return now.Status.Condition != nil && now.Status.Condition.State == api.ConditionInForce && trip(0, 1) >= 40*time.Millisecond
	})
	delayed("after the agents were killed")

	s.must("cluster", "condition", "clear", "c2", "--timeout", "1m")
	straight("cleared")
	s.must("cluster", "condition", "set", "c2", "--delay", "5ms", "--rate", "100Mbit", "--timeout", "1m")
	s.must("cluster", "delete", "c2", "--yes")
}
