package e2e

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// TestTheClockMayJump sets the clock of the whole machine a day ahead and two days back, under a site that serves. Nobody dies of
// it, no time limit ends by it, and use is counted as if it had not happened. It runs in a guest only, whose clock nobody else needs.
func TestTheClockMayJump(t *testing.T) {
	needs.Request(t, "NEARMETAL_GUEST", "make test-testbed, whose guests have a clock of their own")
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	s.cluster("c", 3, "--time-limit", "2h")
	before := s.waitMembers("c", first(3, "c"))
	job := s.background(t.Context(), "run", "c", "--", "sh", "-c", counting)
	s.eventually(time.Minute, "the job's output", func() bool { return strings.Contains(job.out.String(), "20\n") })
	for _, jump := range []struct {
		name string
		by   time.Duration
	}{{"a day ahead", 24 * time.Hour}, {"two days back", -48 * time.Hour}, {"a day ahead again", 24 * time.Hour}} {
		passed := t.Run(jump.name, func(t *testing.T) {
			s := s.as(t)
			used, at := s.allocated(), time.Now()
			s.setClock(jump.by)
			lived := 2 * deathTimer
			s.eventually(time.Minute, "everything to live on for twice the death timer", func() bool {
				s.wantUndisturbed(before)
				return time.Since(at) > lived // by the monotonic clock
			})
			seen := job.out.String()
			s.eventually(time.Minute, "more of the job's output", func() bool { return len(job.out.String()) > len(seen) })
			// Three members with a core each; asking takes a moment.
			if grown, want := s.allocated()-used, 3*time.Since(at).Seconds(); math.Abs(grown-want) > 0.2*want+6 {
				t.Errorf("the use of 3 cores for %v grew by %.1f core-seconds, want %.1f", time.Since(at).Round(time.Millisecond), grown, want)
			}
			s.checkUsage()
			if got := strings.TrimSpace(s.must("cluster", "ssh", "c", "c-1", "--", "hostname")); got != "c-1" {
				t.Errorf("people reach %q, want c-1", got)
			}
		})
		if !passed {
			return
		}
	}
	s.must("run", "c", "--", "touch", "go")
	if a := job.wait(); a.code != 7 {
		t.Errorf("the job's exit code is %d, want 7\n%s", a.code, a.err)
	}
	checkCounted(t, job.out.String())
	t.Run("and life goes on", func(t *testing.T) {
		// An emulated machine may not start agents again within the death timer.
		needs.Request(t, "NEARMETAL_FAULT_ROUNDS", "make faults")
		lifeUnderAnotherClock(t, s.as(t))
	})
}

// lifeUnderAnotherClock does what compares times: it replaces a member under jobs, starts agents and the server again, and scales. The
// clock goes a day ahead first, and is two days back for the rest.
func lifeUnderAnotherClock(t *testing.T, s *site) {
	for i, by := range []time.Duration{24 * time.Hour, -48 * time.Hour} {
		s.setClock(by)
		c := s.waitMembers("c", first(3, "c"))
		over := filepath.Join(s.sharedHome(c), "over")
		id := s.submit("c", "--requeue", "--", "sh", "-c", "echo begin; until [ -e over ]; do sleep 0.02; done; echo end")
		s.waitJob(id, "run", func(j api.Job) bool { return j.Phase == api.JobRunning })
		killed := s.killMembers("c", first(3, "c")[1+i])
		s.waitJob(id, "run again", func(j api.Job) bool { return j.Attempt == 1 && j.Phase == api.JobRunning })
		s.waitReplaced(killed, first(3, "c"))
		if err := os.WriteFile(over, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		s.waitJob(id, "succeed", func(j api.Job) bool { return j.Phase == api.JobSucceeded })
		if out := s.logOf(id); out != "begin\nend\n" {
			t.Errorf("the job that ran again printed %q last", out)
		}
		if err := os.Remove(over); err != nil {
			t.Fatal(err)
		}
		for _, pid := range s.agents() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		s.eventually(time.Minute, "the agents to be gone", func() bool { return len(s.agents()) == 0 })
		s.waitForNodes(2)
		s.must("cluster", "scale", "c", "--size", "4")
		s.waitMembers("c", first(4, "c"))
		s.must("cluster", "scale", "c", "--size", "3")
	}
	// The new leader's clock starts where the former's stopped, though the machine's is a day behind.
	before := s.waitMembers("c", first(3, "c"))
	used := s.allocated()
	s.kill()
	s.start()
	s.waitForNodes(2)
	s.wantUndisturbed(before)
	if now := s.allocated(); now < used {
		t.Errorf("%.1f core-seconds were used, and after the server's restart it says %.1f", used, now)
	}
	s.checkUsable(before)
	s.checkSound()
}

// setClock makes the clock of the machine jump.
func (s *site) setClock(by time.Duration) {
	s.t.Helper()
	now := time.Now()
	set := func(to time.Time) error {
		ts := unix.NsecToTimespec(to.UnixNano())
		return unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
	}
	if err := set(now.Add(by)); err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("the clock went from %s to %s", now.UTC().Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339))
}

// wantUndisturbed checks that nothing was decided about a cluster since, and that its nodes are ready.
func (s *site) wantUndisturbed(before api.Cluster) {
	s.t.Helper()
	now, err := s.api().Cluster(s.t.Context(), before.Name)
	if err != nil || now.Status.Phase != api.ClusterReady || now.Status.Generation != before.Status.Generation || now.Status.ReadyMembers != 3 {
		s.t.Fatalf("cluster %s is %s (%s) in generation %d with %d members ready, want ready in %d with 3; %v", before.Name, now.Status.Phase,
			now.Status.Message, now.Status.Generation, now.Status.ReadyMembers, before.Status.Generation, err)
	}
	if !now.Status.ExpiresAt.Equal(*before.Status.ExpiresAt) {
		s.t.Fatalf("its time limit ended at %v and ends at %v", before.Status.ExpiresAt, now.Status.ExpiresAt)
	}
	nodes, err := s.api().Nodes(s.t.Context())
	for _, n := range nodes {
		if err != nil || n.Phase != api.NodeReady {
			s.t.Fatalf("node %s is %s: %s (%v)", n.Name, n.Phase, n.Message, err)
		}
	}
}

// allocated is how many core-seconds clusters have used, as far as usage reaches.
func (s *site) allocated() float64 {
	s.t.Helper()
	report, err := s.api().Usage(s.t.Context(), client.UsageQuery{})
	if err != nil {
		s.t.Fatal(err)
	}
	used := 0.0
	for _, row := range report.Rows {
		used += row.CoreSeconds
	}
	return used
}
