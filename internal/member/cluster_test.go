package member_test

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/contextualization"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// patience bounds how long a test waits for an event; nothing waits that long unless it fails.
const patience = 60 * time.Second

// startAll starts the members with their node agents' ends and waits until they are ready.
func (s *sandbox) startAll() []*nodeAgent {
	s.t.Helper()
	agents := make([]*nodeAgent, 0, len(s.members))
	began := time.Now()
	for _, m := range s.members {
		n := &nodeAgent{t: s.t}
		n.init(true)
		n.owner = testIDBase
		n.listen(m.control + "/agent.sock")
		s.t.Cleanup(func() { _ = n.server.Close() })
		agents = append(agents, n)
		s.start(m)
	}
	for i, n := range agents {
		n.until(s.members[i].assignment.Member+" is ready", func() bool { return n.ready > 0 })
	}
	s.t.Logf("%d members were ready %v after the first was started", len(agents), time.Since(began))
	return agents
}

const (
	asUser = "1000:1000"
	asRoot = "0:0"
)

func TestMembersReachEachOtherAtOnce(t *testing.T) {
	s := newSandbox(t, 2)
	s.startAll()
	for _, c := range []struct {
		name, user string
		command    []string
		want       string
	}{
		{"by name", asUser, []string{"ssh", "c1-1", "hostname; id -un"}, "c1-1\nhpc\n"},
		{"by address", asUser, []string{"ssh", "10.64.16.3", "hostname"}, "c1-1\n"},
		{"to itself", asUser, []string{"ssh", "c1-0", "hostname"}, "c1-0\n"},
		{"onwards", asUser, []string{"ssh", "c1-1", "ssh c1-0 hostname"}, "c1-0\n"},
		{"with a terminal", asUser, []string{"ssh", "-tt", "c1-1", "tty"}, "/dev/pts/0\r\n"},
		{"copying files", asUser, []string{"sh", "-c", "cd /tmp; echo text >file; echo 'put file' | sftp -q -b - c1-1:/tmp >/dev/null && ssh c1-1 cat /tmp/file"}, "text\n"},
		{"fifty logins at once", asUser, []string{"sh", "-c", "for i in $(seq 50); do ssh c1-1 true || echo failed & done; wait; echo done"}, "done\n"},
		{"by root as the user", asRoot, []string{"ssh", "c1-1", "id -un"}, "hpc\n"},
		{"with the cluster's environment", asUser, []string{"ssh", "c1-1", "echo $NEARMETAL_CLUSTER; cat $NEARMETAL_NODELIST"}, "c1\nc1-0\nc1-1\n"},
		{"the home is shared", asUser, []string{"ssh", "c1-1", "touch /home/hpc/seen; ssh c1-0 ls /home/hpc/seen"}, "/home/hpc/seen\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			out, err := s.exec(s.members[0], c.user, c.command...)
			t.Logf("it took %v", time.Since(began))
			if err != nil || out != c.want {
				t.Errorf("%v printed %q (%v), want %q", c.command, out, err, c.want)
			}
		})
	}
	for _, c := range []struct {
		name, user string
		command    []string
		want       string
	}{
		{"root can't log in", asRoot, []string{"ssh", "root@c1-1", "id"}, "Permission denied"},
		{"another account can't be used", asUser, []string{"ssh", "nobody@c1-1", "id"}, "Permission denied"},
		{"a member that is another is not believed", asUser, []string{"ssh", "-o", "HostKeyAlias=c1-0", "c1-1", "id"}, "Host key verification failed"},
		{"the user can't read the host's key", asUser, []string{"cat", "/etc/ssh/ssh_host_ed25519_key"}, "Permission denied"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out, err := s.exec(s.members[0], c.user, c.command...); err == nil || !strings.Contains(out, c.want) {
				t.Errorf("%v printed %q (%v), want a failure with %q", c.command, out, err, c.want)
			}
		})
	}
}

func TestAReplacedMembersIdentityIsRevoked(t *testing.T) {
	s := newSandbox(t, 2)
	s.startAll()
	if out, err := s.exec(s.members[0], asUser, "ssh", "c1-1", "true"); err != nil {
		t.Fatalf("before: %s (%v)", out, err)
	}
	cluster := s.cluster
	cluster.Members = slices.Clone(cluster.Members)
	cluster.Members[0].ID = "u1.c1-0.2"
	renderer, err := contextualization.New(cluster)
	if err != nil {
		t.Fatal(err)
	}
	files, err := renderer.Files(cluster.Members[1].ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		s.write(s.members[1], file)
	}
	if out, err := s.exec(s.members[0], asUser, "ssh", "c1-1", "true"); err == nil || !strings.Contains(out, "Permission denied") {
		t.Errorf("the former member's user: %q (%v), want it refused", out, err)
	}
}

func TestUsersReachEachOtherByTLSWithTheFilesOfTheirMembers(t *testing.T) {
	needs.Program(t, "openssl")
	s := newSandbox(t, 2)
	s.startAll()
	const files = "-cert /etc/nearmetal/tls/workload.crt -key /etc/nearmetal/tls/workload.key"
	serve := "openssl s_server -accept 4433 -www -Verify 1 -verify_return_error -CAfile /etc/nearmetal/tls/ca.crt " + files + " >/tmp/log 2>&1 </dev/null &"
	if out, err := s.exec(s.members[1], asUser, "sh", "-c", serve); err != nil {
		t.Fatalf("%s (%v)", out, err)
	}
	ask := func(more string) (string, error) {
		return s.exec(s.members[0], asUser, "sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | openssl s_client -connect c1-1:4433 -ign_eof -verify_return_error "+
			"-verify_hostname c1-1 -CAfile /etc/nearmetal/tls/ca.crt "+more)
	}
	const served = "200 ok"
	deadline := time.Now().Add(patience)
	for {
		out, err := ask(files)
		if err == nil && strings.Contains(out, served) {
			break
		}
		if !strings.Contains(out, "Connection refused") || time.Now().After(deadline) { // until the server listens
			t.Fatalf("%s (%v)", out, err)
		}
	}
	if out, err := ask(""); strings.Contains(out, served) {
		t.Errorf("without a certificate: %s (%v)", out, err)
	}
}

// compile builds the MPI program into the shared home, or skips the test.
func (s *sandbox) compile() {
	s.t.Helper()
	needs.Program(s.t, "mpicc")
	s.run("mpicc", "-o", filepath.Join(s.dir, "home", "hpc", "ring"), "testdata/ring.c")
}

func TestMPIJobsRunOverAllMembers(t *testing.T) {
	s := newSandbox(t, 2)
	s.compile()
	agents := s.startAll()
	n := agents[0]
	ring := api.Job{ID: "ring", Phase: api.JobPending, JobRequest: api.JobRequest{Command: []string{"./ring"}, Ranks: 2}}
	env := api.Job{ID: "env", Phase: api.JobPending, JobRequest: api.JobRequest{
		Command: []string{"sh", "-c", "echo $GREETING $NEARMETAL_JOB_ID from $(hostname) in $PWD"}, Ranks: 2, Env: map[string]string{"GREETING": "hello"},
	}}
	tooMany := api.Job{ID: "many", Phase: api.JobPending, JobRequest: api.JobRequest{Command: []string{"./ring"}, Ranks: 3}}
	failing := api.Job{ID: "failing", Phase: api.JobPending, JobRequest: api.JobRequest{Command: []string{"sh", "-c", "exit 5"}, Ranks: 2}}
	missing := api.Job{ID: "missing", Phase: api.JobPending, JobRequest: api.JobRequest{Command: []string{"./nothing"}, Ranks: 2}}
	for _, c := range []struct {
		job   api.Job
		phase api.JobPhase
		code  int // 0: any other than 0 when it fails
		lines []string
	}{
		{ring, api.JobSucceeded, 0, []string{"rank 0 of 2 on c1-0", "rank 1 of 2 on c1-1", "token 2"}},
		{env, api.JobSucceeded, 0, []string{"hello env from c1-0 in /home/hpc", "hello env from c1-1 in /home/hpc"}},
		{tooMany, api.JobFailed, 0, []string{"There are not enough slots available in the system to satisfy the 3"}},
		{failing, api.JobFailed, 5, []string{"a non-zero exit code"}},
		{missing, api.JobFailed, 0, []string{"./nothing"}},
	} {
		t.Run(c.job.ID, func(t *testing.T) {
			began := time.Now()
			n.server.SetJobs([]api.Job{c.job})
			n.server.RequestLog(c.job.ID, 0, 1)
			state := n.untilEnded(c.job.ID)
			t.Logf("it took %v", time.Since(began))
			if state.Phase != c.phase {
				t.Errorf("the job %s (%s), want it %s", state.Phase, state.Message, c.phase)
			}
			for _, line := range c.lines {
				if !strings.Contains(n.output(c.job.ID), line) {
					t.Errorf("it printed\n%s\nwithout %q", n.output(c.job.ID), line)
				}
			}
			// But for what mpirun says when a child was quicker to start than its parent to give it a process group (setpgid(2), EACCES).
			said := strings.Count(n.output(c.job.ID), "\n") - strings.Count(n.output(c.job.ID), "setpgid(")
			if c.phase == api.JobSucceeded && said != len(c.lines) {
				t.Errorf("it printed\n%s\nwant %d lines and no warnings", n.output(c.job.ID), len(c.lines))
			}
			if state.ExitCode == nil || (*state.ExitCode == 0) != (c.phase == api.JobSucceeded) || (c.code != 0 && *state.ExitCode != c.code) {
				t.Errorf("got %+v, want exit code %d", state, c.code)
			}
		})
	}
}

func TestEndingAnMPIJobEndsItsRanksEverywhere(t *testing.T) {
	s := newSandbox(t, 2)
	s.compile()
	agents := s.startAll()
	n := agents[0]
	for _, c := range []struct {
		name  string
		end   func(job api.Job)
		phase api.JobPhase
		code  int
	}{
		{"cancelled", func(job api.Job) {
			job.Phase, job.CancelRequested = api.JobRunning, true
			n.server.SetJobs([]api.Job{job})
		}, api.JobCancelled, 0},
		{"mpirun-killed", func(api.Job) { s.signal(s.members[0], "mpirun", syscall.SIGKILL) }, api.JobFailed, 137},
	} {
		t.Run(c.name, func(t *testing.T) {
			job := api.Job{ID: c.name, Phase: api.JobPending, JobRequest: api.JobRequest{Command: []string{"./ring", "wait"}, Ranks: 2}}
			n.server.SetJobs([]api.Job{job})
			n.server.RequestLog(job.ID, 0, 1)
			n.until("the ranks are up", func() bool { return strings.Contains(string(n.logs[job.ID]), "token 2\n") })
			began := time.Now()
			c.end(job)
			state := n.untilEnded(job.ID)
			t.Logf("the job ended %v later", time.Since(began))
			if state.Phase != c.phase || (c.code != 0 && (state.ExitCode == nil || *state.ExitCode != c.code)) {
				t.Errorf("got %+v, want it %s with exit code %d", state, c.phase, c.code)
			}
			for _, m := range s.members {
				s.untilGone(m, "ring", "orted", "mpirun")
			}
			t.Logf("all its processes had ended %v later", time.Since(began))
		})
	}
}

func TestALostMemberIsToldToEveryRankOfAnMPIJob(t *testing.T) {
	s := newSandbox(t, 2)
	needs.Program(t, "mpirun")
	n := s.startAll()[0]
	for _, name := range []string{"", "USR1", "PWR"} {
		t.Run("signal "+name, func(t *testing.T) {
			job := api.Job{ID: "told" + name, Phase: api.JobPending, JobRequest: api.JobRequest{
				Command: []string{"sh", "-c", `trap "echo told on $(hostname); exit 0" ` + cmp.Or(name, "URG") + `; echo up; while :; do sleep 0.01; done`},
				Ranks:   2, FailureSignal: name,
			}}
			n.server.SetJobs([]api.Job{job})
			n.server.RequestLog(job.ID, 0, 1)
			n.until("both ranks are up", func() bool { return strings.Count(string(n.logs[job.ID]), "up\n") == 2 })
			job.Phase, job.Failures = api.JobRunning, 1
			n.server.SetJobs([]api.Job{job})
			state := n.untilEnded(job.ID)
			output := n.output(job.ID)
			if state.Phase != api.JobSucceeded || strings.Count(output, "told on c1-0\n") != 1 || strings.Count(output, "told on c1-1\n") != 1 {
				t.Errorf("got %+v, and it printed\n%s\nwant both ranks told once, and success", state, output)
			}
		})
	}
}

func TestOrphansAreReaped(t *testing.T) {
	s := newSandbox(t, 1)
	s.startAll()
	if out, err := s.exec(s.members[0], asUser, "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do setsid sh -c 'sh -c \"exit 1\" & exit 0' & done; wait"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	s.untilGone(s.members[0], "sh")
}
