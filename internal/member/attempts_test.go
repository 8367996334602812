package member_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/member"
)

func TestALostMemberIsSignalledToTheJobOncePerLoss(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	path, file := feed(t, p)
	// Every signal and every line of the feed is printed; "end" ends it.
	job := shellJob("j", `trap "echo signalled" USR1; echo up; while :; do read line <`+path+` || continue; [ -z "$line" ] && continue; echo "$line"; [ "$line" = end ] && exit 0; done`)
	job.FailureSignal, job.Failures = "USR1", 1 // lost before it began: not its business
	say := func(line string) {
		t.Helper()
		if _, err := file.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what, want string) {
		t.Helper()
		n.nudging(file, what+": output "+want, func() bool { return string(n.logs["j"]) == want })
	}
	n.server.SetJobs([]api.Job{job})
	n.server.RequestLog("j", 0, 1)
	expect("at first", "up\n")
	n.untilRuns("j")
	job.Phase, job.Failures = api.JobRunning, 2
	n.server.SetJobs([]api.Job{job})
	expect("a member is lost", "up\nsignalled\n")

	t.Log("the node agent is started again")
	if err := n.server.Close(); err != nil {
		t.Fatal(err)
	}
	n.note(func() { n.states = map[string]member.JobState{} })
	n.listen(p.socket())
	n.server.RequestLog("j", int64(len(n.output("j"))), 1)
	n.server.SetJobs([]api.Job{job})
	n.until("the job is told of", func() bool { return n.states["j"].Phase == api.JobRunning })
	say("one")
	expect("nobody else is lost", "up\nsignalled\none\n")
	job.Failures = 5
	n.server.SetJobs([]api.Job{job})
	expect("three are lost at once", "up\nsignalled\none\nsignalled\n")
	say("end")
	if state := n.untilEnded("j"); state.Phase != api.JobSucceeded {
		t.Errorf("got %+v, want success", state)
	}
	if got := n.output("j"); got != "up\nsignalled\none\nsignalled\nend\n" {
		t.Errorf("it printed %q", got)
	}
}

func TestAJobThatIsToldAndEndedInOneListHasTimeToActOnTheSignal(t *testing.T) {
	for _, grace := range []time.Duration{patience, 50 * time.Millisecond} {
		p := newProcess(t)
		p.cfg.InterruptGrace = grace
		n := newNodeAgent(t, p.socket(), true)
		p.start()
		path, file := feed(t, p)
		job := shellJob("j", `trap "echo signalled" USR1; echo up; while :; do read line <`+path+` || continue; [ -z "$line" ] && continue; exit 0; done`)
		job.FailureSignal = "USR1"
		n.server.SetJobs([]api.Job{job})
		n.server.RequestLog("j", 0, 1)
		n.until("it is up", func() bool { return string(n.logs["j"]) == "up\n" })
		n.untilRuns("j")
		job.Phase, job.Failures, job.CancelRequested = api.JobRunning, 1, true
		n.server.SetJobs([]api.Job{job})
		n.server.SetJobs([]api.Job{job})
		want := api.JobCancelled
		if grace == patience {
			want = api.JobSucceeded
			n.nudging(file, "it acts on the signal", func() bool { return string(n.logs["j"]) == "up\nsignalled\n" })
			if _, err := file.WriteString("checkpoint written\n"); err != nil {
				t.Fatal(err)
			}
		}
		if state := n.untilEnded("j"); state.Phase != want {
			t.Errorf("with %s to act: got %+v, want it %s", grace, state, want)
		}
	}
}

func TestTheDefaultFailureSignalDisturbsNoProgramThatDoesNotKnowOfIt(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	path, file := feed(t, p)
	job := shellJob("j", "echo up; head -n 1 "+path)
	n.server.SetJobs([]api.Job{job})
	n.server.RequestLog("j", 0, 1)
	n.until("it is up", func() bool { return string(n.logs["j"]) == "up\n" })
	job.Phase, job.Failures = api.JobRunning, 1
	n.server.SetJobs([]api.Job{job})
	if _, err := file.WriteString("line\n"); err != nil {
		t.Fatal(err)
	}
	if state := n.untilEnded("j"); state.Phase != api.JobSucceeded || state.Message != "" || n.output("j") != "up\nline\n" {
		t.Errorf("got %+v and output %q, want success", state, n.output("j"))
	}
}

func TestAnUnknownFailureSignalIsToldOf(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	for _, name := range []string{"NONSENSE", "SIGUSR1", "usr1", "10"} {
		job := shellJob(name, "exec sleep 1000")
		job.FailureSignal = name
		n.server.SetJobs([]api.Job{job})
		n.until("it runs", func() bool { return n.states[name].Phase == api.JobRunning })
		job.Failures = 1
		n.server.SetJobs([]api.Job{job})
		n.until("it is told of", func() bool { return strings.Contains(n.states[name].Message, `"`+name+`" is not a signal name`) })
		if phase := n.states[name].Phase; phase != api.JobRunning {
			t.Errorf("the job is %s, want it running", phase)
		}
		job.CancelRequested = true // its process would outlive the test
		n.server.SetJobs([]api.Job{job})
		n.until("it ends", func() bool { return n.states[name].Phase == api.JobCancelled })
	}
}

func TestALaterAttemptStartsOnlyWhenTheEarlierHasEnded(t *testing.T) {
	p := newProcess(t)
	n := newNodeAgent(t, p.socket(), true)
	p.start()
	path, file := feed(t, p)
	// The first attempt ends, when it is asked to, only once it has got a line; the lock tells of two at once.
	script := `exec 9>$HOME/lock; flock -n 9 || { echo "two at once"; exit 1; }
		if [ "$NEARMETAL_JOB_ATTEMPT" = 0 ]; then trap "echo asked; head -n 1 ` + path + `; exit 0" INT; fi
		echo "attempt $NEARMETAL_JOB_ATTEMPT of $NEARMETAL_JOB_ID"
		while [ "$NEARMETAL_JOB_ATTEMPT" = 0 ] || [ "$NEARMETAL_JOB_ATTEMPT" = 2 ]; do sleep 0.01; done`
	attempt := func(number int) api.Job {
		job := shellJob("j", script)
		job.Attempt = number
		return job
	}
	set := func(jobs ...api.Job) {
		n.server.SetJobs(jobs)
		n.server.RequestLog(jobs[len(jobs)-1].RunID(), 0, 1)
	}
	first, second, third, fourth := attempt(0), attempt(1), attempt(2), attempt(3)
	set(first)
	n.until("the first runs", func() bool { return strings.HasPrefix(string(n.logs["j"]), "attempt 0 of j\n") })
	first.Phase = api.JobRunning
	set(first, second)
	n.until("the first is asked to end", func() bool { return strings.HasSuffix(string(n.logs["j"]), "asked\n") })
	n.until("the second waits", func() bool { return n.states["j.1"].Phase == api.JobPending })
	set(first, second, third) // the second never starts
	n.until("the third waits", func() bool { return n.states["j.2"].Phase == api.JobPending })
	if _, err := file.WriteString("line\n"); err != nil {
		t.Fatal(err)
	}
	if state := n.untilEnded("j"); state.Phase != api.JobCancelled || state.Message != "ended to be run again from the start" {
		t.Errorf("the first: %+v", state)
	}
	if state := n.untilEnded("j.1"); state.Phase != api.JobCancelled || state.StartedAt != nil {
		t.Errorf("the second: %+v, want it cancelled before it began", state)
	}
	n.until("the third runs", func() bool { return string(n.logs["j.2"]) == "attempt 2 of j\n" })
	set(fourth)
	if state := n.untilEnded("j.3"); state.Phase != api.JobSucceeded || n.output("j.3") != "attempt 3 of j\n" {
		t.Errorf("the fourth: %+v, it printed %q", state, n.output("j.3"))
	}
	n.server.SetJobs([]api.Job{{ID: "j", Attempt: 1, Phase: api.JobPending, JobRequest: fourth.JobRequest}, {ID: "k", Phase: api.JobPending, JobRequest: command("true").JobRequest}})
	n.untilEnded("k")
	if state := n.states["j.1"]; state.Phase != api.JobCancelled {
		t.Errorf("an earlier attempt that comes late: %+v, want it cancelled", state)
	}
	if given, err := os.ReadFile(filepath.Join(filepath.Dir(p.socket()), "jobs.given")); err != nil || strings.Count(string(given), "\n") != 5 {
		t.Errorf("given were %q (%v), want four attempts and another job", given, err)
	}
}

func TestAMemberOfAnEarlierVersionGetsNoSecondAttempt(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	n := newNodeAgent(t, socket, true)
	first, second := shellJob("first", "true"), shellJob("second", "true")
	second.Attempt = 1
	n.server.SetJobs([]api.Job{first, second})
	s := connect(t, socket)
	s.send(member.FromMember{Hello: &member.Hello{Instance: "i1", Version: 1}})
	if message := s.receive(); message.Jobs == nil || len(*message.Jobs) != 1 || (*message.Jobs)[0].ID != "first" {
		t.Errorf("it got %+v, want the first attempt only", message)
	}
	n.until("the other is lost", func() bool {
		state := n.states["second.1"]
		return state.Phase == api.JobLost && strings.Contains(state.Message, "earlier version")
	})
}
