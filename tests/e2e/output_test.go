package e2e

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// printed is the output of the job in TestOutputIsStoredExactly: 64 MiB, which it prints as fast as it can.
const printed = 64 << 20

func TestOutputIsStoredExactlyThroughKilledProcessesAndWhatIsOverTheLimitIsCounted(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	for _, test := range []struct {
		name   string
		stored int
		args   []string
	}{
		{"all of it", printed, nil},
		{"up to the limit", 40 << 20, []string{"--job-log-limit", "40MiB"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := startSite(t, 1, append([]string{"--nodes", "1", "--node-cores", "1"}, test.args...)...)
			s.must("cluster", "create", "c1", "--size", "1", "--cores", "1", "--memory", "256MiB")
			job := s.background(t.Context(), "run", "c1", "--", "sh", "-c", fmt.Sprintf("seq 1 100000000 | head -c %d", printed))
			arrived := func(megabytes int) {
				t.Helper()
				s.eventually(time.Minute, fmt.Sprintf("%d MB of output", megabytes), func() bool { return len(job.out.String()) > megabytes*1e6 })
			}
			arrived(8)
			for _, pid := range s.agents() {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatalf("agent %d: %v", pid, err)
				}
			}
			arrived(20)
			s.kill()
			s.start()
			a := job.wait()
			want := sha256.New()
			for i, left := 1, test.stored; left > 0; i++ {
				line := fmt.Sprintln(i)
				line = line[:min(len(line), left)]
				left -= len(line)
				want.Write([]byte(line))
			}
			if got := sha256.Sum256([]byte(a.out)); a.code != 0 || string(got[:]) != string(want.Sum(nil)) {
				t.Errorf("exit code %d and %d bytes, want 0 and exactly the first %d of the output\n%s", a.code, len(a.out), test.stored, a.err)
			}
			var jobs []api.Job
			s.mustJSON(&jobs, "job", "list")
			if len(jobs) != 1 || jobs[0].LogBytes != int64(test.stored) || jobs[0].DiscardedBytes != int64(printed-test.stored) {
				t.Errorf("the jobs are %+v, want one with %d bytes of output and %d discarded", jobs, test.stored, printed-test.stored)
			}
			if warned := strings.Contains(a.err, fmt.Sprintf("warning: %d bytes of the output", printed-test.stored)); warned != (test.stored < printed) {
				t.Errorf("a warning about discarded output: %t\n%s", warned, a.err)
			}
		})
	}
}
