package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// aboutSites tells whether the way to a mark is the start or the end of a site, not a cluster.
func aboutSites(mark string) bool { return strings.HasPrefix(mark, "nodespace.") }

// TestACrashAtAnyMarkInTheLifeOfAClusterIsOutlived kills the server or a node's agent at every failpoint that creating a
// cluster, running a job on it and deleting it come by, each in turn.
func TestACrashAtAnyMarkInTheLifeOfAClusterIsOutlived(t *testing.T) {
	program(t, failpoints)
	marks := slices.DeleteFunc(marksInSource(t), aboutSites)
	nothingLeft(t)
	// Two nodes with one core each: the cluster spans both, so there is a tunnel.
	s := newSite(t, failpoints, "--nodes", "2", "--node-cores", "1")
	arms := armory{t, t.TempDir()}
	s.start(arms.environment())
	s.waitForNodes(2)
	for i, mark := range marks {
		passed := t.Run(mark, func(t *testing.T) {
			l := life{site: s.as(t), arms: armory{t, arms.dir}, mark: mark, cluster: fmt.Sprintf("crash-%d", i)}
			died := l.live()
			if reason, listed := unreached[mark]; listed == (len(died) > 0) {
				t.Errorf("processes died in %q; listed as unreached: %v (%s). List it with a reason if nothing can come by it",
					died, listed, reason)
			}
		})
		if !passed {
			return // what follows would only tell the same
		}
	}
}

// life is one cluster's life with a crash in it.
type life struct {
	*site
	arms    armory
	mark    string
	cluster string
}

// live creates the cluster, runs a job on it and deletes it, with the mark armed anew for each, and returns what was
// being done when a process died.
func (l life) live() (died []string) {
	l.t.Helper()
	before := l.lookAtNodes()
	for _, act := range []struct {
		name string
		do   func()
	}{
		{"create", func() {
			l.retry(exitConflict, "cluster", "create", l.cluster, "--size", "2", "--cores", "1", "--memory", "128MiB", "--egress")
		}},
		{"job", func() { l.cli("run", l.cluster, "-n", "2", "--", "hostname") }},
		{"delete", func() { l.retry(exitNotFound, "cluster", "delete", l.cluster) }},
	} {
		var c api.Cluster
		if act.name != "create" {
			c = l.waitReady(l.cluster)
		}
		l.arms.arm(l.mark)
		l.revive(true)
		act.do()
		if pid, hit := l.arms.disarm(l.mark); hit {
			died = append(died, act.name)
			l.eventually(time.Minute, fmt.Sprintf("process %d, which came by the mark, to be dead", pid), func() bool { return !alive(pid) })
		}
		switch act.name {
		case "job":
			l.checkJobs()
		case "delete":
			l.waitGone(l.cluster)
			l.waitForNodes(2)
			l.revive(false)
			l.wantNothingOf(c.UID, before)
		}
	}
	return died
}

// retry runs a command again while the server is away. The code is that of a command whose first try took effect unheard.
func (l life) retry(unheard int, args ...string) {
	l.t.Helper()
	l.eventually(2*time.Minute, strings.Join(args, " "), func() bool {
		a := l.cli(args...)
		if a.code != 0 && a.code != unheard && a.code != exitUnreachable {
			l.t.Fatalf("nearmetal %s: exit code %d\n%s%s", strings.Join(args, " "), a.code, a.out, a.err)
		}
		return a.code != exitUnreachable
	})
}

// checkJobs waits until the cluster's job has ended, however the crash hit it, and checks that it ran once on both members.
func (l life) checkJobs() {
	l.t.Helper()
	var jobs []api.Job
	l.eventually(time.Minute, "the job to end", func() bool {
		jobs = nil
		a := l.cli("job", "list", "--cluster", l.cluster, "-o", "json")
		if a.code != 0 || json.Unmarshal([]byte(a.out), &jobs) != nil {
			return false
		}
		return !slices.ContainsFunc(jobs, func(j api.Job) bool { return !j.Phase.Ended() })
	})
	if len(jobs) != 1 || jobs[0].Phase != api.JobSucceeded {
		l.t.Fatalf("want one job that succeeded, got %+v", jobs)
	}
	out := strings.Fields(l.must("job", "logs", jobs[0].ID))
	if len(out) != 2 || out[0] == out[1] {
		l.t.Errorf("hostname on 2 ranks printed %q, want the names of both members once", out)
	}
}

// TestACrashAtAnyMarkInTheLifeOfASiteIsOutlived kills dev at every failpoint that making and removing the nodes' namespaces
// comes by.
func TestACrashAtAnyMarkInTheLifeOfASiteIsOutlived(t *testing.T) {
	program(t, failpoints)
	marks := slices.DeleteFunc(marksInSource(t), func(mark string) bool { return !aboutSites(mark) })
	nothingLeft(t)
	for _, mark := range marks {
		t.Run(mark, func(t *testing.T) {
			s := newSite(t, failpoints, "--nodes", "2", "--node-cores", "1")
			arms := armory{t, t.TempDir()}
			arms.arm(mark)
			s.start(arms.environment())
			s.revive(true)
			s.waitForNodes(2)
			first := s.pid()
			if how, _ := s.signal(syscall.SIGTERM); how.Signal() == syscall.SIGKILL {
				s.start(arms.environment())
				s.waitForNodes(2)
				s.stop()
			}
			pid, died := arms.disarm(mark)
			if reason, listed := unreached[mark]; listed == died {
				t.Errorf("process %d died: %v (the last was %d); listed as unreached: %v (%s)", pid, died, first, listed, reason)
			}
		})
	}
}

// alive tells whether a process runs; a zombie does not.
func alive(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !strings.Contains(string(status), "\nState:\tZ") && syscall.Kill(pid, 0) == nil
}
