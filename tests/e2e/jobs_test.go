package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestJobs(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "1")
	s.must("cluster", "create", "c1", "--size", "2", "--cores", "1", "--memory", "256MiB")
	for _, test := range []struct {
		name string
		run  func(*testing.T, *site)
	}{
		{"end with the command's exit code", exitCodes},
		{"show their output while they run, to everybody who looks", streams},
		{"end with their remote ranks on Ctrl-C", interrupts},
		{"give all of a large output", largeOutput},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, s.as(t)) })
	}
	t.Run("are lost with their cluster, and say so", func(t *testing.T) { lostWithCluster(t, s.as(t)) }) // the last: it deletes c1
}

func exitCodes(t *testing.T, s *site) {
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"success", []string{"--", "true"}, 0, ""},
		{"failure", []string{"--", "sh", "-c", "exit 42"}, 42, "exit code 42"},
		{"a signal", []string{"--", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{"one rank of two fails", []string{"-n", "2", "--", "sh", "-c", "exit $((OMPI_COMM_WORLD_RANK * 9))"}, 9, ""},
		{"no such command", []string{"--", "/no/such/command"}, 127, "/no/such/command"},
		{"a flag of the command's own", []string{"sh", "-c", "exit 3"}, 3, ""},
	} {
		a := s.cli(append([]string{"run", "c1"}, c.args...)...)
		if a.code != c.code || !strings.Contains(a.out+a.err, c.says) {
			t.Errorf("%s: exit code %d, want %d and %q in\n%s%s", c.name, a.code, c.code, c.says, a.out, a.err)
		}
	}
}

func streams(t *testing.T, s *site) {
	first := s.background(t.Context(), "run", "c1", "--", "sh", "-c", counting)
	s.eventually(time.Minute, "output while the job runs", func() bool { return strings.Contains(first.out.String(), "5\n") })
	id := s.runningJob("c1")
	second := s.background(t.Context(), "job", "logs", "-f", id)
	s.eventually(time.Minute, "the output at a second command", func() bool { return strings.HasPrefix(second.out.String(), "1\n2\n3\n") })
	s.must("run", "c1", "--", "touch", "go")
	if a := first.wait(); a.code != 7 {
		t.Errorf("exit code %d, want 7", a.code)
	}
	if a := second.wait(); a.code != 0 || a.out != first.out.String() {
		t.Errorf("job logs -f: exit code %d and %d bytes, want 0 and the %d bytes that run showed", a.code, len(a.out), len(first.out.String()))
	}
	checkCounted(t, first.out.String())
}

func interrupts(t *testing.T, s *site) {
	const marked = "exec -a interrupted-rank sleep 3000"
	job := s.background(t.Context(), "run", "c1", "-n", "2", "--", "bash", "-c", marked)
	ranks := func() int {
		return strings.Count(s.must("run", "c1", "-n", "2", "--", "sh", "-c", `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' | grep -ao 'interrupted-ran[k] 3000' || true`),
			"interrupted-rank 3000")
	}
	s.eventually(time.Minute, "both ranks to run", func() bool { return ranks() == 2 })
	if err := job.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if a := job.wait(); a.code != exitInterrupted {
		t.Errorf("exit code %d, want %d\n%s%s", a.code, exitInterrupted, a.out, a.err)
	}
	if n := ranks(); n != 0 {
		t.Errorf("%d ranks run on after the interrupt", n)
	}
}

func largeOutput(t *testing.T, s *site) {
	const lines, width = 160_000, 64 // 10.4 MB
	a := s.cli("run", "c1", "--", "sh", "-c", fmt.Sprintf(`seq -f '%%0%dg' %d | tee /dev/stderr 2>sum | cat; sha256sum < sum > digest; rm sum`, width, lines))
	if want := lines * (width + 1); a.code != 0 || len(a.out) != want {
		t.Fatalf("exit code %d and %d bytes, want 0 and %d\n%s", a.code, len(a.out), want, a.err)
	}
	sum := sha256.Sum256([]byte(a.out))
	if digest := s.must("run", "c1", "--", "cat", "digest"); !strings.HasPrefix(digest, hex.EncodeToString(sum[:])) {
		t.Errorf("the output differs from what the job wrote: %x, want %s", sum, digest)
	}
}

func lostWithCluster(t *testing.T, s *site) {
	job := s.background(t.Context(), "run", "c1", "--", "sh", "-c", counting)
	s.eventually(time.Minute, "output", func() bool { return strings.Contains(job.out.String(), "5\n") })
	id := s.runningJob("c1")
	s.must("cluster", "delete", "c1", "--yes")
	a := job.wait()
	if a.code != exitFailed || !strings.Contains(a.err, "lost: its cluster") {
		t.Errorf("exit code %d, want %d and a message that the job was lost with its cluster:\n%s", a.code, exitFailed, a.err)
	}
	var after api.Job
	s.mustJSON(&after, "job", "show", id)
	if after.Phase != api.JobLost || after.Message == "" {
		t.Errorf("the job is %q with the message %q, want lost and why", after.Phase, after.Message)
	}
}

// runningJob is the one job of a cluster that runs.
func (s *site) runningJob(cluster string) string {
	s.t.Helper()
	var running []string
	var jobs []api.Job
	if err := json.Unmarshal([]byte(s.must("job", "list", "--cluster", cluster, "-o", "json")), &jobs); err != nil {
		s.t.Fatal(err)
	}
	for _, j := range jobs {
		if j.Phase == api.JobRunning {
			running = append(running, j.ID)
		}
	}
	if len(running) != 1 {
		s.t.Fatalf("jobs running on %s: %q, want one", cluster, running)
	}
	return running[0]
}
