package cli_test

import (
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/cli"
)

// readySite is a site with the ready cluster c1 of two members.
func readySite(t *testing.T) *apiservertest.Site {
	t.Helper()
	s := newSite(t)
	if r := viaSocket(s).run(t, "cluster", "create", "c1", "--size", "2", "--no-wait"); r.code != 0 {
		t.Fatal(r.err)
	}
	s.Place("c1")
	s.MakeReady("c1")
	return s
}

func anyJob(api.Job) bool { return true }

func TestRunEndsAsTheJobDid(t *testing.T) {
	tests := []struct {
		name    string
		phase   api.JobPhase
		code    int // of the job; -1: none
		message string
		want    int
		says    string
	}{
		{"success", api.JobSucceeded, 0, "", 0, ""},
		{"its own exit code", api.JobFailed, 42, "", 42, "ended with exit code 42"},
		{"ended by a signal", api.JobFailed, 137, "killed", 137, "exit code 137: killed"},
		{"could not be started", api.JobFailed, -1, "no such program", cli.ExitFailed, "Error: job"},
		{"cancelled by somebody else", api.JobCancelled, 143, "", cli.ExitInterrupted, "was cancelled"},
		{"lost with its node", api.JobLost, -1, "", cli.ExitFailed, "went away"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := readySite(t)
			r := viaTCP(s).during(t, func() {
				j := s.AwaitJob(anyJob)
				s.Logs.Write(j.ID, "output\n")
				s.EndJob(j.ID, tt.phase, tt.code, tt.message)
			}, "run", "c1", "x")
			if r.code != tt.want || r.out != "output\n" || !strings.Contains(r.err, tt.says) || (tt.says == "" && r.err != "") {
				t.Errorf("exit code %d, want %d; output %q, error %q", r.code, tt.want, r.out, r.err)
			}
		})
	}
}

func TestFlagsAfterTheCommandAreItsOwn(t *testing.T) {
	s := readySite(t)
	for args, want := range map[string]string{
		"run c1 --detach -n 2 ls -l -n 7":       "ls|-l|-n|7",
		"run c1 --detach -n 2 -- ls -l":         "ls|-l",
		"run --detach -n 2 c1 -- --odd-program": "--odd-program",
		"run c1 -n 2 --detach prog -- x":        "prog|--|x",
	} {
		r := viaSocket(s).run(t, strings.Fields(args)...)
		if r.code != 0 {
			t.Fatalf("%s: %s", args, r.err)
		}
		id := strings.TrimSpace(r.out)
		j := s.AwaitJob(func(j api.Job) bool { return j.ID == id })
		if got := strings.Join(j.Command, "|"); got != want || j.Ranks != 2 {
			t.Errorf("%s: command %s with %d ranks, want %s with 2", args, got, j.Ranks, want)
		}
	}
	if r := viaSocket(s).run(t, "run", "c1", "--help"); r.code != 0 || !strings.Contains(r.out, "Usage:") {
		t.Errorf("--help after the cluster: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := viaSocket(s).run(t, "run", "c1", "--rnaks", "2", "x"); r.code != cli.ExitUsage || !strings.Contains(r.err, "--rnaks") {
		t.Errorf("unknown flag after the cluster: exit code %d: %s", r.code, r.err)
	}
}

func TestVariablesOfAJobAreTakenAsTheyAre(t *testing.T) {
	s := readySite(t)
	want := map[string]string{
		"URI": `<Interface name="eth1" priority="high"/>`, "FLAGS": "-x=1,-y=2", "LIST": "1,B=2", "QUOTED": `"a"`, "LINES": "a=1\nb=2", "EMPTY": "", "TWICE": "second",
	}
	args := []string{"run", "c1", "--detach", "--env", "TWICE=first"}
	for name, value := range want {
		args = append(args, "--env", name+"="+value)
	}
	if r := viaSocket(s).run(t, append(args, "x")...); r.code != 0 {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	if got := s.AwaitJob(anyJob).Env; !maps.Equal(got, want) {
		t.Errorf("the job has %q, want %q", got, want)
	}
	r := viaSocket(s).run(t, "run", "c1", "--env", "X", "x")
	if want := `--env: "X" is not NAME=VALUE`; r.code != cli.ExitUsage || !strings.Contains(r.err, want) {
		t.Errorf("a variable without a value: exit code %d: %s, want %s", r.code, r.err, want)
	}
}

func TestTheFirstCtrlCCancelsTheJobAndWaitsForItsEnd(t *testing.T) {
	s := readySite(t)
	sh := viaTCP(s)
	interrupts := make(chan os.Signal, 2)
	sh.interrupts = interrupts
	r := sh.during(t, func() {
		j := s.AwaitJob(anyJob)
		s.Logs.Write(j.ID, "working\n")
		interrupts <- syscall.SIGINT
		s.AwaitJob(func(j api.Job) bool { return j.CancelRequested })
		s.Logs.Write(j.ID, "cleaning up\n")
		s.EndJob(j.ID, api.JobCancelled, 130, "")
	}, "run", "c1", "-n", "2", "x")
	if r.code != cli.ExitInterrupted || r.out != "working\ncleaning up\n" || !strings.Contains(r.err, "was cancelled") {
		t.Errorf("exit code %d, output %q, error %q", r.code, r.out, r.err)
	}
}

func TestTheSecondCtrlCLeavesTheJobAlone(t *testing.T) {
	s := readySite(t)
	sh := viaTCP(s)
	interrupts := make(chan os.Signal, 2)
	sh.interrupts = interrupts
	r := sh.during(t, func() {
		s.AwaitJob(anyJob)
		interrupts <- syscall.SIGINT
		s.AwaitJob(func(j api.Job) bool { return j.CancelRequested })
		interrupts <- syscall.SIGINT
	}, "run", "c1", "x")
	if r.code != cli.ExitInterrupted || !strings.Contains(r.err, "no longer waiting for job") || strings.Contains(r.err, "Error:") {
		t.Errorf("exit code %d, error %q", r.code, r.err)
	}
	if j := s.AwaitJob(anyJob); j.Phase.Ended() {
		t.Errorf("the job is %s", j.Phase)
	}
}

func TestNamesAreCompletedByAskingTheServer(t *testing.T) {
	s := readySite(t)
	if r := viaTCP(s).run(t, "run", "c1", "--detach", "sleep", "1"); r.code != 0 {
		t.Fatal(r.err)
	}
	job := s.AwaitJob(anyJob).ID
	for args, want := range map[string]string{
		"cluster show ":          "c1",
		"cluster delete ":        "c1",
		"run ":                   "c1",
		"node show ":             "n2",
		"env show ":              "local",
		"job logs ":              job,
		"cluster create --env ":  "local",
		"cluster create --stack": "--stack",
		"cluster list -o ":       "yaml",
	} {
		words := strings.Fields(args)
		if strings.HasSuffix(args, " ") {
			words = append(words, "")
		}
		r := viaTCP(s).run(t, append([]string{"__complete"}, words...)...)
		if !strings.Contains(r.out, want) {
			t.Errorf("completing %q gives %q, want %q among it", args, r.out, want)
		}
	}
	if r := viaTCP(s).run(t, "__complete", "cluster", "delete", "c1", ""); strings.Contains(r.out, "c1") {
		t.Errorf("a name already given is offered again: %q", r.out)
	}
	for _, name := range []string{"bash", "zsh", "fish"} {
		if r := viaTCP(s).run(t, "completion", name); r.code != 0 || !strings.Contains(r.out, "nearmetal") {
			t.Errorf("completion %s: exit code %d", name, r.code)
		}
	}
	if r := viaTCP(s).run(t, "completion", "csh"); r.code != cli.ExitUsage {
		t.Errorf("completion csh: exit code %d", r.code)
	}
}

func TestVersionTellsBothAndToleratesAMissingServer(t *testing.T) {
	s := newSite(t)
	if r := viaTCP(s).run(t, "version", "-o", "json"); r.code != 0 || !strings.Contains(r.out, `"server"`) {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	gone := shell{env: map[string]string{"NEARMETAL_STATE": t.TempDir()}}
	if r := gone.run(t, "version"); r.code != 0 || !strings.Contains(r.out, "can't reach the server") {
		t.Errorf("without a server: exit code %d: %s%s", r.code, r.out, r.err)
	}
}

func TestFollowedEventsComeAsLinesOfJSON(t *testing.T) {
	s := readySite(t)
	r := viaTCP(s).during(t, func() {
		s.Release("c1")
		s.Event("c1", "Gone", "nothing is left")
		s.Forget("c1")
	}, "cluster", "events", "c1", "--follow", "-o", "json")
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if r.code != 0 || len(lines) != 3 || !strings.Contains(lines[2], `"reason":"Gone"`) {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
}
