package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/cli"
)

func TestRunWarnsOfInputThatTheJobDoesNotGet(t *testing.T) {
	s := readySite(t)
	path := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(path, []byte("data\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := func(text string, open bool) *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if open {
			t.Cleanup(func() { w.Close() })
		} else {
			w.Close()
		}
		return r
	}
	file := func(path string) *os.File {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	_, tty := terminal(t)
	for name, tc := range map[string]struct {
		in    *os.File
		warns bool
	}{
		"a pipe with data":     {pipe("data\n", false), true},
		"an open pipe":         {pipe("", true), false},
		"a pipe that is empty": {pipe("", false), false},
		"a file":               {file(path), true},
		"/dev/null":            {file("/dev/null"), false},
		"a terminal":           {tty, false},
	} {
		sh := viaSocket(s)
		sh.in = tc.in
		r := sh.run(t, "run", "c1", "--detach", "cat")
		if warned := strings.Contains(r.err, "Warning: standard input is not passed on"); r.code != 0 || warned != tc.warns {
			t.Errorf("%s: exit code %d, warned %t, want %t: %s", name, r.code, warned, tc.warns, r.err)
		}
	}
}

func TestACancelledJobThatDoesNotEndIsNotWaitedForLong(t *testing.T) {
	for name, tc := range map[string]struct {
		phase api.MemberPhase
		say   string
	}{
		"its node is away":    {api.MemberUnknown, "its node n1 is unreachable, and the job is ended when the node returns"},
		"its processes go on": {api.MemberReady, "its processes have not exited yet"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			job := api.Job{ID: "j1", Cluster: "c1", MemberID: "uid.c1-0.1", Phase: api.JobRunning}
			f.fixed("POST /v1/clusters/c1/jobs", job)
			f.fixed("GET /v1/jobs/j1", job)
			f.fixed("GET /v1/clusters/c1", cluster("c1", 1, api.ClusterReady, member("c1", 0, tc.phase)))
			f.fixed("POST /v1/jobs/j1/cancel", job)
			follows := f.holds("GET /v1/jobs/j1/log")
			sh := f.shell()
			sh.interrupts, sh.patience = make(chan os.Signal, 2), 50*time.Millisecond
			r := sh.during(t, func() {
				<-follows
				sh.interrupts <- syscall.SIGTERM
			}, "run", "c1", "x")
			has(t, r, cli.ExitInterrupted, "cancelling job j1, waiting up to 50ms", "Error: the cancelled job has not ended after 50ms: "+tc.say, "nearmetal job show j1")
		})
	}
}
