package member_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/member/memberlink"
)

// The member agent waits for all children of its process, so tests run it in a process of its own: the test binary, told by
// this variable, which holds a member.Config.
const configVariable = "NEARMETAL_TEST_MEMBER"

func TestMain(m *testing.M) {
	if config := os.Getenv(configVariable); config != "" {
		os.Exit(runAsMember(config))
	}
	if address := os.Getenv(proxyVariable); address != "" {
		os.Exit(runAsProxy(address))
	}
	code := m.Run()
	removeMemberBinary()
	os.Exit(code)
}

func runAsMember(config string) int {
	_ = os.Unsetenv(configVariable)
	var cfg member.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	// Orphans come to this process, as they come to the first one of a PID namespace.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := member.Run(ctx, cfg); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// process is a member agent as a process of its own, with a stand-in for sshd.
type process struct {
	t   *testing.T
	cfg member.Config
	cmd *exec.Cmd
	log bytes.Buffer
	// ownNetwork starts it in a network namespace of its own.
	ownNetwork bool
}

// unusedPort is one that nobody listens on, and nobody will who asks for any: it is none of those that the kernel gives out.
func unusedPort(t *testing.T) uint16 {
	t.Helper()
	for range 100 {
		port := 20000 + rand.IntN(12000)
		if listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = listener.Close()
			return uint16(port)
		}
	}
	t.Fatal("no port from 20000 to 31999 is free")
	return 0
}

func newProcess(t *testing.T) *process {
	t.Helper()
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cfg: member.Config{
		File: memberconfig.File{
			AssignmentID: "u1.m.1", Cluster: "c1", Member: "m", Address: netip.MustParseAddr("127.0.0.1"), Hostfile: "/etc/nearmetal/hostfile",
			User: memberconfig.User{Name: "someone", UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), Home: home, Shell: "/bin/sh"},
			Env:  map[string]string{"NEARMETAL_CLUSTER": "c1"},
			Link: &memberconfig.Link{Kind: memberconfig.LinkUnix, Address: filepath.Join(dir, "agent.sock")},
		},
		SSHPort: unusedPort(t), SSHDDirectory: filepath.Join(dir, "sshd"),
		SSHD: []string{"/bin/sh", "-c", `printf 'SSH-2.0-stand-in\r\n'`}, SpoolBytes: 1 << 20,
		ProbeEvery: patience, OutputPatience: patience, ReadyPatience: patience, InterruptGrace: patience, TerminateGrace: patience, StopGrace: patience,
	}}
	return p
}

// socket is the Unix socket that the member agent connects to.
func (p *process) socket() string { return p.cfg.Link.Address }

// start starts the member agent.
func (p *process) start() {
	p.t.Helper()
	config, err := json.Marshal(p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), configVariable+"="+string(config))
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.WaitDelay = time.Second
	if p.ownNetwork {
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		p.kill()
		if p.t.Failed() {
			p.t.Logf("the member agent said:\n%s", p.log.String())
		}
	})
}

// kill ends the member agent as a crash would.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

// nodeAgent is the node agent's end, noting what it is told.
type nodeAgent struct {
	t      *testing.T
	server *member.Server

	mu       sync.Mutex
	changed  chan struct{} // closed at each change
	ready    int
	problems []string
	health   []member.Health
	states   map[string]member.JobState
	logs     map[string][]byte
	ended    int
	// autoAck acknowledges output as it comes.
	autoAck bool
	owner   uint32
}

func (n *nodeAgent) init(autoAck bool) {
	n.changed, n.states, n.logs = make(chan struct{}), map[string]member.JobState{}, map[string][]byte{}
	n.autoAck, n.owner = autoAck, uint32(os.Geteuid())
}

func newNodeAgent(t *testing.T, socket string, autoAck bool) *nodeAgent {
	t.Helper()
	n := &nodeAgent{t: t}
	n.init(autoAck)
	n.listen(socket)
	t.Cleanup(func() { _ = n.server.Close() })
	return n
}

// listen starts the server; what was noted stays.
func (n *nodeAgent) listen(socket string) {
	n.t.Helper()
	link, err := memberlink.ListenUnix(socket, "u1.m.1", n.owner)
	if err != nil {
		n.t.Fatal(err)
	}
	n.serve(filepath.Dir(socket), link)
}

// serve starts the server on a link.
func (n *nodeAgent) serve(dir string, link memberlink.Endpoint) {
	n.t.Helper()
	server, err := member.NewServer(member.ServerConfig{
		Member: "u1.m.1", Dir: dir, Link: link,
		OnReady:   func(member.Ready) { n.note(func() { n.ready++ }) },
		OnProblem: func(p member.Problem) { n.note(func() { n.problems = append(n.problems, p.Message) }) },
		OnHealth:  func(h member.Health) { n.note(func() { n.health = append(n.health, h) }) },
		OnJobs: func(states []member.JobState) {
			n.note(func() {
				for _, s := range states {
					n.states[s.ID] = s
				}
			})
		},
		OnLog:        n.onLog,
		OnDisconnect: func(error) { n.note(func() { n.ended++ }) },
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.server = server
}

func (n *nodeAgent) onLog(piece member.Log) {
	var end int64
	n.note(func() {
		have := n.logs[piece.JobID]
		if piece.Offset != int64(len(have)) {
			n.t.Errorf("output of %s at %d, want it at %d", piece.JobID, piece.Offset, len(have))
		}
		n.logs[piece.JobID] = append(have, piece.Data...)
		end = int64(len(n.logs[piece.JobID]))
	})
	if n.autoAck {
		n.server.AckLog(piece.JobID, end)
	}
}

func (n *nodeAgent) note(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	close(n.changed)
	n.changed = make(chan struct{})
}

// until waits until done holds.
func (n *nodeAgent) until(what string, done func() bool) {
	n.t.Helper()
	deadline := time.After(patience)
	for {
		n.mu.Lock()
		ok, changed := done(), n.changed
		n.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			n.t.Fatalf("waited in vain: %s; states %+v, problems %q, health %+v", what, n.states, n.problems, n.health[max(0, len(n.health)-3):])
		}
	}
}

// untilRuns waits until the member knows that a job runs, which may print something before that. Until then it is told of no loss.
func (n *nodeAgent) untilRuns(id string) {
	n.t.Helper()
	n.until(id+" is told to run", func() bool { return n.states[id].Phase == api.JobRunning })
}

// untilEnded waits until the job has ended and its output is complete.
func (n *nodeAgent) untilEnded(id string) member.JobState {
	n.t.Helper()
	n.until(id+" ends and its output is complete", func() bool {
		s := n.states[id]
		return s.Phase.Ended() && (s.Phase == api.JobLost || int64(len(n.logs[id])) >= s.LogBytes)
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.states[id]
}

func (n *nodeAgent) output(id string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return string(n.logs[id])
}

// shellJob is a job that runs a script.
func shellJob(id, script string) api.Job {
	return api.Job{ID: id, Phase: api.JobPending, JobRequest: api.JobRequest{Command: []string{"sh", "-c", script}}}
}

func TestJobsEndAsTheirCommandsDo(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	plain := filepath.Join(p.cfg.User.Home, "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name    string
		job     api.Job
		phase   api.JobPhase
		code    int // -1: none
		message string
		output  string
	}{
		{"standard output and error come together", shellJob("", "echo out; echo err >&2"), api.JobSucceeded, 0, "", "out\nerr\n"},
		{"an exit code is kept", shellJob("", "exit 3"), api.JobFailed, 3, "", ""},
		{"a signal is told as shells do", shellJob("", "kill -KILL $$"), api.JobFailed, 137, "SIGKILL", ""},
		{"a command that is not there", command("no-such-program"), api.JobFailed, 127, `command "no-such-program" is not in the member's PATH (/usr/local/bin:/usr/bin:/bin)`, ""},
		{"a path that is not there", command("/no/such/program"), api.JobFailed, 127, `command "/no/such/program" does not exist in the member`, ""},
		{"a file that is no program", command(plain), api.JobFailed, 126, "can't be executed: its mode is -rw-r--r--", ""},
		{"a directory that is not there", func() api.Job {
			job := command("true")
			job.Directory = "nowhere"
			return job
		}(), api.JobFailed, -1, "nowhere does not exist in member m", ""},
		{"no command", command(), api.JobFailed, 127, "no command", ""},
		{"the working directory is the home", shellJob("", `test "$PWD" = "$HOME" && echo "$USER $NEARMETAL_CLUSTER $NEARMETAL_MEMBER"`), api.JobSucceeded, 0, "", "someone c1 m\n"},
		{"input is empty", shellJob("", "cat; echo end"), api.JobSucceeded, 0, "", "end\n"},
		{"a job in a session of its own", shellJob("", `test "$(ps -o sid= -p $$ | tr -d ' ')" = $$`), api.JobSucceeded, 0, "", ""},
		{"what a command leaves running ends with it", shellJob("", "sleep 1000 & echo $!"), api.JobSucceeded, 0, "", "*"},
		{"what left the session does not hold the job", shellJob("", "setsid sleep 5 & true"), api.JobSucceeded, 0, "", ""},
		{"a job that was cancelled in time is not started", func() api.Job {
			job := shellJob("", "echo started")
			job.CancelRequested = true
			return job
		}(), api.JobCancelled, -1, "before it was started", ""},
		{"a job that ran before this member agent is lost", func() api.Job {
			job := shellJob("", "echo started")
			job.Phase = api.JobRunning
			return job
		}(), api.JobLost, -1, "job ended when its member was restarted", ""},
	}
	jobs := make([]api.Job, 0, len(cases))
	for i := range cases {
		cases[i].job.ID = fmt.Sprintf("job-%d", i)
		jobs = append(jobs, cases[i].job)
		n.server.RequestLog(cases[i].job.ID, 0, 1)
	}
	n.server.SetJobs(jobs)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			state := n.untilEnded(c.job.ID)
			code := -1
			if state.ExitCode != nil {
				code = *state.ExitCode
			}
			if state.Phase != c.phase || code != c.code || !strings.Contains(state.Message, c.message) {
				t.Errorf("got %s, exit code %d, message %q; want %s, %d, %q", state.Phase, code, state.Message, c.phase, c.code, c.message)
			}
			if out := n.output(c.job.ID); out != c.output && c.output != "*" {
				t.Errorf("it printed %q, want %q", out, c.output)
			}
		})
	}
}

func command(args ...string) api.Job {
	return api.Job{Phase: api.JobPending, JobRequest: api.JobRequest{Command: args}}
}

func TestAJobStartsOnceThroughReconnectionsAndRestarts(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	job := shellJob("once", "echo started >>$HOME/starts; echo up; cat "+fifo(t, p))
	n.server.SetJobs([]api.Job{job})
	n.server.RequestLog("once", 0, 1)
	n.until("its command is up", func() bool { return string(n.logs["once"]) == "up\n" })
	running := func() bool { return n.states["once"].Phase == api.JobRunning }
	n.until("the job runs", running)

	t.Log("the node agent is started again and still believes the job to be pending")
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	n.note(func() { n.states = map[string]member.JobState{} })
	n.listen(p.socket())
	n.server.SetJobs([]api.Job{job})
	n.until("the job runs", running)

	t.Log("the member is started again")
	p.kill()
	p.start()
	if state := n.untilEnded("once"); state.Phase != api.JobLost {
		t.Errorf("the job is %s, want it lost", state.Phase)
	}

	t.Log("both are started again")
	p.kill()
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	n.note(func() { n.states = map[string]member.JobState{} })
	n.listen(p.socket())
	n.server.SetJobs([]api.Job{job})
	p.start()
	if state := n.untilEnded("once"); state.Phase != api.JobLost {
		t.Errorf("the job is %s, want it lost", state.Phase)
	}
	if starts, err := os.ReadFile(filepath.Join(p.cfg.User.Home, "starts")); err != nil || string(starts) != "started\n" {
		t.Errorf("the job's starts: %q (%v), want one", starts, err)
	}
}

// fifo makes a pipe that a job can read from and that the test holds open.
func fifo(t *testing.T, p *process) string {
	path, _ := feed(t, p)
	return path
}

// feed makes a pipe that a job can read from and that the test writes to.
func feed(t *testing.T, p *process) (string, *os.File) {
	t.Helper()
	path := filepath.Join(p.cfg.User.Home, "feed")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return path, file
}

// nudging waits until done holds, and feeds empty lines meanwhile: a shell acts on a signal that comes just before it reads only once it has
// read something.
func (n *nodeAgent) nudging(feed *os.File, what string, done func() bool) {
	n.t.Helper()
	stop := make(chan struct{})
	var feeding sync.WaitGroup
	feeding.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = feed.WriteString("\n")
			case <-stop:
				return
			}
		}
	})
	defer func() {
		close(stop)
		feeding.Wait()
	}()
	n.until(what, done)
}

func TestOutputIsNeitherLostNorDoubledWhenTheNodeAgentIsStartedAgain(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), false)
	p.start()
	path, file := feed(t, p)
	job := shellJob("j", "head -n 4000 "+path)
	n.server.SetJobs([]api.Job{job})
	n.server.RequestLog("j", 0, 1)
	var want strings.Builder
	for round := range 4 {
		for i := range 1000 {
			line := fmt.Sprintf("round %d line %d\n", round, i)
			want.WriteString(line)
			if _, err := io.WriteString(file, line); err != nil {
				t.Fatal(err)
			}
		}
		n.until("some output of this round comes", func() bool { return len(n.logs["j"]) > want.Len()*9/10 })
		if err := n.server.Close(); err != nil {
			t.Fatal(err)
		}
		// What was stored for good is less than what came: the rest comes again.
		var stored int
		n.note(func() {
			stored = len(n.logs["j"]) * 3 / 4
			n.logs["j"] = n.logs["j"][:stored]
		})
		n.listen(p.socket())
		n.server.SetJobs([]api.Job{job})
		n.server.RequestLog("j", int64(stored), 1)
	}
	if state := n.untilEnded("j"); state.Phase != api.JobSucceeded {
		t.Errorf("the job %s: %s", state.Phase, state.Message)
	}
	if got := n.output("j"); got != want.String() {
		t.Errorf("got %d bytes of output, want %d; the first difference is at %d", len(got), want.Len(), difference(got, want.String()))
	}
}

func difference(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func TestMuchMoreOutputThanTheSpoolHoldsPassesWhole(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	job := shellJob("j", "seq 1 3000000")
	n.server.SetJobs([]api.Job{job})
	n.server.RequestLog("j", 0, 1)
	n.until("some of it comes", func() bool { return len(n.logs["j"]) > 4<<20 })
	t.Log("the node agent is started again, and not all of what came was stored")
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	stored := 0
	n.note(func() {
		// Acknowledged output is gone; the last mebibyte may not have been.
		stored = len(n.logs["j"])
	})
	n.listen(p.socket())
	n.server.SetJobs([]api.Job{job})
	n.server.RequestLog("j", int64(stored), 1)
	state := n.untilEnded("j")
	var want strings.Builder
	for i := range 3000000 {
		fmt.Fprintln(&want, i+1)
	}
	if got := n.output("j"); got != want.String() || state.DiscardedBytes != 0 {
		t.Errorf("got %d bytes, want %d; the first difference is at %d; %d were discarded", len(got), want.Len(), difference(got, want.String()), state.DiscardedBytes)
	}
}

func TestOutputThatIsNotFetchedIsDiscardedAfterAWhileMarkedAndCounted(t *testing.T) {
	p := newProcess(t)
	p.cfg.OutputPatience = 100 * time.Millisecond
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	n.server.SetJobs([]api.Job{shellJob("j", "yes | head -c 30000000")})
	n.until("the job ends", func() bool { return n.states["j"].Phase.Ended() })
	n.server.RequestLog("j", 0, 1)
	state := n.untilEnded("j")
	got := n.output("j")
	// What is in the job's pipe when it has ended is kept again, behind the note.
	kept, rest, _ := strings.Cut(got, "\n[nearmetal: ")
	said, tail, _ := strings.Cut(rest, " bytes of output are missing here, the control plane did not fetch it in time]\n")
	missing, err := strconv.Atoi(said)
	if err != nil || len(kept)+missing+len(tail) != 30000000 || len(kept) < int(p.cfg.SpoolBytes)*9/10 || strings.Trim(kept+tail, "y\n") != "" {
		t.Errorf("kept %d bytes, then a note of %q missing, then %d bytes; want nearly %d bytes first, and 30000000 in all",
			len(kept), said, len(tail), p.cfg.SpoolBytes)
	}
	if state.DiscardedBytes != int64(missing) {
		t.Errorf("%d bytes are counted as discarded, want %d", state.DiscardedBytes, missing)
	}
}

func TestOutputBeyondWhatTheServerStoresIsDiscardedWithoutHoldingUpTheJob(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), false)
	p.start()
	n.server.SetJobs([]api.Job{shellJob("j", "yes | head -c 300000000")})
	n.server.RequestLog("j", 0, 1)
	n.until("as much comes as is sent unacknowledged", func() bool { return len(n.logs["j"]) > 1000000 })
	const stored = 1000000
	n.server.DiscardLog("j", stored)
	n.until("the job ends", func() bool { return n.states["j"].Phase.Ended() })
	if state := n.states["j"]; state.Phase != api.JobSucceeded || state.LogBytes != stored || state.DiscardedBytes != 300000000-stored {
		t.Errorf("got %+v, want it succeeded with %d bytes of output and the rest discarded", state, stored)
	}
}

func TestAJobThatIsHeldUpByItsOutputHoldsUpNothingElseAndCanBeCancelled(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	held := shellJob("held", "yes | head -c 300000000")
	n.server.SetJobs([]api.Job{held})
	n.untilRuns("held") // its output is not asked for
	jobs := []api.Job{held}
	for i := range 3 {
		other := shellJob(fmt.Sprintf("other%d", i), "yes | head -c 3000000")
		jobs = append(jobs, other)
		n.server.SetJobs(jobs)
		n.server.RequestLog(other.ID, 0, 1)
	}
	for _, other := range jobs[1:] {
		if state := n.untilEnded(other.ID); state.Phase != api.JobSucceeded || state.DiscardedBytes != 0 {
			t.Errorf("beside one that is held up, another is %+v", state)
		}
	}
	if phase := n.states["held"].Phase; phase != api.JobRunning {
		t.Fatalf("the one that is held up is %s, want it running", phase)
	}
	jobs[0].Phase, jobs[0].CancelRequested = api.JobRunning, true
	n.server.SetJobs(jobs)
	n.until("it is cancelled", func() bool { return n.states["held"].Phase == api.JobCancelled })
	n.server.RequestLog("held", 0, 1)
	if state := n.untilEnded("held"); state.DiscardedBytes != 0 || strings.Trim(n.output("held"), "y\n") != "" {
		t.Errorf("what it had printed is not all there: %+v", state)
	}
}

func TestACancelledJobIsAskedFirstAndThenMadeToEnd(t *testing.T) {
	const short = 200 * time.Millisecond
	// A shell whose child is killed a moment before itself would say so: those to be killed have none.
	for _, c := range []struct {
		name, script string
		output       string
		graceSeconds float64
		interrupt    time.Duration // how long it has to act on the interrupt
	}{
		{"one that obeys the interrupt", "echo up; exec sleep 1000", "up\n", 0, short},
		{"one that has to be terminated", `trap "" INT; echo up; while :; do :; done`, "up\n", 0, short},
		{"one that has to be killed", `trap "" INT TERM; echo up; while :; do :; done`, "up\n", 0, short},
		{"one that cleans up", `trap "echo cleaned; exit 0" INT; echo up; while :; do sleep 0.01; done`, "up\ncleaned\n", 0, patience},
		{"one that a time limit ends", `trap "echo late" INT; trap "echo cleaned; exit 0" TERM; echo up; while :; do :; done`, "up\ncleaned\n", 60, short},
		{"one that outstays its grace", `trap "" TERM; echo up; while :; do :; done`, "up\n", 0.2, short},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProcess(t)
			p.cfg.InterruptGrace, p.cfg.TerminateGrace = c.interrupt, short
			n := newNodeAgent(t, p.socket(), true)
			p.start()
			job := shellJob("j", c.script)
			n.server.SetJobs([]api.Job{job})
			n.server.RequestLog("j", 0, 1)
			n.until("the job is up", func() bool { return strings.HasPrefix(string(n.logs["j"]), "up\n") })
			job.Phase, job.CancelRequested, job.GraceSeconds = api.JobRunning, true, c.graceSeconds
			n.server.SetJobs([]api.Job{job})
			state := n.untilEnded("j")
			if state.Phase != api.JobCancelled || state.ExitCode != nil || state.EndedAt == nil {
				t.Errorf("got %+v, want it cancelled, with a time and without an exit code", state)
			}
			if got := n.output("j"); got != c.output {
				t.Errorf("it printed %q, want %q", got, c.output)
			}
		})
	}
}

func TestAMemberEndsWhenAsked(t *testing.T) {
	for _, c := range []struct {
		name string
		ask  func(p *process, n *nodeAgent)
	}{
		{"by the node agent", func(_ *process, n *nodeAgent) { n.server.StopMember() }},
		{"by a signal", func(p *process, _ *nodeAgent) { _ = p.cmd.Process.Signal(syscall.SIGTERM) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProcess(t)
			n := newNodeAgent(t, p.socket(), true)
			p.start()
			n.server.SetJobs([]api.Job{shellJob("j", "echo $$; exec sleep 1000")})
			n.server.RequestLog("j", 0, 1)
			n.until("the job prints its PID", func() bool { return strings.HasSuffix(string(n.logs["j"]), "\n") })
			began := time.Now()
			c.ask(p, n)
			if err := p.cmd.Wait(); err != nil {
				t.Errorf("the member agent: %v, want exit code 0", err)
			}
			t.Logf("it took %v", time.Since(began))
			if _, err := os.Stat("/proc/" + strings.TrimSpace(n.output("j"))); err == nil {
				t.Error("the job still runs")
			}
		})
	}
}

func TestAMemberIsReadyWhenItsSSHDAnswersLaterThanTheFirstAttemptLasts(t *testing.T) {
	p := newProcess(t)
	p.cfg.SSHD = []string{"/bin/sh", "-c", `sleep 0.3; printf 'SSH-2.0-slow\r\n'`}
	p.cfg.ReadyPatience = 10 * time.Millisecond
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	n.until("the member is ready", func() bool { return n.ready == 1 })
}

func TestAMemberIsReadyWhenSSHDAnswersAndElseSaysWhyNot(t *testing.T) {
	p := newProcess(t)
	// What sshd says for want of a host key.
	p.cfg.SSHD = []string{"/bin/sh", "-c", `if [ -e ` + p.cfg.User.Home + `/key ]; then printf 'SSH-2.0-x\r\n'; else echo 'sshd: no hostkeys available -- exiting.' >&2; fi`}
	p.cfg.ReadyPatience = time.Millisecond
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	n.until("the problem is told", func() bool {
		return len(n.problems) > 0 && strings.Contains(n.problems[len(n.problems)-1], "no hostkeys available")
	})
	if n.ready != 0 {
		t.Error("the member said that it is ready")
	}
	if err := os.WriteFile(filepath.Join(p.cfg.User.Home, "key"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.until("the member is ready", func() bool { return n.ready == 1 })

	t.Log("readiness is told again to a new node agent")
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	n.listen(p.socket())
	n.until("the member is ready", func() bool { return n.ready == 2 })
}
