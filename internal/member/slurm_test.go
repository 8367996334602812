package member

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nearmetal/nearmetal/internal/children"
	"github.com/nearmetal/nearmetal/internal/member/memberconfig"
	"github.com/nearmetal/nearmetal/internal/needs"
)

const someSlurmConf = `# Generated.
ClusterName=c1
SlurmctldHost=c1-0(10.64.16.2)
NodeName=c1-0 NodeAddr=10.64.16.2 Sockets=1
NodeName=c1-1 NodeAddr=10.64.16.3 Sockets=1 Gres=gpu:2
PartitionName=all Nodes=c1-0,c1-1 Default=YES
`

func TestTheGeneratedSlurmConfIsRead(t *testing.T) {
	want := slurmConf{
		controller: "c1-0", address: "10.64.16.2",
		nodes: map[string]string{"c1-0": "10.64.16.2", "c1-1": "10.64.16.3"}, gpus: map[string]int{"c1-1": 2},
	}
	if diff := cmp.Diff(want, parseSlurmConf([]byte(someSlurmConf)), cmp.AllowUnexported(slurmConf{})); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	lost := parseSlurmConf([]byte("SlurmctldHost=c1-0\n"))
	if lost.controller != "c1-0" || lost.address != "" {
		t.Errorf("a lost controller is read as %+v", lost)
	}
}

func TestNodesAreGoneThatAreNotThereOrInAnothersPlace(t *testing.T) {
	before := slurmConf{nodes: map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}}
	next := slurmConf{nodes: map[string]string{"a": "10.0.0.1", "b": "10.0.0.9", "d": "10.0.0.4"}}
	if diff := cmp.Diff([]string{"b", "c"}, before.gone(next)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestANodeThatRunsNoJobsIsAProblem(t *testing.T) {
	for state, bad := range map[string]bool{
		"IDLE": false, "MIXED": false, "ALLOCATED+DRAIN": false, "IDLE+COMPLETING": false,
		"UNKNOWN": true, "DOWN": true, "IDLE+NOT_RESPONDING": true, "IDLE*": true, "INVAL": true,
	} {
		err := nodeProblem("NodeName=c1-1 Arch=x86_64 RealMemory=512 State=" + state + " ThreadsPerCore=1\n")
		if (err != nil) != bad || bad && !strings.Contains(err.Error(), state) {
			t.Errorf("a node that is %s: %v", state, err)
		}
	}
	if nodeProblem("Node c1-1 not found\n") == nil {
		t.Error("a node that slurmctld does not know passes")
	}
}

func writeAt(t *testing.T, path, content string, at time.Time) {
	t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600), os.Chtimes(path, at, at))
	if err != nil {
		t.Fatal(err)
	}
}

// opened is the path of what openState opens, and whether it was adopted.
func opened(t *testing.T, home string) (path string, adopted bool) {
	t.Helper()
	dir, adopted, err := openState(home, "u1", "u1.c1-0.3")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	if path, err = os.Readlink(workingDirectory(dir)); err != nil {
		t.Fatal(err)
	}
	return path, adopted
}

func TestAControllerAdoptsTheLatestStateAndLeavesNoOther(t *testing.T) {
	home := t.TempDir()
	cluster := filepath.Join(home, ".slurm", "u1")
	now := time.Now()
	writeAt(t, filepath.Join(cluster, "u1.c1-0.2", "job_state"), "new", now)
	writeAt(t, filepath.Join(cluster, "u1.c1-0.2", "hash.1", "job.1", "script"), "#!/bin/sh", now)
	writeAt(t, filepath.Join(cluster, "u1.c1-0.1", "job_state"), "old", now)
	if err := os.Chtimes(filepath.Join(cluster, "u1.c1-0.1"), now.Add(-time.Hour), now.Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	writeAt(t, filepath.Join(cluster, ".new", "half"), "copied when it died", now)
	writeAt(t, filepath.Join(home, ".slurm", "u2", "u2.c1-0.1", "job_state"), "another cluster's", now)
	state, adopted := opened(t, home)
	if want := filepath.Join(cluster, "u1.c1-0.3"); !adopted || state != want {
		t.Fatalf("adopted: %v, as %s, want %s", adopted, state, want)
	}
	for name, want := range map[string]string{"job_state": "new", "hash.1/job.1/script": "#!/bin/sh"} {
		if got, err := os.ReadFile(filepath.Join(state, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v", name, got, err)
		}
	}
	entries, err := os.ReadDir(cluster)
	if err != nil || len(entries) != 1 {
		t.Errorf("there are %v, %v", entries, err)
	}
	writeAt(t, filepath.Join(state, "job_state"), "its own", now)
	if _, adopted := opened(t, home); adopted {
		t.Error("a controller that starts again adopts something")
	}
	if got, _ := os.ReadFile(filepath.Join(state, "job_state")); string(got) != "its own" {
		t.Errorf("a controller that starts again finds %q", got)
	}
}

func TestTheFirstControllerOfAClusterBeginsWithNothing(t *testing.T) {
	state, adopted := opened(t, t.TempDir())
	if entries, err := os.ReadDir(state); adopted || err != nil || len(entries) != 0 {
		t.Errorf("adopted: %v; it has %v, %v", adopted, entries, err)
	}
}

func TestAStateThatIsNotRootsAloneIsRefused(t *testing.T) {
	needs.Root(t, "gives a directory to another user")
	for name, spoil := range map[string]func(home string) error{
		"a directory of the user's": func(home string) error {
			return errors.Join(os.Mkdir(filepath.Join(home, ".slurm"), 0o700), os.Chown(filepath.Join(home, ".slurm"), 1000, 1000))
		},
		"a link to a directory of the user's": func(home string) error {
			return errors.Join(os.Mkdir(filepath.Join(home, "hpc"), 0o700), os.Chown(filepath.Join(home, "hpc"), 1000, 1000), os.Symlink("hpc", filepath.Join(home, ".slurm")))
		},
		"a directory that others may write": func(home string) error {
			return errors.Join(os.Mkdir(filepath.Join(home, ".slurm"), 0o700), os.Chmod(filepath.Join(home, ".slurm"), 0o777))
		},
		"a link out of the home": func(home string) error { return os.Symlink("/run", filepath.Join(home, ".slurm")) },
	} {
		home := t.TempDir()
		if err := spoil(home); err != nil {
			t.Fatal(err)
		}
		if dir, _, err := openState(home, "u1", "u1.c1-0.3"); err == nil {
			t.Errorf("%s is taken", name)
			_ = dir.Close()
		}
	}
}

// newTestDaemon is a shell's words as a daemon, with a reaper.
func newTestDaemon(t *testing.T, words string) *daemon {
	t.Helper()
	c := children.New()
	ctx, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	go c.Reap(ctx)
	d, err := newDaemon(c, slog.New(slog.DiscardHandler), "/bin/sh", "-c", words)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.stop)
	return d
}

func awaitFile(t *testing.T, path, what string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; pause(t.Context(), 5*time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func TestADaemonThatEndsIsStartedAgainAndSaysWhy(t *testing.T) {
	dir := t.TempDir()
	d := newTestDaemon(t, "cd "+dir+"; echo cannot do it; [ -e once ] && { touch twice; exec sleep 100; }; touch once; exit 7")
	d.start(nil)
	awaitFile(t, filepath.Join(dir, "twice"), "the daemon to be started again")
	if got := d.problem(); !strings.Contains(got, "sh does not run: exit code 7") {
		t.Errorf("the problem is %q", got)
	}
	d.stop()
	if d.running() {
		t.Error("it runs when it was stopped")
	}
}

func TestWhatADaemonStartedLivesOnWhenItIsStopped(t *testing.T) {
	dir := t.TempDir()
	d := newTestDaemon(t, "cd "+dir+"; setsid sh -c 'touch began; until [ -e go ]; do sleep 0.01; done; touch done' & trap 'touch told; exit' TERM; touch up; while :; do sleep 0.01; done")
	d.start(nil)
	awaitFile(t, filepath.Join(dir, "began"), "the daemon's child to run")
	awaitFile(t, filepath.Join(dir, "up"), "the daemon to run")
	d.stop()
	if _, err := os.Stat(filepath.Join(dir, "told")); errors.Is(err, fs.ErrNotExist) {
		t.Error("the daemon was not asked to end")
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	awaitFile(t, filepath.Join(dir, "done"), "the daemon's child to go on")
}

// fakeSlurm is a root with programs that note in the file "said" how they are called, and a slurm that serves there as member c1-0.
func fakeSlurm(t *testing.T) (s *slurm, configure func(conf string), said func() string) {
	t.Helper()
	root := t.TempDir()
	for name, more := range map[string]string{
		"usr/sbin/munged": "touch " + root + mungeSocket + "; ", "usr/sbin/slurmctld": "touch ran-here; ", "usr/sbin/slurmd": "", "usr/bin/scontrol": "exit 0; ",
	} {
		text := "#!/bin/sh\necho ${0##*/} \"$@\" | cut -d= -f1-3 >>" + root + "/said\n" + more + "trap exit TERM; while :; do sleep 0.01; done\n"
		writeAt(t, filepath.Join(root, name), text, time.Now())
		if err := os.Chmod(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(root, "home"), 0o755); err != nil {
		t.Fatal(err)
	}
	c := children.New()
	ctx, end := context.WithCancel(context.Background())
	t.Cleanup(end)
	go c.Reap(ctx)
	s = newSlurm(Config{File: memberconfig.File{AssignmentID: "u1.c1-0.1"}, Log: slog.New(slog.DiscardHandler)}, c)
	s.member, s.root = "c1-0", root
	t.Cleanup(func() {
		for _, d := range []*daemon{s.munged, s.slurmctld, s.slurmd} {
			if d != nil {
				d.stop()
			}
		}
	})
	configure = func(conf string) {
		t.Helper()
		path := filepath.Join(root, "etc/slurm/slurm.conf")
		writeAt(t, path+".new", conf, time.Now())
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		if err := s.follow(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return s, configure, func() string {
		text, _ := os.ReadFile(filepath.Join(root, "said"))
		return string(text)
	}
}

// awaitSaid waits until a daemon has noted that it runs for the nth time.
func awaitSaid(t *testing.T, said func() string, line string, n int) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); strings.Count(said(), line) < n; pause(t.Context(), 5*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %q, %d times, in\n%s", line, n, said())
		}
	}
}

func TestSlurmFollowsItsConfiguration(t *testing.T) {
	s, configure, said := fakeSlurm(t)
	if err := s.follow(t.Context()); err != nil || said() != "" {
		t.Fatalf("without a configuration: %v, %s", err, said())
	}
	configure(someSlurmConf)
	awaitSaid(t, said, "slurmctld -D\n", 1)
	awaitSaid(t, said, "slurmd -D\n", 1)
	awaitFile(t, s.at("/home/.slurm/u1/u1.c1-0.1/ran-here"), "slurmctld to run where its state is")
	if strings.Contains(said(), "scontrol update") {
		t.Errorf("a first controller says that nodes are down:\n%s", said())
	}
	if err := s.follow(t.Context()); err != nil || strings.Count(said(), "slurmd -D\n") != 1 {
		t.Errorf("an unchanged configuration is acted on: %v\n%s", err, said())
	}

	// Its controller is lost: everything stays.
	configure("SlurmctldHost=c1-0\nNodeName=c1-0 NodeAddr=10.64.16.2\n")
	if s.conf.address == "" || s.conf.nodes["c1-1"] == "" {
		t.Errorf("a configuration without a controller is acted on: %+v", s.conf)
	}

	// A member goes.
	configure(strings.Replace(someSlurmConf, "NodeName=c1-1 NodeAddr=10.64.16.3 Sockets=1 Gres=gpu:2\n", "", 1))
	awaitSaid(t, said, "slurmctld -D\n", 2)
	awaitSaid(t, said, "slurmd -D\n", 2)
	if !strings.Contains(said(), "scontrol update NodeName=c1-1 State=DOWN") {
		t.Errorf("jobs on a node that is gone are not ended:\n%s", said())
	}

	// The controller is another member.
	configure(strings.Replace(someSlurmConf, "SlurmctldHost=c1-0(10.64.16.2)", "SlurmctldHost=c1-1(10.64.16.3)", 1))
	awaitSaid(t, said, "slurmd -D\n", 3)
	if s.slurmctld.running() {
		t.Error("slurmctld runs in a member that is not the controller any more")
	}
	if got := strings.Count(said(), "munged"); got != 1 {
		t.Errorf("munged was started %d times", got)
	}
}

func TestAMemberThatIsNoNodeRunsNoSlurm(t *testing.T) {
	s, configure, said := fakeSlurm(t)
	s.member = "login-0"
	configure(someSlurmConf)
	s.look.done = true
	if err := s.usable(t.Context()); err != nil || said() != "" {
		t.Errorf("%v, and it ran\n%s", err, said())
	}
}

func TestAControllerThatReplacesAnotherSaysThatItsOwnNodeWasDown(t *testing.T) {
	s, configure, said := fakeSlurm(t)
	writeAt(t, filepath.Join(s.root, "home/.slurm/u1/u1.c1-0.0/job_state"), "jobs", time.Now())
	configure(someSlurmConf)
	awaitSaid(t, said, "slurmd -D\n", 1)
	if down, up := strings.Index(said(), "scontrol update NodeName=c1-0 State=DOWN"), strings.Index(said(), "slurmd -D"); down < 0 || down > up {
		t.Errorf("jobs of the member before are taken for its own:\n%s", said())
	}
}

func TestAFileStandsForEachGPUOfTheMember(t *testing.T) {
	s, configure, said := fakeSlurm(t)
	s.member = "c1-1"
	configure(someSlurmConf)
	awaitSaid(t, said, "slurmd -D\n", 1)
	found, err := filepath.Glob(s.at("/run/slurm/gpu*"))
	if diff := cmp.Diff([]string{s.at("/run/slurm/gpu0"), s.at("/run/slurm/gpu1")}, found); err != nil || diff != "" {
		t.Errorf("%v, (-want +got)\n%s", err, diff)
	}
	for _, path := range found {
		if info, err := os.Stat(path); err != nil || info.Mode()&os.ModeCharDevice == 0 {
			t.Errorf("%s is no device: %v", path, err)
		}
	}
	configure(someSlurmConf) // again, as another member came
}

func TestAHomeThatRootCannotUseKeepsNoController(t *testing.T) {
	s, configure, said := fakeSlurm(t)
	if err := os.WriteFile(s.at("/home/.slurm"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	configure(someSlurmConf)
	awaitSaid(t, said, "slurmctld -D\n", 1)
	awaitFile(t, s.at("/run/slurm/.slurm/u1/u1.c1-0.1/ran-here"), "slurmctld to run with a state of its own")
}
