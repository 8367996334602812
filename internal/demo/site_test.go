package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/lifecycle"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// site is an API that does what the demo asks, without members: jobs print canned output.
type site struct {
	phase    api.ClusterPhase
	jobFails string // the end of the name of a program whose job fails
	onJob    func()
	// What goes wrong: HPL's solution on the cluster, the cluster after a member was killed, the refusal of members for a drained node,
	// the sums of the usage report, members of one node.
	wrongHPL, doesNotHeal, takesDrained, doesNotAddUp, spreads bool
	// canned: the host's mpirun and mpicc are scripts with canned output, for tours that are not about what the host really does.
	canned bool
	// shares is what MPI says of members that exchange messages through shared memory; empty: they do not.
	shares string

	sites    []config.Dev
	stopped  int
	stateDir string
	cluster  *api.Cluster
	jobs     map[string]api.Job
	killed   chan string
	drained  bool
	deleted  bool
}

func (s *site) serve(ctx context.Context, opts config.Dev, ready func(Client)) error {
	s.sites = append(s.sites, opts)
	s.stateDir, s.jobs, s.killed, s.deleted = opts.StateDir, map[string]api.Job{}, make(chan string, 1), false
	ready(s)
	<-ctx.Done()
	s.stopped++
	return nil
}

func (s *site) nodes() []string {
	return []string{"n1", "n2"}[:s.sites[len(s.sites)-1].Nodes]
}

func (s *site) Nodes(context.Context) ([]api.Node, error) {
	var nodes []api.Node
	for range s.nodes() {
		n := api.Node{Phase: api.NodeReady}
		n.Offer.Stacks = []api.StackCheck{{Stack: api.StackContainer, OK: true}}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

func (s *site) Node(_ context.Context, name string) (api.Node, error) {
	n := api.Node{}
	for _, m := range s.cluster.Status.Members {
		if m.Node == name {
			n.Members = append(n.Members, s.cluster.Name+"/"+m.Name)
		}
	}
	return n, nil
}

func (s *site) DrainNode(ctx context.Context, name, _ string) (api.Node, error) {
	s.drained = true
	return s.Node(ctx, name)
}

func (s *site) UndrainNode(ctx context.Context, name string) (api.Node, error) {
	s.drained = false
	return s.Node(ctx, name)
}

func (s *site) CreateCluster(_ context.Context, req api.ClusterRequest) (api.Cluster, error) {
	s.cluster = &api.Cluster{Name: req.Name, UID: "uid1", Status: api.ClusterStatus{Phase: s.phase, Message: "because of a test"}}
	s.resize(req.Size)
	return *s.cluster, os.MkdirAll(filepath.Join(s.stateDir, "home", "uid1", "hpc"), 0o755)
}

func (s *site) resize(size int) {
	nodes := s.nodes()
	s.cluster.Status.Members = nil
	for rank := range size {
		node := nodes[0]
		if rank >= members || (s.spreads && rank > 0) {
			node = nodes[len(nodes)-1]
		}
		s.cluster.Status.Members = append(s.cluster.Status.Members, api.MemberStatus{
			Name: fmt.Sprintf("%s-%d", s.cluster.Name, rank), Rank: rank, Node: node, CPUs: []int{rank % 2}, Phase: api.MemberReady,
		})
	}
}

func (s *site) WatchCluster(context.Context, string) iter.Seq2[client.ClusterChange, error] {
	return func(yield func(client.ClusterChange, error) bool) {
		yield(client.ClusterChange{Cluster: *s.cluster, Deleted: s.deleted}, nil)
	}
}

func (s *site) ScaleCluster(_ context.Context, _ string, req api.ScaleRequest) (api.Cluster, error) {
	if req.Size > len(s.cluster.Status.Members) && s.drained && !s.takesDrained {
		return api.Cluster{}, &client.Error{Problem: api.Problem{Code: "no_room", Detail: "there is no room; and more of it"}}
	}
	s.resize(req.Size)
	return *s.cluster, nil
}

func (s *site) DeleteCluster(context.Context, string) (api.Cluster, error) {
	s.deleted = true
	return *s.cluster, nil
}

func (s *site) Events(context.Context, string, int64) ([]api.Event, error) {
	return []api.Event{{Seq: 6}, {Seq: 7}}, nil
}

func (s *site) FollowEvents(_ context.Context, _ string, after int64) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		if after != 7 {
			yield(api.Event{}, errors.New("events from before the kill were asked for"))
			return
		}
		member, now := "demo-2", time.Now()
		_ = yield(api.Event{Reason: lifecycle.EventMemberLost, Member: member, Message: member + " is lost", Time: now}, nil) &&
			!s.doesNotHeal &&
			yield(api.Event{Reason: lifecycle.EventMemberReplaced, Member: member, Message: member + " starts anew", Time: now}, nil) &&
			yield(api.Event{Reason: lifecycle.EventReady, Message: "3 members ready", Time: now.Add(time.Second)}, nil) &&
			yield(api.Event{Reason: "JobRequeued", Message: "the job runs again", Time: now.Add(time.Second)}, nil)
	}
}

func (s *site) kill(_, member string) (int, error) {
	s.killed <- member
	return 4242, nil
}

func (s *site) CreateJob(ctx context.Context, _ string, req api.JobRequest) (api.Job, error) {
	if s.onJob != nil {
		s.onJob()
	}
	if err := ctx.Err(); err != nil {
		return api.Job{}, err
	}
	job := api.Job{ID: fmt.Sprint("job", len(s.jobs)), JobRequest: req, Phase: api.JobSucceeded}
	if req.Requeue {
		job.Attempt = 1
	}
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
	carried := "[demo-0:1] mca: bml: Using tcp btl for send to [[1,1],1] on node demo-1\n"
	if s.shares != "" && s.jobs[id].Env["OMPI_MCA_btl"] == "" {
		carried = s.shares
	}
	switch filepath.Base(s.jobs[id].Command[0]) {
	case "stream":
		text = carried + streamOutput
	case "pingpong":
		text = carried + pingpongOutput()
	case "hpcc-rank":
		// As the installed script has it.
		lines := strings.Split(read(filepath.Join(s.stateDir, "home", "uid1", "hpc", "hpcc-rank")), "\n")
		at := slices.IndexFunc(lines, func(line string) bool { return strings.HasSuffix(line, " Ns") })
		solves, _, _ := strings.Cut(lines[at-1], " ")
		order, _, _ := strings.Cut(lines[at], " ")
		text = "Warning: mpirun may say something before it\n" + carried + hpccOutput(order, solves, s.wrongHPL)
	}
	n, err := io.WriteString(w, text)
	return int64(n), err
}

func (s *site) JobAttemptLog(ctx context.Context, _ string, attempt int, _ int64, _ bool, w io.Writer) (int64, error) {
	if attempt == 1 {
		n, err := io.WriteString(w, "3 ranks go on after step 3 of 8\nstep 4 of 8\n")
		return int64(n), err
	}
	if _, err := io.WriteString(w, "3 ranks begin\nstep 1 of 8\nstep 2 of 8\nstep 3 of"); err != nil {
		return 0, err
	}
	if _, err := io.WriteString(w, " 8\n"); err != nil {
		return 0, err
	}
	select {
	case member := <-s.killed:
		if member != "demo-2" {
			return 0, fmt.Errorf("member %s was killed, want demo-2", member)
		}
		_, err := io.WriteString(w, "ORTE has lost communication with a remote daemon.\n")
		return 0, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *site) Usage(context.Context, client.UsageQuery) (api.UsageReport, error) {
	site := api.SiteUsage{
		Capacity: api.Amount{CoreSeconds: 10}, Allocated: api.Amount{CoreSeconds: 6}, Cleaning: api.Amount{CoreSeconds: 1}, Idle: api.Amount{CoreSeconds: 3},
	}
	if s.doesNotAddUp {
		site.Idle.CoreSeconds = 2
	}
	row := api.UsageRow{Cluster: s.cluster.Name, UID: s.cluster.UID, Amount: api.Amount{CoreSeconds: 6, MemberSeconds: 6, MemoryByteSeconds: 3 << 30}}
	return api.UsageReport{Rows: []api.UsageRow{row}, Site: []api.SiteUsage{site}}, nil
}

const streamOutput = `{"program":"stream","ranks":2,"words":524288,"copy_gb_per_s":19,"triad_gb_per_s":20}` + "\n"

func pingpongOutput() string {
	text := `{"program":"pingpong","mpi":"Open MPI v4.1.4","processors":["demo-0","demo-1"]}` + "\n"
	for size := 8; size <= 4<<20; size *= 2 {
		text += fmt.Sprintf(`{"bytes":%d,"latency_us":7.5,"bandwidth_mb_per_s":%d}`+"\n", size, size)
	}
	return text
}

// can puts scripts in the place of mpicc and mpirun. Of a program that mpirun starts, only one rank runs.
func can(t *testing.T, folder string) {
	t.Helper()
	for name, script := range map[string]string{
		"mpicc": ": >\"$3\"\n", // after -O2 -o
		"mpirun": "echo \"mca: bml: Using ${OMPI_MCA_btl%,self} btl for send to [[1,1],1]\" >&2\n" +
			"for argument; do\n\tcase $argument in\n" +
			"\t*/stream) exec cat <<'END'\n" + streamOutput + "END\n\t;;\n" +
			"\t*/pingpong) exec cat <<'END'\n" + pingpongOutput() + "END\n\t;;\n" +
			"\t*/hpcc-rank) OMPI_COMM_WORLD_RANK=0 exec \"$argument\" ;;\n\tesac\ndone\nexit 1\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// hpccOutput is as much of the output of HPC Challenge as is read, of a run of some order, solved so often, that is right or not.
func hpccOutput(order, solves string, wrong bool) string {
	norm := "1e-12"
	if wrong {
		norm = "1e-8"
	}
	return `Begin of HPL section.
  ` + solves + ` tests completed and passed residual checks,
   0 tests completed and failed residual checks,
End of HPL section.
Begin of StarSTREAM section.
Solution Validates
Node(s) with error 0
End of StarSTREAM section.
Begin of Summary section.
VersionMajor=1
VersionMinor=5
VersionMicro=0
VersionRelease=f
Success=1
CommWorldProcs=2
HPL_N=` + order + `
HPL_NB=80
HPL_nprow=1
HPL_npcol=2
HPL_Tflops=0.002
HPL_time=0.12
HPL_eps=1.11022e-16
HPL_RnormI=` + norm + `
HPL_XnormI=8.1
HPL_AnormI=190
HPL_BnormI=0.5
StarSTREAM_Triad=44.2
STREAM_VectorSize=153600
End of Summary section.
End of HPC Challenge tests.
`
}

// visitSite runs the tour against a site of so many CPUs. On the host, hpcc prints canned output, too; the rest is real unless the site is canned.
func visitSite(t *testing.T, s *site, cpus int) (string, string, error) {
	t.Helper()
	return visitWith(t, s, Options{Demo: config.Demo{Pairs: 2}, cpus: cpus})
}

// visitWith runs the tour with these options and those that all tests have.
func visitWith(t *testing.T, s *site, opts Options) (string, string, error) {
	t.Helper()
	if err := checkPrograms(); err != nil {
		needs.Missing(t, "%v", err)
	}
	fakes := t.TempDir()
	fake := "#!/bin/sh\n[ -e hpccinf.txt ] || exit 0\n" +
		"solves=$(sed -n 's/ .*//;5p' hpccinf.txt) order=$(sed -n 's/ .*//;6p' hpccinf.txt)\n" +
		"cat >hpccoutf.txt <<END\n" + hpccOutput("$order", "$solves", false) + "END\n" +
		// A matrix beyond the trial's takes longer by the cube of its order.
		"slow=${FAKE_HPL_SLOW:-1}; [ $order -le 1440 ] || sed -i \"s/^HPL_time=.*/HPL_time=$(awk \"BEGIN { print $slow * 0.12 * ($order / 1440) ^ 3 }\")/\" hpccoutf.txt\n" +
		"echo \"mca: bml: Using ${OMPI_MCA_btl%,self} btl for send to [[1,1],1]\" >&2\n"
	if err := os.WriteFile(filepath.Join(fakes, "hpcc"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	if s.canned {
		can(t, fakes)
	}
	t.Setenv("PATH", fakes+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", t.TempDir())
	if s.phase == "" {
		s.phase = api.ClusterReady
	}
	report := filepath.Join(t.TempDir(), "r.html")
	var out bytes.Buffer
	opts.Report, opts.Serve, opts.kill = report, s.serve, s.kill
	opts.SizeMilliseconds, opts.cache, opts.free, opts.pairTime = 1, 1<<20, 32<<30, time.Hour // a busy machine is slow
	err := tour(t.Context(), opts, newNarrator(&out))
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("the tour left %v in its temporary directory", left)
	}
	return out.String(), report, err
}
