package e2e

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// faultRounds is how many rounds tests that go by chance make: NEARMETAL_FAULT_ROUNDS, else so many.
func faultRounds(usual int) int {
	if n, err := strconv.Atoi(os.Getenv("NEARMETAL_FAULT_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return usual
}

// faultSeed is the seed of such a test: NEARMETAL_FAULT_SEED, else another each time.
func faultSeed(t *testing.T) uint64 {
	t.Helper()
	seed, err := strconv.ParseUint(os.Getenv("NEARMETAL_FAULT_SEED"), 10, 64)
	if err != nil {
		seed = uint64(rand.Uint32())
	}
	t.Logf("NEARMETAL_FAULT_SEED=%d", seed)
	return seed
}

// TestFaultsInAnyOrderAreOutlived kills members, agents and the server by chance, while a cluster is scaled and runs jobs. After each
// round the cluster has to be ready with the right members, and everything else as it should.
func TestFaultsInAnyOrderAreOutlived(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	seed := faultSeed(t)
	s := startSite(t, 8, "--nodes", "8", "--node-cores", "2")
	s.revive(true)
	f := &faults{site: s, random: rand.New(rand.NewPCG(seed, 0)), counts: map[string]int{}}
	for round := range faultRounds(4) {
		if round%2 == 0 { // what dies again and again is replaced ever later
			f.begin()
		}
		passed := t.Run(fmt.Sprint(round), func(t *testing.T) {
			f.site = s.as(t)
			f.round(round)
		})
		if f.site = s; !passed {
			break
		}
	}
	t.Logf("faults: %v", f.counts)
}

// faults is a site to which faults happen by chance.
type faults struct {
	*site
	random *rand.Rand
	size   int
	counts map[string]int
}

// begin makes the cluster, in place of a former one.
func (f *faults) begin() {
	f.t.Helper()
	if f.cli("cluster", "show", "c").code == 0 {
		f.must("cluster", "delete", "c", "--yes")
	}
	f.size = 4
	f.cluster("c", f.size)
}

// round scales a cluster and lets faults happen to it while it runs two jobs, one that is run again and one that is not.
func (f *faults) round(n int) {
	c := f.waitMembersFor(2*time.Minute, f.size)
	script := fmt.Sprintf(`exec 2>/dev/null; trap 'echo told' USR1; echo begin; until [ -e over-%d ]; do sleep 0.02; done; echo end`, n)
	again := f.submit("c", "--requeue", "--", "sh", "-c", fmt.Sprintf("echo begin; until [ -e over-%d ]; do sleep 0.02; done; echo end", n))
	once := f.submit("c", "--failure-signal", "USR1", "--", "sh", "-c", script)
	for _, id := range []string{again, once} {
		f.waitJob(id, "run", func(j api.Job) bool { return j.Phase == api.JobRunning || j.Phase.Ended() })
	}
	f.scale(2 + f.random.IntN(6))
	var log []string
	for range 2 + f.random.IntN(4) {
		fault := chaos[f.random.IntN(len(chaos))]
		log = append(log, fault.name)
		f.counts[fault.name]++
		fault.do(f)
	}
	f.t.Logf("size %d to %d; %s", len(placed(c)), f.size, strings.Join(log, ", "))
	f.waitForNodes(8)
	now := f.waitMembersFor(3*time.Minute, f.size)
	if err := os.WriteFile(filepath.Join(f.sharedHome(now), fmt.Sprintf("over-%d", n)), nil, 0o644); err != nil {
		f.t.Fatal(err)
	}
	f.checkJobs(again, once, placed(c)["c-0"].Address)
	if now = f.waitMembersFor(2*time.Minute, f.size); f.t.Failed() {
		return
	}
	f.checkSound()
	f.checkUsable(now)
}

// checkJobs checks what became of a round's jobs.
func (f *faults) checkJobs(again, once, rank0 string) {
	f.t.Helper()
	ended := func(j api.Job) bool { return j.Phase.Ended() }
	job := f.waitJob(again, "end", ended)
	if out := f.logOf(again); job.Phase != api.JobSucceeded || out != "begin\nend\n" {
		f.t.Errorf("a job that is run again printed %q last, want %q: %+v", out, "begin\nend\n", job)
	}
	job = f.waitJob(once, "end", ended)
	out := f.logOf(once)
	switch job.Phase {
	case api.JobSucceeded:
		// The member that ran it lived on. Of those that died it was told, unless they were found dead before it ran; several at
		// once may be one signal.
		told := strings.Count(out, "told\n")
		if strings.ReplaceAll(out, "told\n", "") != "begin\nend\n" || told > job.Failures || told == 0 && job.Failures > 0 {
			f.t.Errorf("a job under which %d members died printed %q: %+v", job.Failures, out, job)
		}
	case api.JobLost:
		// A server that is killed after it has stored a loss may not have stored the event. The member that takes the place has another address.
		now, err := f.api().Cluster(f.t.Context(), "c")
		replaced := err == nil && placed(now)["c-0"].Address != rank0
		events, err := f.api().Events(f.t.Context(), "c", 0)
		if !replaced && (err != nil || !slices.ContainsFunc(events, func(e api.Event) bool {
			return e.Reason == "MemberLost" && e.Member == "c-0" && e.Time.After(job.CreatedAt)
		})) {
			f.t.Errorf("a job is lost, though rank 0 did not die since (%v): %+v", err, job)
		}
		if job.Message == "" {
			f.t.Errorf("a lost job does not say why: %+v", job)
		}
	default:
		f.t.Errorf("want a job that succeeded or was lost: %+v, printed %q", job, out)
	}
}

func (f *faults) waitMembersFor(deadline time.Duration, size int) api.Cluster {
	f.t.Helper()
	want := first(size, "c")
	return f.waitClusterFor(deadline, "c", fmt.Sprintf("ready with %d members and no other", size), func(c api.Cluster) bool {
		held := placed(c)
		return c.Status.Phase == api.ClusterReady && len(c.Status.Members) == size && slices.Equal(slices.Sorted(maps.Keys(held)), want) &&
			!slices.ContainsFunc(c.Status.Members, func(m api.MemberStatus) bool { return m.Phase != api.MemberReady })
	})
}

// scale asks for another size, however often the server dies meanwhile, and does not wait for it.
func (f *faults) scale(size int) {
	f.t.Helper()
	f.eventually(time.Minute, fmt.Sprintf("a scale to %d to be taken", size), func() bool {
		_, err := f.api().ScaleCluster(f.t.Context(), "c", api.ScaleRequest{Size: size, Queue: true})
		var problem *client.Error
		if errors.As(err, &problem) && problem.Code != "unavailable" {
			f.t.Fatalf("scale to %d: %v", size, err)
		}
		return err == nil
	})
	f.size = size
}

// chaos is what happens by chance.
var chaos = []struct {
	name string
	do   func(*faults)
}{
	{"a member is killed", func(f *faults) { f.killSome(1) }},
	{"several members are killed", func(f *faults) { f.killSome(2 + f.random.IntN(3)) }},
	{"a replacement is killed", (*faults).killReplacement},
	{"an agent is killed", func(f *faults) { f.killAgents(1) }},
	{"several agents are killed", func(f *faults) { f.killAgents(2 + f.random.IntN(6)) }},
	{"the server is killed", func(f *faults) { f.killServer() }},
	{"the cluster is scaled", func(f *faults) { f.scale(2 + f.random.IntN(6)) }},
}

// killSome kills members by chance, among those whose processes run.
func (f *faults) killSome(n int) {
	for _, id := range f.choose(n, slices.Sorted(maps.Keys(f.processes()))) {
		f.killProcess(f.processes()[id])
	}
}

// killReplacement kills a member, waits until another one of its name runs, and kills that as well.
func (f *faults) killReplacement() {
	processes := f.processes()
	for _, id := range f.choose(1, slices.Sorted(maps.Keys(processes))) {
		f.killProcess(processes[id])
		name := nameIn(id)
		if !slices.Contains(first(f.size, "c"), name) {
			return // it is being let go and is not replaced
		}
		next := 0
		f.eventually(2*time.Minute, "a replacement of "+name+" to run", func() bool {
			for other, pid := range f.processes() {
				// One that had not begun to run when it was killed is started again under its own ID.
				if nameIn(other) == name && pid != processes[id] {
					next = pid
				}
			}
			return next != 0
		})
		f.killProcess(next)
	}
}

// processes are the first processes of the cluster's members.
func (f *faults) processes() map[string]int {
	f.t.Helper()
	var c api.Cluster
	f.eventually(time.Minute, "the cluster", func() (ok bool) {
		var err error
		c, err = f.api().Cluster(f.t.Context(), "c")
		return err == nil
	})
	return memberProcesses(f.t, c.UID)
}

func (f *faults) killAgents(n int) {
	for _, node := range f.choose(n, []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8"}) {
		pid := f.agentOf(node)
		f.killProcess(pid)
		f.eventually(time.Minute, fmt.Sprintf("the agent of %s to be dead", node), func() bool { return !alive(pid) })
	}
}

func (f *faults) killServer() { f.killProcess(f.pid()) }

// killProcess kills a process that may have ended by itself.
func (f *faults) killProcess(pid int) {
	if pid <= 1 {
		return
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		f.t.Fatalf("process %d: %v", pid, err)
	}
}

// choose picks n of these, or all if there are fewer.
func (f *faults) choose(n int, from []string) []string {
	from = slices.Clone(from)
	f.random.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	return from[:min(n, len(from))]
}
