package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/hostsnapshot"
)

// site is an API that does what the demo asks, without members: jobs print canned output.
type site struct {
	stateDir string
	phase    api.ClusterPhase
	jobFails string // the end of the name of a program whose job fails
	onJob    func()

	cluster *api.Cluster
	jobs    map[string]api.Job
	deleted bool
	stopped bool
}

func (s *site) serve(ctx context.Context, opts config.Dev, ready func(Client)) error {
	s.stateDir, s.jobs = opts.StateDir, map[string]api.Job{}
	ready(s)
	<-ctx.Done()
	s.stopped = true
	return nil
}

func (s *site) Nodes(context.Context) ([]api.Node, error) {
	n := api.Node{Phase: api.NodeReady}
	n.Stacks = []api.StackCheck{{Stack: api.StackContainer, OK: true}}
	return []api.Node{n}, nil
}

func (s *site) CreateCluster(_ context.Context, req api.ClusterRequest) (api.Cluster, error) {
	s.cluster = &api.Cluster{Name: req.Name, UID: "uid1", Status: api.ClusterStatus{Phase: s.phase, Message: "because of a test"}}
	for rank := range req.Size {
		s.cluster.Status.Members = append(s.cluster.Status.Members, api.MemberStatus{
			Name: fmt.Sprintf("%s-%d", req.Name, rank), Rank: rank, CPUs: []int{rank % 2}, Phase: api.MemberReady,
		})
	}
	return *s.cluster, os.MkdirAll(filepath.Join(s.stateDir, "home", "uid1", "hpc"), 0o755)
}

func (s *site) WatchCluster(context.Context, string) iter.Seq2[client.ClusterChange, error] {
	return func(yield func(client.ClusterChange, error) bool) {
		yield(client.ClusterChange{Cluster: *s.cluster, Deleted: s.deleted}, nil)
	}
}

func (s *site) DeleteCluster(context.Context, string) (api.Cluster, error) {
	s.deleted = true
	return *s.cluster, nil
}

func (s *site) CreateJob(ctx context.Context, _ string, req api.JobRequest) (api.Job, error) {
	if s.onJob != nil {
		s.onJob()
	}
	if err := ctx.Err(); err != nil {
		return api.Job{}, err
	}
	job := api.Job{ID: fmt.Sprint("job", len(s.jobs)), JobRequest: req, Phase: api.JobSucceeded}
	if s.jobFails != "" && strings.HasSuffix(req.Command[0], s.jobFails) {
		code := 17
		job.Phase, job.ExitCode = api.JobFailed, &code
	}
	s.jobs[job.ID] = job
	return job, nil
}

func (s *site) Job(_ context.Context, id string) (api.Job, error) { return s.jobs[id], nil }

func (s *site) JobLog(_ context.Context, id string, _ int64, _ bool, w io.Writer) (int64, error) {
	text := "Hello from rank 0 of 2 on demo-0\nHello from rank 1 of 2 on demo-1\n"
	if strings.HasSuffix(s.jobs[id].Command[0], "pingpong") {
		text = `{"program":"pingpong","mpi":"Open MPI v4.1.4","processors":["demo-0","demo-1"]}` + "\n"
		for size := 8; size <= 4<<20; size *= 2 {
			text += fmt.Sprintf(`{"bytes":%d,"latency_us":7.5,"bandwidth_mb_per_s":%d}`+"\n", size, size)
		}
	}
	n, err := io.WriteString(w, text)
	return int64(n), err
}

// visitSite runs the tour against a site.
func visitSite(t *testing.T, s *site) (string, string, error) {
	t.Helper()
	if _, err := exec.LookPath("mpicc"); err != nil {
		t.Skip("needs mpicc and mpirun")
	}
	t.Setenv("TMPDIR", t.TempDir())
	if s.phase == "" {
		s.phase = api.ClusterReady
	}
	report := filepath.Join(t.TempDir(), "r.html")
	var out bytes.Buffer
	opts := Options{Demo: config.Demo{Report: report, Pairs: 2}, Serve: s.serve, SizeMilliseconds: 1}
	err := tour(t.Context(), opts, newNarrator(&out))
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("the tour left %v in its temporary directory", left)
	}
	return out.String(), report, err
}

func TestTheTourShowsEveryStepAndWritesTheReport(t *testing.T) {
	s := &site{}
	out, report, err := visitSite(t, s)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, must := range []string{
		"demo-1", "Hello from rank 1 of 2", "pair 2 of 2", "cluster µs", "4 MiB", "undecided", report, "deleting the cluster: done",
		"stopping server and agent: done",
	} {
		if !strings.Contains(out, must) {
			t.Errorf("the output lacks %q:\n%s", must, out)
		}
	}
	page, err := os.ReadFile(report)
	if err != nil || !bytes.Contains(page, []byte("Open MPI v4.1.4")) || !bytes.Contains(page, []byte("loopback")) {
		t.Errorf("the page does not name MPI's version and the transports: %v", err)
	}
	if _, err := os.Stat(strings.TrimSuffix(report, ".html") + ".json"); err != nil {
		t.Error(err)
	}
}

func TestWhateverFailsTheClusterIsDeletedAndTheSiteStopped(t *testing.T) {
	for name, c := range map[string]struct {
		site *site
		says string
	}{
		"the hello fails":        {&site{jobFails: "hello"}, "exit code 17"},
		"the measurement fails":  {&site{jobFails: "pingpong"}, "the ping-pong on the cluster"},
		"the cluster is refused": {&site{phase: api.ClusterRefused}, "because of a test"},
		"the cluster fails":      {&site{phase: api.ClusterFailed}, "because of a test"},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := visitSite(t, c.site)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want an error that says %q\n%s", err, c.says, out)
			}
			if !c.site.deleted || !c.site.stopped {
				t.Errorf("deleted %v, stopped %v", c.site.deleted, c.site.stopped)
			}
		})
	}
}

func TestAnInterruptedTourCleansUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &site{phase: api.ClusterReady, onJob: cancel}
	if _, err := exec.LookPath("mpicc"); err != nil {
		t.Skip("needs mpicc")
	}
	var out bytes.Buffer
	err := tour(ctx, Options{Demo: config.Demo{Report: filepath.Join(t.TempDir(), "r.html"), Pairs: 2}, Serve: s.serve}, newNarrator(&out))
	if !errors.Is(err, context.Canceled) || !s.deleted || !s.stopped {
		t.Errorf("got %v, deleted %v, stopped %v\n%s", err, s.deleted, s.stopped, out.String())
	}
}

func TestAPlaceWhereNoReportCanBeIsRefusedBeforeAnythingStarts(t *testing.T) {
	_, err := reportFiles(filepath.Join(t.TempDir(), "missing", "r.html"))
	if err == nil || !strings.Contains(err.Error(), "--report") {
		t.Errorf("got %v, want an error that says what to do", err)
	}
}

func TestMembersThatShareACoreAreSaidSo(t *testing.T) {
	c := api.Cluster{Status: api.ClusterStatus{Members: []api.MemberStatus{{Name: "a", CPUs: []int{0}}, {Name: "b", CPUs: []int{1}}}}}
	if got := oversubscription(c); got != "" {
		t.Errorf("separate cores: got %q", got)
	}
	c.Status.Oversubscribed = true
	if got := oversubscription(c); got == "" {
		t.Error("an oversubscribed cluster is not labelled")
	}
	c.Status.Members[1].CPUs = []int{0}
	if got := oversubscription(c); !strings.Contains(got, "a and b share CPU 0") {
		t.Errorf("one core: got %q", got)
	}
}

func TestWhatIsLeftFailsTheDemoAndWhatOthersDoesNot(t *testing.T) {
	var out bytes.Buffer
	n := newNarrator(&out)
	others := hostsnapshot.Difference{Kind: hostsnapshot.Socket, Change: hostsnapshot.Appeared, Key: "tcp 127.0.0.1:1", Verdict: hostsnapshot.Others, Why: "x"}
	if err := judgement(n, hostsnapshot.Snapshot{}, hostsnapshot.Snapshot{}, []hostsnapshot.Difference{others}); err != nil {
		t.Errorf("got %v for a difference of others", err)
	}
	left := hostsnapshot.Difference{Kind: hostsnapshot.Link, Change: hostsnapshot.Appeared, Key: "nmbr1", Verdict: hostsnapshot.Left}
	err := judgement(n, hostsnapshot.Snapshot{}, hostsnapshot.Snapshot{}, []hostsnapshot.Difference{others, left})
	if !errors.Is(err, ErrLeft) || !strings.Contains(out.String(), "LEFT link appeared: nmbr1") {
		t.Errorf("got %v and\n%s", err, out.String())
	}
}
