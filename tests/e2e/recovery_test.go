package e2e

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// counting prints 1, 2, 3, ... until there is a file "go" in the shared home, then "end N", and ends with code 7.
const counting = `i=1; until [ -e go ]; do echo $i; i=$((i+1)); sleep 0.01; done; rm go; echo end $i; exit 7`

func TestMembersAndJobsOutliveKilledProcesses(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "1")
	s.must("cluster", "create", "c1", "--size", "2", "--cores", "1", "--memory", "256MiB")
	c := s.waitReady("c1")
	members := memberProcesses(t, c.UID)
	if len(members) != 2 {
		t.Fatalf("processes of the members: %v, want 2", members)
	}
	killServer := func(s *site) { s.kill(); s.start() }
	killAgents := func(s *site) {
		for _, pid := range s.agents() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				s.t.Fatalf("agent %d: %v", pid, err)
			}
		}
	}
	for _, test := range []struct {
		name string
		kill func(*site)
	}{
		{"the server", killServer},
		{"the agents", killAgents},
		{"both at once", func(s *site) { killAgents(s); killServer(s) }},
		{"both, the server first", func(s *site) { s.kill(); killAgents(s); s.start() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := s.as(t)
			former := s.agents()
			job := s.background(t.Context(), "run", "c1", "--", "sh", "-c", counting)
			s.eventually(time.Minute, "the job's output", func() bool { return strings.Contains(job.out.String(), "20\n") })
			test.kill(s)
			s.eventually(time.Minute, "other agents", func() bool {
				now := s.agents()
				return len(now) == 2 && now[0] != former[0] && now[1] != former[1]
			})
			s.waitForNodes(2)
			seen := job.out.String()
			s.eventually(time.Minute, "more of the job's output", func() bool { return len(job.out.String()) > len(seen) })
			if got := memberProcesses(t, c.UID); !maps.Equal(got, members) {
				t.Errorf("processes of the members: %v, want the same as before, %v", got, members)
			}
			again := s.waitReady("c1")
			if again.UID != c.UID || again.Status.Generation != c.Status.Generation {
				t.Errorf("cluster %s generation %d, want %s generation %d: nothing was to be decided anew", again.UID,
					again.Status.Generation, c.UID, c.Status.Generation)
			}
			s.must("run", "c1", "--", "touch", "go")
			if a := job.wait(); a.code != 7 {
				t.Errorf("the job's exit code is %d, want 7\n%s", a.code, a.err)
			}
			checkCounted(t, job.out.String())
		})
	}
}

// checkCounted checks that the output is complete and came once.
func checkCounted(t *testing.T, out string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	for i, line := range lines {
		want := strconv.Itoa(i + 1)
		if i == len(lines)-1 {
			want = "end " + want
		}
		if line != want {
			t.Fatalf("line %d of %d of the output is %q, want %q", i+1, len(lines), line, want)
		}
	}
}

// memberProcesses are the first processes of a cluster's members, by the members' control groups.
func memberProcesses(t *testing.T, uid string) map[string]int {
	t.Helper()
	first := map[string]int{}
	for _, dir := range below("/sys/fs/cgroup") {
		name := filepath.Base(dir)
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || !strings.Contains(name, uid) || strings.HasPrefix(name, ".") { // a sandbox's, which runs nothing of a member
			continue
		}
		for field := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && (first[name] == 0 || startedAt(pid) < startedAt(first[name])) {
				first[name] = pid
			}
		}
	}
	return first
}

// startedAt is when a process was started, in ticks after boot (proc_pid_stat(5), field 22); late for one that has ended.
func startedAt(pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, found := strings.Cut(string(text), ") ") // the name, in parentheses, is the second field
	if fields := strings.Fields(rest); err == nil && found && len(fields) > 19 {
		if ticks, err := strconv.ParseUint(fields[19], 10, 64); err == nil {
			return ticks
		}
	}
	return math.MaxUint64
}

// agents are the process IDs of the site's agents, in the order of the nodes.
func (s *site) agents() []int {
	s.t.Helper()
	var pids []int
	for node := 1; ; node++ {
		found := 0
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range lines {
			text, err := os.ReadFile(file)
			if err != nil {
				continue
			}
			line := strings.ReplaceAll(string(text), "\x00", " ")
			if strings.Contains(line, " agent --state "+s.dir+" ") && strings.Contains(line, fmt.Sprintf(" --name n%d ", node)) {
				found, _ = strconv.Atoi(strings.Split(file, "/")[2])
			}
		}
		if found == 0 {
			return pids
		}
		pids = append(pids, found)
	}
}
